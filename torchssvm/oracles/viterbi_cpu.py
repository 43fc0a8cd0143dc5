"""Viterbi on the CPU, compiled by Numba; same labels and values as the torch operations, to the bit."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.oracles.scratch import as_array, scratch
from torchssvm.oracles.threads import run_in_chunks

# All of these are from measurements (float32, AVX-512, 2 MB of L2 cache a core); nothing but speed depends on them.
_WHOLE = 128  # up to so many states, one copy of the transitions with padded rows serves all positions
_LANES = 8  # rows are padded to a multiple: no scalar remainder after the vector loops
_LOCKSTEP = 2**20  # bytes; larger transitions are read in blocks, each for a group of chains
_GROUP = 16  # chains that share a block
_BLOCK = 16, 2048  # rows and bytes of a row: 32 KB stay in the L1 cache
_GROUP_MEMORY = 2**26  # bytes of working memory of a group
_GRAIN = 400_000  # pairs of states, about 45 microseconds: with less, waking up another thread costs what it saves

_NONE = np.empty(0, np.int64)


def viterbi_cpu(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """As :func:`torchssvm.oracles.viterbi`, for CPU tensors of one dtype, float32 or float64.

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
    group, order, block = _plan(e, pairs, known)
    decode = _loops()

    def work(begin: int, end: int, _: int) -> int:
        memory = scratch(block[0] * block[1] + group * (longest + 1) * block[2], e.dtype)
        return decode(e, pairs, known, order, begin, end, group, block, memory, out_labels, out_value)

    each = states * states
    if batch * longest * each < 2 * _GRAIN:
        bad = [work(0, batch, 0)]
    else:
        run = known if len(known) else np.full(batch, longest)
        bad = run_in_chunks(work, (run[order] if len(order) else run) * each, grain=_GRAIN)
    for row in bad:
        if row >= 0:
            raise ValueError(
                f"lengths must lie between 1 and the padded length {longest}, got {known[row]} in row {row}"
            )
    return labels, value


@functools.cache
def _loops() -> Any:
    from torchssvm.oracles.viterbi_loops import decode

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


def _plan(emission: np.ndarray, pairs: np.ndarray, lengths: np.ndarray) -> tuple[int, Any, tuple[int, int, int]]:
    """Chains in lockstep, their order, rows and columns of a block of transitions, and the width of working rows."""
    batch, longest, states = emission.shape
    padded = -(-states // _LANES) * _LANES
    if pairs.shape[1] == 1 and states <= _WHOLE:
        return 1, _NONE, (states, padded, padded)
    size = emission.itemsize
    if pairs.shape[0] == pairs.shape[1] == 1 and states * states * size >= _LOCKSTEP:
        rows, columns = _BLOCK[0], _BLOCK[1] // size
        padded = -(-states // columns) * columns
        group = min(_GROUP, batch, _GROUP_MEMORY // (longest * padded * size))
        if group > 1:
            order = np.argsort(-lengths, kind="stable") if len(lengths) else np.arange(batch)
            return group, order, (rows, columns, padded)
    return 1, _NONE, (0, padded, padded)
