"""Line searches along a direction of the dual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from torchssvm.core.operators import read_together
from torchssvm.core.problem import Box
from torchssvm.core.row_sparse import flat, squared_norm


@dataclass(frozen=True)
class Line:
    """The line of a step: at gamma, v is ``start - (gamma/lam) d`` and the weights are ``clip(v)``.

    The derivative of the dual is ``value`` at 0. It falls by ``(1/lam) d_j^2`` per unit of gamma for every weight j
    that moves; a weight with bounds moves while v_j is within them.

    Attributes:
        value: Derivative of the dual at gamma = 0.
        gradients: d, for every parameter: the gradient of ``value`` with respect to the weights; possibly sparse, dense
            for parameters with bounds.
        lam: Regularisation.
        largest: Largest feasible gamma.
        start: v at gamma = 0, for every parameter.
        box: The bounds of the weights.
        moved: Blocks moved by all previous steps.
        num_examples: n.
        known_squared_norm: ``|d|^2``, if already computed.
    """

    value: float
    gradients: Sequence[Tensor]
    lam: float
    largest: float
    start: Sequence[Tensor]
    box: Box
    moved: int
    num_examples: int
    known_squared_norm: float | None = None

    @cached_property
    def squared_norm(self) -> float:
        """``|d|^2``."""
        return squared_norm(self.gradients) if self.known_squared_norm is None else self.known_squared_norm


class LineSearch(Protocol):
    """Chooses the step along a direction."""

    def __call__(self, line: Line) -> float:
        """A gamma in ``[0, line.largest]``."""
        ...


class ExactSearch:
    """The step that maximises the dual; the dual never falls, except by rounding.

    Without bounds the dual is a parabola, ``gamma = clip(lam value / |d|^2, 0, largest)`` ([B13] section 4). Under
    bounds ([G16] appendix H) its derivative is piecewise linear and decreasing, with a breakpoint wherever a weight
    reaches or leaves a bound. The breakpoints are sorted, and the derivative's zero is found in its piece. This takes
    O(d + c log c) for c weights that reach or leave a bound within the step.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> dual = DualState.for_head(head, num_examples=30, lam=0.1)
        >>> BCFW(head.parameters(), dual, line_search=ExactSearch()).line_search
        ExactSearch()
    """

    def __call__(self, line: Line) -> float:
        """The maximiser in ``[0, line.largest]``; the first one where the dual is flat."""
        return (
            _exact_step_in_box(line)
            if line.box.has_bounds
            else exact_step(line.value, line.squared_norm, line.lam, line.largest)
        )

    def __repr__(self) -> str:
        return "ExactSearch()"


class ShortStep:
    """``gamma = clip(lam value / |d|^2, 0, largest)``, whatever the bounds: the step of [G16] Algorithms 8 and 9.

    Under bounds it maximises a parabola below the dual, so the dual never falls, except by rounding, and the step is
    never longer than that of :class:`ExactSearch`. Without bounds both are the same.

    Example:
        >>> solver = Solver(line_search=ShortStep(), compiled=False, bounds={"weight": (0.0, None)})
        >>> certificate = solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver)
        >>> certificate.relative_gap <= 0.01
        True
    """

    def __call__(self, line: Line) -> float:
        """The step in ``[0, line.largest]``."""
        return exact_step(line.value, line.squared_norm, line.lam, line.largest)

    def __repr__(self) -> str:
        return "ShortStep()"


class PredefinedStep:
    """``gamma = 2n / (m + 2n)`` of the way to the corners, with m the blocks that earlier steps have moved.

    A step of one block gives [B13] Algorithm 3, ``2n / (k + 2n)`` at step k; steps of B blocks give ``2N / (k + 2N)``
    with N = n/B batches an epoch; all examples in every batch give batch Frank-Wolfe ([B13] Algorithm 2),
    ``2 / (k + 2)``. The dual may fall in a step.

    Use it with ``BlockGap(dual, block_steps=CommonStep())``, or with batches of one block.

    Example:
        >>> solver = Solver(line_search=PredefinedStep(), block_steps=CommonStep())
        >>> solve(LinearMulticlass(4, 3), data, lam=1.0, solver=solver, tolerance=Relative(0.2)).relative_gap <= 0.2
        True
    """

    def __call__(self, line: Line) -> float:
        """The step, a share of ``line.largest``."""
        n = line.num_examples
        return line.largest * (2 * n / (line.moved + 2 * n))

    def __repr__(self) -> str:
        return "PredefinedStep()"


def exact_step(value: float, squared_norm: float, lam: float, largest: float = 1.0) -> float:
    """The maximiser of a parabola: ``clip(lam value / |d|^2, 0, largest)`` ([B13] section 4, eq. for gamma_opt).

    ``value`` is the derivative of the dual along the direction, and d its gradient with respect to the weights.
    """
    if value <= 0.0:
        return 0.0
    if squared_norm == 0.0:  # only the loss changes, and it grows
        return largest
    return min(lam * value / squared_norm, largest)


def _exact_step_in_box(line: Line) -> float:
    """Where the derivative ``value - (1/lam) sum_j d_j^2 (time that weight j has moved by gamma)`` vanishes."""
    if line.value <= 0.0:
        return 0.0
    always = 0.0  # sum of d_j^2 over the weights that move throughout
    times, changes = [], []  # gammas at which other weights start or stop moving, with d_j^2 or -d_j^2
    read = iter(read_together(*_needed(line)))  # on the host sums are reproducible
    for bounded in line.box.bounded:
        if not bounded:
            always += float(next(read))
            continue
        enter, leave, squares = _movement(next(read), next(read), next(read), next(read), line)
        throughout = (enter <= 0.0) & (leave >= line.largest)
        always += float(squares[throughout].sum())
        others = ~throughout & (enter < leave)
        times += [enter[others], leave[others]]
        changes += [squares[others], -squares[others]]
    if not sum(map(len, times)):
        return exact_step(line.value, always, line.lam, line.largest)
    breaks, order = torch.cat(times).sort()
    curvatures = always + torch.cat([breaks.new_zeros(1), torch.cat(changes)[order].cumsum(0)])
    ends = torch.cat([breaks, breaks.new_tensor([line.largest])])
    starts = torch.cat([breaks.new_zeros(1), breaks])
    falls = ((ends - starts) * curvatures.clamp(min=0.0)).cumsum(0) / line.lam  # until the end of each piece
    piece = int(torch.searchsorted(falls, line.value))
    if piece == len(falls):
        return line.largest
    rest = line.value - (float(falls[piece - 1]) if piece else 0.0)
    return min(float(starts[piece]) + line.lam * rest / float(curvatures[piece]), float(ends[piece]))


def _needed(line: Line) -> Iterator[Tensor]:
    """For each parameter with bounds v, d and the bounds; ``|d|^2`` for the others."""
    for v, d, lower, upper in zip(line.start, line.gradients, line.box.lower, line.box.upper, strict=True):
        if lower is None or upper is None:
            numbers = flat([d])
            yield numbers @ numbers
        else:
            yield from (v, d, lower, upper)


def _movement(v: Tensor, d: Tensor, lower: Tensor, upper: Tensor, line: Line) -> tuple[Tensor, Tensor, Tensor]:
    """For each weight with d_j != 0: the gammas in [0, largest] where v_j enters and leaves its bounds, and d_j^2."""
    moving = d != 0.0
    speed = d[moving].to(torch.float64) / -line.lam
    position = v[moving].to(torch.float64)
    at_lower, at_upper = ((bound.expand_as(d)[moving] - position) / speed for bound in (lower, upper))
    enter = torch.minimum(at_lower, at_upper).clamp(0.0, line.largest)
    leave = torch.maximum(at_lower, at_upper).clamp(0.0, line.largest)
    return enter, leave, d[moving].to(torch.float64).square()
