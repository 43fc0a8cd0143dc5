"""Training at one lambda after another, each from where the last one ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from torchssvm.core.compiling import clock
from torchssvm.dual.state import DualState
from torchssvm.solvers.progress_line import ProgressLine
from torchssvm.solvers.tolerance import Tolerance


class WarmStart(Protocol):
    """Changes a solved dual to another lambda."""

    def __call__(self, dual: DualState, lam: float) -> None:
        """Change ``dual`` to ``lam``."""
        ...


class KeepWeights:
    """Keeps the weights at the next lambda, a smaller one, and rescales the dual ([G16] Proposition 1).

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


def keep_what_fits(dual: DualState, lam: float) -> None:
    """Keep the weights at a smaller lambda, and the dual variables at a larger one."""
    (KeepWeights() if lam < dual.lam else KeepDual())(dual, lam)


class Solved(NamedTuple):
    """What a trainer has reached at one lambda.

    Attributes:
        lam: Lambda.
        result: What ``train`` returned: the last certificate, where nothing else was given.
        passes: Effective passes that this lambda took.
        seconds: Wall-clock seconds that this lambda took.
    """

    lam: float
    result: Any
    passes: float
    seconds: float


def to_certificate(trainer: Any, tolerance: Tolerance, max_passes: float, progress: bool | ProgressLine) -> Any:
    """Train until a certificate is within the tolerance, and return it."""
    return trainer.solve(tolerance, max_passes=max_passes, progress=progress)


def walk(
    trainers: Sequence[tuple[Any, float]],
    lams: Iterable[tuple[float, float]],
    tolerance: Tolerance,
    *,
    line: ProgressLine | None,
    warm_start: WarmStart = keep_what_fits,
    train: Callable[[Any, Tolerance, float, bool | ProgressLine], Any] = to_certificate,
) -> Iterator[list[Solved]]:
    """Train at every lambda, from the dual of the one before; the line that follows the run is clear at every yield.

    Args:
        trainers: Those that go the same way, such as one of every fold, each with what lambda is multiplied by for it.
        lams: Lambdas, each with the most passes of a trainer; read one at a time, so that they may depend on what was
            yielded. The first is usually that of the trainers' duals.
        tolerance: The gap to reach at each.
        line: Follows the run.
        warm_start: Changes a dual to the next lambda.
        train: Trains at one lambda.

    Yields:
        At each lambda, what each trainer has reached.
    """
    for lam, most in lams:
        if line is not None:
            line.prefix = f"lam {lam:.3g}"
        found = []
        for trainer, scale in trainers:
            dual, start, before = trainer.dual, clock(), trainer.dual.passes
            if not math.isclose(scale * lam, dual.lam, rel_tol=1e-12):  # an interrupted walk may have changed it
                warm_start(dual, scale * lam)
            result = train(trainer, tolerance, before + most, line or False)
            found.append(Solved(lam, result, dual.passes - before, clock() - start))
        if line is not None:
            line.clear()
        yield found
