import json

import numpy as np
import pytest
import torch
from bounded import Bounded, optimum_within
from graphs import GraphProblem
from head_cases import HeadTestCase
from problems import flat
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import (
    CacheOracle,
    Corrective,
    FrankWolfe,
    GraphCut,
    Graphs,
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


class Complete(nn.Module):
    """``LinearGraph`` on complete graphs, all of whose features stand in one tensor ``[B, N, F + 3 G]``."""

    features, links = 3, 2

    def __init__(self):
        super().__init__()
        self.head = LinearGraph(self.features, self.links)

    def forward(self, x, lengths=None):
        pairs = [(p, q) for q in range(x.shape[1]) for p in range(q)]
        edges = torch.tensor(pairs, dtype=torch.int64, device=x.device).view(-1, 2).expand(len(x), -1, 2)
        if lengths is not None:
            edges = torch.where((edges < lengths.view(-1, 1, 1)).all(2, keepdim=True), edges, -1)
        links = [x[:, q, self.features + p * self.links :][:, : self.links] for p, q in pairs]
        links = torch.stack(links, 1) if links else x.new_zeros(len(x), 0, self.links)
        return self.head(Graphs(x[..., : self.features], links, edges), lengths)


class TestLinearGraph(HeadTestCase):
    lengths = True

    def make_head(self):
        return Complete()

    def make_input(self, random, batch):
        x = torch.randn(batch, 4, 9, generator=random, dtype=torch.float64)
        return (x, torch.randint(1, 5, (batch,), generator=random)) if self.lengths else (x,)

    def reference(self, head, x):
        node = sum(x[:, f] * head.head.unary[f] for f in range(3))
        pairs = [(p, q) for q in range(len(x)) for p in range(q)]
        edge = [sum(x[q, 3 + 2 * p + g] * head.head.pairwise[g] for g in range(2)) for p, q in pairs]
        return {"node": node, "edge": torch.stack(edge) if edge else x.new_zeros(0)}

    def edges(self, potentials, row):
        size = potentials["node"].shape[1] if potentials.lengths is None else int(potentials.lengths[row])
        return size * (size - 1) // 2

    def own(self, potentials, row):
        found = super().own(potentials, row)
        return {"node": found["node"], "edge": found["edge"][: self.edges(potentials, row)]}

    def random_parts(self, potentials, random):
        parts = super().random_parts(potentials, random)
        for row in range(potentials.batch_size):
            parts["edge"][row, self.edges(potentials, row) :] = 0.0
        return parts

    def bad_inputs(self, inputs):
        x = inputs[0]
        for wrong in (0, -1, 5):
            yield (x, torch.tensor([1, wrong, 1])), "lengths must lie between 1 and"
        yield (x, torch.tensor([1.0, 2.0, 3.0])), "lengths must be int64"

    def test_graphs_that_do_not_fit_are_refused(self):
        for wrong in (torch.zeros(2, 4, 3), [1, 2, 3]):
            with pytest.raises(TypeError, match=r"must be Graphs\(nodes, edge_features, edges\)"):
                LinearGraph(3, 2)(wrong)
        head, good = LinearGraph(3, 2), Graphs(torch.zeros(2, 4, 3), torch.zeros(2, 5, 2), torch.full((2, 5, 2), -1))
        head(good)
        for wrong, words in [
            (good._replace(nodes=torch.zeros(2, 4, 2)), r"x.nodes must be \[B, N, 3\]"),
            (good._replace(nodes=torch.zeros(2, 3)), "x.nodes must be"),
            (good._replace(edge_features=torch.zeros(2, 5, 3)), r"x.edge_features must be \[B, E, 2\]"),
            (good._replace(edge_features=torch.zeros(1, 5, 2)), "x.edge_features must be"),
            (good._replace(edges=torch.zeros(2, 5, 2)), "edges must be int64"),
            (good._replace(edges=torch.full((2, 4, 2), -1)), "edges must be int64"),
            (good._replace(edges=torch.zeros(2, 5, 2, dtype=torch.int64)), r"edges has \[0, 0\]"),
        ]:
            with pytest.raises(ValueError, match=words):
                head(wrong)
        for sizes in ((0, 1), (1, 0)):
            with pytest.raises(ValueError, match="must be a whole number, at least 1"):
                LinearGraph(*sizes)


@pytest.mark.variant
class TestLinearGraphWithoutLengths(TestLinearGraph):
    lengths = False


ATTRACTIVE = {"pairwise": (0.0, None)}


def train(problem, storage, direction=None, oracle=None, *, bounds=ATTRACTIVE, search=None, passes=150, tolerance=1e-6):
    training = Bounded(problem, bounds, line_search=search, storage=storage, direction=direction, oracle=oracle)
    return training.until(tolerance, passes=passes)


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
    found = train(problem, storage, direction, oracle, search=search, tolerance=tolerance)
    assert found.gap <= tolerance
    assert found.exact
    rounding = 1e-7 if dtype == torch.float64 else 1e-5
    assert found.dual - rounding <= best <= found.primal + rounding
    held = flat(problem.head.parameters()).numpy()
    assert (held >= lower).all()
    assert problem.lam / 2 * float(((held - weights) ** 2).sum()) <= found.gap + 10 * rounding  # strong convexity


def test_without_bounds_the_error_says_what_to_do():
    problem = GraphProblem(2, lam=0.05)
    with pytest.raises(ValueError, match=r"potential -.*bound their weights at 0"):
        train(problem, MeanParts(), bounds={}, passes=20)


@pytest.mark.parametrize(("oracle", "bounds"), [(MinCut(), ATTRACTIVE), (RoofDual(), None)], ids=str)
def test_head_and_structure_pass_the_check(oracle, bounds):
    structure = GraphCut(oracle)
    problem = GraphProblem(5, structure=structure)
    held = flat(problem.head.parameters())
    report = check(problem.head, structure, problem.batch(range(5)), bounds=bounds)
    assert report.ok, str(report)
    assert sum(finding.skipped is not None for finding in report.findings) == 0, str(report)
    assert torch.equal(flat(problem.head.parameters()), held)


@pytest.mark.slow
def test_lightning_decodes_and_writes_segmentations(tmp_path):
    pytest.importorskip("lightning")
    from short_words import trainer

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
    found, expected = model.decode(batch.x, batch.lengths), problem.structure.argmax(apply_head(problem.head, batch))
    assert isinstance(found, Segmentation)
    assert all(map(torch.equal, found, expected.labeling))
    pairs = zip(found.labels.tolist(), problem.lengths.tolist(), strict=True)
    lines = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert lines == [{"index": i, "labeling": own[:size]} for i, (own, size) in enumerate(pairs)]


def test_the_check_takes_weights_within_bounds_only():
    problem = GraphProblem(5)
    batch = problem.batch(range(5))
    assert "bound their weights at 0" in str(check(problem.head, problem.structure, batch))
    with pytest.raises(ValueError, match=r"bounds names .'edge'.*'pairwise', 'unary'"):
        check(problem.head, problem.structure, batch, bounds={"edge": (0.0, None)})
