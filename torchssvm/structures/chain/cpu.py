"""Viterbi on the CPU, compiled by Numba; same labels and values as the torch operations, to the bit."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core import tuning
from torchssvm.core.scratch import as_array, scratch
from torchssvm.core.threads import run_in_chunks

_NONE = np.empty(0, np.int64)


def viterbi_cpu(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """As :func:`torchssvm.structures.chain.oracle`, for CPU tensors of one dtype, float32 or float64.

    Raises:
        ValueError: A length is less than 1 or more than N; there are no states or no positions.
    """
    batch, longest, states = emission.shape
    if states < 1 or longest < 1:
        raise ValueError(
            f"emission must be [B, N, K] with at least one position and one state, got {[*emission.shape]}"
        )
    labels = torch.empty((batch, longest), dtype=torch.int64)
    value = torch.empty(batch, dtype=emission.dtype)
    e = np.ascontiguousarray(as_array(emission))
    pairs = _four_axes(as_array(transition))
    known = _NONE if lengths is None else np.ascontiguousarray(as_array(lengths))
    out_labels, out_value = labels.numpy(), value.numpy()
    group, shape = tuning.plan(batch, states, e.itemsize, pairs.shape[:2], longest + 1)
    order = _NONE
    if group > 1:
        order = np.argsort(-known, kind="stable") if len(known) else np.arange(batch)
    decode = _loops()

    def work(begin: int, end: int, _: int) -> int:
        memory = scratch(shape[0] * shape[1] + group * (longest + 1) * shape[2], e.dtype)
        return decode(e, pairs, known, order, begin, end, group, shape, memory, out_labels, out_value)

    each = states * states
    if batch * longest * each < 2 * tuning.GRAIN:
        bad = [work(0, batch, 0)]
    else:
        run = known if len(known) else np.full(batch, longest)
        bad = run_in_chunks(work, (run[order] if len(order) else run) * each, grain=tuning.GRAIN)
    for row in bad:
        if row >= 0:
            raise ValueError(
                f"lengths must lie between 1 and the padded length {longest}, got {known[row]} in row {row}"
            )
    return labels, value


@functools.cache
def _loops() -> Any:
    from torchssvm.structures.chain.numba import decode

    return decode


def _four_axes(transition: np.ndarray) -> np.ndarray:
    """``[B or 1, N-1 or 1, K, K]``, contiguous; a matrix seen many times is there once."""
    if transition.ndim == 2:
        return np.ascontiguousarray(transition)[None, None]
    if transition.strides[0] == 0:
        transition = transition[:1]
    if transition.ndim == 3:
        transition = transition[:, None]
    elif transition.shape[1] == 0:  # chains of one position
        transition = np.zeros((1, 1, *transition.shape[2:]), transition.dtype)
    return np.ascontiguousarray(transition)
