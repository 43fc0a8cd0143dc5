"""Adapters of the heads with a compiled loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.linearity import is_check
from torchssvm.core.lists import Lists, lists_within
from torchssvm.core.potentials import SINGLE
from torchssvm.core.structure import Labeling
from torchssvm.solvers.compiled.arc_adapter import ArcsAdapter
from torchssvm.solvers.compiled.base_adapter import HeadAdapter
from torchssvm.solvers.compiled.state import Model
from torchssvm.structures.arborescence.head import LinearArcs
from torchssvm.structures.arborescence.structure import Arborescence, NonProjective, Projective
from torchssvm.structures.chain.head import LinearChain
from torchssvm.structures.chain.sparse_head import SparseLinearChain
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.multiclass.head import LinearMulticlass
from torchssvm.structures.multiclass.structure import Multiclass


class ChainAdapter(HeadAdapter):
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

    def as_sequences(self, labelings: Tensor) -> Tensor:
        """The labelings, which are sequences."""
        return labelings

    def longest_labeling(self, longest: int) -> Tensor:
        """``[1, longest]``."""
        return torch.full((1, longest), self.num_states - 1)


class SparseChainAdapter(ChainAdapter):
    """:class:`SparseLinearChain`."""

    def features(self, x: Any, target: Labeling) -> Lists:
        """Positions within the lengths."""
        inside = self.structure.costs(target)[1] >= 0  # type: ignore[attr-defined]
        return lists_within(x, inside, self.head.in_features, self.head.emission.dtype)


class MulticlassAdapter(HeadAdapter):
    """:class:`LinearMulticlass`: a sequence of one token, without pairs."""

    emission, pairs, ragged = SINGLE, None, False

    @property
    def num_states(self) -> int:
        """K."""
        return self.structure.num_classes  # type: ignore[attr-defined]

    def cost_matrix(self) -> Tensor:
        """The structure's; empty for the zero-one loss."""
        cost = self.structure.cost.cpu()  # type: ignore[attr-defined]
        if torch.equal(cost, 1.0 - torch.eye(len(cost), dtype=cost.dtype)):
            return super().cost_matrix()
        return cost

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """One for each example."""
        return target, torch.ones(len(target), dtype=torch.float64), torch.ones_like(target)

    def features(self, x: Any, target: Labeling) -> Tensor | Lists:
        """One row for each example."""
        return x

    def weights(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Weight and bias."""
        return self.head.weight.t(), None, self.head.bias, None, None

    def trained(self, model: Model) -> list[Any]:
        """Weight and bias."""
        emission, *bias = (array[..., : self.num_states] for array in [model.emission] + [model.bias] * model.has_bias)
        return [emission.T, *bias]

    def as_sequences(self, labelings: Tensor) -> Tensor:
        """A last axis of one token."""
        return labelings.unsqueeze(2)

    def longest_labeling(self, longest: int) -> Tensor:
        """``[1]``."""
        return torch.full((1,), self.num_states - 1)


def find_adapter(head: nn.Module, *, anywhere: bool = False) -> HeadAdapter:
    """The adapter of a head.

    Args:
        head: The head.
        anywhere: Whether the head may be on a device: it is then to be moved before the loop is made.

    Raises:
        TypeError: The head has no compiled loop, or is not on the CPU.
    """
    if type(head) is LinearChain and head.positions is None and type(head.structure) is Chain:
        adapter: HeadAdapter = ChainAdapter(head)
    elif type(head) is SparseLinearChain and type(head.structure) is Chain:
        adapter = SparseChainAdapter(head)
    elif type(head) is LinearMulticlass and type(head.structure) is Multiclass:
        adapter = MulticlassAdapter(head)
    elif (
        type(head) is LinearArcs
        and type(head.structure) is Arborescence
        and type(head.structure.among) in (Projective, NonProjective)
    ):
        adapter = ArcsAdapter(head)
    else:
        raise TypeError(
            "the compiled loop is for LinearChain with shared transitions, SparseLinearChain, LinearMulticlass and "
            f"LinearArcs, each with its own structure, and head is {type(head).__name__}(...); use BlockGap and BCFW"
        )
    if head._forward_pre_hooks or not all(is_check(hook) for hook in head._forward_hooks.values()):
        raise TypeError("head has forward hooks, which the compiled loop does not run; use BlockGap and BCFW")
    device = next(head.parameters()).device
    if device.type != "cpu" and not anywhere:
        raise TypeError(
            f"head is on {device}, and the compiled loop runs on the CPU: call head.to('cpu') and make the dual, for "
            "features on any device; or train on the device by BlockGap and BCFW"
        )
    return adapter
