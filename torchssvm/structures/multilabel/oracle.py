"""The best label sets of a batch, where labels have scores of their own and in pairs.

A set y of K labels scores ``sum_i u_i y_i + sum_{i<j} w_ij y_i y_j``, a quadratic pseudo-Boolean function.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.launch import launch
from torchssvm.core.scratch import scratch
from torchssvm.structures.multilabel.message_passing import Workspace, workspace
from torchssvm.structures.multilabel.numba import decode
from torchssvm.structures.multilabel.reference import best_label_sets_torch

_EACH = 8_000.0  # pairs of states that are compared while an example is decoded

_local = threading.local()


def best_label_sets(
    unary: Tensor, pairwise: Tensor, *, sweeps: int = 100, effort: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Label sets with a high score, and an upper bound of all scores.

    Labels that are the same in all best sets are found first, by comparing a score with all that could outweigh it.
    For the others, messages between all pairs of labels lower the dual of the linear program over the local polytope:
    MPLP [1]_, whose fixed points are optimal where variables are binary. Labels are decoded from the messages after
    some of the sweeps, and improved by flipping one or two. Where the bound and the best score do not meet, branch and
    bound may go on with the same messages.

    With weights that are all 0 or more this is a minimum cut, and messages alone find it. Tensors of
    the CPU and of CUDA are decoded on the CPU, compiled by Numba; those of other devices in torch operations, with the
    same messages.

    Args:
        unary: ``[B, K]``, float32 or float64; computed in float64.
        pairwise: ``[B, P]``, P = K (K - 1) / 2, the pairs i < j in the order of ``torch.triu_indices(K, K, 1)``; or
            ``[P]`` for all. One vector that is expanded to B rows is as quick as ``[P]``.
        sweeps: How often all messages of an example are sent, at most; at least 1.
        effort: How many updates of pairs branch and bound may take for an example: about 10 milliseconds for a million.
            0 leaves the bound of the linear program.

    Returns:
        Labels ``[B, K]`` int64, 0 and 1; their scores ``[B]`` float64; bounds ``[B]`` float64, equal to the score where
        the labels are the best. NaN where scores are not finite.

    Raises:
        ValueError: Shapes do not fit, or ``sweeps`` is less than 1, or ``effort`` less than 0.

    References:
        .. [1] A. Globerson and T. Jaakkola. Fixing max-product: convergent message passing algorithms for MAP
           LP-relaxations. NIPS 2007.
    """
    if unary.ndim != 2 or unary.shape[1] < 1:
        raise ValueError(f"unary must be [B, K] with at least one label, got {list(unary.shape)}")
    batch, size = unary.shape
    pairs = size * (size - 1) // 2
    if pairwise.shape not in {(pairs,), (batch, pairs)}:
        raise ValueError(f"pairwise must be [{pairs}] or [{batch}, {pairs}], got {list(pairwise.shape)}")
    if sweeps < 1 or effort < 0:
        raise ValueError(f"sweeps={sweeps} must be at least 1, and effort={effort} at least 0")
    unary = unary.detach().to(torch.float64)
    weights = symmetric(shared(pairwise.detach()).to(torch.float64), size)
    if unary.device.type not in ("cpu", "cuda"):
        return best_label_sets_torch(unary, weights, sweeps, effort)
    labels = torch.empty(batch, size, dtype=torch.int64)
    value, bound = torch.empty(2, batch, dtype=torch.float64).unbind(0)
    launch(
        decode,
        (unary.cpu(), (weights if weights.ndim == 3 else weights.unsqueeze(0)).cpu(), sweeps, effort),
        (labels, value, bound),
        np.ones(batch),
        lambda: (scratch(2 * size, torch.float64), _memory(size)),
        each=_EACH,
    )
    return labels.to(unary.device), value.to(unary.device), bound.to(unary.device)


def _memory(num_labels: int) -> Workspace:
    """This thread's working memory for K labels, kept from call to call."""
    held: Workspace | None = getattr(_local, "memory", None)
    if held is None or len(held.free) != num_labels:
        held = _local.memory = workspace(num_labels)
    return held


def shared(pairwise: Tensor) -> Tensor:
    """``[P]`` if ``pairwise`` is one vector for all examples; else itself, ``[B, P]``."""
    if pairwise.ndim == 2 and (pairwise.stride(0) == 0 or len(pairwise) == 1):
        return pairwise[0]
    return pairwise


def symmetric(pairwise: Tensor, num_labels: int) -> Tensor:
    """Scores of pairs ``[..., P]`` as symmetric matrices ``[..., K, K]`` with a zero diagonal."""
    i, j = torch.triu_indices(num_labels, num_labels, 1, device=pairwise.device)
    matrix = pairwise.new_zeros(*pairwise.shape[:-1], num_labels, num_labels)
    matrix[..., i, j] = pairwise
    matrix[..., j, i] = pairwise
    return matrix
