"""Lists of features and inner products of the tokens of each example, compiled by Numba."""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit
from torchssvm.core.vectors import exact_dot


@njit
def fill_inner(examples, has_bias):
    """``x_t . x_u`` for u <= t, plus 1 where there is a bias; summed in float64. Long examples have none.

    Examples whose first product is not -1 have theirs, as ``|x_0|^2`` is not negative.
    """
    extra = 1.0 if has_bias else 0.0
    for i in range(len(examples.start) - 1):
        place = examples.inner_start[i]
        count = examples.line[i + 1] - examples.line[i]
        if count == 0 or count > examples.stored or examples.inner[place] != -1.0:
            continue
        for t in range(examples.line[i], examples.line[i + 1]):
            for u in range(examples.line[i], t + 1):
                if examples.dense:
                    examples.inner[place] = exact_dot(examples.x[t], examples.x[u]) + extra
                else:
                    examples.inner[place] = _sparse_product(examples, t, u) + extra
                place += 1


@njit
def _sparse_product(examples, t, u):
    """Both lists are in the order of their columns."""
    p, q = examples.row[t], examples.row[u]
    total = 0.0
    while p < examples.row[t + 1] and q < examples.row[u + 1]:
        a, b = examples.column[p], examples.column[q]
        if a == b:
            total += np.float64(examples.value[p]) * np.float64(examples.value[q]) if len(examples.value) else 1.0
        p += a <= b
        q += b <= a
    return total


@njit
def list_tokens(x, gram, lengths, has_bias, value, column, row, inner):
    """The nonzero features of ``x`` ``[B, N, F]`` and the inner products of its tokens, without padding.

    ``gram`` ``[B, N, N]`` is ``x x^T`` of every example; ``[B, 0, 0]`` leaves inner products out, to which 1 is added
    for a bias. ``value``, ``column``, ``row`` and ``inner`` are filled as in ``Examples``; the first two have one place
    more than there are features.
    """
    place, token, pair = 0, 0, 0
    extra = inner.dtype.type(1.0 if has_bias else 0.0)
    for b in range(len(lengths)):
        for t in range(lengths[b]):
            for u in range(t + 1 if gram.shape[1] else 0):
                inner[pair] = gram[b, t, u] + extra
                pair += 1
            features = x[b, t]
            for f in range(len(features)):
                value[place] = features[f]  # zeros are overwritten: a branch would be mispredicted
                column[place] = f
                place += features[f] != 0.0
            token += 1
            row[token] = place
