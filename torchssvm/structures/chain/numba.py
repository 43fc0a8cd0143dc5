"""The CPU loops of chains, compiled by Numba: Viterbi, and loops of the head and the structure over labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.core.vectors import add_row, set_row
from torchssvm.structures.maxplus import add, backtrack, copy_block, maxplus_rows, send_forward


@njit
def decode(emission, pairs, lengths, order, group, shape, begin, end, memory, places, labels, value):
    """Decode the chains ``order[begin:end]``, ``group`` of them in lockstep.

    Args:
        emission: ``[B, N, K]``.
        pairs: ``[B or 1, N-1 or 1, K, K]``; one matrix for all if ``group > 1``.
        lengths: ``[B]``; empty if all are N.
        order: ``[B]``, the chains by descending length if ``group > 1``; empty for the natural order.
        group: Number of chains that share each block of the transitions while it is in the cache.
        shape: Rows and columns of a block of the transitions, and the width of a row of scores, at least K. With
            ``group = 1`` the block is a copy of the whole matrix with padded rows; with 0 rows nothing is copied.
        begin: Place of the first chain.
        end: One past the place of the last chain.
        memory: Room for a block and for ``2 * group * N`` rows of scores.
        places: Room for ``group`` integers.
        labels: ``[B, N]``, to be filled.
        value: ``[B]``, to be filled.

    Returns:
        -1, or the first chain found whose length is not in 1 to N.
    """
    longest, states = emission.shape[1], emission.shape[2]
    rows, columns, width = shape
    start, size = rows * columns, group * longest * width
    blocks = memory[:start].reshape(1, rows, columns)
    scores = memory[start : start + size].reshape(group * longest, width)
    messages = memory[start + size : start + 2 * size].reshape(group * longest, width)
    whole = rows > 0 and group == 1
    if whole and pairs.shape[0] == 1:
        copy_block(pairs[0, 0], 0, 0, blocks[0])
    for first in range(begin, end, group):
        members = min(group, end - first)
        for g in range(members):
            b = order[first + g] if order.shape[0] else first + g
            length = lengths[b] if lengths.shape[0] else longest
            if length < 1 or length > longest:
                return b
            for t in range(length):
                set_row(scores[g * longest + t], emission[b, t], None, None)
        b = order[first] if order.shape[0] else first
        length = lengths[b] if lengths.shape[0] else longest
        matrices = pairs[b if pairs.shape[0] > 1 else 0]
        if group > 1:
            running = members
            for t in range(1, length):
                while lengths.shape[0] and lengths[order[first + running - 1]] <= t:
                    running -= 1  # the shortest chains are last
                for g in range(running):
                    places[g] = g * longest + t - 1
                maxplus_rows(messages, scores, places[:running], matrices[0], blocks[0])
                for g in range(running):
                    add(scores[g * longest + t], messages, g * longest + t - 1, states)
        elif whole:
            if pairs.shape[0] > 1:
                copy_block(matrices[0], 0, 0, blocks[0])
            send_forward(scores, messages, blocks, length, states)
        else:
            send_forward(scores, messages, matrices, length, states)
        for g in range(members):
            b = order[first + g] if order.shape[0] else first + g
            length = lengths[b] if lengths.shape[0] else longest
            own, received = scores[g * longest :], messages[g * longest :]
            if whole:
                value[b] = backtrack(own, received, blocks, length, states, labels[b])
            else:
                value[b] = backtrack(own, received, matrices, length, states, labels[b])
            for t in range(length, longest):
                labels[b, t] = -1
    return -1


@njit
def mask(labels: Any, lengths: Any, states: int, masked: Any) -> bool:
    """Write the labels with -1 beyond each length; False if a label is not a state."""
    for b in range(labels.shape[0]):
        for t in range(labels.shape[1]):
            masked[b, t] = labels[b, t] if t < lengths[b] else -1
            if t < lengths[b] and not 0 <= labels[b, t] < states:
                return False
    return True


@njit
def augment(emission: Any, costs: Any, uniform: float, normalize: bool, labels: Any, augmented: Any) -> bool:
    """Add each position's cost to all states except the label; False if a label is not a state.

    If ``costs`` is empty, each of the T real positions costs ``uniform``, or ``uniform / T`` with ``normalize``.
    """
    for b in range(emission.shape[0]):
        cost = 0.0
        if not costs.shape[0]:
            length = 0
            for t in range(labels.shape[1]):
                length += labels[b, t] >= 0
            cost = uniform / length if normalize and length else uniform
        for t in range(emission.shape[1]):
            if costs.shape[0]:
                cost = costs[b, t]
            added = emission.dtype.type(cost if labels[b, t] >= 0 else 0.0)
            set_row(augmented[b, t], emission[b, t], None, added)
            label = max(labels[b, t], 0)
            if label >= emission.shape[2]:
                return False
            augmented[b, t, label] = emission[b, t, label]
    return True


@njit
def examine(
    found: Any,
    labels: Any,
    costs: Any,
    uniform: float,
    normalize: bool,
    emission: Any,
    pairs: Any,
    score: Any,
    loss: Any,
) -> bool:
    """Relative score and loss of ``found``; the score is NaN if a potential of the example is not finite.

    Costs are as in ``augment``. False if ``found`` or ``labels`` has a number that is not a state.
    """
    for b in range(found.shape[0]):
        matrix = pairs[b if pairs.shape[0] > 1 else 0]
        length = 0
        while length < labels.shape[1] and labels[b, length] >= 0:
            length += 1
        each = uniform / length if normalize and length else uniform
        # Summed in the order of ``labelings.chain_scores``: a labeling gets the same score, bit for bit, whether it is
        # decoded or cached, so ties are broken in the same way.
        own, true, cost = 0.0, 0.0, 0.0
        for t in range(length):
            state, label = found[b, t], labels[b, t]
            if not 0 <= state < emission.shape[2] or label >= emission.shape[2]:
                return False
            own += emission[b, t, state]
            true += emission[b, t, label]
            if state != label:
                cost += costs[b, t] if costs.shape[0] else each
            if t > 0:
                step = matrix[t - 1 if matrix.shape[0] > 1 else 0]
                own += step[found[b, t - 1], state]
                true += step[labels[b, t - 1], label]
        wrong = 0
        for row in emission[b]:
            for value in row:
                wrong |= not abs(value) < np.inf
        if b == 0 or pairs.shape[0] > 1:
            wrong_pairs = 0
            for step in matrix:
                for row in step:
                    for value in row:
                        wrong_pairs |= not abs(value) < np.inf
        score[b], loss[b] = np.nan if wrong or wrong_pairs else own - true, cost
    return True


@njit
def scatter(found: Any, labels: Any, emission: Any, pairs: Any) -> bool:
    """Add the states and pairs of ``found`` to the parts, and subtract those of ``labels``.

    Returns False, and changes nothing, if ``found`` or ``labels`` has a number that is not a state.
    """
    for b in range(found.shape[0]):
        for t in range(found.shape[1]):
            if labels[b, t] >= emission.shape[2]:
                return False
            if labels[b, t] >= 0 and not 0 <= found[b, t] < emission.shape[2]:
                return False
    for b in range(found.shape[0]):
        for t in range(found.shape[1]):
            state, label = found[b, t], labels[b, t]
            if label < 0:
                break
            emission[b, t, state] += 1.0
            emission[b, t, label] -= 1.0
            if t > 0:
                place = t - 1 if pairs.shape[1] > 1 else 0
                pairs[b, place, found[b, t - 1], state] += 1.0
                pairs[b, place, labels[b, t - 1], label] -= 1.0
    return True


@njit
def add_everywhere(emission: Any, last: Any, bias: Any, at_first: Any, at_last: Any) -> None:
    """``(row + [t last] at_last) + (bias + [t first] at_first)`` for every row ``[K]`` of ``emission [B, N, K]``.

    The compiled loop adds in the same order, so both round, and break ties, in the same way.
    """
    batch, longest, states = emission.shape
    for b in range(batch):
        add_row(emission[b, last[b]], at_last, None)
        for k in range(states):
            emission[b, 0, k] += bias[k] + at_first[k]
        for t in range(1, longest):
            add_row(emission[b, t], bias, None)


@njit
def sum_everywhere(parts: Any, last: Any, sums: Any) -> None:
    """The adjoint of ``add_everywhere``, ``[3, B, K]``: the sum over all tokens, the first and the last token."""
    batch, longest, _ = parts.shape
    for b in range(batch):
        set_row(sums[0, b], None, None, 0.0)
        set_row(sums[1, b], parts[b, 0], None, None)
        set_row(sums[2, b], parts[b, last[b]], None, None)
        for t in range(longest):
            add_row(sums[0, b], parts[b, t], None)
