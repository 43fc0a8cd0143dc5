"""Weights that were edited under small losses are told of, and unknown labels are refused before a step."""

import pytest
import torch

from torchssvm import (
    HiddenStates,
    LinearChain,
    LinearMulticlass,
    Multiclass,
    Relative,
    Solver,
    certify,
    evaluate,
    guess_lam,
    in_order,
    make_trainer,
    solve,
)
from torchssvm.datasets import PaddedDataset


def test_edited_weights_are_said_however_small_the_losses():
    for scale in (1.0, 1e-10):
        head = LinearMulticlass(3, 3, structure=Multiclass(3, cost=scale * (1.0 - torch.eye(3)))).double()
        x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        data = PaddedDataset(x, x.argmax(1))
        trainer = make_trainer(head, data, 0.1 / scale, progress=False)
        trainer.solve(Relative(0.01), progress=False)
        certify(head, trainer.dual, in_order(data))
        with torch.no_grad():
            next(head.parameters()).mul_(1.1)
        with pytest.warns(UserWarning, match="the weights differ from the dual's"):
            certify(head, trainer.dual, in_order(data))


def test_unknown_labels_are_refused_before_a_step():
    x, y = torch.randn(30, 4, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(30, 4, dtype=torch.int64)
    y[29, 2] = -100
    data, head = PaddedDataset(x, y), LinearChain(3, 2)
    for call in (
        lambda: solve(head, data, 0.1, solver=Solver(compiled=False, batch_size=5), progress=False),
        lambda: guess_lam(head, data),
        lambda: evaluate(head, head.structure, data),
    ):
        with pytest.raises(ValueError, match="label -100 at position 2 of example 29"):
            call()
    assert not any(bool(p.any()) for p in head.parameters())
    evaluate(head, HiddenStates(head.structure), data)


def test_many_outputs_are_packed_in_small_batches():
    sizes = []

    class Watched(LinearMulticlass):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    data = PaddedDataset(torch.randn(600, 2), torch.arange(600) % 5000)
    make_trainer(Watched(2, 5000), data, 0.1, progress=False)
    assert max(sizes) <= 256


def test_evaluating_does_not_merge_weights():
    """As adapters of low rank do in ``eval()``, and take back in ``train()``."""

    class Merging(LinearMulticlass):
        def train(self, mode=True):
            with torch.no_grad():
                self.weight.add_(0.0 if mode == self.training else -1.0 if mode else 1.0)
            return super().train(mode)

    head, x = Merging(3, 3), torch.randn(6, 3)
    evaluate(head, head.structure, in_order(PaddedDataset(x, x.argmax(1))))
    assert head.training
    assert not head.weight.any()
