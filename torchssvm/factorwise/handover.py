"""From the distributions of GDMM's factors to the blocks of BCFW."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchssvm.batch import Batch
from torchssvm.dual import DualState, MeanParts
from torchssvm.dual.state import squared_norm
from torchssvm.factorwise.problem import Problem


def hand_over(problem: Problem, batches: Iterable[Batch], storage: MeanParts) -> DualState:
    """A dual at a consistent point near the iterate, shrunk towards zero weights where that is better.

    The head gets its weights.

    Args:
        problem: The duals of all factors.
        batches: Every training example once; the weights are summed from their features.
        storage: A new one; it gets the blocks.

    Raises:
        ValueError: The batches do not fit.
        MemoryError: The blocks would not fit.
    """
    dual = DualState.for_head(problem.head, problem.dual.num_examples, problem.dual.lam, storage=storage)
    weights = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
    for index, potentials, psi, losses in problem.blocks(batches):
        storage.gather(index, potentials)  # which looks at the memory before there are blocks
        storage.add(index, potentials, psi)
        dual.loss[index] = losses
        parts = storage.contribution(storage.gather(index, potentials), potentials)
        for total, part in zip(weights, parts, strict=True):
            total += part
    factor = shrinking(float(dual.loss.sum()), dual.lam * squared_norm(weights))
    storage.rescale(factor)
    dual.loss *= factor
    for total in weights:
        total *= factor
    dual.steps = dual.moved = 1  # it is not new: its weights count
    dual.set_weights(weights)
    dual.check_targets(problem.targets)
    return dual


def shrinking(loss: float, squared: float) -> float:
    """The best mixture of a dual point with that of zero weights: ``argmax_{g in [0, 1]} g loss - g^2 squared / 2``."""
    return 1.0 if loss >= squared else max(loss / squared, 0.0)
