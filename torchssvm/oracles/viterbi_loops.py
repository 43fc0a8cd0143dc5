"""The loops of Viterbi on a CPU, compiled by Numba; import it only where Numba is installed.

Maxima are written ``v if v > r else r``: LLVM then uses vector instructions without fast-math, and rounding and ties
are those of the order written here.
"""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
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
        _copy_block(pairs[0, 0], 0, 0, block)
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
            _copy_block(pairs[chain, 0], 0, 0, block)
        for t in range(1, lengths[b] if lengths.shape[0] else longest):
            while lengths.shape[0] and lengths[order[first + members - 1] if order.shape[0] else b] <= t:
                members -= 1  # of chains in lockstep, the shortest ends first
            if whole:
                _raise_maxima(maxima[0, t], prefix[0], block, True)
            elif members == 1:
                _raise_maxima(maxima[0, t], prefix[0], pairs[chain, t - 1 if pairs.shape[1] > 1 else 0], True)
            else:
                _raise_in_lockstep(maxima, t, prefix, members, pairs[0, 0], block)
            for g in range(members):
                best, ending, own = maxima[g, t], prefix[g], emission[order[first + g] if order.shape[0] else b, t]
                for k in range(own.shape[0]):
                    ending[k] = best[k] + own[k]
        for g in range(min(group, end - first)):
            b = order[first + g] if order.shape[0] else first + g
            best = 0
            for k in range(1, states):
                if prefix[g, k] > prefix[g, best]:
                    best = k
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


@njit(cache=True, nogil=True)
def _raise_in_lockstep(maxima, t, prefix, members, matrix, block):
    """The maxima at position t of the first ``members`` of a group: each block of the matrix is read once for all."""
    rows, columns = block.shape
    for left in range(0, matrix.shape[1], columns):
        for top in range(0, matrix.shape[0], rows):
            height = min(rows, matrix.shape[0] - top)
            _copy_block(matrix, top, left, block)
            for g in range(members):
                _raise_maxima(maxima[g, t, left : left + columns], prefix[g, top : top + height], block, top == 0)


@njit(cache=True, nogil=True)
def _copy_block(matrix, top, left, block):
    """Copy as much of ``matrix[top:, left:]`` as there is and as fits."""
    columns = min(block.shape[1], matrix.shape[1] - left)
    for j in range(min(block.shape[0], matrix.shape[0] - top)):
        source, target = matrix[top + j, left : left + columns], block[j]
        for k in range(source.shape[0]):
            target[k] = source[k]


@njit(cache=True, nogil=True)
def _raise_maxima(maxima, prefix, block, fresh):
    """``maxima[k] = max(maxima[k], prefix[j] + block[j, k])`` over all j; ``fresh`` forgets what stands there."""
    states, columns = min(prefix.shape[0], block.shape[0]), block.shape[1]
    j = 0
    if fresh:
        score = prefix[0]
        for k in range(columns):
            maxima[k] = score + block[0, k]
        j = 1
    while j + 4 <= states:  # four at once: a quarter of the reads and writes of maxima
        a, b, c, d = prefix[j], prefix[j + 1], prefix[j + 2], prefix[j + 3]
        for k in range(columns):
            best = maxima[k]
            v, w, x, y = a + block[j, k], b + block[j + 1, k], c + block[j + 2, k], d + block[j + 3, k]
            v = w if w > v else v
            x = y if y > x else x
            v = x if x > v else v
            maxima[k] = v if v > best else best
        j += 4
    while j < states:
        score = prefix[j]
        for k in range(columns):
            v, best = score + block[j, k], maxima[k]
            maxima[k] = v if v > best else best
        j += 1


@njit(cache=True, nogil=True)
def _first_maximiser(highest, maxima, emission, matrix, state):
    """The smallest previous state from which ``state`` gets the score ``highest``: the same sums, so equal exactly."""
    for j in range(emission.shape[0]):
        if maxima[j] + emission[j] + matrix[j, state] == highest:
            return j
    return 0  # a NaN equals nothing
