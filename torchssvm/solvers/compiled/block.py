"""One block of a chain, compiled by Numba: potentials, decoding, scores, inner products, the step.

These are the versions of chains; a multiclass example is a chain of one token. Other kinds of examples bring their own
versions of some of them: ``examples.kind``, the first argument, says which. Loops take four rows at a time, which
reduces memory traffic and helps vectorisation. Sums of products may be contracted and reordered;
decoding is in the written order, so that its ties are those of ``torchssvm.structures.chain.oracle``, but for very long
sequences.
"""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import ByKind, njit, njit_fastmath
from torchssvm.core.token_products import STORED
from torchssvm.core.vectors import (
    add_each,
    add_row,
    add_rows,
    add_to_listed,
    exact_dot,
    exact_dots,
    quadratic,
    set_row,
    set_rows,
    sum_listed,
)
from torchssvm.solvers.compiled.long import (
    add_long_pairs,
    add_long_to_weights,
    long_square,
    mark,
    respond_long,
    respond_to_long_parts,
)
from torchssvm.structures.maxplus import backtrack, send_forward, send_forward_far

_FAR = 256  # tokens of a sequence whose scores are summed without rounding that grows with the length


@njit
def size_of(examples, i):
    """The number of labels of example i."""
    return examples.start[i + 1] - examples.start[i]


@ByKind
@njit
def length_of(kind, examples, i):
    """The number of rows of emissions of example i."""
    return size_of(examples, i)


@ByKind
@njit
def pair_rows_of(kind, examples, i):
    """The number of rows of pairs of example i."""
    return examples.pair_rows


@njit
def count_rows(examples, own, found):
    """Into ``found``: the sums, and the largest, of the rows of emissions and of the rows of pairs of some examples."""
    for i in own:
        sizes = length_of(examples.kind, examples, i), pair_rows_of(examples.kind, examples, i)
        for place in range(2):
            found[0, place] += sizes[place]
            found[1, place] = max(found[1, place], sizes[place])
    return found


@ByKind
@njit
def pairs_of(kind, weights, made):
    """The scores of pairs: their weights, or what :func:`potentials` has made in ``scratch.transition``."""
    return weights


@ByKind
@njit_fastmath
def potentials(kind, examples, model, i, scratch):
    """Emissions of example i into ``scratch``; returns its length."""
    emission = scratch.emission
    start, length = examples.start[i], examples.start[i + 1] - examples.start[i]
    if examples.dense:
        for t in range(length):
            x = examples.x[start + t]
            set_row(emission[t], model.bias, None, None)
            add_rows(emission[t], model.emission, None, x, 0, len(x))
    elif len(examples.value):
        lists = examples.column, examples.value, examples.row[start:]
        sum_listed(emission, model.bias, model.emission, *lists, length)
    else:
        lists = examples.column, None, examples.row[start:]
        sum_listed(emission, model.bias, model.emission, *lists, length)
    if model.has_boundary:
        add_row(emission[0], model.first, None)
        add_row(emission[length - 1], model.last, None)
    return length


@ByKind
@njit
def score(kind, examples, i, labels, length, emission, transition):
    """Score of one labeling of example i."""
    total = np.float64(emission[0, labels[0]])
    for t in range(1, length):
        if len(transition):
            total += emission[t, labels[t]] + transition[labels[t - 1], labels[t]]
        else:
            total += emission[t, labels[t]]
    return total


@ByKind
@njit
def decode(kind, examples, i, length, scratch, transition, labels):
    """Loss-augmented Viterbi, with the ties of ``torchssvm.structures.chain.oracle``; returns the loss.

    ``scratch`` has the emissions. Approximate oracles write into ``scratch.slack`` how far their bound is above.
    """
    emission, into, prefixes, allowed = scratch.emission, scratch.into, scratch.prefixes, examples.allowed
    start, states = examples.start[i], prefixes.shape[1]
    if len(examples.cost_matrix):
        for t in range(length):
            token = start + t
            augment(examples.y[token], examples.added[token], examples.cost_matrix, emission[t], prefixes[t])
    else:
        set_rows(prefixes, emission, None, length, None, examples.added[start:])
        for t in range(length):
            target = examples.y[start + t]
            prefixes[t, target] = emission[t, target]
    if len(allowed):
        forbid(allowed, transition, scratch.transition, prefixes[0], prefixes[length - 1])
        transition = scratch.transition
    matrices = transition.reshape(1, *transition.shape)
    if length > _FAR:
        send_forward_far(prefixes, into, matrices, length, states)
    else:
        send_forward(prefixes, into, matrices, length, states)
    backtrack(prefixes, into, matrices, length, states, labels)
    return loss_of(kind, examples, i, labels)


@njit
def forbid(allowed, transition, found, first, last):
    """Copy the transitions, ``-inf`` where a pair is forbidden; write the same into the first and the last scores."""
    states = allowed.shape[1]
    for j in range(states):
        for k in range(states):
            found[j, k] = transition[j, k] if allowed[j, k] else -np.inf
    for k in range(states):
        if not allowed[states, k]:
            first[k] = -np.inf
        if not allowed[states + 1, k]:
            last[k] = -np.inf


@njit
def augment(target, cost, cost_matrix, emission, row):
    """``row = emission`` plus the cost of each label at this token."""
    costs = cost_matrix[target]
    for k in range(len(row)):
        row[k] = emission[k] + cost * row.dtype.type(costs[k])


@ByKind
@njit
def loss_of(kind, examples, i, labels):
    """The cost of a labeling."""
    loss, start = 0.0, examples.start[i]
    for t in range(size_of(examples, i)):
        target = examples.y[start + t]
        if labels[t] != target:
            cost = examples.cost[start + t]
            loss += cost * examples.cost_matrix[target, labels[t]] if len(examples.cost_matrix) else cost
    return loss


@ByKind
@njit
def mean_loss(kind, examples, i, t, psi, total, absolute):
    """``-<psi, delta>``, the mean loss of a row, and the sum of the absolute values of its terms; NaN if unknown.

    Args:
        kind, examples, i, t: Which row.
        psi: The row; ``total`` and ``absolute`` are the sums of its numbers and of their absolute values.
    """
    token = examples.start[i] + t
    target, cost = examples.y[token], examples.cost[token]
    if not len(examples.cost_matrix):
        own = np.float64(psi[target])
        return cost * (own - total), cost * (absolute - abs(own))
    told, size = 0.0, 0.0
    for k in range(examples.cost_matrix.shape[1]):
        term = cost * examples.cost_matrix[target, k] * np.float64(psi[k])
        told -= term
        size += abs(term)
    return told, size


@njit
def triangle(t, u):
    """The position of the inner product of tokens t and u among those of an example."""
    return t * (t + 1) // 2 + u if t >= u else u * (u + 1) // 2 + t


@ByKind
@njit
def respond(kind, examples, model, i, length, labels, scratch, held, count, found, is_new):
    """``Phi Phi^T (p(labels) - p(y))``: emissions into ``response``, pairs added to ``pairs`` (zero before).

    What is read of it are the scores of the target, of the slots ``held[:count]`` and, if it ``is_new``, of ``found``.
    """
    response, pairs, sums = scratch.response, scratch.pairs, scratch.sums_of_label
    start, inner = examples.start[i], examples.inner_start[i]
    if length > STORED:
        mark(examples, start, length, held, count, found, is_new, response)
        respond_long(examples, start, length, labels, model.has_bias, response, sums)
    else:
        for t in range(length):
            set_row(response[t], None, None, 0.0)
    for u in range(length):
        new, old = labels[u], examples.y[start + u]
        if new != old and length <= STORED:
            for t in range(length):
                value = examples.inner[inner + triangle(t, u)]
                response[t, new] += value
                response[t, old] -= value
        if u > 0:
            pairs[labels[u - 1], new] += 1.0
            pairs[examples.y[start + u - 1], old] -= 1.0
    if model.has_boundary:
        for t in (0, length - 1):
            response[t, labels[t]] += 1.0
            response[t, examples.y[start + t]] -= 1.0


@ByKind
@njit
def respond_to_parts(kind, examples, model, i, length, psi, scratch, held, count, found, is_new):
    """Emissions of ``Phi Phi^T psi`` into ``response``, as :func:`respond`; returns their product with psi."""
    response, sums = scratch.response, scratch.sums_of_label
    start, inner, total = examples.start[i], examples.inner_start[i], 0.0
    if length > STORED:
        mark(examples, start, length, held, count, found, is_new, response)
        respond_to_long_parts(examples, start, length, psi, model.has_bias, response, sums)
    for t in range(length):
        row = response[t]
        if length <= STORED:
            set_row(row, None, None, 0.0)
            for u in range(length):
                add_row(row, psi[u], np.float64(examples.inner[inner + triangle(t, u)]))
        if model.has_boundary:
            add_row(row, psi[t], np.float64((t == 0) + (t == length - 1)))
        total += exact_dot(row, psi[t])
    return total


@ByKind
@njit
def respond_pairs(kind, examples, i, pairs, rows, room):
    """``Phi Phi^T`` of pairs, for their ``rows`` that may not be zero; ``room`` is free. A pair's score is its weight."""
    return pairs


@ByKind
@njit
def forget_pairs(kind, examples, i, length, labels, pairs):
    """Set the pairs that ``respond`` wrote back to zero."""
    start = examples.start[i]
    for u in range(1, length if len(pairs) else 1):
        pairs[labels[u - 1], labels[u]] = 0.0
        pairs[examples.y[start + u - 1], examples.y[start + u]] = 0.0


@ByKind
@njit
def mark_rows(kind, examples, i, labels, used):
    """Mark the rows of the pairs of a labeling in ``used``, which is empty where there are no pairs."""
    for t in range(1, size_of(examples, i) if len(used) else 1):
        used[labels[t - 1]] = True


@njit
def list_rows(used, rows):
    """Write the marked rows to ``rows``, and return their number."""
    count = 0
    for j in range(len(used)):
        rows[count] = j
        count += used[j]
    return count


@ByKind
@njit
def add_labeling(kind, examples, i, length, labels, mass, delta, pairs, counts):
    """``mass (p(labels) - p(y))`` added to parts; ``counts``, shaped like ``pairs``, are zero before and after."""
    start = examples.start[i]
    for t in range(length):
        new, old = labels[t], examples.y[start + t]
        if new != old:
            delta[t, new] += mass
            delta[t, old] -= mass
        if t > 0 and len(pairs) and length <= STORED:
            pairs[labels[t - 1], new] += mass
            pairs[examples.y[start + t - 1], old] -= mass
    if length > STORED and len(pairs):
        add_long_pairs(examples, start, length, labels, mass, pairs, counts)


@ByKind
@njit
def squared_length(kind, examples, model, i, length, delta, pairs, rows, scratch):
    """``|Phi_i^T delta|^2``; ``scratch.squares`` gets ``|delta_t|^2``. ``rows`` are those of ``pairs`` that count."""
    squares, sums = scratch.squares, scratch.sums_of_label
    if length > STORED:
        total = long_square(examples, examples.start[i], length, delta, model.has_bias, squares, sums)
    else:
        total = quadratic(delta, length, examples.inner[examples.inner_start[i] :], squares)
    if model.has_boundary:
        total += squares[0] + squares[length - 1]
    return total + exact_dots(pairs, pairs, rows, len(rows))


@ByKind
@njit_fastmath
def add_to_weights(kind, examples, model, i, length, delta, pairs, rows, scratch, factor):
    """``w += factor Phi_i^T delta``; ``scratch.squares`` is 0 for rows without a change, ``pairs`` beyond ``rows``."""
    start, squares, sums = examples.start[i], scratch.squares, scratch.sums_of_label
    if length > STORED:
        add_long_to_weights(examples, start, length, delta, model, squares, sums, factor)
    elif model.has_bias:
        for t in range(length):
            if squares[t] != 0.0:
                add_row(model.bias, delta[t], factor)
    if length > STORED:
        pass
    elif not examples.dense and len(examples.value):
        lists = examples.column, examples.value, examples.row[start:]
        add_to_listed(model.emission, *lists, delta, squares, length, factor)
    elif not examples.dense:
        lists = examples.column, None, examples.row[start:]
        add_to_listed(model.emission, *lists, delta, squares, length, factor)
    else:
        add_outer(examples.x[start : start + length], delta, squares, model.emission, delta.dtype.type(factor))
    add_each(model.transition, pairs, rows, len(rows), factor)
    if model.has_boundary:
        for t, weights in ((0, model.first), (length - 1, model.last)):
            if squares[t] > 0.0:
                add_row(weights, delta[t], factor)


@njit_fastmath
def add_outer(x, rows, squares, weights, factor):
    """``weights += factor sum_t x[t] rows[t]^T`` over the tokens with a change, four of them at a time."""
    length, states = len(x), weights.shape[1]
    t = 0
    while t < length:
        found, a, b, c, d = 0, t, t, t, t
        while t < length and found < 4:
            if squares[t] > 0.0:
                if found == 0:
                    a = t
                elif found == 1:
                    b = t
                elif found == 2:
                    c = t
                else:
                    d = t
                found += 1
            t += 1
        ra, rb, rc, rd = rows[a], rows[b], rows[c], rows[d]
        if found == 4:
            for f in range(x.shape[1]):
                va, vb, vc, vd, held = (
                    factor * x[a, f],
                    factor * x[b, f],
                    factor * x[c, f],
                    factor * x[d, f],
                    weights[f],
                )
                for k in range(states):
                    held[k] += (va * ra[k] + vb * rb[k]) + (vc * rc[k] + vd * rd[k])
        else:
            for place in range(found):
                row, token = (ra, a) if place == 0 else (rb, b) if place == 1 else (rc, c)
                for f in range(x.shape[1]):
                    value, held = factor * x[token, f], weights[f]
                    for k in range(states):
                        held[k] += value * row[k]
