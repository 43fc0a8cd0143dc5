"""The generalised distance transform of an image under quadratic costs: one torch operator."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_scores
from torchssvm.core.jit import triton_available
from torchssvm.core.launch import compiles, launch
from torchssvm.core.operators import define
from torchssvm.structures.pose.distance_transform_numba import transform

DENSE = 128
"""Lines of more places use the envelope, which is faster there than all pairs in vector registers."""

_AT_ONCE = 2**24  # most numbers in a table of the torch operations


def distance_transform(scores: Tensor, springs: Tensor) -> tuple[Tensor, Tensor]:
    """The best place q, and its score less the cost of a spring, for each place p of an image.

        ``value[p] = max_q scores[q] - (a dx^2 + b dx + c dy^2 + d dy),    dx = p_x - q_x,  dy = p_y - q_y``

    (Felzenszwalb and Huttenlocher 2005, "Pictorial structures for object recognition"; 2012, "Distance transforms of
    sampled functions".) It is exact: the cost is a sum over both axes, so rows are transformed first, then columns.
    Ties go to the first row, then the first column. This is the operator ``torch.ops.torchssvm.distance_transform``:
    compiled by Numba on the CPU, with O(n) envelopes for long lines; otherwise in torch operations, O(n^2) for each
    line, whose inner loop is a Triton kernel on CUDA where that is installed. All give the same numbers, the envelope
    up to rounding. It has no gradient.

    Args:
        scores: ``[B, H, W]``, float32 or float64; -inf excludes a place. Results for NaN and +inf are undefined.
        springs: ``[4]`` for all images or ``[B, 4]``: a, b, c and d in units of scores per place (squared); a and c
            are at least 0. Costs are computed in float64.

    Returns:
        ``value`` ``[B, H, W]``, and ``place`` ``[B, H, W]`` int64, the best q as ``q_y * W + q_x``.

    Raises:
        ValueError: Scores are not floating, shapes do not fit, or a spring is not finite or has a negative a or c.
    """
    return _operator(scores, springs)


def _fake(scores: Tensor, springs: Tensor) -> tuple[Tensor, Tensor]:
    _check_shapes(scores, springs)
    return scores.new_empty(scores.shape), scores.new_empty(scores.shape, dtype=torch.int64)


def _on_cpu(scores: Tensor, springs: Tensor) -> tuple[Tensor, Tensor]:
    if not compiles(scores):
        return distance_transform_torch(scores, springs)
    _check(scores, springs)
    value, place = _fake(scores, springs)
    batch, height, width = scores.shape
    area = height * width
    launch(
        transform,
        (scores, springs.to(torch.float64).reshape(-1, 4), DENSE),
        (value, place),
        np.full(batch, float(area) * (min(height, DENSE) + min(width, DENSE))),
        [(area + 2 * (height + width), value.dtype), (area + 2 * max(height, width), torch.int64)],
    )
    return value, place


def _check_shapes(scores: Tensor, springs: Tensor) -> None:
    check_scores(scores=scores, springs=springs)
    if scores.ndim != 3 or not scores.shape[1] or not scores.shape[2]:
        raise ValueError(f"scores must be [B, H, W] with at least one place, got {list(scores.shape)}")
    if springs.shape not in ((4,), (scores.shape[0], 4)):
        raise ValueError(f"springs must be [4] or [{scores.shape[0]}, 4], got {list(springs.shape)}")


def _check(scores: Tensor, springs: Tensor) -> None:
    _check_shapes(scores, springs)
    wrong = ~torch.isfinite(springs) | (springs < 0) & torch.tensor([True, False] * 2, device=springs.device)
    if bool(wrong.any()):
        row = springs.reshape(-1, 4)[int(wrong.reshape(-1, 4).any(1).nonzero()[0])].tolist()
        raise ValueError(
            f"springs must be finite, and the quadratic ones, a and c, at least 0: got (a, b, c, d) = {row}; bound "
            "their weights by lower=0.0 in a parameter group"
        )


@torch.no_grad()
def distance_transform_torch(scores: Tensor, springs: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`distance_transform` in torch operations on any device, over all pairs of places of a line."""
    _check(scores, springs)
    batch, height, width = scores.shape
    springs = springs.to(torch.float64).expand(batch, 4)
    rows, column = best_along_last(scores, _costs(springs[:, :2], width, scores.dtype))
    value, row = best_along_last(rows.mT, _costs(springs[:, 2:], height, scores.dtype))
    value, row = value.mT.contiguous(), row.mT
    return value, row * width + column.gather(1, row)


def _costs(spring: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """The cost from place q of a line to place p, ``[B, 1, p, q]``."""
    place = torch.arange(size, device=spring.device, dtype=torch.float64)
    d = place.unsqueeze(1) - place
    curvature, slope = spring[:, :1, None], spring[:, 1:, None]
    return (curvature * d * d + slope * d).to(dtype).unsqueeze(1)


def best_along_last(scores: Tensor, costs: Tensor) -> tuple[Tensor, Tensor]:
    """``max_q scores[..., q] - costs[..., p, q]`` and the first maximiser q, both shaped like ``scores``.

    Args:
        scores: ``[*batch, n]``.
        costs: ``[*batch, n, n]``, or broadcastable to it.
    """
    if scores.is_cuda and triton_available() and compiles(scores, costs):
        from torchssvm.structures.pose.triton import best_along_last_triton

        return best_along_last_triton(scores, costs)
    shape, size = scores.shape, scores.shape[-1]
    costs = costs.expand(*shape, size).flatten(0, -3)
    lines = scores.reshape(-1, 1, size)
    found = [
        (lines[few] - costs[few]).max(2)
        for few in torch.arange(len(lines), device=scores.device).split(max(1, _AT_ONCE // size**2))
    ]
    if not found:
        return scores.clone(), scores.to(torch.int64)
    return torch.cat([f.values for f in found]).view(shape), torch.cat([f.indices for f in found]).view(shape)


_operator = define(
    "distance_transform(Tensor scores, Tensor springs) -> (Tensor value, Tensor place)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=distance_transform_torch,
    default=distance_transform_torch,
)
