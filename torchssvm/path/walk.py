"""Training at one lambda after another, each from where the last one ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torchssvm.core.jit import clock
from torchssvm.dual.state import DualState
from torchssvm.solvers.solver import Tolerance
from torchssvm.solvers.trainer import ProgressLine


def go_to(dual: DualState, lam: float) -> None:
    """Change a solved dual to another lambda: at a smaller one the weights stay ([G16] Prop. 1), else the dual."""
    if lam < dual.lam:
        dual.rescale(lam / dual.lam)
    else:
        dual.change_lam(lam)


class Solved(NamedTuple):
    """What a trainer has reached at one lambda: what ``train`` returned, and the passes and seconds that it took."""

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
    train: Callable[[Any, Tolerance, float, bool | ProgressLine], Any] = to_certificate,
) -> Iterator[list[Solved]]:
    """Train at every lambda, from the dual of the one before; yields what each trainer has reached at each lambda.

    Args:
        trainers: Those that go the same way, such as one of every fold, each with what lambda is multiplied by for it.
        lams: Lambdas, each with the most passes of a trainer; read one at a time, so that they may depend on what was
            yielded. The first is usually that of the trainers' duals.
        tolerance: The gap to reach at each.
        line: Follows the run, and is clear at every yield.
        train: Trains at one lambda.
    """
    for lam, most in lams:
        if line is not None:
            line.prefix = f"lam {lam:.3g}"
        found = []
        for trainer, scale in trainers:
            dual, start, before = trainer.dual, clock(), trainer.dual.passes
            if not math.isclose(scale * lam, dual.lam, rel_tol=1e-12):  # an interrupted walk may have changed it
                go_to(dual, scale * lam)
            result = train(trainer, tolerance, before + most, line or False)
            found.append(Solved(lam, result, dual.passes - before, clock() - start))
        if line is not None:
            line.clear()
        yield found
