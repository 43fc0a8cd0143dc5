"""The loop over blocks, compiled by Numba: [B13] Algorithm 4 and [G16] Algorithms 2 to 5 in one."""

from __future__ import annotations

import numpy as np

from torchssvm.compiled.block import (
    add_labeling,
    add_to_weights,
    decode,
    forget_pairs,
    potentials,
    product,
    respond,
    scale_direction,
    score,
    squared_length,
    triangle,
)
from torchssvm.compiled.directions import CORRECTIVE, HYBRID, choose
from torchssvm.compiled.prefetch import fetch_block
from torchssvm.oracles.jit import kernel


@kernel
def visit_blocks(order, points, tree, examples, model, blocks, scalars, options, scratch, counters):
    """Visit blocks until ``order`` (or ``points``, where blocks are drawn by gap) is used up.

    Args:
        order: ``[V]`` int64 examples; empty where blocks are drawn.
        points: ``[V]`` float64 in [0, 1), one for each draw.
        tree: ``[2 S]`` float64, sums of gaps over a binary tree of S >= n leaves; kept up to date.
        examples, model, blocks, scalars, options, scratch: See ``torchssvm.compiled.state``.
        counters: ``[4]`` int64: oracle calls, cache hits, clock, visits; counted up.

    Returns:
        The number of visits made; less than asked for where a block must give a labeling to the rest and has no room
        for it yet, or where all gaps are zero.
    """
    visits = len(points) if options.by_gap else len(order)
    leaves = len(tree) // 2
    for v in range(visits):
        if options.by_gap:
            if not tree[1] > 0.0:
                return v
            i = draw(tree, points[v])
            following = draw(tree, points[v + 1]) if v + 1 < visits else i  # almost always: one gap will change
        else:
            i = order[v]
            following = order[v + 1] if v + 1 < visits else i
        fetch_block(following, examples, blocks)
        if not visit(i, examples, model, blocks, scalars, options, scratch, counters):
            return v
        counters[3] += 1
        if options.by_gap:
            place = leaves + i
            tree[place] = scalars.gaps[i]
            while place > 1:
                place //= 2
                tree[place] = tree[2 * place] + tree[2 * place + 1]
    return visits


@kernel
def draw(tree, point):
    """The leaf in which ``point`` of the whole lies."""
    place, point = 1, point * tree[1]
    while place < len(tree) // 2:
        place *= 2
        if point >= tree[place] and tree[place + 1] > 0.0:
            point -= tree[place]
            place += 1
    return place - len(tree) // 2


@kernel
def visit(i, examples, model, blocks, scalars, options, scratch, counters):
    """One step on block i; False if it needs room in the rest first, with nothing changed then.

    Atoms: 0 the rest, c + 1 slot c, count + 1 the corner. Mean parts are a rest with all the mass, and no slots.
    """
    n, count = len(blocks.count), blocks.count[i]
    if not has_room(i, count, blocks, options):
        return False
    start = examples.start[i]
    length = potentials(examples, model, i, scratch.emission)
    emission, transition = scratch.emission, model.transition
    base = score(examples.y[start : start + length], length, emission, transition)
    mass, hinge, parts = scratch.mass, scratch.hinge, scratch.score_loss
    mean, best = fill_atoms(i, count, length, base, blocks, scalars, emission, transition, scratch)

    # The cache, or the max oracle.
    gap = (hinge[best + 1] - mean) / n if best >= 0 else 0.0
    hit = options.cache and best >= 0 and gap > 0.0
    hit = hit and gap >= options.factor * scalars.oracle_gaps[i] and gap >= options.threshold
    atoms, corner, found = count + 1, best + 1, scratch.corner
    if hit:
        counters[1] += 1
    else:
        counters[0] += 1
        loss = decode(examples, i, length, emission, transition, scratch.into, scratch.prefixes, found)
        corner = find_slot(i, count, length, blocks.labelings, found) + 1
        if corner == 0:
            corner = atoms
            mass[corner], parts[corner] = 0.0, loss
            hinge[corner] = score(found, length, emission, transition) - base + loss
            atoms += 1
        gap = max((hinge[corner] - mean) / n, 0.0)
        scalars.oracle_gaps[i] = gap
    scalars.gaps[i] = max(gap, 0.0)
    is_new = corner > count

    curved = options.direction == HYBRID or options.direction == CORRECTIVE
    if curved:
        fill_gram(i, count, atoms, length, examples, model, blocks, found, is_new, scratch)
        for a in range(atoms):
            for b in range(atoms):
                scratch.gram[a, b] /= options.lam * n
    change = scratch.change
    choose(
        options.direction,
        atoms,
        corner,
        mass,
        hinge,
        scratch.gram,
        options.steps,
        options.tolerance,
        change,
        scratch.work,
    )

    # The direction in parts space, and the exact step: value/n is the slope, bend/(lam n^2) the curvature.
    delta, pairs, squares = scratch.delta, scratch.delta_pairs, scratch.squares
    fill_direction(i, count, length, is_new, examples, blocks, scratch)
    value, loss_change = 0.0, 0.0
    for c in range(atoms):
        if change[c] != 0.0:
            value += change[c] * hinge[c]
            loss_change += change[c] * parts[c]
    bend = squared_length(examples, model, i, length, delta, pairs, squares, scratch.labels, scratch.into[0])
    step = 0.0
    if value > 0.0:
        step = 1.0 if value * options.lam * n >= bend else value * options.lam * n / bend

    counters[2] += 1
    scratch.step[0] += step
    if step > 0.0:
        rate = step / (options.lam * n)  # w -= rate Phi^T Delta, and <w, Phi^T Delta> is the change of the score
        scratch.step[1] += rate * (rate * bend - 2.0 * (value - loss_change))
        scale_direction(delta, pairs, length, squares, -rate)
        add_to_weights(examples, model, i, length, delta, pairs, squares)
        scalars.loss[i] += step * loss_change / n
        move_masses(i, count, length, step, blocks, scratch)
    if not is_new:
        blocks.used[i, corner - 1] = counters[2]
    if curved:
        keep_gram(i, count, options.lam * n, blocks, scratch)
    if is_new:
        insert(i, step * change[corner], parts[corner], corner, length, examples, blocks, options, scratch, counters)
    return True


@kernel
def has_room(i, count, blocks, options):
    """Whether a new corner finds a slot, or a rest that takes what leaves one."""
    capacity = blocks.mass.shape[1]
    if count < capacity or blocks.rest_emission_start[i] > 0:
        return True
    if options.direction == CORRECTIVE:  # it may fill the slot that is idle now
        return False
    idle = False
    for c in range(capacity):
        idle |= blocks.mass[i, c] == 0.0
    return idle


@kernel
def fill_atoms(i, count, length, base, blocks, scalars, emission, transition, scratch):
    """Mass, loss and hinge of the rest and of the slots; returns the mean hinge and the best slot, or -1."""
    n = len(blocks.count)
    mass, hinge, parts = scratch.mass, scratch.hinge, scratch.score_loss
    mass[0], hinge[0], parts[0] = blocks.rest_mass[i], 0.0, 0.0
    if blocks.mixed[i] and mass[0] > 0.0:
        psi, psi_pairs = rest_views(blocks, i, length)
        inner = 0.0
        for t in range(length):
            inner += product(psi[t], emission[t])
        inner += product(psi_pairs.reshape(psi_pairs.size), transition.reshape(transition.size))
        held = blocks.rest_loss[i] if blocks.mass.shape[1] else scalars.loss[i]
        parts[0] = held * n / mass[0]
        hinge[0] = -inner / mass[0] + parts[0]
    elif mass[0] == 0.0:
        hinge[0] = -np.inf
    mean, best = mass[0] * hinge[0] if mass[0] > 0.0 else 0.0, -1
    for c in range(count):
        mass[c + 1], parts[c + 1] = blocks.mass[i, c], blocks.loss[i, c]
        hinge[c + 1] = score(blocks.labelings[i, c], length, emission, transition) - base + parts[c + 1]
        mean += mass[c + 1] * hinge[c + 1]
        if best < 0 or hinge[c + 1] > hinge[best + 1]:
            best = c
    return mean, best


@kernel
def find_slot(i, count, length, labelings, found):
    """The slot that holds this labeling, or -1."""
    for c in range(count):
        same = True
        for t in range(length):
            if labelings[i, c, t] != found[t]:
                same = False
                break
        if same:
            return c
    return -1


@kernel
def fill_direction(i, count, length, is_new, examples, blocks, scratch):
    """The direction in parts space, for the change of the masses."""
    delta, pairs, change = scratch.delta, scratch.delta_pairs, scratch.change
    if blocks.mixed[i] and scratch.mass[0] > 0.0 and change[0] != 0.0:
        psi, psi_pairs = rest_views(blocks, i, length)
        decay = delta.dtype.type(-change[0] / scratch.mass[0])
        for t in range(length):
            row, held = delta[t], psi[t]
            for k in range(len(held)):
                row[k] = decay * held[k]
        change_of, held_pairs = pairs.reshape(pairs.size), psi_pairs.reshape(psi_pairs.size)
        for k in range(len(change_of)):
            change_of[k] = decay * held_pairs[k]
    else:
        delta[:length] = 0.0
        pairs[:] = 0.0
    for c in range(count):
        if change[c + 1] != 0.0:
            add_labeling(examples, i, length, blocks.labelings[i, c], change[c + 1], delta, pairs)
    if is_new:
        add_labeling(examples, i, length, scratch.corner, change[count + 1], delta, pairs)


@kernel
def move_masses(i, count, length, step, blocks, scratch):
    """The masses that a step leaves to the rest and to the slots; a new corner is not one of these yet."""
    mass, change = scratch.mass, scratch.change
    if blocks.mixed[i] and mass[0] > 0.0 and change[0] != 0.0:
        psi, psi_pairs = rest_views(blocks, i, length)
        keep = psi.dtype.type(1.0 + step * change[0] / mass[0])
        for t in range(length):
            held = psi[t]
            for k in range(len(held)):
                held[k] *= keep
        held_pairs = psi_pairs.reshape(psi_pairs.size)
        for k in range(len(held_pairs)):
            held_pairs[k] *= keep
        blocks.rest_loss[i] *= 1.0 + step * change[0] / mass[0]
    blocks.rest_mass[i] = max(mass[0] + step * change[0], 0.0)
    for c in range(count):
        blocks.mass[i, c] = max(mass[c + 1] + step * change[c + 1], 0.0)


@kernel
def keep_gram(i, count, weight, blocks, scratch):
    """Keep the inner products of the slots."""
    for c in range(count):
        for e in range(count):
            blocks.gram[i, c, e] = scratch.gram[c + 1, e + 1] * weight
        blocks.known[i, c] = True


@kernel
def rest_views(blocks, i, length):
    """Psi of the rest of block i: emissions and pairs."""
    start = blocks.rest_emission_start[i]
    return blocks.rest_emission[start : start + length], blocks.rest_transition[blocks.rest_transition_start[i]]


@kernel
def fill_gram(i, count, atoms, length, examples, model, blocks, found, is_new, scratch):
    """Inner products of the atoms, without the factor 1/(lam n^2)."""
    gram, response, pairs, labels = scratch.gram, scratch.response, scratch.pairs, scratch.labels
    states = response.shape[1]
    start = examples.start[i]
    target = examples.y[start : start + length]
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
        for t in range(length):
            labels[t] = found[t] if c == count else blocks.labelings[i, c, t]
        respond(examples, model, i, length, labels, response, pairs)
        own = score(target, length, response, pairs)
        for e in range(count):
            value = score(blocks.labelings[i, e], length, response, pairs) - own
            gram[c + 1, e + 1] = value
            gram[e + 1, c + 1] = value
        if is_new:
            value = score(found, length, response, pairs) - own
            gram[c + 1, count + 1] = value
            gram[count + 1, c + 1] = value
        forget_pairs(examples, i, length, labels, pairs)
    if not (blocks.mixed[i] and blocks.rest_mass[i] > 0.0):
        return
    psi, psi_pairs = rest_views(blocks, i, length)
    inner, share = examples.inner_start[i], 1.0 / blocks.rest_mass[i]
    total = 0.0
    for t in range(length):
        for k in range(states):
            value = 0.0
            for u in range(length):
                value += examples.inner[inner + triangle(t, u)] * psi[u, k]
            if model.has_boundary and t == 0:
                value += psi[t, k]
            if model.has_boundary and t == length - 1:
                value += psi[t, k]
            response[t, k] = value
            total += value * psi[t, k]
    total += product(psi_pairs.reshape(psi_pairs.size), psi_pairs.reshape(psi_pairs.size))
    own = score(target, length, response, psi_pairs)
    gram[0, 0] = share * share * total
    for c in range(count + 1):
        if c == count and not is_new:
            continue
        for t in range(length):
            labels[t] = found[t] if c == count else blocks.labelings[i, c, t]
        value = -share * (score(labels, length, response, psi_pairs) - own)
        gram[0, c + 1] = value
        gram[c + 1, 0] = value


@kernel
def insert(i, mass, loss, corner, length, examples, blocks, options, scratch, counters):
    """Cache the corner, as ``Labelings`` does: a free slot, the least recent without mass, or the least mass."""
    n, capacity, count = len(blocks.count), blocks.mass.shape[1], blocks.count[i]
    if capacity == 0:  # mean parts take it in
        if mass > 0.0:
            psi, pairs = rest_views(blocks, i, length)
            add_labeling(examples, i, length, scratch.corner, -mass, psi, pairs)
        blocks.rest_mass[i] = 1.0
        return
    slot = count
    if count == capacity:
        slot = 0
        for c in range(1, capacity):
            held, least = blocks.mass[i, c], blocks.mass[i, slot]
            if held == 0.0:
                if least > 0.0 or blocks.used[i, c] < blocks.used[i, slot]:
                    slot = c
            elif least > 0.0 and held < least:
                slot = c
        held = blocks.mass[i, slot]
        if held > 0.0:
            if mass == 0.0:
                return
            psi, pairs = rest_views(blocks, i, length)
            add_labeling(examples, i, length, blocks.labelings[i, slot], -held, psi, pairs)
            blocks.rest_mass[i] += held
            blocks.rest_loss[i] += held * blocks.loss[i, slot] / n
            blocks.mixed[i] = True
    for t in range(length):
        blocks.labelings[i, slot, t] = scratch.corner[t]
    if count == 0:  # the slots that are free must hold labelings that can be scored
        for c in range(1, capacity):
            for t in range(length):
                blocks.labelings[i, c, t] = scratch.corner[t]
    blocks.count[i] = max(count, slot + 1)
    blocks.mass[i, slot] = mass
    blocks.loss[i, slot] = loss
    counters[2] += 1
    blocks.used[i, slot] = counters[2]
    blocks.known[i, slot] = False
    if options.direction == HYBRID or options.direction == CORRECTIVE:
        weight, gram = options.lam * n, scratch.gram
        for c in range(count):
            blocks.gram[i, slot, c] = gram[corner, c + 1] * weight
            blocks.gram[i, c, slot] = gram[corner, c + 1] * weight
        blocks.gram[i, slot, slot] = gram[corner, corner] * weight
        blocks.known[i, slot] = True
