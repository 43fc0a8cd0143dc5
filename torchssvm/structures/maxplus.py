"""Max-plus matrix products (maximum for plus, plus for times), and Viterbi with them, compiled by Numba.

Maxima are written ``v if v > r else r``: LLVM vectorises this without fast-math, so rounding and ties follow the order
of the code.
"""

from __future__ import annotations

from torchssvm.core.jit import njit
from torchssvm.core.vectors import add_row, max_rows, set_row


@njit
def maxplus_matvec(maxima, scores, block, fresh):
    """``maxima[k] = max(maxima[k], scores[j] + block[j, k])`` over all j; ``fresh`` ignores the old ``maxima``."""
    max_rows(maxima, scores, block, min(scores.shape[0], block.shape[0]), fresh)


@njit
def maxplus_rows(maxima, scores, rows, matrix, block):
    """:func:`maxplus_matvec` of some rows of ``scores`` with one large matrix, read once for all of them.

    Args:
        maxima: ``[M, width]``, to be filled at ``rows``.
        scores: ``[M, width]``.
        rows: The places of these rows.
        matrix: ``[K, K]``; ``width`` is at least K, and a multiple of the columns of a block.
        block: Room for a block of the matrix, small enough to stay in the cache.
    """
    if rows.shape[0] == 1:
        maxplus_matvec(maxima[rows[0]], scores[rows[0], : matrix.shape[0]], matrix, True)
        return
    height, columns = block.shape
    for left in range(0, matrix.shape[1], columns):
        for top in range(0, matrix.shape[0], height):
            bottom = min(top + height, matrix.shape[0])
            copy_block(matrix, top, left, block)
            for r in rows:
                maxplus_matvec(maxima[r, left : left + columns], scores[r, top:bottom], block, top == 0)


@njit
def copy_block(matrix, top, left, block):
    """Copy ``matrix[top:, left:]`` to ``block``, cropped to the smaller of the two."""
    columns = min(block.shape[1], matrix.shape[1] - left)
    for j in range(min(block.shape[0], matrix.shape[0] - top)):
        set_row(block[j], matrix[top + j, left : left + columns], None, None)


@njit
def add(row, messages, place, states):
    """``row += messages[place]``."""
    add_row(row[:states], messages[place], None)


@njit
def first_of_largest(scores, states):
    """The smallest state with the highest score."""
    best = 0
    for k in range(1, states):
        if scores[k] > scores[best]:
            best = k
    return best


@njit
def first_maximiser(message, scores, matrix, state, states):
    """The smallest previous state that attains ``message[state]``: the same sum is computed again, bit for bit."""
    highest = message[state]
    for j in range(states):
        if scores[j] + matrix[j, state] == highest:
            return j
    return 0  # only if the message is NaN


@njit
def send_forward(scores, messages, matrices, length, states):
    """Viterbi's forward pass along a chain.

    Args:
        scores: ``[N, width]``, the emissions at first; then the best prefix that ends in each state.
        messages: ``[N, width]``, to be filled: row t has the best score of the positions up to t and of the
            transition to each state at t + 1.
        matrices: ``[N-1 or 1, at least K, width or K]``.
        length: T.
        states: K.
    """
    for t in range(1, length):
        matrix = matrices[t - 1 if matrices.shape[0] > 1 else 0]
        maxplus_matvec(messages[t - 1], scores[t - 1, :states], matrix, True)
        add(scores[t], messages, t - 1, states)


@njit
def backtrack(scores, messages, matrices, length, states, labels):
    """Write the best states of a chain, from the last to the first, after :func:`send_forward`; returns their score.

    The forward pass stores no back-pointers: each previous state is found again as the first that attains the maximum.
    """
    state = first_of_largest(scores[length - 1], states)
    value = scores[length - 1, state]
    labels[length - 1] = state
    for t in range(length - 2, -1, -1):
        matrix = matrices[t if matrices.shape[0] > 1 else 0]
        state = first_maximiser(messages[t], scores[t], matrix, state, states)
        labels[t] = state
    return value
