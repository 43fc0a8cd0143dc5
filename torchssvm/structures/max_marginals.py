"""Margins of single states in trees: the best score with a state less the best without it, by two sweeps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.core.launch import arrays


@torch.no_grad()
def tree_margins(node: Tensor, edge: Tensor, parent: Tensor, depth: Tensor, labels: Tensor) -> Tensor:
    """For every state of every node, the best score with it less the best score without it.

    Max-sum from the leaves to the roots and back, in float64 on the CPU; ``-inf`` forbids a state or a pair.

    Args:
        node: ``[B, N, K]``.
        edge: (state of the parent, state of the child): ``[B, K, K]``, or ``[B, N, K, K]`` by the child.
        parent: int64 ``[N]`` or ``[B, N]``, -1 for a root.
        depth: ``[B, N]`` int64, the distance of each node from its root; -1 in the padding.
        labels: ``[B, N]``, a best labeling: its states have no margin below 0, and the others none above, whatever is
            rounded.

    Returns:
        ``[B, N, K]`` float64, 0 beyond the length; NaN where no labeling is possible.
    """
    device, states = node.device, node.shape[2]
    depth, parent, labels = depth.cpu().contiguous(), parent.cpu(), labels.cpu()
    order = depth.argsort(dim=1, stable=True)
    parent = parent.expand(depth.shape).contiguous()
    edge = (edge if edge.ndim == 4 else edge.unsqueeze(1)).cpu().double().contiguous()
    best = node.cpu().double().clone(memory_format=torch.contiguous_format)
    low = (best == -math.inf).double()  # what is forbidden is counted, so that it can be taken away again
    best.masked_fill_(low > 0, 0.0)
    _sweep(*arrays(best, low, torch.zeros_like(best), edge, parent, depth, order, best.new_empty(states)))
    best.masked_fill_(low > 0, -math.inf)
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter_(2, labels.clamp(min=0).unsqueeze(2), True)
    margins = margins_of(best, best_of_others(best), chosen)
    padding = (depth < 0).unsqueeze(2)
    never = (margins.isnan() & ~padding).flatten(1).any(1)  # in one tree of a forest, so in all
    return margins.masked_fill(never[:, None, None], math.nan).masked_fill(padding, 0.0).to(device)


def best_of_others(scores: Tensor) -> Tensor:
    """The best score of the other states, for each, ``[..., K]``; ``-inf`` where there is one state."""
    first, place = scores.max(-1, keepdim=True)
    rest = scores.scatter(-1, place, -math.inf)
    return torch.where(torch.arange(scores.shape[-1]) == place, rest.amax(-1, keepdim=True), first)


def margins_of(best: Tensor, without: Tensor, chosen: Tensor) -> Tensor:
    """The best scores with a part less the best without it: at least 0 for chosen parts, at most 0 for others.

    They are NaN where no output is possible, and both are ``-inf``.
    """
    margins = best - without
    return torch.where(chosen, margins.clamp(min=0.0), margins.clamp(max=0.0))


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
                    message = upwards[b, v, j]
                    never = message == -math.inf
                    free = low[b, u, j] == (1 if never else 0)
                    taken[j] = (best[b, u, j] if never else best[b, u, j] - message) if free else -math.inf
                for k in range(states):
                    largest = -math.inf
                    for j in range(states):
                        largest = max(largest, taken[j] + pairs[j, k])
                    if largest == -math.inf:
                        low[b, v, k] += 1
                    else:
                        best[b, v, k] += largest
