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
from torchssvm.path.recipe import Recipe, check_recipe
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.run_options import RunOptions, check_options
from torchssvm.solvers.training import solve


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
    max_passes: float = math.inf,
    warm_start: WarmStart | None = None,
    recipe: Recipe | None = None,
    options: RunOptions | None = None,
    on_point: Callable[[GridPoint], None] | None = None,
) -> list[GridPoint]:
    """Train to a certified gap at every lambda of a grid, the largest first.

    Args:
        head: The head; it ends with the weights of the smallest lambda.
        dataset: Map-style, n examples.
        lams: Distinct positive numbers, in any order.
        tolerance: The gap to reach at each of them; positive.
        max_passes: At most so many effective passes for each lambda.
        warm_start: ``KeepWeights()`` or ``KeepDual()`` to go on from the lambda before; None starts anew each time.
        recipe: What is trained; None is ``Recipe()``.
        options: Size and order of batches, and when exact passes are made; None is ``RunOptions()``.
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
    recipe, options = check_recipe(recipe), check_options(options)
    points: list[GridPoint] = []
    loss: BlockGap | None = None
    for lam in ordered:
        start = time.perf_counter()
        if loss is None or warm_start is None:
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
            loss = recipe.loss(head, len(dataset), lam)
        else:
            warm_start(loss.dual, lam)
        before = loss.dual.passes
        certificate = solve(
            head,
            loss,
            dataset,
            tolerance=tolerance,
            max_passes=before + max_passes,
            optimizer=recipe.make_optimizer(loss.dual),
            options=options,
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
