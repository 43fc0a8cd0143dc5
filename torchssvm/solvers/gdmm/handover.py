"""From the distributions of GDMM's factors to the blocks of BCFW."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchssvm.core.batch import Batch
from torchssvm.core.caller import warn
from torchssvm.core.row_sparse import squared_norm
from torchssvm.dual.checks import check_targets
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.state import DualState
from torchssvm.solvers.gdmm.problem import DualPoint, Problem


def hand_over(problem: Problem, batches: Iterable[Batch], storage: MeanParts, *, certified: float) -> DualState:
    """A dual at a mean of outputs near the iterate, shrunk towards zero weights where that is better.

    Writes the dual's weights to the head, after everything that may fail.

    Args:
        problem: The duals of all factors.
        batches: Every training example once; the weights are summed from their features.
        storage: A new storage; it gets the blocks.
        certified: The best certified dual value of a mean of outputs; warns if the new dual is lower.

    Raises:
        ValueError: The batches do not fit, or have features that are not finite.
        MemoryError: The blocks would not fit.
    """
    dual = DualState.for_head(problem.head, problem.dual.num_examples, problem.dual.lam, storage=storage)
    weights = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
    for index, potentials, psi, losses in problem.blocks(batches):
        storage.gather(index, potentials)  # checks the memory before blocks are made
        storage.add(index, potentials, psi)
        dual.loss[index] = losses
        parts = storage.contribution(storage.gather(index, potentials), potentials)
        for total, part in zip(weights, parts, strict=True):
            total += part
    if not all(bool(torch.isfinite(total).all()) for total in weights):
        raise ValueError("batches gave features that are not finite, or too large: GDMM needs finite features")
    check_targets(dual, problem.targets)
    point = DualPoint(float(dual.loss.sum()), squared_norm(weights))
    factor, value = point.shrinking(dual.lam), point.value(dual.lam)
    rounding = 1e3 * torch.finfo(dual.parameters[0].dtype).eps
    if value < certified - rounding * (1.0 + certified):
        warn(
            f"the dual handed over is {value:.6g}, below the best that GDMM certified for the features it was made "
            f"with, {certified:.6g}: BCFW needs some passes to come back. To go on with GDMM instead, load a "
            "state_dict() that was saved before"
        )
    storage.rescale(factor)
    dual.loss *= factor
    for total in weights:
        total *= factor
    dual.steps = dual.moved = 1  # marks the dual as not new, so that its weights are kept
    dual.set_weights(weights)
    return dual
