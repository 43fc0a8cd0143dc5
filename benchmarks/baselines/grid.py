"""Training at every lambda of a grid, the baseline of the regularisation path ([G16] section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchssvm.core.arguments import check_flags
from torchssvm.core.batch import device_of
from torchssvm.core.structure import Structure
from torchssvm.path.choose_lam import check_lams
from torchssvm.path.run import train_at
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.progress_line import shown
from torchssvm.solvers.solver import Solver, Tolerance
from torchssvm.solvers.trainer import check_limits
from torchssvm.solvers.training import make_trainer, on_device


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


def grid_search(
    head: nn.Module,
    dataset: Any,
    lams: Sequence[float],
    *,
    tolerance: Tolerance,
    max_passes: float = math.inf,
    warm_start: bool = False,
    solver: Solver | None = None,
    structure: Structure | None = None,
    on_point: Callable[[GridPoint], None] | None = None,
    progress: bool = True,
) -> list[GridPoint]:
    """Train to a certified gap at every lambda of a grid, the largest first.

    Args:
        head: The head; afterwards it holds the weights of the smallest lambda.
        dataset: Map-style, n examples with ``collate``.
        lams: Distinct positive numbers, in any order.
        tolerance: The gap to reach at each lambda: a positive number, or ``Relative(0.01)``.
        max_passes: Most effective passes for each lambda.
        warm_start: Whether each lambda begins with the weights of the one before ([G16] Proposition 1), else with zero.
        solver: As in :func:`torchssvm.solve`, like ``structure``.
        structure: What an output is.
        on_point: Called after each lambda.
        progress: Whether one line on stderr shows lambda, gap, dual, passes and seconds.

    Returns:
        The points in descending order of lambda.

    Raises:
        TypeError: ``lams`` is a string or a single number; or as :func:`torchssvm.solve`.
        ValueError: ``lams`` is empty or holds a duplicate or a non-positive number; or as :func:`torchssvm.solve`.

    """
    ordered = check_lams(lams)
    check_limits(tolerance, max_passes)
    check_flags(warm_start=warm_start)
    points: list[GridPoint] = []
    device = device_of(head)
    with shown(progress) as line, on_device(head, device):
        for together in [ordered] if warm_start else [[lam] for lam in ordered]:
            trainer = make_trainer(head, dataset, together[0], solver=solver, structure=structure, progress=progress)
            for lam in together:
                (solved,) = train_at(lam, [(trainer, 1.0)], tolerance, max_passes, line=line)
                weights = {name: p.detach().to("cpu", copy=True) for name, p in head.named_parameters()}
                points.append(GridPoint(solved.lam, solved.result, solved.passes, solved.seconds, weights))
                if on_point is not None:
                    on_point(points[-1])
    return points
