"""Training at several lambdas one after another: what the regularisation path is compared with."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from torchssvm.core.arguments import as_number, check_dataset, check_number
from torchssvm.dual.state import DualState
from torchssvm.path.initial import MakeOptimizer, plain_optimizer
from torchssvm.path.run import MakeDual, MakeLoss
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.solve import Collate, Schedule, WhenEstimated, solve
from torchssvm.steps.orders import Order


class GridPoint(NamedTuple):
    """What training at one lambda came to.

    Attributes:
        lam: Lambda.
        certificate: Of the last exact pass; its ``passes`` go on counting over a warm grid.
        passes: Effective passes that this lambda took.
        seconds: Wall-clock seconds that this lambda took.
        weights: By the names of the head's parameters, on the CPU.
    """

    lam: float
    certificate: Certificate
    passes: float
    seconds: float
    weights: dict[str, Tensor]


class WarmStart(Protocol):
    """Takes a solved dual to a smaller lambda."""

    def __call__(self, dual: DualState, lam: float) -> None:
        """Change ``dual`` to ``lam``, which is smaller than its own."""
        ...


class KeepWeights:
    """The same weights at the next lambda, and the dual rescaled ([G16] Proposition 1); what the paper uses."""

    def __call__(self, dual: DualState, lam: float) -> None:
        """Multiply the dual by the ratio."""
        dual.rescale(lam / dual.lam)


class KeepDual:
    """The same dual variables at the next lambda, and the weights rescaled."""

    def __call__(self, dual: DualState, lam: float) -> None:
        """Divide the weights by the ratio."""
        dual.change_lam(lam)


def grid_search(
    head: nn.Module,
    dataset: Any,
    lams: Sequence[float],
    *,
    tolerance: float,
    warm_start: WarmStart | None = None,
    make_dual: MakeDual | None = None,
    make_loss: MakeLoss = BlockGap,
    make_optimizer: MakeOptimizer = plain_optimizer,
    schedule: Callable[[], Schedule] = WhenEstimated,
    batch_size: int = 16,
    order: Order | None = None,
    max_passes: float = math.inf,
    seed: int = 0,
    collate_fn: Collate | None = None,
    on_point: Callable[[GridPoint], None] | None = None,
) -> list[GridPoint]:
    """Train to a certified gap at every lambda of a grid, the largest first.

    Args:
        head: The head; it ends with the weights of the smallest lambda.
        dataset: Map-style, n examples.
        lams: Distinct positive numbers, in any order.
        tolerance: The gap to reach at each of them; positive.
        warm_start: ``KeepWeights()`` or ``KeepDual()`` to go on from the lambda before; None starts anew each time.
        make_dual: None is ``lambda lam: DualState.for_head(head, len(dataset), lam)``.
        make_loss: Makes the block gap of a dual.
        make_optimizer: Makes the optimizer of a dual, where bounds on the weights are chosen.
        schedule: Makes the schedule of exact passes, anew for each lambda.
        batch_size: Blocks of a step.
        order: In which order blocks are visited; None is gap sampling.
        max_passes: At most so many effective passes for each lambda.
        seed: Of the samplers.
        collate_fn: Makes a ``Batch`` of items; None is ``dataset.collate``.
        on_point: Called after each lambda.

    Returns:
        The points in descending order of lambda.

    Raises:
        ValueError: ``lams`` is empty, holds a number twice or one that is not positive; or as :func:`solve`.
    """
    if isinstance(lams, str | numbers.Number):
        raise TypeError(f"lams={lams!r} must be a list of numbers, not a {type(lams).__name__}")
    ordered = sorted((as_number(lam, f"lams[{place}]") for place, lam in enumerate(lams)), reverse=True)
    check_number(max_passes, "max_passes", above=0.0, finite=False)
    if not ordered or not all(0.0 < lam < math.inf for lam in ordered) or len(set(ordered)) < len(ordered):
        raise ValueError(f"lams={list(lams)} must hold distinct positive numbers, at least one")
    check_dataset(dataset)
    points: list[GridPoint] = []
    loss: BlockGap | None = None
    for lam in ordered:
        start = time.perf_counter()
        if loss is None or warm_start is None:
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
            dual = make_dual(lam) if make_dual is not None else DualState.for_head(head, len(dataset), lam)
            loss = make_loss(dual)
        else:
            warm_start(loss.dual, lam)
        before = loss.dual.passes
        certificate = solve(
            head,
            loss,
            dataset,
            tolerance=tolerance,
            batch_size=batch_size,
            order=order,
            schedule=schedule(),
            max_passes=before + max_passes,
            seed=seed,
            optimizer=make_optimizer(loss.dual),
            collate_fn=collate_fn,
        )
        point = GridPoint(
            lam,
            certificate,
            certificate.passes - before,
            time.perf_counter() - start,
            {name: p.detach().to("cpu", copy=True) for name, p in head.named_parameters()},
        )
        points.append(point)
        if on_point is not None:
            on_point(point)
    return points
