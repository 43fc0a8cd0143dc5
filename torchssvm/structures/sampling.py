"""Random outputs of structures whose marginals are known."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.structure import reject_rows

NO_OUTPUT = "scores of -inf forbid every output of {rows}"


def sample_states(
    node: Tensor, edge: Tensor, parent: Tensor, depth: Tensor, n: int, generator: torch.Generator | None
) -> Tensor:
    """``n`` labelings of every tree, ``[B, n, N]`` int64, -1 in the padding; each state is drawn given the parent's.

    Args:
        node: ``[B, N, K]``, the probability of each state.
        edge: ``[B, N, K, K]``, of each pair (state of the parent, state of the child), by the child.
        parent: ``[B, N]`` int64.
        depth: ``[B, N]`` int64, the distance from the root; -1 in the padding.
        n: How many.
        generator: The source of random numbers.
    """
    labels = torch.full((len(node), n, node.shape[1]), -1, device=node.device)
    for level in range(int(depth.max()) + 1 if len(node) else 0):
        row, place = (depth == level).nonzero(as_tuple=True)
        if level:
            above = labels[row, :, parent[row, place]]
            masses = edge[row, place].gather(1, above.unsqueeze(2).expand(-1, -1, node.shape[2]))
        else:
            masses = node[row, place].unsqueeze(1).expand(-1, n, -1)
        labels[row, :, place] = draw(masses, generator)
    return labels


def draw(masses: Tensor, generator: torch.Generator | None) -> Tensor:
    """One index for each row of ``masses`` ``[..., K]``, in proportion to them: ``[...]`` int64.

    Raises:
        ValueError: A row has NaN, as where scores of -inf forbid every output.
    """
    reject_rows(masses.isnan().flatten(1).any(1), NO_OUTPUT)
    rows = masses.clamp(min=0.0).flatten(0, -2)
    return torch.multinomial(rows, 1, generator=generator).view(masses.shape[:-1])
