"""The box QP that gives every block of a batch its own step size."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def solve_box_qp(gram: Tensor, values: Tensor, sweeps: int) -> Tensor:
    """Maximise ``gamma^T v - gamma^T G gamma / 2`` over ``[0, 1]^R`` by cyclic coordinate ascent from 0.

    One sweep equals applying the corners one after another with exact, re-clipped steps. Solving stops early when a
    sweep changes nothing by more than 1e-6. It runs on the CPU, in float64.

    Args:
        gram: G, ``[R, R]``, positive semidefinite.
        values: v, ``[R]``.
        sweeps: Most sweeps.

    Returns:
        gamma, ``[R]`` float64, on the device of ``values``.
    """
    matrix = gram.detach().to("cpu", torch.float64).numpy()
    residual = values.detach().to("cpu", torch.float64).numpy().copy()
    diagonal = matrix.diagonal().tolist()
    gammas = [0.0] * len(diagonal)
    scratch = np.empty_like(residual)
    for _ in range(sweeps):
        largest = 0.0
        for i, (row, curvature) in enumerate(zip(matrix, diagonal, strict=True)):
            slope = residual.item(i)
            if curvature > 0.0:
                step = min(max(gammas[i] + slope / curvature, 0.0), 1.0) - gammas[i]
            else:  # the weights do not move along this block: only its loss counts
                step = 1.0 - gammas[i] if slope > 0.0 else 0.0
            if step:
                gammas[i] += step
                np.multiply(row, step, out=scratch)
                residual -= scratch
                largest = max(largest, abs(step))
        if largest < 1e-6:
            break
    return torch.tensor(gammas, dtype=torch.float64, device=values.device)


def gram(gradients: list[Tensor], rows: Tensor) -> Tensor:
    """Inner products of the per-example gradients of ``rows``, summed over the parameters: ``[R, R]``."""
    total: Tensor | float = 0.0
    for gradient in gradients:
        flat = gradient.flatten(1)
        flat = flat if len(rows) == len(flat) else flat[rows]
        total = total + flat @ flat.t()
    assert isinstance(total, Tensor)
    return total.to(torch.float64)
