"""The best label sets on the CPU, compiled by Numba."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.threads import run_in_chunks

_GRAIN = 50  # examples that are decoded while another thread wakes up

_local = threading.local()


def best_label_sets_cpu(unary: Tensor, weights: Tensor, sweeps: int, effort: int) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`torchssvm.structures.multilabel.oracle.best_label_sets`, for CPU tensors in float64.

    Args:
        unary: ``[B, K]``.
        weights: ``[K, K]`` or ``[B, K, K]``, symmetric with a zero diagonal.
        sweeps: At least 1.
        effort: At least 0.
    """
    batch, size = unary.shape
    labels = torch.empty((batch, size), dtype=torch.int64)
    value, bound = (torch.empty(batch, dtype=torch.float64) for _ in range(2))
    scores, pairs = unary.contiguous().numpy(), weights.contiguous().numpy()
    found = labels.numpy(), value.numpy(), bound.numpy()
    loops = _loops()
    if pairs.ndim == 2:
        positive, negative = np.empty(size), np.empty(size)
        loops.row_sums(pairs, positive, negative)

        def work(begin: int, end: int, _: int) -> None:
            loops.decode_rows(scores, pairs, positive, negative, begin, end, sweeps, effort, _memory(size), *found)
    else:

        def work(begin: int, end: int, _: int) -> None:
            sums = np.empty(size), np.empty(size)
            loops.decode_each(scores, pairs, *sums, begin, end, sweeps, effort, _memory(size), *found)

    run_in_chunks(work, np.ones(batch), grain=_GRAIN)
    return labels, value, bound


def _memory(size: int) -> Any:
    """This thread's working memory for K labels, kept from call to call."""
    held = getattr(_local, "memory", None)
    if held is None or len(held.free) != size:
        from torchssvm.structures.multilabel.message_passing import workspace

        held = _local.memory = workspace(size)
    return held


@functools.cache
def _loops() -> Any:
    from torchssvm.structures.multilabel import numba as multilabel_loops

    return multilabel_loops
