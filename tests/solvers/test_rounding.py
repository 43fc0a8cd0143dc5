"""Certificates of float32 weights are those of a float64 copy."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.problems import rng
from torch import nn

from torchssvm import (
    Chain,
    Graphs,
    Labelings,
    LinearChain,
    LinearMulticlass,
    LinearPairwiseGraph,
    MeanParts,
    PairwiseGraph,
    Relative,
    Solver,
    in_order,
    make_trainer,
)
from torchssvm.core.batch import tree_map
from torchssvm.core.gradients import adjoint
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import as_potentials
from torchssvm.core.row_sparse import squared_norm
from torchssvm.datasets import PaddedDataset
from torchssvm.solvers import primal


def in_float64(head, data, lam, weight=None):
    wide = copy.deepcopy(head).double()
    if weight is not None:
        wide.weight.data = weight.detach().double()
    batches = [tree_map(lambda t: t.double() if t.is_floating_point() else t, b) for b in in_order(data)]
    return primal(wide, head.structure, batches, lam).value


def separable(seed, kind, n):
    """Examples without errors, with features far from zero."""
    x = torch.randn(n, *([6] if kind == "chains" else []), 3, generator=rng(seed))
    y = (x @ torch.randn(3, 3, generator=rng(seed + 1))).argmax(-1)
    head = LinearChain(3, 3, bias=False) if kind == "chains" else LinearMulticlass(3, 3, bias=False)
    return head, PaddedDataset(x + 30.0, y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "chains"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("n", [8, 50])
def test_the_primal_of_a_small_lambda(kind, compiled, n):
    for seed, storage in enumerate((MeanParts(), Labelings())):
        head, data = separable(seed, kind, n)
        lam = 1e-8
        trainer = make_trainer(head, data, lam, solver=Solver(compiled=compiled, storage=storage), progress=False)
        certificate = trainer.solve(Relative(1e-3), max_passes=40, progress=False)
        assert certificate.primal == pytest.approx(in_float64(head, data, lam), rel=1e-6)
        assert certificate.primal - certificate.dual == certificate.gap >= 0.0


def test_a_long_chain():
    x = 30.0 * torch.randn(1, 6000, 3, generator=rng(1))
    y = torch.where(torch.rand(1, 6000, generator=rng(2)) < 0.5, (x[..., 0] > 0).long(), 2)
    head, lam = LinearChain(3, 3, structure=Chain(3, normalize=False)), 1e7
    data = PaddedDataset(x, y)
    trainer = make_trainer(head, data, lam, solver=Solver(compiled=True, storage=MeanParts()), progress=False)
    trainer.step(3)
    assert trainer.certify(refresh=False).primal == pytest.approx(in_float64(head, data, lam), rel=3e-7)


class Rounded(PairwiseGraph):
    def _examine(self, labeling, target, potentials):
        result = super()._examine(labeling, target, potentials)
        result.score = torch.full_like(result.score, -1e-17)
        result.loss = torch.zeros_like(result.loss)
        return result


def test_a_hinge_that_rounding_makes_negative_is_zero():
    head = LinearPairwiseGraph(2, 0, 3).double()
    with torch.no_grad():
        next(head.parameters()).fill_(1.0)
    x = Graphs(torch.randn(2, 2, 2).double(), torch.zeros(2, 0, 0).double(), torch.zeros(2, 0, 2, dtype=torch.int64))
    potentials = head(x)
    structure = Rounded(3)
    target = structure.check_target(torch.zeros(2, 2, dtype=torch.int64), potentials)
    assert find_corner(structure, potentials, target).hinge.tolist() == [0.0, 0.0]


class Doubled(nn.Module):
    """A head whose potentials are not those of the module that holds its weights."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, x):
        return as_potentials({name: 1.003 * t for name, t in self.head(x).tensors.items()})


@pytest.mark.parametrize("how", ["wrapped", "hook"])
def test_the_potentials_are_those_of_the_call_that_was_made(how):
    """What is around the module with the weights, and its hooks, count once."""
    head, data = separable(0, "classes", 50)
    nn.init.normal_(head.weight, generator=rng(0))
    scaled = copy.deepcopy(head)
    with torch.no_grad():
        scaled.weight.mul_(1.003)
    if how == "hook":
        head.register_forward_pre_hook(lambda module, args: (1.003 * args[0],))
    model = Doubled(head) if how == "wrapped" else head
    result = primal(model, head.structure, in_order(data), 1e-9, parameters=head.parameters())
    assert result.hinge == pytest.approx(primal(scaled, head.structure, in_order(data), 1e-9).hinge, rel=1e-7)


def dual_in_float64(head, data, dual):
    """The dual of the stored blocks."""
    wide, total = copy.deepcopy(head).double(), None
    for batch in in_order(data):
        potentials = wide(batch.x.double())
        target = head.structure.check_target(batch.y, potentials)
        psi = dual.storage.gather(batch.index, potentials, target).psi
        gradients = adjoint(potentials, psi, list(wide.parameters()))
        total = gradients if total is None else [a + b for a, b in zip(total, gradients, strict=True)]
    return dual.total_loss - squared_norm(total) / (2 * dual.lam * dual.num_examples**2)


@pytest.mark.slow
@pytest.mark.parametrize("storage", [MeanParts, Labelings])
@pytest.mark.parametrize("compiled", [True, False])
def test_the_dual_of_tokens_that_cancel(storage, compiled):
    x = 0.1 * torch.randn(2, 4, 3, generator=rng(0)) + 1000.0
    y = torch.randint(3, (2, 4), generator=rng(1))
    head, lam = LinearChain(3, 3), 1e-2
    data = PaddedDataset(x, y)
    trainer = make_trainer(head, data, lam, solver=Solver(compiled=compiled, storage=storage()), progress=False)
    certificate = trainer.solve(Relative(1e-7), max_passes=30, progress=False)
    assert certificate.dual == pytest.approx(dual_in_float64(head, data, trainer.dual), abs=1e-9 * certificate.primal)
