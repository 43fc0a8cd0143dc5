"""The n best sequences of a chain: Viterbi forth, then a search from the last position back, compiled by Numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import set_row
from torchssvm.structures.maxplus import first_maximiser, send_forward


class NBest(NamedTuple):
    """The best outputs of every example, the best one first.

    Attributes:
        labelings: ``[B, n, N]`` int64, -1 beyond the length and in rows without an output.
        values: ``[B, n]`` float64, their scores, ``-inf`` in rows without an output.
    """

    labelings: Tensor
    values: Tensor


def nbest(emission: Tensor, transition: Tensor, lengths: Tensor, n: int) -> NBest:
    """The n best state sequences of every chain, searched on the CPU.

    After Viterbi, the score of the best sequence that ends in a state is known for every position, so that a search
    from the last position back only follows sequences that are among the n best (Soong and Huang, *A tree-trellis based
    fast search for finding the N-best sentence hypotheses*, 1991). It takes as long as Viterbi, plus O(n N K).

    Args:
        emission: ``[B, N, K]``, float32 or float64.
        transition: ``[B, K, K]`` or ``[B, N-1, K, K]``.
        lengths: ``[B]`` int64, 1 to N, on the CPU.
        n: How many.
    """
    batch, longest, states = emission.shape
    scores = np.ascontiguousarray(emission.detach().cpu().numpy())
    pairs = transition.detach().cpu().numpy()
    pairs = pairs[:1] if pairs.strides[0] == 0 else pairs  # once if seen B times
    pairs = np.ascontiguousarray(pairs[:, None] if pairs.ndim == 3 else pairs)
    labels, values = np.full((batch, n, longest), -1), np.full((batch, n), -np.inf)
    rooms = np.empty((2, longest, states), scores.dtype), np.empty(n), np.empty((n, 3), np.int64)
    if batch:
        search(scores, pairs, lengths.numpy(), *rooms, labels, values)
    return NBest(*(torch.from_numpy(array).to(emission.device) for array in (labels, values)))


@njit
def search(
    emission: Any, pairs: Any, lengths: Any, memory: Any, totals: Any, branches: Any, labels: Any, values: Any
) -> None:
    """Fill ``labels`` ``[B, n, N]``, -1 before, and ``values`` ``[B, n]``, -inf before, for potentials as in
    ``decode``.

    ``memory`` is room for scores and messages, ``[2, N, K]``; ``totals`` for the scores of n sequences that wait, in
    descending order, and ``branches`` for where they leave another one: its number, the position, and the state there.
    """
    states = emission.shape[2]
    scores, messages = memory[0], memory[1]
    for b in range(emission.shape[0]):
        last = lengths[b] - 1
        matrices = pairs[b if pairs.shape[0] > 1 else 0]
        set_row(scores[: last + 1], emission[b, : last + 1], None, None)
        send_forward(scores, messages, matrices, last + 1, states)
        waiting, room = 0, len(totals)
        for k in range(states):
            if waiting < room or scores[last, k] > totals[room - 1]:
                waiting = _insert(totals, branches, waiting, room, scores[last, k], 0, last, k)
        for rank in range(labels.shape[1]):
            if waiting == 0:
                break
            total, parent, at, state = totals[0], branches[0, 0], branches[0, 1], branches[0, 2]
            for c in range(1, waiting):
                _copy(totals, branches, c, c - 1)
            room = labels.shape[1] - rank - 1  # more of them are not asked for
            waiting = min(waiting - 1, room)
            values[b, rank] = total
            for t in range(at + 1, last + 1):
                labels[b, rank, t] = labels[b, parent, t]
            labels[b, rank, at] = state
            for t in range(at, 0, -1):
                matrix = matrices[t - 1 if matrices.shape[0] > 1 else 0]
                most = messages[t - 1, state]
                best = first_maximiser(messages[t - 1], scores[t - 1], matrix, state, states)  # of Viterbi's ties
                for j in range(states):
                    value = total - (most - (scores[t - 1, j] + matrix[j, state]))
                    if j != best and (waiting < room or (room > 0 and value > totals[room - 1])):
                        waiting = _insert(totals, branches, waiting, room, value, rank, t - 1, j)
                state = best
                labels[b, rank, t - 1] = state


@njit
def _insert(totals: Any, branches: Any, waiting: int, room: int, total: float, parent: int, at: int, state: int) -> int:
    """Keep a sequence, which fits in, among the best ``room`` that wait, behind its equals; returns how many wait."""
    if total == -np.inf:
        return waiting
    place = min(waiting, room - 1)
    while place > 0 and totals[place - 1] < total:
        _copy(totals, branches, place - 1, place)
        place -= 1
    totals[place] = total
    branches[place, 0], branches[place, 1], branches[place, 2] = parent, at, state
    return min(waiting + 1, room)


@njit
def _copy(totals: Any, branches: Any, source: int, place: int) -> None:
    totals[place] = totals[source]
    for c in range(3):
        branches[place, c] = branches[source, c]
