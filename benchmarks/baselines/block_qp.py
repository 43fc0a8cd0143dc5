"""The restricted dual of the n-slack formulation: a QP over a product of simplices, one for each example."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from torchssvm.compiler.jit import njit

_SKIP = 0.1  # blocks with a gap below this share of the mean allowed gap are skipped
_CHUNK = 1024  # planes in float64 at a time
_SHARE = 1e-3  # a block is solved to this share of its gap only, as its neighbours move next
_STEPS_PER_OUTPUT = 20


class PlaneBlocks:
    """Planes grouped by their example; maximises ``(1/n) <costs, alpha> - lam/2 |w|^2`` over each example's simplex.

    ``w = (1/(lam n)) sum alpha_c plane_c``; the remaining mass of an example is on its target, with plane and cost 0.

    Args:
        planes: ``[C, d]``, float32 or float64.
        costs: ``[C]`` float64.
        owner: ``[C]`` int64, the example of each plane, ascending.
        lam: Regularisation.
        num_examples: n.
    """

    def __init__(self, planes: Any, costs: Any, owner: Any, lam: float, num_examples: int) -> None:
        self.planes, self.costs, self.owner = planes, costs, owner
        self.lam, self.num_examples = lam, num_examples
        self.rate = 1.0 / (lam * num_examples)
        starts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
        self.blocks = [slice(*bounds) for bounds in pairwise([*starts, len(owner)])]
        self.curvature = [np.asarray(planes[b] @ planes[b].T, dtype=np.float64) * self.rate for b in self.blocks]

    def ascend(self, alpha: Any, allowed: float, max_sweeps: int) -> Any:
        """Sweep over the blocks until their gaps sum up to at most ``allowed``; changes ``alpha``.

        Most planes are inactive at any time. After each sweep over all planes, the active ones, few enough to stay in
        the cache, are swept until the sum of their gaps is allowed.

        Args:
            alpha: ``[C]`` float64, feasible.
            allowed: The sum of the gaps to reach, in units of the loss: n times a gap of the objective.
            max_sweeps: Most sweeps, of both kinds together.

        Returns:
            The weights of ``alpha``, ``[d]`` float64.
        """
        weights = self.weights(alpha)
        while max_sweeps > 0:
            max_sweeps -= 1
            if self._sweep(alpha, weights, allowed) <= allowed:
                break
            active = alpha.nonzero()[0]
            some = PlaneBlocks(self.planes[active], self.costs[active], self.owner[active], self.lam, self.num_examples)
            part = alpha[active]
            while max_sweeps > 0:
                max_sweeps -= 1
                if some._sweep(part, weights, allowed) <= allowed:
                    break
            alpha[active] = part
        return self.weights(alpha)  # recomputed: the sweeps add in the planes' precision

    def weights(self, alpha: Any) -> Any:
        """``w(alpha)``, ``[d]`` float64."""
        total = np.zeros(self.planes.shape[1])
        active = alpha.nonzero()[0]
        for start in range(0, len(active), _CHUNK):
            rows = active[start : start + _CHUNK]
            total += alpha[rows] @ self.planes[rows].astype(np.float64)
        return total * self.rate

    def hinges(self, weights: Any) -> Any:
        """Every example's largest ``cost - <plane, w>``, at least 0: ``[n]`` float64."""
        results = np.zeros(self.num_examples)
        rounded = weights.astype(self.planes.dtype)
        for block in self.blocks:
            slopes = self.costs[block] - self.planes[block] @ rounded
            results[self.owner[block.start]] = max(0.0, float(slopes.max()))
        return results

    def _sweep(self, alpha: Any, weights: Any, allowed: float) -> float:
        """Solve the QP of each block, one after another; changes ``alpha`` and ``weights``.

        Returns:
            The sum of the blocks' gaps, each before its block moved.
        """
        total, skip = 0.0, _SKIP * allowed / self.num_examples
        rounded = weights.astype(self.planes.dtype)  # products of mixed dtypes would copy the planes
        for block, curvature in zip(self.blocks, self.curvature, strict=True):
            slopes = self.costs[block] - self.planes[block] @ rounded
            before = alpha[block]
            gap = max(0.0, float(slopes.max())) - float(before @ slopes)
            total += gap
            if gap > skip:
                after = ascend_simplex(slopes, before, curvature)
                weights += self.rate * ((after - before).astype(self.planes.dtype) @ self.planes[block])
                rounded[:] = weights
                alpha[block] = after
        return total


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
    results = alpha.copy()
    _ascend(slopes.astype(np.float64), results, curvature, _SHARE, _STEPS_PER_OUTPUT * (1 + len(alpha)))
    return results


@njit
def _ascend(slopes: Any, alpha: Any, curvature: Any, share: float, most: int) -> None:
    """Index -1 is the target: its slope is 0, and its mass is the remaining one."""
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
        quadratic = 0.0
        if up >= 0:
            quadratic += curvature[up, up]
        if down >= 0:
            quadratic += curvature[down, down]
        if up >= 0 and down >= 0:
            quadratic -= 2.0 * curvature[up, down]
        mass = rest if down < 0 else alpha[down]
        step = mass if quadratic * mass <= best - worst else (best - worst) / quadratic
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
