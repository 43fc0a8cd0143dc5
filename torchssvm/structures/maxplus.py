"""Max-plus matrix products (maximum for plus, plus for times), and Viterbi with them, compiled by Numba."""

from __future__ import annotations

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import add_row, first_equal, max_rows, max_rows_of_two


@njit
def maxplus_matvec(maxima, scores, matrix):
    """``maxima[k] = max_j scores[j] + matrix[j, k]``."""
    max_rows(maxima, scores, matrix, matrix.shape[0], True, maxima, False)


@njit
def maxplus_rows(maxima, scores, places, matrix, height, upwards, onwards):
    """:func:`maxplus_matvec` of the rows ``places`` of ``scores`` with one matrix, read once for all of them.

    It fills these rows of ``maxima``; both are ``[M, K]``. ``height`` rows of the matrix stay in the cache while they
    are used. These blocks are taken ``upwards`` from the last to the first: the products that follow one another take
    turns, so that each finds in the cache what the one before it read last. With ``onwards`` each row of maxima is
    added to the row of ``scores`` after its place.
    """
    count, after, done = matrix.shape[0], 1 if onwards else 0, 0
    while done < count:
        taken = min(height, count - done)
        top = count - done - taken if upwards else done
        rows, first, last = matrix[top : top + taken], done == 0, onwards and done + taken == count
        for few in range(0, places.shape[0] - 1, 2):
            a, b = places[few], places[few + 1]
            max_rows_of_two(
                maxima[a],
                scores[a, top:],
                scores[a + after],
                maxima[b],
                scores[b, top:],
                scores[b + after],
                rows,
                taken,
                first,
                last,
            )
        if places.shape[0] % 2:
            a = places[places.shape[0] - 1]
            max_rows(maxima[a], scores[a, top:], rows, taken, first, scores[a + after], last)
        done += taken


@njit
def add(row, messages, place, states):
    """``row += messages[place]``."""
    add_row(row[:states], messages[place], None)


@njit
def first_of_largest(scores, states):
    """The smallest state with the highest score."""
    highest = scores[0]
    for k in range(1, states):
        highest = scores[k] if scores[k] > highest else highest
    return first_equal(scores, None, 0, states, highest)


@njit
def first_maximiser(message, scores, matrix, state, states):
    """The smallest previous state that attains ``message[state]``: the same sum is computed again, bit for bit."""
    return first_equal(scores, matrix, state, states, message[state])  # 0 only if the message is NaN


@njit
def send_forward(scores, messages, matrices, length, states):
    """Viterbi's forward pass along a chain of ``length`` positions and ``states`` states.

    ``scores`` ``[N, width]`` are the emissions at first, then the best prefix that ends in each state. Row t of
    ``messages`` gets the best score of the positions up to t and of the transition to each state at t + 1.
    """
    for t in range(1, length):
        matrix = matrices[t - 1 if matrices.shape[0] > 1 else 0]
        max_rows(messages[t - 1], scores[t - 1], matrix, states, True, scores[t], True)


@njit
def send_forward_far(scores, messages, matrices, length, states):
    """:func:`send_forward` for long chains: the best prefix so far is subtracted at every position.

    Sums of thousands of scores would round by more than the scores differ. The score of the chain is lost.
    """
    for t in range(1, length):
        highest = scores[t - 1, first_of_largest(scores[t - 1], states)]
        for k in range(states):
            scores[t - 1, k] -= highest
        matrix = matrices[t - 1 if matrices.shape[0] > 1 else 0]
        max_rows(messages[t - 1], scores[t - 1], matrix, states, True, scores[t], True)


@njit
def backtrack(scores, messages, matrices, length, states, labels):
    """Write the best states of a chain, from the last to the first, after :func:`send_forward`; returns their score.

    The forward pass stores no back-pointers: the first state that attains the maximum is recomputed.
    """
    state = first_of_largest(scores[length - 1], states)
    value = scores[length - 1, state]
    labels[length - 1] = state
    for t in range(length - 2, -1, -1):
        matrix = matrices[t if matrices.shape[0] > 1 else 0]
        state = first_maximiser(messages[t], scores[t], matrix, state, states)
        labels[t] = state
    return value
