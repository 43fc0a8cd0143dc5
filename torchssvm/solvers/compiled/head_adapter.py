"""Adapters of the heads with a compiled loop: tokens, emissions and pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.batch import Batch, apply_head
from torchssvm.core.linearity import is_check
from torchssvm.core.lists import Lists, lists_within
from torchssvm.core.potentials import SINGLE
from torchssvm.core.structure import Labeling, Structure
from torchssvm.solvers.compiled.state import Model
from torchssvm.structures.chain.head import LinearChain
from torchssvm.structures.chain.sparse_head import SparseLinearChain
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.multiclass.head import LinearMulticlass
from torchssvm.structures.multiclass.structure import Multiclass

_LANES = 8  # rows of the weights are padded to a multiple of this
_COPIED = 1 << 16  # most numbers copied for the padding: 256 KB in float32


class HeadAdapter(ABC):
    """One head with its structure.

    Attributes:
        head: The head.
        structure: Its structure.
        emission: Name of the potentials that features make.
        pairs: Name of the potentials of neighbouring labels; None where there are none.
        has_bias: Whether every token has a feature that is always 1.
    """

    emission: str
    pairs: str | None
    structure: Structure
    has_bias: bool

    def __init__(self, head: Any) -> None:
        self.head = head
        self.structure = self.head.structure
        self.has_bias = self.head.bias is not None

    @property
    @abstractmethod
    def num_states(self) -> int:
        """K."""

    @abstractmethod
    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """Labels and costs of all tokens, and the lengths ``[B]``."""

    @abstractmethod
    def features(self, x: Any, target: Labeling) -> Tensor | Lists:
        """Features of all tokens, ``[tokens, F]`` or as lists."""

    @abstractmethod
    def weights(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Emissions ``[F, K]``, pairs, bias, and biases of the first and of the last token; None where there is none.

        The tensors share their memory with the head.
        """

    @property
    def width(self) -> int:
        """W, the padded length of a row of the emissions.

        Rows that fill vector registers make the loop an eighth faster, as long as the weights fit in the cache.
        """
        return self.width_of(self.head.in_features)

    def width_of(self, rows: int) -> int:
        """W for ``rows`` features."""
        wide = -(-self.num_states // _LANES) * _LANES
        return wide if self.num_states >= _LANES and rows * wide <= _COPIED else self.num_states

    def model(self, rows: Tensor | None = None) -> Model:
        """The weights as the loop reads and writes them: a row for each feature, one after another.

        The arrays share their memory with the head where its layout is the same and rows are not padded.

        Args:
            rows: ``[U]`` int64, copies the weights of these features only; None is all features.
        """
        emission, pairs, *biases = self.weights()
        emission = emission if rows is None else emission[rows]
        width = self.width_of(len(emission))
        zero = torch.zeros(self.num_states, dtype=emission.dtype)
        if pairs is None:
            pairs = torch.zeros(0, self.num_states, dtype=emission.dtype)
        wide = [_fill_up(t.detach(), width) for t in (emission, *(zero if b is None else b for b in biases))]
        bias, first = biases[0], biases[1]
        arrays: list[Any] = [t.numpy() for t in (wide[0], pairs.detach(), *wide[1:])]
        return Model(*arrays, bias is not None, first is not None)  # type: ignore[call-arg]

    def take_back(self, model: Model) -> None:
        """Write the weights of ``model`` to the head, if they are a copy."""
        emission, _, *biases = self.weights()
        for held, array in ((emission, model.emission), *zip(biases, model[2:5], strict=True)):
            found = torch.from_numpy(array)
            if held is not None and held.data_ptr() != found.data_ptr():
                held.detach().copy_(found[..., : self.num_states])

    @abstractmethod
    def trained(self, model: Model) -> list[Any]:
        """The arrays of ``model`` that are the head's parameters, in their order."""

    def cost_matrix(self) -> Tensor:
        """``Examples.cost_matrix``."""
        return torch.zeros(0, 0, dtype=torch.float64)

    def allowed(self) -> Tensor:
        """``Examples.allowed``."""
        return torch.ones(0, self.num_states, dtype=torch.bool)

    def apply(self, batch: Batch) -> Any:
        """Potentials of a batch."""
        return apply_head(self.head, batch)

    @abstractmethod
    def as_sequences(self, labelings: Tensor) -> Tensor:
        """Stored labelings as ``[n, C, N]``, sharing their memory."""

    @abstractmethod
    def longest_labeling(self, longest: int) -> Tensor:
        """A batch of one labeling of the largest length and label."""


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

    emission, pairs = SINGLE, None

    @property
    def num_states(self) -> int:
        """K."""
        return self.structure.num_classes  # type: ignore[attr-defined]

    def cost_matrix(self) -> Tensor:
        """The structure's; empty for the zero-one loss."""
        cost = self.structure.cost  # type: ignore[attr-defined]
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


def _fill_up(tensor: Tensor, width: int) -> Tensor:
    missing = width - tensor.shape[-1]
    return torch.nn.functional.pad(tensor, (0, missing)).contiguous() if missing else tensor.contiguous()


def find_adapter(head: nn.Module) -> HeadAdapter:
    """The adapter of a head.

    Raises:
        TypeError: The head has no compiled loop, or is not on the CPU.
    """
    if type(head) is LinearChain and head.positions is None and type(head.structure) is Chain:
        adapter: HeadAdapter = ChainAdapter(head)
    elif type(head) is SparseLinearChain and type(head.structure) is Chain:
        adapter = SparseChainAdapter(head)
    elif type(head) is LinearMulticlass and type(head.structure) is Multiclass:
        adapter = MulticlassAdapter(head)
    else:
        raise TypeError(
            f"head={head} must be a LinearChain with shared transitions or a SparseLinearChain, and its structure a "
            "Chain, or a LinearMulticlass with a Multiclass structure; use BlockGap and BCFW"
        )
    if head._forward_pre_hooks or not all(is_check(hook) for hook in head._forward_hooks.values()):
        raise TypeError("head has forward hooks, which the compiled loop does not run; use BlockGap and BCFW")
    device = next(head.parameters()).device
    if device.type != "cpu":
        raise TypeError(f"head is on {device}; the compiled loop runs on the CPU")
    return adapter
