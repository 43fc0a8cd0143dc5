"""Chains for the compiled loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.batch import tree_tensors
from torchssvm.core.lists import Lists, lists_within
from torchssvm.core.structure import Labeling
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.structures.chain.kind_numba import Sequences


class SequenceAdapter(HeadAdapter):
    """Sequences, of one token where there are no pairs."""

    def cost_matrix(self) -> Tensor:
        """``Sequences.cost_matrix``."""
        return torch.zeros(0, 0, dtype=torch.float64)

    def allowed(self) -> Tensor:
        """``Sequences.allowed``."""
        return torch.ones(0, self.num_states, dtype=torch.bool)

    def kind(self, *_: Any) -> Sequences:
        """What sequences have beside ``Examples``."""
        return Sequences(self.cost_matrix().numpy(), self.allowed().numpy())


class ChainAdapter(SequenceAdapter):
    """:class:`LinearChain` with shared transitions."""

    matrix, table, biases = "emission", "transition", ("bias", "start_transitions", "end_transitions")
    emission, pairs = "emission", "transition"

    def allowed(self) -> Tensor:
        """Those of the structure's transitions."""
        found = self.structure.transitions  # type: ignore[attr-defined]
        return super().allowed() if found is None else torch.cat([found.pairs, found.first[None], found.last[None]])


class SparseChainAdapter(ChainAdapter):
    """:class:`SparseLinearChain`."""

    def features(self, x: Any, target: Labeling) -> Lists:
        """Positions within the lengths."""
        inside = tree_tensors(target)[0] >= 0
        return lists_within(x, inside, self.head.in_features, self.head.emission.dtype)
