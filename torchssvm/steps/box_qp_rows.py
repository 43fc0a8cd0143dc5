"""The box QP of a batch whose gradients have few rows that are not zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.jit import arrays, fits_numba, njit_fastmath
from torchssvm.core.row_sparse import rows_of


def ascend_rows(
    gradients: Sequence[Tensor], values: Tensor, weight: float, sweeps: int, converged: float, factor: float
) -> tuple[Tensor, list[Tensor]] | None:
    """The steps, and ``factor sum_i gamma_i g_i`` for each parameter: coordinate ascent on the rows that are there.

    A sweep costs 4 operations for every number that the gradients hold.

    Args:
        gradients: g_i for each parameter, ``[R, *parameter.shape]``, one of them a sparse ``[R, F, K]``.
        values: v, ``[R]`` float64.
        weight: Positive.
        sweeps: Most sweeps.
        converged: The change of a step that does not matter any more.
        factor: Multiplies the combined gradient.

    Returns:
        None where there is no kernel for them.
    """
    place = [g.is_sparse for g in gradients]
    if sum(place) != 1:
        return None
    lists = gradients[place.index(True)]
    others = [g for g in gradients if not g.is_sparse]
    entries = lists.values().flatten(1) if lists.values().ndim > 1 else lists.values().unsqueeze(1)
    if not fits_numba(values, *others, entries):
        return None
    size = len(values)
    whole = torch.cat([g.flatten(1) for g in others], 1) if others else entries.new_zeros(size, 0)
    example, row = lists.indices()
    known, local = row.unique(return_inverse=True)
    starts = torch.nn.functional.pad(torch.bincount(example, minlength=size).cumsum(0), (1, 0))
    sums = entries.new_zeros(len(known), entries.shape[1])
    gammas, bends = torch.zeros(2, size, dtype=torch.float64).unbind(0)
    total = whole.new_zeros(whole.shape[1])
    tensors = (t.contiguous() for t in (whole, starts, local, entries, sums, values))
    _ascend_rows(*arrays(*tensors), weight, sweeps, converged, *arrays(gammas, bends, total))
    parts = iter(total.mul_(factor).split([g[0].numel() for g in others]))
    combined = [
        rows_of(known, sums.mul_(factor).view(len(sums), *g.shape[2:]), g.shape[1:], coalesced=True)
        if g.is_sparse
        else next(parts).view(g.shape[1:])
        for g in gradients
    ]
    return gammas, combined


@njit_fastmath
def _ascend_rows(
    whole: Any,
    starts: Any,
    local: Any,
    rows: Any,
    sums: Any,
    values: Any,
    weight: float,
    sweeps: int,
    converged: float,
    gammas: Any,
    bends: Any,
    u: Any,
) -> None:
    """Coordinate ascent; ``u`` and ``sums`` stay ``sum_i gamma_i g_i``, and all outputs are zero at first."""
    for sweep in range(sweeps):
        largest = 0.0
        for i in range(len(values)):
            product, own = 0.0, whole[i]
            for k in range(len(u)):
                product += own[k] * u[k]
            for p in range(starts[i], starts[i + 1]):
                row, held = rows[p], sums[local[p]]
                along = row.dtype.type(0)
                for k in range(len(row)):
                    along += row[k] * held[k]
                product += along
            if sweep == 0:
                square = 0.0
                for k in range(len(u)):
                    square += own[k] * own[k]
                for p in range(starts[i], starts[i + 1]):
                    row = rows[p]
                    for k in range(len(row)):
                        square += row[k] * row[k]
                bends[i] = weight * square
            slope, old = values[i] - weight * product, gammas[i]
            if bends[i] > 0.0:
                new = old + slope / bends[i]
                new = 0.0 if new < 0.0 else 1.0 if new > 1.0 else new
            else:  # the weights do not move along this block: only its loss counts
                new = 1.0 if slope > 0.0 else old
            if new != old:
                gammas[i] = new
                change = u.dtype.type(new - old)
                for k in range(len(u)):
                    u[k] += change * own[k]
                for p in range(starts[i], starts[i + 1]):
                    row, held = rows[p], sums[local[p]]
                    for k in range(len(row)):
                        held[k] += change * row[k]
                largest = max(largest, abs(new - old))
        if largest < converged:
            break
