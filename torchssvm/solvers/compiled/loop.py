"""The loop over blocks, compiled by Numba: [B13] Algorithm 4 and [G16] Algorithms 2 to 5."""

from __future__ import annotations

import numpy as np

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import prefetch
from torchssvm.kinds.block import add_to_weights, size_of, squared_length
from torchssvm.kinds.calls import decode_with_score, evaluate
from torchssvm.solvers.compiled.atoms import (
    fill_atoms,
    fill_direction,
    fill_gram,
    find_slot,
    has_room,
    insert,
    move_masses,
    rest_views,
)
from torchssvm.steps.numba import CORRECTIVE, HYBRID, cache_serves, choose, exact_step, relaxed_step


@njit
def visit_blocks(order, points, tree, examples, model, blocks, scalars, options, scratch, counters):
    """Visit blocks until ``order`` (or ``points``, where blocks are drawn by gap) is used up.

    Args:
        order: ``[V]`` int64 examples; empty where blocks are drawn.
        points: ``[V]`` float64 in [0, 1), one for each draw.
        tree: ``[2 S]`` float64, room for sums of gaps over a binary tree of S >= n leaves, where blocks are drawn.
        examples, model, blocks, scalars, options, scratch: See ``torchssvm.solvers.compiled.memory``.
        counters: ``[4]`` int64: oracle calls, cache hits, clock, visits; counted up.

    Returns:
        The number of visits made; fewer than asked for if a block must move a labeling to the rest before the rest is
        allocated, or if all gaps are zero.
    """
    visits = len(points) if options.by_gap else len(order)
    if options.by_gap:
        fill_sums(tree, scalars.gaps, options.power)
    i = next_block(0, visits, order, points, tree, options)
    for v in range(visits):
        if i < 0 or not has_room(i, blocks.count[i], blocks, options):
            return v
        atoms, corner = find_corner(i, examples, model, blocks, scalars, options, scratch, counters)
        if options.by_gap:
            put_gap(tree, i, to_power(scalars.gaps[i], options.power))
        following = next_block(v + 1, visits, order, points, tree, options)
        if following >= 0:
            prefetch_block(following, examples, blocks)  # it arrives while this block moves
        move(i, atoms, corner, examples, model, blocks, scalars, options, scratch, counters)
        counters[3] += 1
        i = following
    return visits


@njit
def next_block(v, visits, order, points, tree, options):
    """The block of visit v; -1 if there is none, or if all gaps are zero."""
    if v == visits or (options.by_gap and not tree[1] > 0.0):
        return -1
    return draw(tree, points[v]) if options.by_gap else order[v]


@njit
def prefetch_block(i, examples, blocks):
    """Ask for the memory of example i and of its block: a visit waits for some thirty places otherwise."""
    start, end, line = examples.start[i], examples.start[i + 1], examples.line[i]
    count, inner = examples.line[i + 1] - line, examples.inner_start[i]
    prefetch(examples.y[start:end])
    prefetch(examples.cost[start:end])
    prefetch(examples.added[start:end])
    if count <= examples.stored:
        prefetch(examples.inner[inner : inner + count * (count + 1) // 2])
    if examples.dense:
        prefetch(examples.x[line : line + count])
    else:
        begin, last = examples.row[line], examples.row[line + count]
        prefetch(examples.column[begin:last])
        prefetch(examples.value[begin:last])
    if blocks.count[i]:
        prefetch(blocks.mass[i])
        prefetch(blocks.loss[i])
        prefetch(blocks.used[i])
        prefetch(blocks.labelings[i])
        prefetch(blocks.gram[min(i, len(blocks.gram) - 1)])  # without curvature there is one, of no block
    if blocks.mixed[i]:
        psi, pairs, used = rest_views(examples, blocks, i, examples.length[i])
        prefetch(psi)
        prefetch(pairs)
        prefetch(used)


@njit
def fill_sums(tree, gaps, power):
    """Powers of the gaps are the leaves of ``tree``; entry 1 is the root, and 2 k and 2 k + 1 are the children of k."""
    leaves = len(tree) // 2
    for i in range(leaves):
        tree[leaves + i] = to_power(gaps[i], power) if i < len(gaps) else 0.0
    for place in range(leaves - 1, 0, -1):
        tree[place] = tree[2 * place] + tree[2 * place + 1]


@njit
def put_gap(tree, i, gap):
    """Set the leaf of block i."""
    place = len(tree) // 2 + i
    tree[place] = gap
    while place > 1:
        place //= 2
        tree[place] = tree[2 * place] + tree[2 * place + 1]


@njit
def to_power(gap, power):
    """``gap ** power``; 0 for a block without a gap."""
    if gap <= 0.0 or power == 1.0:
        return gap
    return np.sqrt(gap) if power == 0.5 else gap**power


@njit
def draw(tree, point):
    """The leaf that contains the share ``point`` of the total."""
    place, point = 1, point * tree[1]
    while place < len(tree) // 2:
        place *= 2
        right = (point >= tree[place]) & (tree[place + 1] > 0.0)
        point -= tree[place] * right  # without a branch, which would be mispredicted half of the time
        place += right
    return place - len(tree) // 2


@njit
def find_corner(i, examples, model, blocks, scalars, options, scratch, counters):
    """Score the atoms of block i, take the corner from the cache or from the oracle, and set the block's gap.

    Atoms: 0 the rest, c + 1 slot c, count + 1 the corner. Mean parts are a rest with all the mass, and no slots.
    Returns the number of atoms and the corner's.
    """
    n, count, kind, weight = options.num_examples, blocks.count[i], examples.kind, examples.weight[i]
    length = examples.length[i]
    in_scratch = evaluate(kind, examples, model, i, length, blocks, count, scratch)
    emission, transition = scratch.emission, scratch.transition if in_scratch else model.transition
    base = scratch.scores[count]
    mass, hinge, parts = scratch.mass, scratch.hinge, scratch.score_loss
    mean, best = fill_atoms(i, n, count, length, base, examples, blocks, scalars, emission, transition, scratch)

    # The cache, or the max oracle.
    gap = (hinge[best + 1] - mean) / n if best >= 0 else 0.0
    hit = options.cache and cache_serves(gap, scalars.oracle_gaps[i], options.factor, options.threshold)
    atoms, corner, output = count + 1, best + 1, scratch.corner
    if hit:
        counters[1] += 1
    else:
        counters[0] += 1
        loss, best_score = decode_with_score(kind, examples, model, i, length, scratch, transition, output)
        loss *= weight
        corner = find_slot(i, count, size_of(examples, i), blocks.labelings, output) + 1
        if corner == 0:
            corner = atoms
            mass[corner], parts[corner] = 0.0, loss
            hinge[corner] = weight * (best_score - base) + loss
            atoms += 1
        gap = max((hinge[corner] - mean) / n, 0.0)
        scalars.oracle_gaps[i] = gap
    scalars.gaps[i] = max(gap, 0.0)
    return atoms, corner


@njit
def move(i, atoms, corner, examples, model, blocks, scalars, options, scratch, counters):
    """The step of block i, whose atoms and corner are known."""
    n, count, kind, weight = options.num_examples, blocks.count[i], examples.kind, examples.weight[i]
    length, is_new = examples.length[i], corner > count
    mass, hinge, parts = scratch.mass, scratch.hinge, scratch.score_loss
    curved = options.direction == HYBRID or options.direction == CORRECTIVE
    if curved:
        fill_gram(i, count, atoms, length, examples, model, blocks, is_new, scratch)
    change, scale = scratch.change, options.lam * n
    rule, limits = options.direction, (options.steps, options.tolerance)
    choose(rule, atoms, corner, mass, hinge, scratch.gram, scale, *limits, change, scratch.work)

    # The direction in parts space, and the exact step: value/n is the slope, curvature/(lam n^2) the curvature.
    delta, pairs = scratch.delta, scratch.delta_pairs
    rows = scratch.rows[: fill_direction(i, count, length, is_new, examples, blocks, scratch)]
    value, loss_change = 0.0, 0.0
    for c in range(atoms):
        if change[c] != 0.0:
            value += change[c] * hinge[c]
            loss_change += change[c] * parts[c]
    curvature = weight * weight * squared_length(kind, examples, model, i, length, delta, pairs, rows, scratch)
    step = exact_step(value * scale, curvature)
    if options.relaxation != 1.0:
        step = relaxed_step(step, options.relaxation, atoms, mass, change)

    counters[2] += 1
    scratch.step[0] += step
    if step > 0.0:
        rate = step / scale  # w -= rate Phi^T Delta, and <w, Phi^T Delta> is the change of the score
        scratch.step[1] += rate * (rate * curvature - 2.0 * (value - loss_change))
        add_to_weights(kind, examples, model, i, length, delta, pairs, rows, scratch, -rate * weight)
        scalars.loss[i] += step * loss_change / n
        move_masses(i, count, length, step, rows, examples, blocks, scratch)
    if not is_new:
        blocks.used[i, corner - 1] = counters[2]
    if is_new:
        insert(i, step * change[corner], parts[corner], corner, length, examples, blocks, options, scratch, counters)
