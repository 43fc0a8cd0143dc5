"""Margins of single states in trees: the best score with a state less the best without it, by two sweeps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.jit import arrays, fits_numba, njit


@torch.no_grad()
def tree_margins(node: Tensor, edge: Tensor, parent: Tensor, depth: Tensor, labels: Tensor) -> Tensor:
    """For every state of every node, the best score of a labeling with it less that of the best without it.

    Max-sum from the leaves to the roots and back, in float64; ``-inf`` forbids a state or a pair.

    Args:
        node: ``[B, N, K]``.
        edge: (state of the parent, state of the child): ``[B, K, K]``, or ``[B, N, K, K]`` by the child.
        parent: int64 ``[N]`` or ``[B, N]``, -1 for a root.
        depth: ``[B, N]`` int64, the distance of each node from its root; -1 in the padding.
        labels: ``[B, N]``, a best labeling: its states have no margin below 0, and the others none above, whatever is
            rounded.

    Returns:
        ``[B, N, K]`` float64, 0 beyond the length.
    """
    order = depth.argsort(dim=1, stable=True)
    parent = parent.expand(depth.shape).contiguous()
    edge = (edge if edge.ndim == 4 else edge.unsqueeze(1)).double().contiguous()
    best = node.double().clone(memory_format=torch.contiguous_format)
    low = (best == -math.inf).double()  # what is forbidden is counted, so that it can be taken away again
    best.masked_fill_(low > 0, 0.0)
    upwards = torch.zeros_like(best)
    if fits_numba(best, edge, parent, depth, order):
        _sweep(*arrays(best, low, upwards, edge, parent, depth, order, best.new_empty(best.shape[2])))
    else:
        _sweep_by_level(best, low, upwards, edge, parent, depth)
    best.masked_fill_(low > 0, -math.inf)
    first, place = best.max(2, keepdim=True)
    rest = best.scatter(2, place, -math.inf)
    others = torch.where(torch.arange(best.shape[2], device=best.device) == place, rest.amax(2, keepdim=True), first)
    margins = torch.where(best == others, 0.0, best - others)  # also where both are infinite
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter_(2, labels.clamp(min=0).unsqueeze(2), True)
    margins = torch.where(chosen, margins.clamp(min=0.0), margins.clamp(max=0.0))
    return margins.masked_fill((depth < 0).unsqueeze(2), 0.0)


@njit
def _sweep(best: Any, low: Any, upwards: Any, edge: Any, parent: Any, depth: Any, order: Any, taken: Any) -> None:
    """Turn the scores of single states into the best scores of the trees with them; ``low`` counts what is ``-inf``."""
    batch, longest, states = best.shape
    for b in range(batch):
        for place in range(longest - 1, -1, -1):
            v = order[b, place]
            if depth[b, v] > 0:
                u, pairs = parent[b, v], edge[b, v if edge.shape[1] > 1 else 0]
                for j in range(states):
                    largest = -math.inf
                    for k in range(states):
                        if low[b, v, k] == 0:
                            largest = max(largest, pairs[j, k] + best[b, v, k])
                    upwards[b, v, j] = largest
                    if largest == -math.inf:
                        low[b, u, j] += 1
                    else:
                        best[b, u, j] += largest
        for place in range(longest):
            v = order[b, place]
            if depth[b, v] > 0:
                u, pairs = parent[b, v], edge[b, v if edge.shape[1] > 1 else 0]
                for j in range(states):  # all that the parent knows, less what it knows from here
                    own = upwards[b, v, j]
                    never = own == -math.inf
                    free = low[b, u, j] == (1 if never else 0)
                    taken[j] = (best[b, u, j] if never else best[b, u, j] - own) if free else -math.inf
                for k in range(states):
                    largest = -math.inf
                    for j in range(states):
                        largest = max(largest, taken[j] + pairs[j, k])
                    if largest == -math.inf:
                        low[b, v, k] += 1
                    else:
                        best[b, v, k] += largest


def _sweep_by_level(
    best: Tensor, low: Tensor, upwards: Tensor, edge: Tensor, parent: Tensor, depth: Tensor
) -> None:  # fmt: skip
    """:func:`_sweep` in torch operations, for all trees at once."""

    def add(rows: Tensor, nodes: Tensor, message: Tensor) -> None:
        never = message == -math.inf
        low.index_put_((rows, nodes), never.double(), accumulate=True)
        best.index_put_((rows, nodes), message.masked_fill(never, 0.0), accumulate=True)

    levels = [(depth == level).nonzero(as_tuple=True) for level in range(1, int(depth.max()) + 1)]
    pairs = [edge[rows, nodes if edge.shape[1] > 1 else 0] for rows, nodes in levels]
    for (rows, nodes), pair in zip(reversed(levels), reversed(pairs), strict=True):
        known = best[rows, nodes].masked_fill(low[rows, nodes] > 0, -math.inf)
        upwards[rows, nodes] = (pair + known.unsqueeze(1)).amax(2)
        add(rows, parent[rows, nodes], upwards[rows, nodes])
    for (rows, nodes), pair in zip(levels, pairs, strict=True):
        own, above = upwards[rows, nodes], (rows, parent[rows, nodes])
        never = own == -math.inf
        taken = (best[above] - own.masked_fill(never, 0.0)).masked_fill(low[above] - never.double() > 0, -math.inf)
        add(rows, nodes, (taken.unsqueeze(2) + pair).amax(1))
