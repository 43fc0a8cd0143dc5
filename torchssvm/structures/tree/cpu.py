"""Max-sum on trees on the CPU, compiled by Numba; same labels and values as the torch operations, to the bit."""

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


def max_sum_tree_cpu(node: Tensor, edge: Tensor, parent: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor] | int:
    """As :func:`torchssvm.structures.tree.oracle`, for CPU tensors of one dtype, float32 or float64.

    Returns:
        Labels and value; or, where the length or the parents of a row are wrong, the row.
    """
    batch, longest, states = node.shape
    labels = torch.empty((batch, longest), dtype=torch.int64)
    value = torch.empty(batch, dtype=node.dtype)
    scores = np.ascontiguousarray(as_array(node))
    edges = _child_first(edge)
    parents = np.ascontiguousarray(as_array(parent if parent.ndim == 2 else parent.unsqueeze(0)))
    known = _NONE if lengths is None else np.ascontiguousarray(as_array(lengths))
    out_labels, out_value = labels.numpy(), value.numpy()
    group, shape = tuning.plan(batch, states, scores.itemsize, edges.shape[:2], 2 * longest)
    decode = _loops()

    def work(begin: int, end: int, _: int) -> int:
        memory = scratch(shape[0] * shape[1] + 2 * group * longest * shape[2], scores.dtype)
        places = scratch((2 * group + 1) * longest + 2, known.dtype)
        return decode(
            scores, edges, parents, known, begin, end, group, shape, memory, places, out_labels, out_value
        )  # fmt: skip

    each = states * states
    if batch * longest * each < 2 * tuning.GRAIN:
        bad = [work(0, batch, 0)]
    else:
        bad = run_in_chunks(work, (known if len(known) else np.full(batch, longest)) * each, grain=tuning.GRAIN)
    return max(bad) if max(bad) >= 0 else (labels, value)


@functools.cache
def _loops() -> Any:
    from torchssvm.structures.tree.numba import decode

    return decode


def _child_first(edge: Tensor) -> np.ndarray:
    """``[B or 1, N or 1, K, K]`` contiguous, the child's state first; a matrix seen many times is there once."""
    if edge.ndim == 2:
        edge = edge.unsqueeze(0)
    elif edge.stride(0) == 0:
        edge = edge[:1]
    edge = edge.unsqueeze(1) if edge.ndim == 3 else edge
    return as_array(edge.detach().mT.contiguous())
