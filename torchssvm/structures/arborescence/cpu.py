"""Eisner's algorithm on the CPU, compiled by Numba; same heads and values as the torch operations, to the bit."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core import tuning
from torchssvm.core.scratch import as_array, scratch
from torchssvm.core.threads import run_in_chunks

_CHARTS = 6


def eisner_cpu(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """As :func:`.eisner`, for CPU tensors, float32 or float64, whose lengths have been checked."""
    batch, longest, size = scores.shape
    heads = torch.empty((batch, longest), dtype=torch.int64)
    value = torch.empty(batch, dtype=scores.dtype)
    arcs = np.ascontiguousarray(as_array(scores))
    known = np.full(batch, longest) if lengths is None else np.ascontiguousarray(as_array(lengths))
    out_heads, out_value = heads.numpy(), value.numpy()
    decode = _loops()

    def work(begin: int, end: int, _: int) -> None:
        charts = scratch(_CHARTS * size * size, arcs.dtype)[: _CHARTS * size * size]
        stack = scratch(3 * (2 * size + 2), known.dtype)
        decode(
            arcs, known, begin, end, single_root, charts.reshape(_CHARTS, size, size), stack, out_heads, out_value
        )  # fmt: skip

    # A span of width w is compared at 3 w splits; there are T^3 / 2 of these in all.
    run_in_chunks(work, 0.5 * known.astype(np.float64) ** 3, grain=tuning.GRAIN)
    return heads, value


@functools.cache
def _loops() -> Any:
    from torchssvm.structures.arborescence.numba import decode

    return decode
