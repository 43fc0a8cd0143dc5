"""Exact BCFW over the examples of one batch, compiled by Numba."""

from __future__ import annotations

from torchssvm.core.jit import njit
from torchssvm.solvers.compiled.block import (
    add_labeling,
    add_to_weights,
    decode,
    potentials,
    product,
    scale_direction,
    score,
    squared_length,
)


@njit
def list_tokens(x, gram, lengths, has_bias, value, column, row, inner):
    """The features of ``x`` ``[B, N, F]`` that are not zero, and the inner products of its tokens, without padding.

    Args:
        x, lengths: The batch.
        gram: ``[B, N, N]``, ``x x^T`` of every example.
        has_bias: Whether 1 is added to the inner products.
        value, column, row, inner: As in ``Examples``, to be filled; the first two with room
            for one more than all features.
    """
    place, token, pair = 0, 0, 0
    extra = inner.dtype.type(1.0 if has_bias else 0.0)
    for b in range(len(lengths)):
        for t in range(lengths[b]):
            for u in range(t + 1):
                inner[pair] = gram[b, t, u] + extra
                pair += 1
            features = x[b, t]
            for f in range(len(features)):
                value[place] = features[f]  # written over where it is zero: a branch here would be mispredicted
                column[place] = f
                place += features[f] != 0.0
            token += 1
            row[token] = place


@njit
def visit_in_turn(examples, model, gradient, psi, psi_pairs, losses, lam, n, scratch, labels, steps, gaps):
    """Frank-Wolfe steps on the blocks of a batch, each decoded at the weights that the ones before it leave.

    Args:
        examples: The batch, as in ``torchssvm.solvers.compiled.state``.
        model: The weights; moved.
        gradient: Zero, with the shapes of ``model``; gets ``(1/n) sum_i gamma_i Phi_i^T Delta_i``.
        psi, psi_pairs: The blocks, ``[B, N, K]`` and ``[B, K, K]``; not changed.
        losses: ``[B]`` float64, l_i.
        lam: Regularisation.
        n: Size of the training set.
        scratch: Room for one block.
        labels: ``[B, N]``, gets the corners, within the lengths.
        steps: ``[B]`` float64, gets gamma_i.
        gaps: ``[B]`` float64, gets the block gaps, each at the weights of its own visit.
    """
    delta, pairs, squares = scratch.delta, scratch.delta_pairs, scratch.squares
    for b in range(len(steps)):
        length = potentials(examples, model, b, scratch.emission)
        emission, transition, start = scratch.emission, model.transition, examples.start[b]
        found = labels[b]
        loss = decode(examples, b, length, emission, transition, scratch.into, scratch.prefixes, found)
        value = score(found, length, emission, transition) + loss - n * losses[b]
        value -= score(examples.y[start : start + length], length, emission, transition)
        held = psi_pairs[b].reshape(psi_pairs[b].size)
        for t in range(length):
            row, own = delta[t], psi[b, t]
            value += product(own, emission[t])
            for k in range(len(own)):
                row[k] = own[k]
        change = pairs.reshape(pairs.size)
        value += product(held, transition.reshape(transition.size))
        for k in range(len(held)):
            change[k] = held[k]
        add_labeling(examples, b, length, found, 1.0, delta, pairs)
        bend = squared_length(examples, model, b, length, delta, pairs, squares, scratch.labels, scratch.into[0])
        gaps[b], steps[b] = max(value, 0.0) / n, 0.0
        if value > 0.0:
            steps[b] = 1.0 if value * lam * n >= bend else value * lam * n / bend
            scale_direction(delta, pairs, length, squares, steps[b] / n)
            add_to_weights(examples, gradient, b, length, delta, pairs, squares)
            scale_direction(delta, pairs, length, squares, -1.0 / lam)
            add_to_weights(examples, model, b, length, delta, pairs, squares)
