"""The loops of Eisner's algorithm, compiled by Numba; import it only where Numba is installed."""

from __future__ import annotations

from torchssvm.core.njit import njit

_RIGHT, _LEFT = 0, 1


@njit
def decode(scores, lengths, begin, end, single_root, charts, stack, heads, value):
    """Decode the sentences ``begin`` to ``end - 1``.

    Args:
        scores: ``[B, N, N+1]``.
        lengths: ``[B]``, 1 to N.
        begin: First of the sentences.
        end: One more than the last.
        single_root: Whether the root has exactly one child.
        charts: ``[6, N+1, N+1]``, of any content: see ``_fill``.
        stack: Room for ``3 * (2 N + 3)`` whole numbers.
        heads: ``[B, N]``, to be filled.
        value: ``[B]``, to be filled.
    """
    for b in range(begin, end):
        length = lengths[b]
        _fill(scores[b], length, single_root, charts)
        value[b] = charts[0, 0, length]
        heads[b, length:] = -1
        _follow(length, single_root, charts, stack, heads[b])


@njit
def _fill(scores, length, single_root, charts):
    """Best scores of all spans, the short ones first.

    Complete ones have their head on the left (``right``: they reach to the right) or on the right (``left``); open ones
    have an arc between their ends, whose token has not all its own children yet. What is read by its last token is kept
    transposed too, or only so: every maximum is then over two rows.
    """
    right, right_t, left, left_t = charts[0], charts[1], charts[2], charts[3]
    open_right, open_left_t = charts[4], charts[5]
    for i in range(length + 1):
        right[i, i] = right_t[i, i] = left[i, i] = left_t[i, i] = 0.0
    for width in range(1, length + 1):
        for i in range(length + 1 - width):
            j = i + width
            best = right[i, i] + left_t[j, i + 1]
            for k in range(i + 1, i + 1 if single_root and i == 0 else j):
                best = max(best, right[i, k] + left_t[j, k + 1])
            open_right[i, j] = best + scores[j - 1, i]
            open_left_t[j, i] = best + (scores[i - 1, j] if i > 0 else 0.0)  # no arc enters token 0
            best = open_right[i, i + 1] + right_t[j, i + 1]
            for k in range(i + 2, j + 1):
                best = max(best, open_right[i, k] + right_t[j, k])
            right[i, j] = right_t[j, i] = best
            best = left[i, i] + open_left_t[j, i]
            for k in range(i + 1, j):
                best = max(best, left[i, k] + open_left_t[j, k])
            left[i, j] = left_t[j, i] = best


@njit
def _follow(length, single_root, charts, stack, heads):
    """Find the heads from the widest span down; a span's split is the first whose sum is its best: equal exactly."""
    right, right_t, left, left_t = charts[0], charts[1], charts[2], charts[3]
    open_right, open_left_t = charts[4], charts[5]
    stack[0], stack[1], stack[2] = 0, length, _RIGHT
    top = 3
    while top > 0:
        top -= 3
        i, j, kind = stack[top], stack[top + 1], stack[top + 2]
        if i == j:
            continue
        if kind == _RIGHT:
            split = i + 1
            while split < j and open_right[i, split] + right_t[j, split] != right[i, j]:
                split += 1
            heads[split - 1] = i
            stack[top], stack[top + 1], stack[top + 2] = split, j, _RIGHT
            j = split
        else:
            split = i
            while split < j - 1 and left[i, split] + open_left_t[j, split] != left[i, j]:
                split += 1
            heads[split - 1] = j
            stack[top], stack[top + 1], stack[top + 2] = i, split, _LEFT
            i = split
        top += 3
        # What is left is the open span from i to j, which is split in turn.
        split = i
        if not (single_root and i == 0):
            best = right[i, i] + left_t[j, i + 1]
            for k in range(i + 1, j):
                candidate = right[i, k] + left_t[j, k + 1]
                if candidate > best:
                    best, split = candidate, k
        stack[top], stack[top + 1], stack[top + 2] = i, split, _RIGHT
        stack[top + 3], stack[top + 4], stack[top + 5] = split + 1, j, _LEFT
        top += 6
