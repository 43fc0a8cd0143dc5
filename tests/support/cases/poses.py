"""Tiny poses, scored and priced by their definitions, and training problems made of them."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from cases.problems import Problem, Reference, rng
from torchssvm import Batch, LinearPose, Pose
from torchssvm.structures.pose import PoseMaps


def tiny_pose(parent=(-1, 0), grid=(2, 2), types=2, seed=0, spreads=False, size=1.5):
    """Mean displacements are whole numbers, so that ties are exact."""
    random = rng(seed)
    edges = sum(v >= 0 for v in parent)
    shape = (edges, 2, types, 2)
    displacements = torch.randint(-2, 3, shape, generator=random)
    wide = 1.0 + torch.rand(shape, generator=random) if spreads else None
    return Pose(parent, displacements, grid, spreads=wide, size=size)


def all_outputs(structure):
    """As :meth:`Pose.enumerate` lists them, but by plain loops: ``[Y, P, 4]``."""
    parent, (height, width) = structure.parent.tolist(), (structure.height, structure.width)
    kinds = [[(-1, -1)] if up < 0 else list(itertools.product(range(structure.num_types), repeat=2)) for up in parent]
    nodes = [[(x, y, *k) for y in range(height) for x in range(width) for k in types] for types in kinds]
    return torch.tensor(list(itertools.product(*nodes)))


def springs(structure, labeling):
    """By the definition: for every arc ``(edge, direction, type, first node, Delta)``."""
    parent, rows = structure.parent.tolist(), labeling.tolist()
    for e, v in enumerate(v for v, up in enumerate(parent) if up >= 0):
        for arc, (p, q) in enumerate(((v, parent[v]), (parent[v], v))):
            t = rows[v][2 + arc]
            delta = []
            for axis in (0, 1):
                mean, spread = (float(m[e, arc, t, axis]) for m in (structure.displacements, structure.spreads))
                z = (rows[p][axis] - rows[q][axis] - mean) / spread
                delta += [z, z**2]
            yield e, arc, t, p, delta


def definition(structure, unary, types, deformation, labeling):
    """The score of one labeling ``[P, 4]``."""
    rows = labeling.tolist()
    total = sum(float(unary[p, y, x]) for p, (x, y, _, _) in enumerate(rows))
    for e, arc, t, p, delta in springs(structure, labeling):
        x, y = rows[p][:2]
        total += float(types[e, arc, t, y, x])
        total -= sum(float(w) * d for w, d in zip(deformation[e, arc, t], delta, strict=True))
    return total


def truncated_distance(structure, labeling, target):
    a, b = labeling.tolist(), target.tolist()
    scale = structure.size
    if isinstance(scale, tuple):
        u, v = (b[node] for node in scale)
        scale = max(1.0, ((u[0] - v[0]) ** 2 + (u[1] - v[1]) ** 2) ** 0.5)
    squared = [(p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2 for p, q in zip(a, b, strict=True)]
    return sum(min(1.0, s / scale**2) for s in squared) / len(a)


def pose_problem(seed=0, n=3, lam=0.3, dtype=torch.float64, **options):
    """Random maps, ``x`` as one tensor of channels; the targets are the best outputs of a head with random weights."""
    random = rng(seed)
    structure = tiny_pose(**options)
    channels = structure.num_nodes + 2 * structure.num_edges * structure.num_types
    x = torch.randn(n, channels, structure.height, structure.width, generator=random, dtype=torch.float64).to(dtype)
    head, planted = LinearPose(structure).to(dtype), LinearPose(structure).double()
    with torch.no_grad():
        for p in planted.parameters():
            p.copy_(torch.randn(p.shape, generator=random, dtype=torch.float64))
        y = structure.argmax(planted(x.double())).labeling
    return Problem(head, x, y, None, lam)


def pose_reference(problem):
    """Losses and feature differences of all outputs of all examples, from the definitions."""
    structure, outputs = problem.structure, all_outputs(problem.structure)
    result = Reference([], [], [], problem.lam)
    split = structure.num_nodes

    def features(x, labeling):
        unary, types = np.zeros(split), np.zeros((structure.num_edges, 2))
        deformation = np.zeros((structure.num_edges, 2, structure.num_types, 4))
        rows = labeling.tolist()
        maps = x[split:].view(structure.num_edges, 2, structure.num_types, *x.shape[1:])
        for p, (column, row, _, _) in enumerate(rows):
            unary[p] = float(x[p, row, column])
        for e, arc, t, p, delta in springs(structure, labeling):
            types[e, arc] = float(maps[e, arc, t, rows[p][1], rows[p][0]])
            deformation[e, arc, t] = -np.array(delta)
        return np.concatenate([unary, types.ravel(), deformation.ravel()])

    for x, y in zip(problem.x.double(), problem.y, strict=True):
        correct = features(x, y)
        result.losses.append(np.array([truncated_distance(structure, o, y) for o in outputs]))
        result.changes.append(np.stack([features(x, o) - correct for o in outputs]))
    return result


def as_maps(batch, structure):
    """The same batch with its channels as two tensors."""
    split = structure.num_nodes
    types = batch.x[:, split:].reshape(len(batch.x), *structure.shapes["types"])
    return Batch(PoseMaps(batch.x[:, :split], types), batch.y, batch.index)
