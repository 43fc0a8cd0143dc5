"""The best label sets of a batch, with scores for single labels and for pairs.

A set y of K labels scores ``sum_i u_i y_i + sum_{i<j} w_ij y_i y_j``, a quadratic pseudo-Boolean function.
"""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.core.arguments import check_whole
from torchssvm.core.launch import launch
from torchssvm.core.triton_support import triton_available
from torchssvm.structures.common import check_operands
from torchssvm.structures.multilabel.message_passing import Workspace, branch, pass_messages, reduce, workspace

_EACH = 8_000.0  # cost of decoding an example, in comparisons of pairs of states

_MASK = 2.0**20  # how many times larger than all other scores one is that forbids

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
    Its screening adds up in another order: values and bounds agree with the CPU's up to rounding, and of two labelings
    whose scores agree to rounding it may return the other. Examples with a gap go to the CPU for branch and bound, and
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
        the labels are optimal. Scores of -inf forbid a label or a pair, and NaN or inf give NaN.

    Raises:
        ValueError: Scores are not floating, a shape does not fit, ``max_rounds`` is below 1 or ``effort`` below 0.

    References:
        .. [1] A. Globerson and T. Jaakkola. Fixing max-product: convergent message passing algorithms for MAP
           LP-relaxations. NIPS 2007.
    """
    size = unary.shape[-1]
    pairs = len(unary), size * (size - 1) // 2
    check_operands(unary=(unary, "BK"), pairwise=(pairwise, pairs[-pairwise.ndim :]))
    max_rounds, effort = check_whole(max_rounds, "max_rounds"), check_whole(effort, "effort", 0)
    unary = unary.detach().to(torch.float64)
    weights = without_masks(unary, symmetric(shared(pairwise.detach()).to(torch.float64), size))
    if unary.is_cuda and triton_available():
        from torchssvm.structures.multilabel.triton import LARGEST, label_sets_triton

        if size <= LARGEST:
            sets = label_sets_triton(unary, weights if weights.ndim == 3 else weights.unsqueeze(0), max_rounds)
            return _branch(unary, weights, max_rounds, effort, *sets) if effort else sets
    return _on_cpu(unary, weights, max_rounds, effort)


def _branch(
    unary: Tensor, weights: Tensor, max_rounds: int, effort: int, labels: Tensor, value: Tensor, bound: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Decode on the CPU, with branch and bound, the examples that messages left with a gap."""
    rows = (bound > value).nonzero().squeeze(1)
    if len(rows):
        some = weights[rows] if weights.ndim == 3 else weights
        for whole, part in zip((labels, value, bound), _on_cpu(unary[rows], some, max_rounds, effort), strict=True):
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
    """This thread's working memory for K labels, which later calls use again."""
    memory: Workspace | None = getattr(_local, "memory", None)
    if memory is None or len(memory.free) != num_labels:
        memory = _local.memory = workspace(num_labels)
    return memory


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


def without_masks(unary: Tensor, weights: Tensor) -> Tensor:
    """``weights`` ``[K, K]`` or ``[B, K, K]``, with weights that forbid a pair reduced to the size that still forbids.

    Beside a weight such as -1e30, messages would round away all other scores and call any labels optimal. Twice the
    gain of either label forbids a pair. Where that gain is tiny, the limit is a share of the largest gain of any label,
    or twice the smallest weight if no label can gain.
    """
    alone = unary.clamp(min=0.0)
    if weights.ndim == 2:
        alone = torch.nn.functional.pad(alone, (0, 0, 0, 1)).amax(0)  # of no examples, 0
    gain = alone + weights.clamp(min=0.0).sum(-1)
    most = gain.amax(-1, keepdim=True)
    least = weights.abs().masked_fill(weights == 0.0, torch.inf).flatten(-2).amin(-1, keepdim=True).clamp(max=1e30)
    gain = torch.maximum(gain, torch.where(most > 0.0, most / 1024.0, least))
    enough = -2.0 * torch.minimum(gain.unsqueeze(-1), gain.unsqueeze(-2))
    return torch.where(weights < _MASK * enough, enough, weights)


def by_first(pairs: Tensor, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of each first label, ``[K + 1]``, and the second labels ``[P]``, of pairs ``[2, P]``."""
    first, other = pairs.cpu().numpy()
    return np.searchsorted(first, np.arange(num_labels + 1)), np.ascontiguousarray(other)


@njit
def row_sums(weights, positive, negative):
    """Sums of the positive and of the negative entries of each row of ``weights`` ``[K, K]``, for :func:`screen`."""
    for k in range(len(weights)):
        above, below = 0.0, 0.0
        for w in weights[k]:
            above += max(w, 0.0)
            below += min(w, 0.0)
        positive[k], negative[k] = above, below


@njit
def decode(unary, weights, max_rounds, effort, begin, end, sums, memory, labels, value, bound):
    """Decode the examples ``begin`` to ``end - 1``.

    Args:
        unary: ``[B, K]`` float64, the score of each label, its loss included.
        weights: ``[B or 1, K, K]`` float64, symmetric with a zero diagonal: the scores of pairs.
        max_rounds: Most rounds over all pairs of an example; at least 1.
        effort: The most pair updates of branch and bound for an example with a gap; 0 for no branching.
        sums: Room for 2 K numbers.
        memory: A ``workspace(K)`` of this thread.
        labels: ``[B, K]`` int64, to be filled with 0 and 1.
        value: ``[B]`` float64, to be filled: the score of the labels.
        bound: ``[B]`` float64, to be filled: an upper bound of all scores, up to rounding; equal to the value if the
            labels are optimal.
    """
    size = unary.shape[1]
    positive, negative = sums[:size], sums[size : 2 * size]
    for row in range(begin, end):
        pairs = weights[row if weights.shape[0] > 1 else 0]
        if row == begin or weights.shape[0] > 1:
            row_sums(pairs, positive, negative)
        value[row], bound[row] = decode_row(
            unary[row], pairs, positive, negative, max_rounds, effort, memory, labels[row]
        )


@njit
def decode_row(unary, weights, positive, negative, max_rounds, effort, memory, labels):
    """Decode one example as :func:`decode` does: fill ``labels`` ``[K]``, return value and bound."""
    count = screen(unary, weights, positive, negative, memory, labels)
    if count == 0:
        value = score(unary, weights, labels, memory)
        return value, value
    reduce(unary, weights, labels, memory)
    if np.isfinite(memory.tiny[0]):
        best, bound = pass_messages(memory, max_rounds)
        if effort > 0 and bound - best > memory.tiny[0]:
            best, bound = branch(memory, best, bound, effort)
        gap = bound - best
    else:
        gap = np.nan
    for a in range(count):
        labels[memory.free[a]] = memory.best[a]
    value = score(unary, weights, labels, memory)
    # best and bound cover only the undecided labels, so only their gap is used; a gap within rounding is 0.
    return value, value if gap <= memory.tiny[0] else value + gap


@njit
def screen(unary, weights, positive, negative, memory, labels):
    """Decide labels that are the same in all best sets and in all maximisers of the linear program; returns how many
    are not.

    A label is off if it lowers the score even with all labels that attract it on, and on if it raises the score even
    with all labels that repel it on. Decided labels tighten the test for the others. ``labels`` ``[K]`` get 0, 1, or -1
    for an undecided label, and ``memory.free`` and ``memory.sizes[0]`` these in ascending order, and their number.
    """
    free, on = memory.free, memory.place
    count, chosen = 0, 0
    for k in range(len(unary)):
        if unary[k] + positive[k] < 0.0:
            labels[k] = 0
        elif unary[k] + negative[k] > 0.0:
            labels[k] = 1
            on[chosen] = k
            chosen += 1
        else:
            labels[k] = -1
            free[count] = k
            count += 1
    changed = True
    while changed and count:
        left = 0
        for a in range(count):
            k = free[a]
            row, known = weights[k], unary[k]
            for c in range(chosen):
                known += row[on[c]]
            low = high = known
            for c in range(left):
                low += min(row[free[c]], 0.0)
                high += max(row[free[c]], 0.0)
            for c in range(a + 1, count):
                low += min(row[free[c]], 0.0)
                high += max(row[free[c]], 0.0)
            if high < 0.0:
                labels[k] = 0
            elif low > 0.0:
                labels[k] = 1
                on[chosen] = k
                chosen += 1
            else:
                free[left] = k
                left += 1
        changed, count = left < count, left
    memory.sizes[0] = count
    return count


@njit
def score(unary, weights, labels, memory):
    """The score of a set of labels; NaN if an entry of ``unary`` is NaN or inf."""
    on, count, total = memory.place, 0, 0.0
    for k in range(len(unary)):
        if labels[k] == 1:
            total += unary[k]
            for c in range(count):
                total += weights[k, on[c]]
            on[count] = k
            count += 1
        elif not unary[k] < np.inf:
            return np.nan
    return total


@njit
def add_pairs(labelings, mass, begin, other, total):
    """``total[b, p] += mass[b, c]`` where both labels of pair p are on in ``labelings[b, c]``.

    ``begin`` and ``other`` are of :func:`by_first`. Few labels are on, so the time goes into the scan for them.
    """
    size = labelings.shape[2]
    for b in range(labelings.shape[0]):
        for c in range(labelings.shape[1]):
            labels = labelings[b, c]
            for i in range(size):
                if labels[i] == 1:
                    for p in range(begin[i], begin[i + 1]):
                        if labels[other[p]] == 1:
                            total[b, p] += mass[b, c]
