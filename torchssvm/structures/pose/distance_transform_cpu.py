"""The generalised distance transform on the CPU, compiled by Numba."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core import tuning
from torchssvm.core.scratch import as_array, scratch
from torchssvm.core.threads import run_in_chunks

DENSE = 128
"""Lines of more places are transformed by their envelope: where it is faster than all pairs in vector registers."""


def distance_transform_cpu(scores: Tensor, springs: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`.distance_transform`, for CPU tensors, float32 or float64, that have been checked."""
    batch, height, width = scores.shape
    value, place = torch.empty_like(scores, memory_format=torch.contiguous_format), torch.empty(scores.shape).long()
    images = np.ascontiguousarray(as_array(scores))
    costs = np.ascontiguousarray(as_array(springs.to(torch.float64))).reshape(-1, 4)
    out, found = value.numpy(), place.numpy()
    transform, area, dense = _loops(), height * width, DENSE

    def work(begin: int, end: int, _: int) -> None:
        memory = scratch(area + 2 * (height + width), images.dtype)
        places = scratch(area + 2 * max(height, width), found.dtype)
        transform(images, costs, begin, end, dense, memory, places, out, found)

    run_in_chunks(work, np.full(batch, float(area) * (min(height, dense) + min(width, dense))), grain=tuning.GRAIN)
    return value, place


@functools.cache
def _loops() -> Any:
    from torchssvm.structures.pose.distance_transform_numba import transform

    return transform
