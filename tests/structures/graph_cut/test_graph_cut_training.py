import json

import numpy as np
import pytest
import torch
from cases.bounded import Bounded, optimum_within
from cases.graph_cases import GraphHeadCase
from cases.graphs import GraphProblem
from cases.problems import flat
from torch.utils.data import DataLoader

from torchssvm import (
    CacheOracle,
    Corrective,
    FrankWolfe,
    GraphCut,
    Labelings,
    LinearGraph,
    MeanParts,
    Pairwise,
    Solver,
    Weights,
    check,
)
from torchssvm.core.batch import apply_head
from torchssvm.steps import Away, ExactSearch, ShortStep
from torchssvm.structures.graph_cut import MinCut, RoofDual, Segmentation

pytest.importorskip("maxflow")


class TestLinearGraph(GraphHeadCase):
    def make_graph_head(self):
        return LinearGraph(3, self.links)

    def reference(self, head, x):
        node = sum(x[:, f] * head.head.unary[f] for f in range(3))
        pairs = [(p, q) for q in range(len(x)) for p in range(q)]
        edge = [sum(x[q, 3 + 2 * p + g] * head.head.pairwise[g] for g in range(2)) for p, q in pairs]
        return {"node": node, "edge": torch.stack(edge) if edge else x.new_zeros(0)}


@pytest.mark.variant
class TestLinearGraphWithoutLengths(TestLinearGraph):
    lengths = False


ATTRACTIVE = {"pairwise": (0.0, None)}


def train(problem, storage, direction=None, oracle=None, *, bounds=ATTRACTIVE, search=None, passes=150, tolerance=1e-6):
    training = Bounded(problem, bounds, line_search=search, storage=storage, direction=direction, oracle=oracle)
    return training.until(tolerance, passes=passes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "direction", "oracle", "search", "tolerance", "dtype"),
    [
        (Labelings(), Corrective(), None, ExactSearch(), 1e-6, torch.float64),
        (Labelings(), Corrective(), None, ExactSearch(), 1e-4, torch.float32),
        (Labelings(capacity=3), Corrective(), CacheOracle(), ExactSearch(), 1e-3, torch.float64),  # some are merged
        (Labelings(), Pairwise(), CacheOracle(), ExactSearch(), 1e-4, torch.float64),
        (Labelings(), Away(), None, ShortStep(), 1e-3, torch.float64),
        (MeanParts(), FrankWolfe(), None, ExactSearch(), 1e-2, torch.float64),
        (Weights(), FrankWolfe(), None, ExactSearch(), 1e-2, torch.float64),
    ],
)
def test_training_reaches_the_optimum_within_the_bounds(storage, direction, oracle, search, tolerance, dtype):
    problem = GraphProblem(2, lam=0.3, dtype=dtype)
    truth = GraphProblem(2, lam=0.3).reference()
    lower = np.array([-np.inf, -np.inf, 0.0, 0.0])
    best, weights = optimum_within(truth, lower, np.full(4, np.inf))
    assert (weights[2:] <= 1e-9).any()  # a bound binds
    assert best > truth.optimum() + 1e-4
    certificate = train(problem, storage, direction, oracle, search=search, tolerance=tolerance)
    assert certificate.gap <= tolerance
    assert certificate.exact
    rounding = 1e-7 if dtype == torch.float64 else 1e-5
    assert certificate.dual - rounding <= best <= certificate.primal + rounding
    learned = flat(problem.head.parameters()).numpy()
    assert (learned >= lower).all()
    strong_convexity = problem.lam / 2 * float(((learned - weights) ** 2).sum())
    assert strong_convexity <= certificate.gap + 10 * rounding


@pytest.mark.parametrize(("oracle", "bounds"), [(MinCut(), ATTRACTIVE), (RoofDual(), None)], ids=str)
def test_head_and_structure_pass_the_check(oracle, bounds):
    structure = GraphCut(oracle)
    problem = GraphProblem(5, structure=structure)
    weights = flat(problem.head.parameters())
    report = check(problem.head, structure, problem.batch(range(5)), bounds=bounds)
    assert report.ok, str(report)
    assert sum(finding.skipped is not None for finding in report.findings) == 0, str(report)
    assert torch.equal(flat(problem.head.parameters()), weights)


@pytest.mark.slow
def test_lightning_decodes_and_writes_segmentations(tmp_path):
    pytest.importorskip("lightning")
    from cases.lightning_chains import trainer

    from torchssvm.lightning import DualityGap, StructuredSVM, WritePredictions

    problem, gap = GraphProblem(2, lam=0.3), DualityGap(tolerance=1e-4, every_n_epochs=5)
    solver = Solver(direction=Corrective(), storage=Labelings(), bounds=ATTRACTIVE)
    model = StructuredSVM(problem.head, lam=problem.lam, solver=solver).double()
    everything = DataLoader(range(problem.n), batch_size=problem.n, collate_fn=problem.batch)
    writer = WritePredictions(tmp_path / "labels.jsonl")
    fitting = trainer(gap, writer, max_epochs=200, enable_checkpointing=False)
    fitting.fit(model, DataLoader(range(problem.n), batch_size=2, collate_fn=problem.batch))
    assert gap.certificate.gap <= 1e-4
    fitting.predict(model, everything)
    batch = problem.batch(range(problem.n))
    labels, expected = model.decode(batch.x, batch.lengths), problem.structure.argmax(apply_head(problem.head, batch))
    assert isinstance(labels, Segmentation)
    assert all(map(torch.equal, labels, expected.labeling))
    pairs = zip(labels.labels.tolist(), problem.lengths.tolist(), strict=True)
    lines = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert lines == [{"index": i, "labeling": one[:size]} for i, (one, size) in enumerate(pairs)]


def test_the_check_takes_weights_within_bounds_only():
    problem = GraphProblem(5)
    batch = problem.batch(range(5))
    assert "edge has the potential" in str(check(problem.head, problem.structure, batch))
    with pytest.raises(ValueError, match="bounds"):
        check(problem.head, problem.structure, batch, bounds={"edge": (0.0, None)})
