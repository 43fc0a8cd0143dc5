"""The box QP on a CUDA device: one Triton program, no copy to the host, the same bits as on the CPU.

Import it only where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.jit import on_device

LARGEST = 4096
"""Most blocks that one program holds in its registers."""


def ascend_triton(gram: Tensor, values: Tensor, sweeps: int, converged: float) -> Tensor:
    """Cyclic coordinate ascent from 0, as in ``solve_box_qp``.

    Args:
        gram: ``[R, R]``, R at most ``LARGEST``.
        values: ``[R]``.
        sweeps: Most sweeps.
        converged: Stop after a sweep that moves every gamma by less.

    Returns:
        gamma, ``[R]`` float64, on the device of ``gram``.
    """
    matrix = gram.detach().to(torch.float64).contiguous()
    residual = values.detach().to(matrix.device, torch.float64).contiguous()
    size = len(residual)
    gammas = torch.empty_like(residual)
    if size:
        width = max(2, triton.next_power_of_2(size))
        with on_device(matrix):
            # Fused multiply-add rounds once where the CPU rounds twice. Up to 256 blocks one warp is enough, and its
            # reductions need no barrier.
            _ascend[(1,)](
                matrix, residual, gammas, size, sweeps,
                converged=converged, width=width, num_warps=_warps(width), enable_fp_fusion=False,
            )  # fmt: skip
    return gammas


def _warps(width: int) -> int:
    return 1 if width <= 256 else 4 if width <= 1024 else 16


@triton.jit
def _ascend(matrix, values, result, size, sweeps, converged: tl.constexpr, width: tl.constexpr):
    """``residual`` starts as v and stays ``v - G gamma``."""
    place = tl.arange(0, width)
    inside = place < size
    residual = tl.load(values + place, inside, 0.0)
    gammas = tl.zeros([width], tl.float64)
    enough = tl.full([], converged, tl.float64)  # a plain float argument would be rounded to float32
    sweep = 0
    running = sweeps > 0
    while running:
        largest = tl.zeros([], tl.float64)
        for i in range(0, size):
            here = place == i
            slope = tl.sum(tl.where(here, residual, 0.0), 0)
            old = tl.sum(tl.where(here, gammas, 0.0), 0)
            curvature = tl.load(matrix + i * size + i)
            if curvature > 0.0:
                new = old + slope / curvature
                new = tl.where(new < 0.0, 0.0, tl.where(new > 1.0, 1.0, new))
            else:  # the weights do not move along this block: only its loss counts
                new = tl.where(slope > 0.0, 1.0, old)
            if new != old:
                gammas = tl.where(here, new, gammas)
                residual = residual - tl.load(matrix + i * size + place, inside, 0.0) * (new - old)
                largest = tl.maximum(largest, tl.abs(new - old))
        sweep += 1
        running = (sweep < sweeps) & (largest >= enough)
    tl.store(result + place, gammas, inside)
