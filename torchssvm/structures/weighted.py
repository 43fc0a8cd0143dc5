"""Examples that count more or less than others: potentials and losses are both multiplied by a weight.

The hinge of an example is linear in both together, so that it is multiplied by the weight, and nothing else changes:
dual variables stay in the simplex, and the weights of the head get the example's features so many times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.batch import Batch, fetcher, lengths_of
from torchssvm.core.potentials import Parts, Potentials, as_potentials, scale
from torchssvm.core.structure import Decoding, OracleResult, Structure, as_decoding, reject_rows
from torchssvm.kinds.adapter import HeadAdapter, find_adapter
from torchssvm.structures.common import Around


class Weighted(NamedTuple):
    """Inputs or targets of a batch, and the weight of each example, ``[B]`` float64; 0 is an example without a loss."""

    value: Any
    weight: Tensor


def apart(batch: Batch, structure: Structure) -> tuple[Batch, Tensor | None]:
    """A batch without the weights of its examples, and these, ``[B]``; None of a structure that has none."""
    if not isinstance(structure, WeightedStructure):
        return batch, None
    return batch.replace(x=batch.x.value, y=batch.y.value), _checked(batch.y.weight)


def _checked(weight: Tensor) -> Tensor:
    wrong = ~(torch.isfinite(weight) & (weight >= 0.0))
    reject_rows(wrong, "the weights of {rows} must be finite numbers that are not negative")
    return weight


def joined(target: Any, weight: Tensor | None) -> Any:
    """The target of which :func:`apart` took the weights."""
    return target if weight is None else Weighted(target, weight)


class WeightedExamples:
    """A map-style dataset whose examples have weights, ``[n]``."""

    def __init__(self, dataset: Any, weight: Any) -> None:
        self.weight, self.lengths = torch.as_tensor(weight, dtype=torch.float64), lengths_of(dataset)
        self._fetch = fetcher(dataset)

    def __len__(self) -> int:
        return len(self.weight)

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        """The examples as one batch."""
        batch = self._fetch(rows)
        own = self.weight[batch.index]
        return batch.replace(x=Weighted(batch.x, own), y=Weighted(batch.y, own))

    @staticmethod
    def collate(batch: Any) -> Batch:
        """The batch of ``__getitems__``."""
        return batch


class WeightedHead(nn.Module):
    """A head of :class:`WeightedExamples`; ``head``, the one that it is made of, holds the weights."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head
        self.structure = WeightedStructure(head.structure)

    def compiled_form(self) -> HeadAdapter:
        """That of the head, as the compiled loop takes the weight of an example as a factor of its own."""
        return find_adapter(self.head, anywhere=True)

    def forward(self, x: Weighted, lengths: Tensor | None = None) -> Potentials:
        """The potentials of the head, multiplied."""
        inner = as_potentials(self.head(x.value) if lengths is None else self.head(x.value, lengths))
        found, weight = inner.replace(scale(inner.tensors, x.weight)), x.weight
        adjoint, gram_product, gram = inner.adjoint, inner.gram_product, inner.gram
        found.weights = inner.weights
        if adjoint is not None:
            found.adjoint = lambda parts: adjoint(scale(parts, weight))
        if gram_product is not None:
            found.gram_product = lambda parts: scale(gram_product(scale(parts, weight)), weight)
        if gram is not None:
            found.gram = lambda parts: gram(scale(parts, weight))
        return found


class WeightedStructure(Around):
    """Another structure, with its losses multiplied; targets are :class:`Weighted`."""

    def __init__(self, inner: Structure) -> None:
        self.structure, self.padding, self.unit = inner, inner.padding, inner.unit
        self.quick_to_decode, self.pairwise_if_few = inner.quick_to_decode, inner.pairwise_if_few

    def _own(self, output: Any) -> Any:
        return output.value if isinstance(output, Weighted) else output

    def argmax(self, potentials: Potentials) -> Any:
        """As in the other structure; TypeError for scores that are known, as their weight comes with a target."""
        if self.known_scores(potentials) is not None:
            raise TypeError("known scores have no weight without targets: decode by the head and structure without one")
        return super().argmax(potentials)

    def augmented_argmax(self, potentials: Potentials, target: Weighted) -> Decoding:
        """Of the potentials without the weight."""
        inverse = torch.where(target.weight > 0.0, 1.0 / target.weight, 0.0)
        own = potentials.replace(scale(potentials.tensors, inverse))
        found = as_decoding(self.structure.augmented_argmax(own, target.value))
        value, bound = (None if each is None else each * target.weight for each in (found.value, found.bound))
        return found._replace(value=value, bound=bound)

    def difference(self, labeling: Any, target: Weighted, potentials: Potentials) -> Parts:
        """As in the other structure."""
        return self.structure.difference(self._own(labeling), target.value, potentials)

    def loss(self, labeling: Any, target: Weighted) -> Tensor:
        """Multiplied."""
        return self.structure.loss(self._own(labeling), target.value) * target.weight

    def task_loss(self, labeling: Any, target: Weighted) -> Tensor:
        """Multiplied."""
        return self.structure.task_loss(self._own(labeling), target.value) * target.weight

    def loss_potentials(self, target: Weighted) -> Any:
        """Multiplied."""
        delta, constant = self.structure.loss_potentials(target.value)
        if isinstance(delta, Tensor):
            return scale({"": delta}, target.weight)[""], constant * target.weight
        return scale(dict(delta), target.weight), constant * target.weight

    def examine(self, labeling: Any, target: Weighted, potentials: Potentials) -> OracleResult:
        """Scores have the weight already."""
        found = self.structure.examine(self._own(labeling), target.value, potentials)
        return OracleResult(found.labeling, found.score, found.loss * target.weight, found.made)

    def mean_loss(self, psi: Parts, target: Weighted, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        """Multiplied."""
        found = self.structure.mean_loss(psi, target.value, potentials)
        return None if found is None else (found[0] * target.weight, found[1] * target.weight)

    def add_difference(self, parts: Parts, labeling: Any, target: Weighted, potentials: Potentials) -> Parts:
        """As in the other structure."""
        return self.structure.add_difference(parts, self._own(labeling), target.value, potentials)

    def relative_scores(self, labelings: Any, target: Weighted, potentials: Potentials) -> Tensor:
        """Scores have the weight already."""
        return self.structure.relative_scores(labelings, target.value, potentials)

    def mean_difference(self, labelings: Any, mass: Tensor, target: Weighted, potentials: Potentials) -> Parts:
        """As in the other structure."""
        return self.structure.mean_difference(labelings, mass, target.value, potentials)

    def known_scores(self, potentials: Potentials) -> Parts | None:
        """As in the other structure."""
        return self.structure.known_scores(potentials)

    def check_target(self, target: Weighted, potentials: Potentials) -> Weighted:
        """That of the other structure."""
        weight = _checked(target.weight).to(potentials.device)
        return Weighted(self.structure.check_target(target.value, potentials), weight)

    def settings(self) -> str:
        """Those of the other structure."""
        return f"weighted, {self.structure.settings()}"

    def extends(self, other: Structure) -> bool:
        """Whether the other structure does."""
        return isinstance(other, WeightedStructure) and self.structure.extends(other.structure)

    def __repr__(self) -> str:
        return f"WeightedStructure({self.structure!r})"
