"""All arborescences of a few tokens, by their definition."""

from __future__ import annotations

import functools
import itertools

from torchssvm.structures.arborescence import NonProjective, Projective

KINDS = [Projective(), Projective(single_root=True), NonProjective(), NonProjective(single_root=True)]


def reaches_root(heads, token):
    for _ in heads:
        token = heads[token - 1] if token else 0
    return token == 0


def crosses(heads):
    arcs = [tuple(sorted((head, token))) for token, head in enumerate(heads, 1)]
    return any(i < k < j < m for i, j in arcs for k, m in arcs)


@functools.cache
def outputs(length, projective, single_root):
    every = itertools.product(range(length + 1), repeat=length)
    trees = [heads for heads in every if all(reaches_root(heads, t) for t in range(1, length + 1))]
    return [
        heads
        for heads in trees
        if not (projective and crosses(heads)) and not (single_root and heads.count(0) != 1)
    ]  # fmt: skip


def own_outputs(among, length):
    return outputs(length, isinstance(among, Projective), among.single_root)
