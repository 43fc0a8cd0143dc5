"""The QP of one block: a concave quadratic over the simplex of one example's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.oracles.compiled import compiled, numba_available

_SHARE = 1e-3  # the block's gap is brought to this share of what it was: its neighbours move next
_STEPS_PER_OUTPUT = 20


def ascend_simplex(slopes: Any, alpha: Any, curvature: Any) -> Any:
    """Ascend ``<slopes, b - alpha> - (b - alpha)^T curvature (b - alpha) / 2`` over ``b >= 0``, ``sum b <= 1``.

    Exact steps between pairs: mass goes from the active output of the lowest slope to the output of the highest, the
    target (slope 0, mass ``1 - sum b``) among them. No step lowers the objective.

    Args:
        slopes: ``[C]`` float64, the gradient at ``alpha``.
        alpha: ``[C]`` float64, where to start.
        curvature: ``[C, C]`` float64, positive semidefinite.

    Returns:
        b, ``[C]`` float64.
    """
    solve = _ascend_compiled if numba_available() else _ascend
    return solve(slopes.astype(np.float64), alpha.copy(), curvature, _SHARE, _STEPS_PER_OUTPUT * (1 + len(alpha)))


def _ascend(slopes: Any, alpha: Any, curvature: Any, share: float, most: int) -> Any:
    """Index -1 is the target: its slope is 0, and it has the mass that the others leave."""
    size = len(alpha)
    rest = max(0.0, 1.0 - alpha.sum())
    allowed = -1.0
    for _ in range(most):
        up, best = -1, 0.0
        down, worst = (-1, 0.0) if rest > 0.0 else (-2, np.inf)
        gap = 0.0
        for c in range(size):
            if slopes[c] > best:
                up, best = c, slopes[c]
            if alpha[c] > 0.0:
                gap -= alpha[c] * slopes[c]
                if slopes[c] < worst:
                    down, worst = c, slopes[c]
        gap += best
        if allowed < 0.0:
            allowed = share * gap
        elif gap <= allowed:
            break
        if best <= worst:
            break
        bend = 0.0
        if up >= 0:
            bend += curvature[up, up]
        if down >= 0:
            bend += curvature[down, down]
        if up >= 0 and down >= 0:
            bend -= 2.0 * curvature[up, down]
        mass = rest if down < 0 else alpha[down]
        step = mass if bend * mass <= best - worst else (best - worst) / bend
        if up >= 0:
            alpha[up] += step
            for c in range(size):
                slopes[c] -= step * curvature[c, up]
        else:
            rest += step
        if down >= 0:
            alpha[down] = 0.0 if step == mass else alpha[down] - step
            for c in range(size):
                slopes[c] += step * curvature[c, down]
        else:
            rest = 0.0 if step == mass else rest - step
    return alpha


_ascend_compiled = compiled(_ascend)
