"""Over-relaxation of corrective steps: which visits of the compiled loop go beyond the exact step.

A block's exact step is the best for this block alone, and blocks that depend on each other approach their common
optimum from one side. Steps ``RELAXATION`` times as long let them agree in about two thirds of the visits (successive
over-relaxation); the dual does not fall, as it is a parabola along each. What such steps leave in the primal is gone
after a few exact ones: each cycle ends with some.
"""

from __future__ import annotations

BEGIN = 40.0
"""Epochs of a dual's visits before the first cycle: where they suffice, blocks hardly depend on each other."""

RELAXATION = 1.8
"""How many times an exact step is taken, as far as masses allow. 1.5 gains less, and 1.9 no more."""

POWER = 0.5
"""Blocks are then drawn by this power of their gaps: a step closes most of a gap, whatever its size."""

CYCLE = 2.0
"""Epochs of visits of a cycle. The shorter, the sooner a run can end; cycles of half an epoch gain half as much."""

RELAXED = 0.75
"""The share of a cycle's visits that are relaxed; the others, at its end, are exact."""


def phase(moved: int, num_examples: int) -> tuple[int, float, float]:
    """How many visits are left of the current part of the cycle, their relaxation, and the power of the gaps.

    Args:
        moved: Visits of the dual, at any lambda.
        num_examples: n.
    """
    begin, cycle = round(BEGIN * num_examples), round(CYCLE * num_examples)
    if moved < begin:
        return begin - moved, 1.0, 1.0
    relaxed, at = int(RELAXED * cycle), (moved - begin) % cycle
    return (relaxed - at, RELAXATION, POWER) if at < relaxed else (cycle - at, 1.0, POWER)


def left_of_cycle(moved: int, num_examples: int) -> int | None:
    """How many visits are left of the current cycle; None before the first."""
    begin, cycle = round(BEGIN * num_examples), round(CYCLE * num_examples)
    return None if moved < begin else cycle - (moved - begin) % cycle
