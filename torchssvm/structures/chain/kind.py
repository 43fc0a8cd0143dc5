"""Chains for the compiled loop.

A multiclass example is a chain of one token. Decoding is in the written order, so that ties fall as in
``torchssvm.structures.chain.oracle``, except in very long sequences.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import exact_dots, set_row, set_rows
from torchssvm.kinds import block
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.kinds.block import Add, respond_marked, size_of, state, triangle, uniform_mean_loss
from torchssvm.kinds.long import add_net_pairs, mark, respond_long
from torchssvm.kinds.weights import HeadWeights
from torchssvm.structures.maxplus import backtrack, send_forward, send_forward_far

_FAR = 256  # tokens of a sequence whose scores are summed without rounding that grows with the length


class Sequences(NamedTuple):
    """Cost matrix and transition masks of chains."""

    # ``[K, K]`` by target and label, a factor of ``Examples.cost``; or ``[0, 0]`` where all wrong labels cost the same
    cost_matrix: Any
    # ``[K + 2, K]`` bool: whether a state may follow another, be the first, and be the last; or ``[0, K]`` where all
    # may
    allowed: Any


@block.decode.of(Sequences)
@njit
def decode(kind, examples, i, length, scratch, transition, labels):
    """Loss-augmented Viterbi, with the ties of ``torchssvm.structures.chain.oracle``; returns the loss.

    ``scratch`` has the emissions. Approximate oracles write into ``scratch.slack`` how far their bound is above.
    """
    emission, into, prefixes, allowed = scratch.emission, scratch.into, scratch.prefixes, kind.allowed
    start, states = examples.start[i], prefixes.shape[1]
    if len(kind.cost_matrix):
        for t in range(length):
            token = start + t
            augment(examples.y[token], examples.added[token], kind.cost_matrix, emission[t], prefixes[t])
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
def forbid(allowed, transition, result, first, last):
    """Copy the transitions, ``-inf`` where a pair is forbidden; write the same into the first and the last scores."""
    states = allowed.shape[1]
    for j in range(states):
        for k in range(states):
            result[j, k] = transition[j, k] if allowed[j, k] else -np.inf
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


@block.list_parts.of(Sequences)
@njit
def list_parts(kind, examples, i, labels, other, task):
    total = np.float64(state(task, task.rows, 0, labels[0], 0, other[0]))
    for t in range(1, size_of(examples, i)):
        part = state(task, task.rows, t, labels[t], t, other[t])
        if len(task.pairs):
            part += state(task, task.pairs, labels[t - 1], labels[t], other[t - 1], other[t])
        total += part
    return total


@block.loss_of.of(Sequences)
@njit
def loss_of(kind, examples, i, labels):
    loss, start = 0.0, examples.start[i]
    for t in range(size_of(examples, i)):
        target = examples.y[start + t]
        if labels[t] != target:
            cost = examples.cost[start + t]
            loss += cost * kind.cost_matrix[target, labels[t]] if len(kind.cost_matrix) else cost
    return loss


@block.mean_loss.of(Sequences)
@njit
def mean_loss(kind, examples, i, t, psi, total, absolute):
    if not len(kind.cost_matrix):
        return uniform_mean_loss(kind, examples, i, t, psi, total, absolute)
    token = examples.start[i] + t
    target, cost = examples.y[token], examples.cost[token]
    told, size = 0.0, 0.0
    for k in range(kind.cost_matrix.shape[1]):
        term = cost * kind.cost_matrix[target, k] * np.float64(psi[k])
        told -= term
        size += abs(term)
    return told, size


@block.respond.of(Sequences)
@njit
def respond(kind, examples, model, i, length, labels, scratch, slots, count, corner, is_new):
    response, pairs, sums = scratch.response, scratch.pairs, scratch.sums_of_label
    start, inner = examples.start[i], examples.inner_start[i]
    if length > examples.stored:
        mark(examples.reach, examples, start, length, slots, count, corner, is_new, response)
        respond_long(examples.reach, examples, start, length, labels, model.has_bias, response, sums)
    else:
        for t in range(length):
            set_row(response[t], None, None, 0.0)
    for u in range(length):
        new, old = labels[u], examples.y[start + u]
        if new != old and length <= examples.stored:
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
    return response, pairs


@block.respond_to_parts.of(Sequences)
@njit
def respond_to_parts(kind, examples, model, i, length, psi, pairs, rows, scratch, slots, count, corner, is_new):
    if length > examples.stored:
        mark(examples.reach, examples, examples.start[i], length, slots, count, corner, is_new, scratch.response)
    return respond_marked(examples, model, i, length, psi, scratch) + exact_dots(pairs, pairs, rows, len(rows)), pairs


@block.add_labeling.of(Sequences)
@njit
def add_labeling(kind, examples, i, length, labels, mass, delta, pairs, counts):
    start, far = examples.start[i], length > examples.stored
    list_parts(kind, examples, i, labels, examples.y[start:], Add(delta, pairs[:0] if far else pairs, mass))
    if far and len(pairs):
        add_net_pairs(examples.reach, examples, start, length, labels, mass, pairs, counts)


class SequenceAdapter(HeadAdapter):
    """Sequences; without pairs, of one token."""

    def cost_matrix(self) -> Tensor:
        """``Sequences.cost_matrix``."""
        return torch.zeros(0, 0, dtype=torch.float64)

    def allowed(self) -> Tensor:
        """``Sequences.allowed``."""
        return torch.ones(0, self.num_states, dtype=torch.bool)

    @override
    def kind(self, *_: Any) -> Sequences:
        return Sequences(self.cost_matrix().numpy(), self.allowed().numpy())


class ChainAdapter(SequenceAdapter):
    """:class:`LinearChain` with shared transitions, and :class:`SparseLinearChain`."""

    emission, pairs = "emission", "transition"

    def __init__(self, head: Any) -> None:
        super().__init__(
            head, HeadWeights(head, "emission", "transition", ("bias", "start_transitions", "end_transitions"))
        )

    @override
    def allowed(self) -> Tensor:
        transitions = self.structure.transitions  # type: ignore[attr-defined]
        if transitions is None:
            return super().allowed()
        return torch.cat([transitions.pairs, transitions.first[None], transitions.last[None]])
