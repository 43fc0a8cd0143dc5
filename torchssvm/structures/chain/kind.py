"""Chains for the compiled loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.lists import Lists, lists_within
from torchssvm.core.structure import Labeling
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.kinds.examples import Examples, Model


class SequenceAdapter(HeadAdapter):
    """Sequences, of one token where there are no pairs."""

    def cost_matrix(self) -> Tensor:
        """``Sequences.cost_matrix``."""
        return torch.zeros(0, 0, dtype=torch.float64)

    def allowed(self) -> Tensor:
        """``Sequences.allowed``."""
        return torch.ones(0, self.num_states, dtype=torch.bool)

    def kind(self) -> Any:
        """What sequences have beside ``Examples``."""
        from torchssvm.structures.chain.kind_numba import Sequences

        return Sequences(self.cost_matrix().numpy(), self.allowed().numpy())

    def complete(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Examples:
        """Inner products, and the kind."""
        return super().complete(examples, own)._replace(kind=self.kind())


class ChainAdapter(SequenceAdapter):
    """:class:`LinearChain` with shared transitions."""

    emission, pairs = "emission", "transition"

    @property
    def num_states(self) -> int:
        """K."""
        return self.structure.num_states  # type: ignore[attr-defined]

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """Positions within the lengths."""
        costs, labels = self.structure.costs(target)  # type: ignore[attr-defined]
        real = labels >= 0
        return labels[real], costs[real], real.sum(1)

    def features(self, x: Any, target: Labeling) -> Tensor | Lists:
        """Positions within the lengths."""
        return x[self.structure.costs(target)[1] >= 0]  # type: ignore[attr-defined]

    def weights(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """All five weights of the head."""
        head = self.head
        return head.by_feature(head.emission), head.transition, head.bias, head.start_transitions, head.end_transitions

    def trained(self, model: Model) -> list[Any]:
        """Emissions, pairs and the biases, if any."""
        biases = [model.bias] * model.has_bias + [model.first, model.last] * model.has_boundary
        wide = [model.emission, *biases]
        emission, *biases = (array[..., : self.num_states] for array in wide)
        return [self.head.by_feature(emission), model.transition, *biases]

    def allowed(self) -> Tensor:
        """Those of the structure's transitions."""
        found = self.structure.transitions  # type: ignore[attr-defined]
        return super().allowed() if found is None else torch.cat([found.pairs, found.first[None], found.last[None]])


class SparseChainAdapter(ChainAdapter):
    """:class:`SparseLinearChain`."""

    def features(self, x: Any, target: Labeling) -> Lists:
        """Positions within the lengths."""
        inside = self.structure.costs(target)[1] >= 0  # type: ignore[attr-defined]
        return lists_within(x, inside, self.head.in_features, self.head.emission.dtype)
