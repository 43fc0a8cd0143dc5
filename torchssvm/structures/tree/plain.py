"""Max-sum on one fixed tree in plain torch operators, for any batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.potentials import Parts
from torchssvm.structures.tree.oracle import node_depths


class TreeDecoder(nn.Module):
    """The best states of a :class:`~torchssvm.Tree`; ties as there: the smallest state, from the roots on."""

    ragged = True

    def __init__(self, structure: Any) -> None:
        super().__init__()
        self.structure, self.shared = structure, structure.shared
        self.parent = structure.parent.tolist()
        size = len(self.parent)
        depth = node_depths(torch.empty(1, size, 1), structure.parent, None)[0].tolist()
        self.downwards = sorted(range(size), key=lambda node: (depth[node], node))
        self.upwards = sorted(range(size), key=lambda node: (-depth[node], node))

    def forward(self, potentials: Parts, lengths: Tensor | None) -> Tensor:
        """``node`` ``[B, N, K]`` and ``edge`` -> ``[B, N]`` int64, -1 beyond the length; a graph has a fixed N."""
        node, edge = potentials["node"], potentials["edge"]
        batch, longest, states = node.shape
        if lengths is None:
            lengths = torch.full((batch,), longest, device=node.device)
        real = torch.arange(longest, device=node.device) < lengths.unsqueeze(1)
        if not torch.compiler.is_compiling():
            self.structure.check_sizes(set(lengths.tolist()))
        belief = list(node.unbind(1))
        for v in self.upwards:
            above = self.parent[v]
            if v < longest and above >= 0:
                matrix = edge if self.shared else edge[:, v]
                message = (belief[v].unsqueeze(1) + matrix).amax(2)
                belief[above] = torch.where(real[:, v : v + 1], belief[above] + message, belief[above])
        labels = [real[:, 0].long()] * longest
        for v in self.downwards:
            if v < longest:
                if (above := self.parent[v]) >= 0:
                    matrix = edge if self.shared else edge[:, v]
                    row = matrix.gather(1, labels[above].view(-1, 1, 1).expand(batch, 1, states)).squeeze(1)
                    labels[v] = (belief[v] + row).argmax(1)
                else:
                    labels[v] = belief[v].argmax(1)
        return torch.where(real, torch.stack(labels, 1), -1)
