"""Potentials of chains and trees in every layout, with ties where they are integers."""

from __future__ import annotations

import torch

from cases.problems import rng


def draw(random, shape, integers, dtype):
    if integers:  # ties are common
        return torch.randint(-2, 3, shape, generator=random).to(dtype)
    return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)


def random_parents(random, length):
    """A forest on nodes in any order."""
    order = torch.randperm(length, generator=random)
    parent = torch.full((length,), -1)
    for i in range(1, length):
        above = int(torch.randint(-1 if length > 3 else 0, i, (1,), generator=random))
        parent[order[i]] = order[above] if above >= 0 else -1
    return parent


def trees(seed, batch=3, longest=5, states=3, axes="shared", ragged=True, integers=False, dtype=torch.float32):
    random = rng(seed)
    lengths = torch.randint(1, longest + 1, (batch,), generator=random) if ragged else None
    parent = torch.full((batch, longest), 77)  # garbage in the padding
    for b in range(batch):
        length = longest if lengths is None else int(lengths[b])
        parent[b, :length] = random_parents(random, length)
    if not ragged and seed % 2:
        parent = parent[0]
    leading = {"shared": (), "tree": (batch,), "node": (batch, longest), "nodes expanded": (longest,)}.get(axes, ())
    node = draw(random, (batch, longest, states), integers, dtype)
    edge = draw(random, (*leading, states, states), integers, dtype)
    if "expanded" in axes:
        edge = edge.expand(batch, *edge.shape)
    return node, edge, parent, lengths


def assert_same(result, expected):
    for a, b in zip(result, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
        assert not a.requires_grad


def strided(tensor):
    """The same numbers, elsewhere in memory: every other element of a larger tensor, axes reversed."""
    axes = tuple(range(tensor.ndim - 1, -1, -1))
    wide = tensor.permute(axes).repeat_interleave(2, 0)
    return wide[::2].permute(axes)


def segments(
    seed, batch=2, longest=5, labels=3, most=3, boundary=False, spans=False, integers=False, dtype=torch.float32
):
    """Arguments of ``semi_markov``."""
    random = rng(seed)
    emission = draw(random, (batch, longest, labels * (2 if boundary else 1)), integers, dtype)
    segment = draw(random, (batch if seed % 2 else 1, labels + most, labels), integers, dtype)
    least = torch.ones(labels, dtype=torch.int64)
    least[0] = min(2, most)
    lengths = torch.randint(1, longest + 1, (batch,), generator=random)
    begins = torch.randint(2, (batch, longest), generator=random).bool()
    begins[:, 0] = True
    label = torch.randint(labels, (batch, longest), generator=random)
    label = label.gather(1, torch.where(begins, torch.arange(longest), 0).cummax(1).values) + labels * begins
    target = label.masked_fill(torch.arange(longest) >= lengths.unsqueeze(1), -1)
    return emission, segment.expand(batch, -1, -1), least, lengths, target if spans else None


def chains(seed, batch=3, longest=5, states=3, axes="shared", ragged=True, integers=False, dtype=torch.float32):
    random = rng(seed)
    leading = {"shared": (), "chain": (batch,), "position": (batch, longest - 1)}.get(axes, ())
    if axes == "positions expanded":
        leading = (longest - 1,)
    emission = draw(random, (batch, longest, states), integers, dtype)
    transition = draw(random, (*leading, states, states), integers, dtype)
    if "expanded" in axes:
        transition = transition.expand(batch, *transition.shape)
    lengths = torch.randint(1, longest + 1, (batch,), generator=random) if ragged else None
    return emission, transition, lengths
