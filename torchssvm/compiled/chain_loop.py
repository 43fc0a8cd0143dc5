"""The loop over blocks of linear chains, compiled by Numba: [B13] Algorithm 4 and [G16] Algorithms 2 to 5 in one."""

from __future__ import annotations

import numpy as np
from numba import njit

from torchssvm.compiled.chain_block import (
    add_labeling,
    decode,
    forget_pairs,
    move_weights,
    potentials,
    respond,
    score,
    squared_length,
)
from torchssvm.compiled.directions import CORRECTIVE, HYBRID, choose


@njit(cache=True, nogil=True)
def visit_blocks(order, points, tree, examples, model, blocks, scalars, options, scratch, counters):
    """Visit blocks until ``order`` (or ``points``, where blocks are drawn by gap) is used up.

    Args:
        order: ``[V]`` int64 examples; empty where blocks are drawn.
        points: ``[V]`` float64 in [0, 1), one for each draw.
        tree: ``[2 S]`` float64, sums of gaps over a binary tree of S >= n leaves; kept up to date.
        examples, model, blocks, scalars, options, scratch: See ``torchssvm.compiled.state``.
        counters: ``[3]`` int64: oracle calls, cache hits, clock; counted up.

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
            place, point = 1, points[v] * tree[1]
            while place < leaves:
                place *= 2
                if point >= tree[place] and tree[place + 1] > 0.0:
                    point -= tree[place]
                    place += 1
            i = place - leaves
        else:
            i = order[v]
        if not visit(i, examples, model, blocks, scalars, options, scratch, counters):
            return v
        if options.by_gap:
            place = leaves + i
            tree[place] = scalars.gaps[i]
            while place > 1:
                place //= 2
                tree[place] = tree[2 * place] + tree[2 * place + 1]
    return visits


@njit(cache=True, nogil=True)
def visit(i, examples, model, blocks, scalars, options, scratch, counters):
    """One step on block i; False if it needs room in the rest first, with nothing changed then."""
    n, states = len(blocks.count), model.transition.shape[0]
    capacity, count = blocks.mass.shape[1], blocks.count[i]
    start = examples.start[i]
    length = examples.start[i + 1] - start
    target = examples.y[start : start + length]
    has_rest = blocks.mixed[i] and blocks.rest_mass[i] > 0.0
    if count == capacity and blocks.rest_emission_start[i] == 0:
        idle = False  # a slot that a new corner may have: the corrective step may fill it before
        for c in range(capacity):
            idle |= blocks.mass[i, c] == 0.0
        if not idle or options.direction == CORRECTIVE:
            return False

    potentials(examples, model, i, scratch.emission)
    emission, transition = scratch.emission, model.transition
    base = score(target, length, emission, transition)

    # Atoms: 0 the rest, c + 1 slot c, count + 1 the corner.
    mass, hinge, parts = scratch.mass, scratch.hinge, scratch.score_loss
    mass[0], hinge[0], parts[0] = blocks.rest_mass[i], 0.0, 0.0
    if has_rest:
        psi, psi_pairs = rest_views(blocks, i, length)
        inner = 0.0
        for t in range(length):
            for k in range(states):
                inner += psi[t, k] * emission[t, k]
        for j in range(states):
            for k in range(states):
                inner += psi_pairs[j, k] * transition[j, k]
        parts[0] = blocks.rest_loss[i] * n / mass[0]
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

    # The cache, or the max oracle.
    gap = (hinge[best + 1] - mean) / n if best >= 0 else 0.0
    hit = options.cache and best >= 0 and gap > 0.0
    hit = hit and gap >= options.factor * scalars.oracle_gaps[i] and gap >= options.threshold
    corner, found = best + 1, scratch.corner
    atoms = count + 1
    if hit:
        counters[1] += 1
    else:
        counters[0] += 1
        loss = decode(examples, i, length, emission, transition, scratch.prefixes, found)
        corner = 0
        for c in range(count):
            same = True
            for t in range(length):
                if blocks.labelings[i, c, t] != found[t]:
                    same = False
                    break
            if same:
                corner = c + 1
                break
        if corner == 0:
            corner = atoms
            mass[corner], parts[corner] = 0.0, loss
            hinge[corner] = score(found, length, emission, transition) - base + loss
            atoms += 1
        gap = max((hinge[corner] - mean) / n, 0.0)
        scalars.oracle_gaps[i] = gap
    scalars.gaps[i] = max(gap, 0.0)
    is_new = corner > count

    gram = scratch.gram
    if options.direction == HYBRID or options.direction == CORRECTIVE:
        fill_gram(i, count, atoms, length, has_rest, examples, model, blocks, found, is_new, scratch)
        for a in range(atoms):
            for b in range(atoms):
                gram[a, b] /= options.lam * n
    change = scratch.change
    choose(options.direction, atoms, corner, mass, hinge, gram, options.steps, options.tolerance, change, scratch.work)

    # The direction in parts space, and the exact step.
    delta, pairs = scratch.delta, scratch.delta_pairs
    delta[:length] = 0.0
    pairs[:] = 0.0
    if has_rest and change[0] != 0.0:
        decay = -change[0] / mass[0]
        for t in range(length):
            for k in range(states):
                delta[t, k] = decay * psi[t, k]
        for j in range(states):
            for k in range(states):
                pairs[j, k] = decay * psi_pairs[j, k]
    value, loss_change = 0.0, change[0] * parts[0]
    if change[0] != 0.0:
        value += change[0] * hinge[0]
    for c in range(count):
        if change[c + 1] != 0.0:
            value += change[c + 1] * hinge[c + 1]
            loss_change += change[c + 1] * parts[c + 1]
            add_labeling(examples, i, length, blocks.labelings[i, c], change[c + 1], delta, pairs)
    if is_new:
        value += change[corner] * hinge[corner]
        loss_change += change[corner] * parts[corner]
        add_labeling(examples, i, length, found, change[corner], delta, pairs)
    bend = squared_length(examples, model, i, length, delta, pairs)
    # value/n is the slope, bend/(lam n^2) the curvature
    step = 0.0
    if value > 0.0:
        step = 1.0 if value * options.lam * n >= bend else value * options.lam * n / bend

    counters[2] += 1
    if step > 0.0:
        move_weights(examples, model, i, length, delta, pairs, step / (options.lam * n), scratch.row)
        scalars.loss[i] += step * loss_change / n
        blocks.rest_mass[i] = max(mass[0] + step * change[0], 0.0)
        if has_rest and change[0] != 0.0:
            keep = 1.0 + step * change[0] / mass[0]
            psi *= keep
            psi_pairs *= keep
            blocks.rest_loss[i] *= keep
        for c in range(count):
            blocks.mass[i, c] = max(mass[c + 1] + step * change[c + 1], 0.0)
    if not is_new:
        blocks.used[i, corner - 1] = counters[2]
    if options.direction == HYBRID or options.direction == CORRECTIVE:
        for c in range(count):
            for e in range(count):
                blocks.gram[i, c, e] = gram[c + 1, e + 1] * (options.lam * n)
            blocks.known[i, c] = True
    if is_new:
        insert(i, step * change[corner], parts[corner], corner, length, examples, blocks, options, scratch, counters)
    return True


@njit(cache=True, nogil=True)
def rest_views(blocks, i, length):
    """Psi of the rest of block i: emissions and pairs."""
    start = blocks.rest_emission_start[i]
    return blocks.rest_emission[start : start + length], blocks.rest_transition[blocks.rest_transition_start[i]]


@njit(cache=True, nogil=True)
def fill_gram(i, count, atoms, length, has_rest, examples, model, blocks, found, is_new, scratch):
    """Inner products of the atoms, without the factor 1/(lam n^2)."""
    gram, response, pairs = scratch.gram, scratch.response, scratch.pairs
    states = model.transition.shape[0]
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
        labels = found if c == count else blocks.labelings[i, c].astype(np.int64)
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
    if not has_rest:
        return
    psi, psi_pairs = rest_views(blocks, i, length)
    inner, share = examples.inner_start[i], 1.0 / blocks.rest_mass[i]
    total = 0.0
    for t in range(length):
        for k in range(states):
            value = 0.0
            for u in range(length):
                value += examples.inner[inner + t * length + u] * psi[u, k]
            if model.has_boundary and t == 0:
                value += psi[t, k]
            if model.has_boundary and t == length - 1:
                value += psi[t, k]
            response[t, k] = value
            total += value * psi[t, k]
    for j in range(states):
        for k in range(states):
            total += psi_pairs[j, k] * psi_pairs[j, k]
    own = score(target, length, response, psi_pairs)
    gram[0, 0] = share * share * total
    for c in range(count + 1):
        if c == count and not is_new:
            continue
        labels = found if c == count else blocks.labelings[i, c].astype(np.int64)
        value = -share * (score(labels, length, response, psi_pairs) - own)
        gram[0, c + 1] = value
        gram[c + 1, 0] = value


@njit(cache=True, nogil=True)
def insert(i, mass, loss, corner, length, examples, blocks, options, scratch, counters):
    """Cache the corner, as ``Labelings`` does: a free slot, the least recent without mass, or the least mass."""
    n, capacity, count = len(blocks.count), blocks.mass.shape[1], blocks.count[i]
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
            add_labeling(examples, i, length, blocks.labelings[i, slot].astype(np.int64), -held, psi, pairs)
            blocks.rest_mass[i] += held
            blocks.rest_loss[i] += held * blocks.loss[i, slot] / n
            blocks.mixed[i] = True
    for t in range(length):
        blocks.labelings[i, slot, t] = scratch.corner[t]
    if count == 0:  # the slots that are free must hold labelings that can be scored
        for c in range(1, capacity):
            blocks.labelings[i, c] = blocks.labelings[i, 0]
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
