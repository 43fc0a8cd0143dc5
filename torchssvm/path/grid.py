"""Grid search over lambda: the baseline of the regularisation path."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from torchssvm.core.arguments import as_number, check_dataset, check_number, or_default
from torchssvm.core.compiling import clock
from torchssvm.dual.state import DualState
from torchssvm.path.recipe import Recipe
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.progress_line import shown
from torchssvm.solvers.run_options import RunOptions
from torchssvm.solvers.tolerance import Tolerance
from torchssvm.solvers.torch_loop import TorchLoop


class GridPoint(NamedTuple):
    """The result of training at one lambda.

    Attributes:
        lam: Lambda.
        certificate: Of the last exact pass; with a warm start, ``certificate.passes`` counts over the whole grid.
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
    """Changes a solved dual to a smaller lambda."""

    def __call__(self, dual: DualState, lam: float) -> None:
        """Change ``dual`` to ``lam``, which is smaller than ``dual.lam``."""
        ...


class KeepWeights:
    """Keeps the weights at the next lambda and rescales the dual, as in the paper ([G16] Proposition 1).

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> grid = grid_search(head, data, [1.0, 0.1], tolerance=Relative(0.1), warm_start=KeepWeights())
        >>> all(point.certificate.relative_gap <= 0.1 for point in grid)
        True
    """

    def __call__(self, dual: DualState, lam: float) -> None:
        """Multiply the dual variables by ``lam / dual.lam``."""
        dual.rescale(lam / dual.lam)


class KeepDual:
    """Keeps the dual variables at the next lambda and rescales the weights.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> grid = grid_search(head, data, [1.0, 0.1], tolerance=Relative(0.1), warm_start=KeepDual())
        >>> all(point.certificate.relative_gap <= 0.1 for point in grid)
        True
    """

    def __call__(self, dual: DualState, lam: float) -> None:
        """Divide the weights by ``lam / dual.lam``."""
        dual.change_lam(lam)


def check_lams(lams: Any) -> list[float]:
    """The lambdas of a grid in descending order.

    Raises:
        TypeError: ``lams`` is not a list of numbers.
        ValueError: ``lams`` is empty or holds a duplicate or a number that is not positive.
    """
    if isinstance(lams, str | numbers.Number) or not isinstance(lams, Iterable):
        raise TypeError(f"lams={lams!r} must be a list of numbers, not a {type(lams).__name__}")
    ordered = sorted((as_number(lam, f"lams[{place}]") for place, lam in enumerate(lams)), reverse=True)
    if not ordered or not all(0.0 < lam < math.inf for lam in ordered) or len(set(ordered)) < len(ordered):
        raise ValueError(f"lams={ordered} must hold distinct positive numbers, at least one")
    return ordered


def grid_search(
    head: nn.Module,
    dataset: Any,
    lams: Sequence[float],
    *,
    tolerance: Tolerance,
    max_passes: float = math.inf,
    warm_start: WarmStart | None = None,
    recipe: Recipe | None = None,
    options: RunOptions | None = None,
    on_point: Callable[[GridPoint], None] | None = None,
    progress: bool = True,
) -> list[GridPoint]:
    """Train to a certified gap at every lambda of a grid, the largest first.

    Args:
        head: The head; afterwards it holds the weights of the smallest lambda.
        dataset: Map-style, n examples.
        lams: Distinct positive numbers, in any order.
        tolerance: The gap to reach at each lambda: a positive number, or ``Relative(0.01)``.
        max_passes: Most effective passes for each lambda.
        warm_start: ``KeepWeights()`` or ``KeepDual()`` continue from the previous lambda; None starts from zero.
        recipe: Makes the dual, loss and optimizer; None is ``Recipe()``.
        options: Size and order of batches, and when exact passes are made; None is ``RunOptions()``.
        on_point: Called after each lambda.
        progress: Whether one line on stderr shows lambda, gap, dual, passes and seconds.

    Returns:
        The points in descending order of lambda.

    Raises:
        TypeError: ``lams`` is a string or a single number; or as :class:`torchssvm.TorchLoop`.
        ValueError: ``lams`` is empty or holds a duplicate or a non-positive number; or as :class:`torchssvm.TorchLoop`.

    Example:
        >>> grid = grid_search(LinearMulticlass(4, 3), data, [1.0, 0.1, 0.01], tolerance=Relative(0.05))
        >>> [point.lam for point in grid]
        [1.0, 0.1, 0.01]
    """
    ordered = check_lams(lams)
    check_number(max_passes, "max_passes", above=0.0, finite=False)
    check_dataset(dataset)
    recipe, options = or_default(recipe, Recipe, "recipe"), or_default(options, RunOptions, "options")
    points: list[GridPoint] = []
    loss: BlockGap | None = None
    with shown(progress) as line:
        for lam in ordered:
            if line is not None:
                line.prefix = f"lam {lam:.3g}"
            start = clock()
            if loss is None or warm_start is None:
                for parameter in head.parameters():
                    nn.init.zeros_(parameter)
                loss = recipe.loss(head, len(dataset), lam)
            else:
                warm_start(loss.dual, lam)
            before = loss.dual.passes
            loop = TorchLoop(head, loss, dataset, options, optimizer=recipe.make_optimizer(loss.dual))
            certificate = loop.solve(tolerance, max_passes=before + max_passes, progress=line or False)
            point = GridPoint(
                lam,
                certificate,
                certificate.passes - before,
                clock() - start,
                {name: p.detach().to("cpu", copy=True) for name, p in head.named_parameters()},
            )
            points.append(point)
            if on_point is not None:
                if line is not None:
                    line.clear()  # the callback may print
                on_point(point)
    return points
