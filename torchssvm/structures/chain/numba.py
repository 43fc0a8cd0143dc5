"""The loops of Viterbi on a CPU, compiled by Numba; import it only where Numba is installed."""

from __future__ import annotations

from torchssvm.core.njit import njit
from torchssvm.structures.maxplus import copy_block, first_of_largest, maxplus_matvec


@njit
def decode(emission, pairs, lengths, order, begin, end, group, shape, memory, labels, value):
    """Decode the chains ``order[begin:end]``, ``group`` of them in lockstep.

    Args:
        emission: ``[B, N, K]``.
        pairs: ``[B or 1, N-1 or 1, K, K]``; one matrix for all where ``group > 1``.
        lengths: ``[B]``; empty for N everywhere.
        order: ``[B]``, longest first, where ``group > 1``; empty for the natural order.
        begin: First of the chains.
        end: One more than the last.
        group: Chains that share each block of the transitions while it is in the cache.
        shape: Rows and columns of a block of the transitions, and the width of a row of scores, at least K. With
            ``group = 1`` a block is all of them, with padded rows, copied to serve many positions; without rows,
            transitions are read where they are.
        memory: Room for a block, and for ``group * (N + 1)`` rows of scores.
        labels: ``[B, N]``, to be filled.
        value: ``[B]``, to be filled.

    Returns:
        -1, or the first chain found whose length is not in 1 to N.
    """
    longest, states = emission.shape[1], emission.shape[2]
    rows, columns, width = shape
    start, stop = rows * columns, rows * columns + group * longest * width
    block = memory[:start].reshape(rows, columns)
    maxima = memory[start:stop].reshape(group, longest, width)  # the best into each state, without its own emission
    prefix = memory[stop : stop + group * width].reshape(group, width)  # the best prefix that ends in each state
    whole = rows > 0 and group == 1
    if whole and pairs.shape[0] == 1:
        copy_block(pairs[0, 0], 0, 0, block)
    for first in range(begin, end, group):
        members = min(group, end - first)
        for g in range(members):
            b = order[first + g] if order.shape[0] else first + g
            if lengths.shape[0] and (lengths[b] < 1 or lengths[b] > longest):
                return b
            for k in range(states):
                prefix[g, k] = emission[b, 0, k]
                maxima[g, 0, k] = 0.0  # plus the emission, this is the first prefix
        b = order[first] if order.shape[0] else first
        chain = b if pairs.shape[0] > 1 else 0
        if whole and pairs.shape[0] > 1:
            copy_block(pairs[chain, 0], 0, 0, block)
        for t in range(1, lengths[b] if lengths.shape[0] else longest):
            while lengths.shape[0] and lengths[order[first + members - 1] if order.shape[0] else b] <= t:
                members -= 1  # of chains in lockstep, the shortest ends first
            if whole:
                maxplus_matvec(maxima[0, t], prefix[0], block, True)
            elif members == 1:
                maxplus_matvec(maxima[0, t], prefix[0], pairs[chain, t - 1 if pairs.shape[1] > 1 else 0], True)
            else:
                _raise_in_lockstep(maxima, t, prefix, members, pairs[0, 0], block)
            for g in range(members):
                best, ending, own = maxima[g, t], prefix[g], emission[order[first + g] if order.shape[0] else b, t]
                for k in range(own.shape[0]):
                    ending[k] = best[k] + own[k]
        for g in range(min(group, end - first)):
            b = order[first + g] if order.shape[0] else first + g
            best = first_of_largest(prefix[g], states)
            value[b] = prefix[g, best]
            last = (lengths[b] if lengths.shape[0] else longest) - 1
            labels[b, last] = best
            for t in range(last, 0, -1):
                matrix = block if whole else pairs[chain, t - 1 if pairs.shape[1] > 1 else 0]
                best = _first_maximiser(maxima[g, t, best], maxima[g, t - 1], emission[b, t - 1], matrix, best)
                labels[b, t - 1] = best
            for t in range(last + 1, longest):
                labels[b, t] = -1
    return -1


@njit
def _raise_in_lockstep(maxima, t, prefix, members, matrix, block):
    """The maxima at position t of the first ``members`` of a group: each block of the matrix is read once for all."""
    rows, columns = block.shape
    for left in range(0, matrix.shape[1], columns):
        for top in range(0, matrix.shape[0], rows):
            height = min(rows, matrix.shape[0] - top)
            copy_block(matrix, top, left, block)
            for g in range(members):
                maxplus_matvec(maxima[g, t, left : left + columns], prefix[g, top : top + height], block, top == 0)


@njit
def _first_maximiser(highest, maxima, emission, matrix, state):
    """The smallest previous state from which ``state`` gets the score ``highest``: the same sums, so equal exactly."""
    for j in range(emission.shape[0]):
        if maxima[j] + emission[j] + matrix[j, state] == highest:
            return j
    return 0  # a NaN equals nothing
