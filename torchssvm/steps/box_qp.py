"""The box QP that gives every block of a batch its own step size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.gradients import combine
from torchssvm.core.jit import arrays, fits_numba, njit, njit_fastmath, triton_available
from torchssvm.core.row_sparse import gram_of_rows, select_examples, squared_length
from torchssvm.steps.box_qp_rows import ascend_rows

_CONVERGED = 1e-3  # steps are re-scaled by the line search, and corners are only approximately right: no need for more


class BatchSteps(NamedTuple):
    """The step of every block of a batch, and where they lead together.

    Attributes:
        gammas: ``[R]`` float64 in [0, 1].
        combined: ``factor sum_i gamma_i g_i`` for each parameter.
        squared_norm: The squared length of ``combined``.
    """

    gammas: Tensor
    combined: list[Tensor]
    squared_norm: float


def solve_batch(
    gradients: Sequence[Tensor], values: Tensor, weight: float, sweeps: int, factor: float = 1.0
) -> BatchSteps:
    """The box QP with ``G_ij = weight <g_i, g_j>``, given the g_i.

    On the CPU the sum ``u = sum_i gamma_i g_i`` is kept up to date instead of G: a sweep costs 4 R d operations, where
    G takes 2 R^2 d, and u is wanted anyway. Elsewhere G is one product of matrices.

    Args:
        gradients: g_i for each parameter, ``[R, *parameter.shape]``; sparse where few rows are not zero.
        values: v, ``[R]`` float64.
        weight: Positive.
        sweeps: Most sweeps; 0 sets all gammas to 1.
        factor: Multiplies the combined gradient.
    """
    sparse = any(gradient.is_sparse for gradient in gradients)
    if not sparse:
        gradients = [gradient.contiguous() for gradient in gradients]
    if not sweeps or values.shape[0] < 2:
        gammas = torch.ones_like(values)
    elif sparse and (steps := ascend_rows(gradients, values, weight, sweeps, _CONVERGED, factor)) is not None:
        return BatchSteps(*steps, squared_length(steps[1]))
    elif not sparse and fits_numba(values, *gradients):
        matrices = tuple(g.numpy().reshape(g.shape[0], g.shape[1:].numel()) for g in gradients)
        sizes = [matrix.shape[1] for matrix in matrices]
        total = gradients[0].new_zeros(sum(sizes))
        gammas, bends = torch.zeros(2, len(values), dtype=torch.float64).unbind(0)
        out = arrays(gammas, bends, total)
        square = _ascend_rows(matrices, values.numpy(), weight, sweeps, _CONVERGED, factor, *out)
        combined = [part.view(g.shape[1:]) for part, g in zip(total.split(sizes), gradients, strict=True)]
        return BatchSteps(gammas, combined, square)
    else:
        gammas = solve_box_qp(gram(gradients, torch.arange(len(values), device=values.device)) * weight, values, sweeps)
    combined = combine(gradients, gammas * factor)
    return BatchSteps(gammas, combined, squared_length(combined))


@njit_fastmath
def _ascend_rows(
    matrices: Any,
    values: Any,
    weight: float,
    sweeps: int,
    converged: float,
    factor: float,
    gammas: Any,
    bends: Any,
    u: Any,
) -> float:
    """``ascend``, with u in the place of the residual; u ends as ``factor u``, whose squared length is returned.

    ``gammas``, ``u`` and ``bends``, room for the curvatures, are zero at first.
    """
    for sweep in range(sweeps):
        largest = 0.0
        for i in range(len(values)):
            product, at = 0.0, 0
            for matrix in matrices:
                row, end = matrix[i], at + matrix.shape[1]
                part = u[at:end]
                along, square = row.dtype.type(0), row.dtype.type(0)
                for k in range(len(row)):
                    along += row[k] * part[k]
                if sweep == 0:
                    for k in range(len(row)):
                        square += row[k] * row[k]
                product += along
                bends[i] += weight * square
                at = end
            slope, old = values[i] - weight * product, gammas[i]
            if bends[i] > 0.0:
                new = old + slope / bends[i]
                new = 0.0 if new < 0.0 else 1.0 if new > 1.0 else new
            else:  # the weights do not move along this block: only its loss counts
                new = 1.0 if slope > 0.0 else old
            if new != old:
                gammas[i] = new
                change, at = u.dtype.type(new - old), 0
                for matrix in matrices:
                    row, end = matrix[i], at + matrix.shape[1]
                    part = u[at:end]
                    for k in range(len(row)):
                        part[k] += change * row[k]
                    at = end
                largest = max(largest, abs(new - old))
        if largest < converged:
            break
    length, unit = 0.0, u.dtype.type(factor)
    for k in range(len(u)):
        u[k] *= unit
        length += np.float64(u[k]) * np.float64(u[k])
    return length


def solve_box_qp(gram: Tensor, values: Tensor, sweeps: int) -> Tensor:
    """Maximise ``gamma^T v - gamma^T G gamma / 2`` over ``[0, 1]^R`` by cyclic coordinate ascent from 0.

    One sweep equals applying the corners one after another with exact, re-clipped steps. Solving stops early when a
    sweep moves no gamma by more than 1e-3. It runs in float64 and on the CPU, unless the matrix is on a CUDA device and
    small enough for the kernel there.

    Args:
        gram: G, ``[R, R]``, positive semidefinite.
        values: v, ``[R]``.
        sweeps: Most sweeps.

    Returns:
        gamma, ``[R]`` float64, on the device of ``values``.

    Raises:
        ValueError: The shapes do not fit, or ``sweeps`` is negative.
    """
    if gram.shape != (*values.shape, *values.shape) or values.ndim != 1:
        raise ValueError(f"gram must be [R, R] and values [R], got {list(gram.shape)} and {list(values.shape)}")
    sweeps = check_whole(sweeps, "sweeps", 0)
    if gram.is_cuda and triton_available():
        from torchssvm.steps.box_qp_triton import LARGEST, ascend_triton

        if len(gram) <= LARGEST:
            return ascend_triton(gram, values, sweeps, _CONVERGED).to(values.device)
    matrix = gram.detach().to("cpu", torch.float64).contiguous().numpy()
    residual = values.detach().to("cpu", torch.float64).numpy().copy()
    gammas = np.zeros_like(residual)
    ascend(matrix, residual, sweeps, _CONVERGED, gammas)
    return torch.from_numpy(gammas).to(values.device)


@njit
def ascend(matrix: Any, residual: Any, sweeps: int, converged: float, gammas: Any) -> None:
    """Coordinate ascent on ``gammas``, zero at first; ``residual`` starts as v and stays ``v - G gamma``."""
    for _ in range(sweeps):
        largest = 0.0
        for i in range(len(residual)):
            slope, old = residual[i], gammas[i]
            if matrix[i, i] > 0.0:
                new = old + slope / matrix[i, i]
                new = 0.0 if new < 0.0 else 1.0 if new > 1.0 else new
            else:  # the weights do not move along this block: only its loss counts
                new = 1.0 if slope > 0.0 else old
            if new != old:
                gammas[i] = new
                for j in range(len(residual)):
                    residual[j] -= matrix[i, j] * (new - old)
                largest = max(largest, abs(new - old))
        if largest < converged:
            break


def gram(gradients: Sequence[Tensor], rows: Tensor) -> Tensor:
    """Inner products of the per-example gradients of ``rows``, summed over the parameters: ``[R, R]``."""
    total: Tensor | float = 0.0
    for gradient in gradients:
        chosen = gradient if len(rows) == len(gradient) else select_examples(gradient, rows)
        if chosen.is_sparse:
            total = total + gram_of_rows(chosen)
        else:
            flat = chosen.flatten(1)
            total = total + flat @ flat.t()
    assert isinstance(total, Tensor)
    return total.to(torch.float64)
