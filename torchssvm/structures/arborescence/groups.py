"""Features of sentences by groups, compiled by Numba: those on the same arcs become one.

Most features of an arc are on no other arc of its sentence, such as features of a pair of words; others are on all arcs
of a head. A group's weights are summed once for a sentence, and an arc lists a third as many groups as features.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit


class Groups(NamedTuple):
    """The features of the sentences of a batch, by groups, sentence after sentence.

    An arc lists its groups, numbered within the sentence. A group begins at an entry of ``group`` among the distinct
    features of its sentence; the end of the last group follows.
    """

    counts: Any  # ``[arcs]`` int64, the numbers of groups of each arc, by token, then by head
    column: Any  # ``[entries]`` int32, groups
    value: Any  # ``[entries]``; empty if all are 1
    sizes: Any  # ``[B, 2]`` int64, the numbers of distinct features, and of entries of ``group``
    distinct: Any  # ``[features]`` int32
    group: Any  # ``[groups + B]`` int32


def group_features(columns: np.ndarray, values: np.ndarray, lengths: np.ndarray) -> Groups:
    """Group the features of a batch.

    Two features are in one group if they are on the same arcs, equally often. With values, each is a group.

    Args:
        columns: ``[B, N, N+1, P]`` int32; negative ones, and arcs beyond the lengths, are left out.
        values: Like ``columns``, or ``[0, 0, 0, 0]``.
        lengths: ``[B]`` int64.
    """
    arcs = int((lengths * (lengths + 1)).sum())
    most = arcs * columns.shape[3]
    counts, sizes = np.zeros(arcs, np.int64), np.zeros((len(lengths), 2), np.int64)
    column, distinct, group = (_pages(size, np.dtype(np.int32)) for size in (most, most, most + len(lengths)))
    value = _pages(most if values.size else 0, values.dtype)
    longest = int(lengths.max())
    entries = longest * (longest + 1) * columns.shape[3]
    table = np.empty(_table_size(entries), np.int32)
    scratch = np.empty((7, entries + columns.shape[3] + 2), np.int32)
    listed = _group(columns, values, lengths, table, scratch, counts, column, value, sizes, distinct, group)
    features, groups = sizes.sum(0)
    return Groups(
        counts, column[:listed], value[: listed if values.size else 0], sizes, distinct[:features], group[:groups]
    )


def _pages(size: int, dtype: np.dtype) -> np.ndarray:
    """An array with pages of memory for itself, as many as are written to: the system gets them back at once."""
    return np.frombuffer(mmap.mmap(-1, max(size * dtype.itemsize, 1)), dtype, size)


@njit
def _table_size(entries):
    """A power of two, larger than the number of features."""
    size = 16
    while size < entries + entries // 2:
        size *= 2
    return size


@njit
def _group(columns, values, lengths, table, scratch, counts, column, value, sizes, distinct, group):
    """Fill the last six arrays, as in :class:`Groups`; returns the number of entries.

    ``table`` has room for a hash table of the features of a sentence, and ``scratch`` for their numbers.
    """
    feature, place, size, moved, since, free, number = scratch
    arc, listed, features, groups = 0, 0, 0, 0
    for b in range(len(lengths)):
        length, first, total, known = lengths[b], arc, 0, 0
        for t in range(length):
            for h in range(length + 1):
                for p in range(columns.shape[3]):
                    total += columns[b, t, h, p] >= 0
        mask = _table_size(total) - 1
        for k in range(mask + 1):
            table[k] = -1
        # A group is divided by every arc that has some of its features; groups that are empty after an arc are used
        # again. Group 0 is of the features that no arc had before.
        spare, used = 0, 1
        since[0] = size[0] = -1
        start, at = listed, listed
        for t in range(length):
            for h in range(length + 1):
                emptied = 0
                for p in range(columns.shape[3]):
                    c = columns[b, t, h, p]
                    if c < 0:
                        continue
                    k = _hash(c) & mask
                    while table[k] >= 0 and feature[table[k]] != c:
                        k = (k + 1) & mask
                    u = table[k]
                    if u < 0:
                        u = table[k] = known
                        feature[u], place[u] = c, 0
                        known += 1
                    column[at] = u
                    if len(value):
                        value[at] = values[b, t, h, p]
                        at += 1
                        continue
                    at += 1
                    old = place[u]
                    if since[old] != arc:
                        since[old] = arc
                        if spare:
                            spare -= 1
                            new = free[spare]
                        else:
                            new = used
                            used += 1
                        moved[old], size[new], since[new] = new, 0, -1
                    new = moved[old]
                    place[u] = new
                    size[new] += 1
                    if old:
                        size[old] -= 1
                        if size[old] == 0:
                            number[emptied] = old
                            emptied += 1
                for p in range(emptied):
                    if size[number[p]] == 0:
                        size[number[p]] = -1
                        free[spare] = number[p]
                        spare += 1
                counts[arc] = at
                arc += 1
        # Groups are numbered by their first features; ``moved`` has the numbers, and ``since`` the first features.
        if len(value):
            for u in range(known):
                place[u] = u
        for u in range(known):
            moved[place[u]] = -1
        count = 0
        for u in range(known):
            g = place[u]
            if moved[g] < 0:
                moved[g] = count
                since[count], size[count] = u, 0
                count += 1
            number[u] = moved[g]
        for u in range(known):
            size[number[u]] += 1
        before = 0
        for g in range(count):
            group[groups + g] = before
            moved[g] = before
            before += size[g]
        group[groups + count] = before
        for u in range(known):
            distinct[features + moved[number[u]]] = feature[u]
            moved[number[u]] += 1
        # An arc lists a group where it lists the group's first feature.
        q = start
        for line in range(first, arc):
            listed = start
            for p in range(q, counts[line]):
                u = column[p]
                if since[number[u]] == u:
                    column[start] = number[u]
                    if len(value):
                        value[start] = value[p]
                    start += 1
            q = counts[line]
            counts[line] = start - listed
        listed = start
        sizes[b, 0], sizes[b, 1] = known, count + 1
        features += known
        groups += count + 1
    return listed


@njit
def _hash(c):
    """The upper half of a product, whose bits all depend on the column."""
    return ((c * 0x9E3779B1) & 0xFFFFFFFF) >> 7
