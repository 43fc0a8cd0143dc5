"""One block of a chain, compiled by Numba: potentials, decoding, scores, inner products, the step.

A multiclass example is a chain of one token. Where ``examples.arcs`` is not None, examples are arborescences, see
:mod:`.arcs`; it is an argument of its own, so that Numba compiles only the branch that is taken. Loops take four rows
at a time, which reduces memory traffic and helps vectorisation. Sums of products may be contracted and reordered;
decoding is in the written order, so that its ties are those of ``torchssvm.structures.chain.oracle``, but for very long
sequences.
"""

from __future__ import annotations

import numpy as np

from torchssvm.core.jit import njit, njit_fastmath
from torchssvm.core.token_products import STORED
from torchssvm.core.vectors import (
    add_each,
    add_row,
    add_rows,
    add_to_listed,
    dot,
    exact_dot,
    exact_dots,
    quadratic,
    set_row,
    set_rows,
    sum_listed,
)
from torchssvm.solvers.compiled.arcs import (
    add_arcs_to_weights,
    add_parts,
    arc_decode,
    arc_length,
    arc_potentials,
    arc_respond,
    sum_lists,
)
from torchssvm.solvers.compiled.long import (
    add_long_to_weights,
    add_net_pairs,
    long_square,
    mark,
    respond_long,
    respond_to_long_parts,
)
from torchssvm.structures.maxplus import backtrack, send_forward, send_forward_far

_FAR = 256  # tokens of a sequence whose scores are summed without rounding that grows with the length


@njit_fastmath
def potentials(examples, arcs, model, i, emission, room):
    """Emissions of example i; returns its length."""
    if arcs is not None:
        return arc_potentials(examples, arcs, model, i, emission, room)
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


@njit
def score(labels, length, emission, transition):
    """Score of one labeling."""
    total = np.float64(emission[0, labels[0]])
    for t in range(1, length):
        if len(transition):
            total += emission[t, labels[t]] + transition[labels[t - 1], labels[t]]
        else:
            total += emission[t, labels[t]]
    return total


@njit
def decode(examples, arcs, i, length, scratch, transition, labels):
    """Loss-augmented Viterbi, with the ties of ``torchssvm.structures.chain.oracle``; returns the loss.

    ``scratch`` has the emissions.
    """
    emission, into, prefixes, allowed = scratch.emission, scratch.into, scratch.prefixes, examples.allowed
    start, states = examples.start[i], prefixes.shape[1]
    if arcs is not None:
        arc_decode(examples, arcs, i, length, emission, prefixes, labels, scratch.arcs)
        return loss_of(examples, start, length, labels)
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
    return loss_of(examples, start, length, labels)


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


@njit
def loss_of(examples, start, length, labels):
    """The cost of a labeling."""
    loss = 0.0
    for t in range(length):
        target = examples.y[start + t]
        if labels[t] != target:
            cost = examples.cost[start + t]
            loss += cost * examples.cost_matrix[target, labels[t]] if len(examples.cost_matrix) else cost
    return loss


@njit
def triangle(t, u):
    """The position of the inner product of tokens t and u among those of an example."""
    return t * (t + 1) // 2 + u if t >= u else u * (u + 1) // 2 + t


@njit
def respond(examples, arcs, model, i, length, labels, response, pairs, room, sums, held, count, found, is_new):
    """``Phi Phi^T (p(labels) - p(y))``: emissions into ``response``, pairs added to ``pairs`` (zero before).

    What is read of it are the scores of the target, of the slots ``held[:count]`` and, if it ``is_new``, of ``found``.
    """
    if arcs is not None:
        arc_respond(examples, arcs, i, length, labels, response, room, held, count, found, is_new)
        return
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


@njit
def respond_to_parts(examples, arcs, model, i, length, psi, response, room, sums, held, count, found, is_new):
    """Emissions of ``Phi Phi^T psi`` into ``response``, as :func:`respond`; returns their product with psi."""
    if arcs is not None:
        add_parts(examples, arcs, i, length, psi, room.sums)
        sum_lists(examples, arcs, i, length, room.sums, response)
        total = 0.0
        for t in range(length):
            total += exact_dot(psi[t], response[t])
        return total
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


@njit
def forget_pairs(examples, i, length, labels, pairs):
    """Set the pairs that ``respond`` wrote back to zero."""
    start = examples.start[i]
    for u in range(1, length if len(pairs) else 1):
        pairs[labels[u - 1], labels[u]] = 0.0
        pairs[examples.y[start + u - 1], examples.y[start + u]] = 0.0


@njit
def mark_rows(labels, length, used):
    """Mark the rows of the pairs of a labeling in ``used``, which is empty where there are no pairs."""
    for t in range(1, length if len(used) else 1):
        used[labels[t - 1]] = True


@njit
def list_rows(used, rows):
    """Write the marked rows to ``rows``, and return their number."""
    count = 0
    for j in range(len(used)):
        rows[count] = j
        count += used[j]
    return count


@njit
def add_labeling(examples, i, length, labels, mass, delta, pairs, counts):
    """``mass (p(labels) - p(y))`` added to parts; ``counts``, shaped like ``pairs``, are zero before and after."""
    start = examples.start[i]
    for t in range(length):
        new, old = labels[t], examples.y[start + t]
        if new != old:
            delta[t, new] += mass
            delta[t, old] -= mass
    if len(pairs):
        add_net_pairs(examples, start, length, labels, mass, pairs, counts)


@njit
def squared_length(examples, arcs, model, i, length, delta, pairs, rows, squares, room, sums):
    """``|Phi_i^T delta|^2``; ``squares`` gets ``|delta_t|^2``. ``rows`` are those of ``pairs`` that may not be zero."""
    if arcs is not None:
        for t in range(length):
            squares[t] = dot(delta[t], delta[t])
        return arc_length(examples, arcs, i, length, delta, room)
    if length > STORED:
        total = long_square(examples, examples.start[i], length, delta, model.has_bias, squares, sums)
    else:
        total = quadratic(delta, length, examples.inner[examples.inner_start[i] :], squares)
    if model.has_boundary:
        total += squares[0] + squares[length - 1]
    return total + exact_dots(pairs, pairs, rows, len(rows))


@njit_fastmath
def add_to_weights(examples, arcs, model, i, length, delta, pairs, rows, squares, factor, sums):
    """``w += factor Phi_i^T delta``; ``squares`` is 0 for tokens without a change, and ``pairs`` beyond ``rows``."""
    if arcs is not None:
        add_arcs_to_weights(examples, arcs, model, i, length, delta, delta.dtype.type(factor))
        return
    start = examples.start[i]
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
