"""The atoms of one block (the rest, the slots and the corner) and their masses, scores and products, in Numba.

Atoms are numbered: 0 the rest, c + 1 slot c, count + 1 a corner that no slot holds.
"""

from __future__ import annotations

import numpy as np

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import exact_dots, set_row, set_rows
from torchssvm.dual.active_sets import victim
from torchssvm.kinds.block import add_labeling, list_rows, read_slot, size_of
from torchssvm.kinds.calls import add_labelings, fill_products, fill_products_of_rest, mark_labelings
from torchssvm.steps.numba import CORRECTIVE, HYBRID, left_of


@njit
def has_room(i, count, blocks, options):
    """Whether block i has a slot for a new corner, or a rest that takes over the replaced labeling."""
    capacity = blocks.mass.shape[1]
    if count < capacity or blocks.rest_emission_start[i] > 0:
        return True
    if options.direction == CORRECTIVE:  # corrective steps may fill a slot that is idle now
        return False
    idle = False
    for c in range(capacity):
        idle |= blocks.mass[i, c] == 0.0
    return idle


@njit
def fill_atoms(i, n, count, length, base, examples, blocks, scalars, emission, transition, scratch):
    """Mass, loss and hinge of the rest and of the slots; returns the mean hinge and the best slot, or -1."""
    mass, hinge, parts, weight = scratch.mass, scratch.hinge, scratch.score_loss, examples.weight[i]
    mass[0], hinge[0], parts[0] = blocks.rest_mass[i], 0.0, 0.0
    if blocks.mixed[i] and mass[0] > 0.0:
        psi, psi_pairs, used = rest_views(examples, blocks, i, length)
        inner = exact_dots(psi, emission, None, length)
        rows = scratch.rows[: list_rows(used, scratch.rows)]
        inner += exact_dots(psi_pairs, transition, rows, len(rows))
        rest_loss = blocks.rest_loss[i] if blocks.mass.shape[1] else scalars.loss[i]
        parts[0] = rest_loss * n / mass[0]
        hinge[0] = -weight * inner / mass[0] + parts[0]
    elif mass[0] == 0.0:
        hinge[0] = -np.inf
    mean, best = mass[0] * hinge[0] if mass[0] > 0.0 else 0.0, -1
    for c in range(count):
        mass[c + 1], parts[c + 1] = blocks.mass[i, c], blocks.loss[i, c]
        hinge[c + 1] = weight * (scratch.scores[c] - base) + parts[c + 1]
        mean += mass[c + 1] * hinge[c + 1]
        if best < 0 or hinge[c + 1] > hinge[best + 1]:
            best = c
    return mean, best


@njit
def find_slot(i, count, size, labelings, labeling):
    """The slot that holds this labeling of ``size`` labels, or -1."""
    for c in range(count):
        same = True
        for t in range(size):
            if labelings[i, c, t] != labeling[t]:
                same = False
                break
        if same:
            return c
    return -1


@njit
def fill_direction(i, count, length, is_new, examples, blocks, scratch):
    """The direction in parts space, for the change of the masses; returns how many rows of its pairs are used."""
    delta, pairs, change, kind = scratch.delta, scratch.delta_pairs, scratch.change, examples.kind
    used = scratch.used[: examples.pair_rows[i]]
    rest = blocks.mixed[i] and scratch.mass[0] > 0.0 and change[0] != 0.0
    psi, psi_pairs, rest_used = rest_views(examples, blocks, i, length)
    for j in range(len(used)):
        used[j] = rest and rest_used[j]
    if len(used):
        mark_labelings(kind, examples, i, blocks, count, is_new, scratch.corner, scratch, used)
    rows = scratch.rows[: list_rows(used, scratch.rows)]
    if rest:
        decay = -change[0] / scratch.mass[0]
        set_rows(delta, psi, None, length, decay, None)
        set_rows(pairs, psi_pairs, rows, len(rows), decay, None)
    else:
        set_rows(delta, None, None, length, None, None)
        set_rows(pairs, None, rows, len(rows), None, None)
    add_labelings(kind, examples, i, length, blocks, count, is_new, scratch, delta, pairs)
    return len(rows)


@njit
def move_masses(i, count, length, step, rows, examples, blocks, scratch):
    """Update the masses of the rest and of the slots by a step; a new corner has no slot yet.

    ``rows`` are the rows of the rest's pairs that may not be zero.
    """
    mass, change = scratch.mass, scratch.change
    if blocks.mixed[i] and mass[0] > 0.0 and change[0] != 0.0:
        psi, psi_pairs, _ = rest_views(examples, blocks, i, length)
        keep = left_of(mass[0], step * change[0]) / mass[0]  # psi stays the mass times a point of the polytope
        set_row(psi, psi, keep, None)
        set_rows(psi_pairs, psi_pairs, rows, len(rows), keep, None)
        blocks.rest_loss[i] *= keep
    blocks.rest_mass[i] = left_of(mass[0], step * change[0])
    for c in range(count):
        blocks.mass[i, c] = left_of(mass[c + 1], step * change[c + 1])


@njit
def rest_views(examples, blocks, i, length):
    """Psi of the rest of block i: emissions and pairs, and which rows of the pairs may not be zero."""
    start, place = blocks.rest_emission_start[i], blocks.rest_transition_start[i]
    end = place + examples.pair_rows[i]
    return blocks.rest_emission[start : start + length], blocks.rest_transition[place:end], blocks.rest_used[place:end]


@njit
def add_to_rest(examples, i, length, labels, mass, blocks, scratch):
    """``mass (p(y) - p(labels))`` added to psi of the rest of block i; see ``add_labeling``."""
    kind, (psi, pairs, used) = examples.kind, rest_views(examples, blocks, i, length)
    if len(used):
        mark_labelings(kind, examples, i, blocks, 0, np.bool_(True), labels, scratch, used)
    add_labeling(kind, examples, i, length, labels, -mass, psi, pairs, scratch.pairs)


@njit
def fill_gram(i, count, atoms, length, examples, model, blocks, is_new, scratch):
    """Inner products of the atoms, without the factor 1/(lam n^2); slots keep theirs."""
    gram, labels, products = scratch.gram, scratch.labels, scratch.scores
    kind, size, factor = examples.kind, size_of(examples, i), examples.weight[i] * examples.weight[i]
    read = blocks, count, is_new, scratch
    for a in range(atoms):
        gram[0, a] = 0.0
        gram[a, 0] = 0.0
    for c in range(count):
        if blocks.known[i, c]:
            for e in range(count):
                gram[c + 1, e + 1] = blocks.gram[i, c, e]
    for c in range(count + 1):
        if c < count and blocks.known[i, c]:
            continue
        if c == count and not is_new:
            continue
        if c < count:
            read_slot(i, c, examples, blocks, labels)
        for t in range(size if c == count else 0):
            labels[t] = scratch.corner[t]
        fill_products(kind, examples, model, i, length, labels, *read)
        for e in range(count):
            value = factor * products[e]
            gram[c + 1, e + 1] = value
            gram[e + 1, c + 1] = value
            if c < count:
                blocks.gram[i, c, e] = value
                blocks.gram[i, e, c] = value
        if c < count:
            blocks.known[i, c] = True
        if is_new:
            value = factor * products[count]
            gram[c + 1, count + 1] = value
            gram[count + 1, c + 1] = value
    if not (blocks.mixed[i] and blocks.rest_mass[i] > 0.0):
        return
    psi, psi_pairs, used = rest_views(examples, blocks, i, length)
    share = 1.0 / blocks.rest_mass[i]
    rows = scratch.rows[: list_rows(used, scratch.rows)]
    square = fill_products_of_rest(kind, examples, model, i, length, psi, psi_pairs, rows, *read)
    gram[0, 0] = factor * share * share * square
    for c in range(count + is_new):
        value = -factor * share * products[c]
        gram[0, c + 1] = value
        gram[c + 1, 0] = value


@njit
def insert(i, mass, loss, corner, length, examples, blocks, options, scratch, counters):
    """Cache the corner, as ``Labelings`` does: a free slot, the least recent without mass, or the least mass."""
    n, capacity, count, size = options.num_examples, blocks.mass.shape[1], blocks.count[i], size_of(examples, i)
    if capacity == 0:  # the corner goes into the mean parts
        if mass > 0.0:
            add_to_rest(examples, i, length, scratch.corner, mass, blocks, scratch)
        blocks.rest_mass[i] = 1.0
        return
    slot = victim(count, blocks.mass[i], blocks.used[i])
    if count == capacity:
        moved = blocks.mass[i, slot]
        if moved > 0.0:
            if mass == 0.0:
                return
            read_slot(i, slot, examples, blocks, scratch.labels)
            add_to_rest(examples, i, length, scratch.labels, moved, blocks, scratch)
            blocks.rest_mass[i] += moved
            blocks.rest_loss[i] += moved * blocks.loss[i, slot] / n
            blocks.mixed[i] = True
    for t in range(size):
        blocks.labelings[i, slot, t] = scratch.corner[t]
    if count == 0:  # free slots must hold valid labelings, as they are scored too
        for c in range(1, capacity):
            for t in range(size):
                blocks.labelings[i, c, t] = scratch.corner[t]
    blocks.count[i] = max(count, slot + 1)
    blocks.mass[i, slot] = mass
    blocks.loss[i, slot] = loss
    counters[2] += 1
    blocks.used[i, slot] = counters[2]
    blocks.known[i, slot] = False
    if options.direction == HYBRID or options.direction == CORRECTIVE:
        gram = scratch.gram
        for c in range(count):
            blocks.gram[i, slot, c] = gram[corner, c + 1]
            blocks.gram[i, c, slot] = gram[corner, c + 1]
        blocks.gram[i, slot, slot] = gram[corner, corner]
        blocks.known[i, slot] = True
