"""The box QP that gives every block of a batch its own step size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.oracles.compiled import compiled, numba_available, triton_available

_CONVERGED = 1e-3  # steps are re-scaled by the line search, and corners are only approximately right: no need for more


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
    """
    if gram.is_cuda and triton_available():
        from torchssvm.optim.box_qp_triton import LARGEST, ascend_triton

        if len(gram) <= LARGEST:
            return ascend_triton(gram, values, sweeps, _CONVERGED).to(values.device)
    matrix = gram.detach().to("cpu", torch.float64).contiguous().numpy()
    residual = values.detach().to("cpu", torch.float64).numpy().copy()
    solve = _ascend_compiled if numba_available() else _ascend
    return torch.from_numpy(solve(matrix, residual, sweeps, _CONVERGED)).to(values.device)


def _ascend(matrix: Any, residual: Any, sweeps: int, converged: float) -> Any:
    """Coordinate ascent; ``residual`` starts as v and stays ``v - G gamma``."""
    gammas = np.zeros_like(residual)
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
                residual -= matrix[i] * (new - old)
                largest = max(largest, abs(new - old))
        if largest < converged:
            break
    return gammas


_ascend_compiled = compiled(_ascend)


def gram(gradients: list[Tensor], rows: Tensor) -> Tensor:
    """Inner products of the per-example gradients of ``rows``, summed over the parameters: ``[R, R]``."""
    total: Tensor | float = 0.0
    for gradient in gradients:
        flat = gradient.flatten(1)
        flat = flat if len(rows) == len(flat) else flat[rows]
        total = total + flat @ flat.t()
    assert isinstance(total, Tensor)
    return total.to(torch.float64)
