"""Approximate and foreign oracles: what BCFW's blocks are made of are outputs, so that its dual is below the optimum.

An oracle whose answers were in a larger set than the hull of the outputs, such as the local polytope, would train
another problem, whose dual may exceed the optimum. Outputs and optima come from enumeration and a QP solver; weights
are made large and graphs frustrated, where relaxations are loose.
"""

from typing import Any

import pytest
import torch
from cases.graphs import GraphProblem
from cases.multilabel_problems import MultilabelProblem
from cases.optima import enclose
from cases.problems import Reference, Training, rng
from torch import Tensor, nn

from torchssvm import (
    Batch,
    CacheOracle,
    Corrective,
    FrankWolfe,
    GraphCut,
    Labelings,
    MeanParts,
    Multilabel,
    Pairwise,
    Potentials,
    Weights,
    certify,
)
from torchssvm.structures.graph_cut import RoofDual
from torchssvm.structures.multilabel import BranchAndBound, MessagePassing

LAMS = (0.01, 0.05, 0.3)
WAYS: list[tuple[Any, Any, Any]] = [
    (Labelings, Corrective, None),
    (Labelings, Pairwise, CacheOracle),
    (MeanParts, FrankWolfe, None),
    (Weights, FrankWolfe, None),
]


def graphs(seed: int, lam: float) -> tuple[Any, Reference]:
    """Features of edges of both signs: edges repel each other, and triangles are frustrated."""
    pytest.importorskip("maxflow")
    problem = GraphProblem(seed, lam=lam, structure=GraphCut(RoofDual(), balanced=True), most=4)
    random = rng(seed)
    for links in problem.links:
        links.copy_(torch.randn(links.shape, generator=random, dtype=links.dtype))
    return problem, problem.reference()


def label_sets(decoder: Any) -> Any:
    def make(seed: int, lam: float) -> tuple[Any, Reference]:
        problem = MultilabelProblem(seed, lam=lam, structure=Multilabel(3, decoder=decoder))
        return problem, problem.reference()

    return make


class Events(nn.Module):
    """Scores of the parts of torch-struct's events, from features of every part ``[B, *event, F]``."""

    def __init__(self, features: int, structure: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, dtype=torch.float64))
        self.structure = structure

    def forward(self, x: Tensor, lengths: Tensor) -> Potentials:
        return Potentials(x @ self.weight, lengths)


class EventProblem:
    """Events of one of torch-struct's distributions; two of four features are whole numbers, so that many tie."""

    def __init__(self, name: str, seed: int, lam: float) -> None:
        pytest.importorskip("torch_struct")
        from cases.torch_struct_cases import CASES

        case = next(case for case in CASES if case.name == name)
        random, n = rng(seed), 4
        self.n, self.lam = n, lam
        self.lengths = torch.randint(case.shortest, 4, (n,), generator=random)
        shape = (n, *case.shape(3), 4)
        self.x = torch.randn(shape, generator=random, dtype=torch.float64)
        self.x[..., :2] = torch.randint(-1, 2, shape[:-1], generator=random).unsqueeze(-1).double()
        self.head = Events(4, case.structure)
        self.truth = Reference([], [], [], lam)
        targets = []
        for row, length in enumerate(self.lengths.tolist()):
            outputs = case.embed(case.outputs(length), self.x[row : row + 1, ..., 0]).flatten(1).numpy()
            target = outputs[int(torch.randint(len(outputs), (), generator=random))]
            targets.append(torch.from_numpy(target).view(shape[1:-1]))
            wrong = outputs @ (target == 0).astype(float)
            self.truth.losses.append(wrong / (target.sum() if case.structure.normalize else 1.0))
            self.truth.changes.append((outputs - target) @ self.x[row].flatten(0, -2).numpy())
        self.y = torch.stack(targets)

    def batch(self, rows: Any) -> Batch:
        index = torch.as_tensor(list(rows))
        return Batch(self.x[index], self.y[index], index, self.lengths[index])

    def everything(self) -> list[Batch]:
        return [self.batch(range(self.n))]


def events(name: str) -> Any:
    def make(seed: int, lam: float) -> tuple[Any, Reference]:
        problem = EventProblem(name, seed, lam)
        return problem, problem.truth

    return make


KINDS = {
    "roof dual": graphs,
    "messages, one round": label_sets(MessagePassing(1)),
    "branch and bound that gives up": label_sets(BranchAndBound(max_rounds=1, effort=1)),
    **{f"torch-struct {name}": events(name) for name in ("chain", "semi-markov", "dependency", "tree")},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_duals_are_below_the_optimum_over_all_outputs(kind):
    moved = 0.0
    for seed in range(len(WAYS)):
        problem, truth = KINDS[kind](seed, LAMS[seed % len(LAMS)])
        storage, direction, oracle = WAYS[seed - 2]
        best = enclose(truth).high
        training = Training(problem, storage=storage(), direction=direction(), oracle=oracle and oracle())
        random = rng(seed)
        for _ in range(2):
            for _ in range(4):
                training.run(torch.randperm(problem.n, generator=random).split(2))
            certificate = certify(problem.head, training.dual, problem.everything())
            primal = truth.primal(training.weights())
            assert certificate.dual <= best + 1e-7, (seed, storage)
            assert certificate.primal >= primal - 1e-7, (seed, storage)
            assert certificate.primal <= primal + 1e-7 or not certificate.exact, (seed, storage)
        moved = max(moved, certificate.dual / max(best, 1e-12))
    assert moved > 0.5  # the duals come near the optimum, and would be above it if they could
