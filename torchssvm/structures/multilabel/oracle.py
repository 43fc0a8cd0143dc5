"""The best label sets of a batch, with scores for single labels and for pairs.

A set y of K labels scores ``sum_i u_i y_i + sum_{i<j} w_ij y_i y_j``, a quadratic pseudo-Boolean function.
"""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.jit import triton_available
from torchssvm.core.launch import launch
from torchssvm.structures.multilabel.message_passing import Workspace, workspace
from torchssvm.structures.multilabel.numba import decode

_EACH = 8_000.0  # cost of decoding an example, in comparisons of pairs of states

_local = threading.local()


def best_label_sets(
    unary: Tensor, pairwise: Tensor, *, max_rounds: int = 100, effort: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Label sets with a high score, and an upper bound of all scores.

    First, labels whose scores outweigh all their pairs are decided. For the others, messages between all pairs minimise
    the dual of the linear program over the local polytope (MPLP [1]_, whose fixed points are optimal for binary
    variables). Labels are decoded after some of the rounds and improved by flipping one or two. If a gap remains
    between the bound and the best score, branch and bound may continue from the same messages.

    If all pair weights are at least 0, the problem is a minimum cut and messages alone solve it. Numba decodes on
    the CPU. For CUDA tensors with K up to 1024, all but branch and bound is one Triton kernel, where that is installed.
    Its screening adds up in another order: values and bounds are those of the CPU up to rounding, and of two labelings
    whose scores agree to rounding it may find the other. Examples with a gap go to the CPU for branch and bound, and
    without Triton, or on another device, all do.

    Args:
        unary: ``[B, K]``, float32 or float64; computed in float64.
        pairwise: ``[B, P]``, P = K (K - 1) / 2, the pairs i < j in the order of ``torch.triu_indices(K, K, 1)``; or
            ``[P]`` for all. One vector expanded to B rows is as fast as ``[P]``.
        max_rounds: Most rounds over all pairs of an example; at least 1.
        effort: The most pair updates of branch and bound for an example; a million take about 10 ms. 0 keeps the bound
            of the linear program.

    Returns:
        Labels ``[B, K]`` int64, 0 and 1; their scores ``[B]`` float64; bounds ``[B]`` float64, equal to the score if
        the labels are optimal. Scores that are not finite give NaN.

    Raises:
        ValueError: Shapes do not fit, or ``max_rounds`` is less than 1, or ``effort`` less than 0.

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
    if max_rounds < 1 or effort < 0:
        raise ValueError(f"max_rounds={max_rounds} must be at least 1, and effort={effort} at least 0")
    unary = unary.detach().to(torch.float64)
    weights = symmetric(shared(pairwise.detach()).to(torch.float64), size)
    if unary.is_cuda and triton_available():
        from torchssvm.structures.multilabel.triton import LARGEST, label_sets_triton

        if size <= LARGEST:
            found = label_sets_triton(unary, weights if weights.ndim == 3 else weights.unsqueeze(0), max_rounds)
            return _branch(unary, weights, max_rounds, effort, *found) if effort else found
    return _on_cpu(unary, weights, max_rounds, effort)


def _branch(
    unary: Tensor, weights: Tensor, max_rounds: int, effort: int, labels: Tensor, value: Tensor, bound: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Decode on the CPU, with branch and bound, the examples that messages left with a gap."""
    rows = (bound > value).nonzero().squeeze(1)
    if len(rows):
        theirs = weights[rows] if weights.ndim == 3 else weights
        for whole, part in zip((labels, value, bound), _on_cpu(unary[rows], theirs, max_rounds, effort), strict=True):
            whole[rows] = part
    return labels, value, bound


def _on_cpu(unary: Tensor, weights: Tensor, max_rounds: int, effort: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, size = unary.shape
    labels = torch.empty(batch, size, dtype=torch.int64)
    value, bound = torch.empty(2, batch, dtype=torch.float64).unbind(0)
    launch(
        decode,
        (unary.cpu(), (weights if weights.ndim == 3 else weights.unsqueeze(0)).cpu(), max_rounds, effort),
        (labels, value, bound),
        np.ones(batch),
        [(2 * size, torch.float64), partial(_workspace, size)],
        each=_EACH,
    )
    return labels.to(unary.device), value.to(unary.device), bound.to(unary.device)


def _workspace(num_labels: int) -> Workspace:
    """This thread's working memory for K labels, kept from call to call."""
    held: Workspace | None = getattr(_local, "memory", None)
    if held is None or len(held.free) != num_labels:
        held = _local.memory = workspace(num_labels)
    return held


def shared(pairwise: Tensor) -> Tensor:
    """``[P]`` if ``pairwise`` is one vector for all examples, else ``pairwise`` unchanged, ``[B, P]``."""
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
