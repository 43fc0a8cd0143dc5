"""Products of a vector and a matrix where plus is the maximum and times is plus, compiled by Numba.

Import it only where Numba is installed. Maxima are written ``v if v > r else r``: LLVM then uses vector instructions
without fast-math, and rounding and ties are those of the order written here.
"""

from __future__ import annotations

from torchssvm.core.njit import njit


@njit
def maxplus_matvec(maxima, scores, block, fresh):
    """``maxima[k] = max(maxima[k], scores[j] + block[j, k])`` over all j; ``fresh`` forgets what stands there."""
    states, columns = min(scores.shape[0], block.shape[0]), block.shape[1]
    j = 0
    if fresh:
        score = scores[0]
        for k in range(columns):
            maxima[k] = score + block[0, k]
        j = 1
    while j + 4 <= states:  # four at once: a quarter of the reads and writes of maxima
        a, b, c, d = scores[j], scores[j + 1], scores[j + 2], scores[j + 3]
        for k in range(columns):
            best = maxima[k]
            v, w, x, y = a + block[j, k], b + block[j + 1, k], c + block[j + 2, k], d + block[j + 3, k]
            v = w if w > v else v
            x = y if y > x else x
            v = x if x > v else v
            maxima[k] = v if v > best else best
        j += 4
    while j < states:
        score = scores[j]
        for k in range(columns):
            v, best = score + block[j, k], maxima[k]
            maxima[k] = v if v > best else best
        j += 1


@njit
def copy_block(matrix, top, left, block):
    """Copy as much of ``matrix[top:, left:]`` as there is and as fits."""
    columns = min(block.shape[1], matrix.shape[1] - left)
    for j in range(min(block.shape[0], matrix.shape[0] - top)):
        source, target = matrix[top + j, left : left + columns], block[j]
        for k in range(source.shape[0]):
            target[k] = source[k]


@njit
def first_of_largest(scores, states):
    """The smallest state of the highest score."""
    best = 0
    for k in range(1, states):
        if scores[k] > scores[best]:
            best = k
    return best
