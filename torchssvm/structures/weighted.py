"""Examples with weights, by which potentials and losses are both multiplied.

An example's hinge is linear in both together, so the weight multiplies it. The dual variables stay in the simplex.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.batch import Batch, fetcher, lengths_of
from torchssvm.core.decoding import Decoding, OracleResult, as_decoding
from torchssvm.core.potentials import Parts, Potentials, as_potentials, scale
from torchssvm.core.structure import Structure, reject_rows
from torchssvm.kinds.adapter import HeadAdapter, find_adapter
from torchssvm.structures.common import Around


class Weighted(NamedTuple):
    """Inputs or targets of a batch, and the weight of each example, ``[B]`` float64; 0 is an example without a loss."""

    value: Any
    weight: Tensor


def apart(batch: Batch, structure: Structure) -> tuple[Batch, Tensor | None]:
    """A batch without the weights of its examples, and the weights, ``[B]``; None if the structure takes none."""
    if not isinstance(structure, WeightedStructure):
        return batch, None
    return batch.replace(x=batch.x.value, y=batch.y.value), _checked(batch.y.weight)


def _checked(weight: Tensor) -> Tensor:
    wrong = ~(torch.isfinite(weight) & (weight >= 0.0))
    reject_rows(wrong, "the weights of {rows} must be finite numbers that are not negative")
    return weight


def joined(target: Any, weight: Tensor | None) -> Any:
    """The target with the weights that :func:`apart` took from it."""
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
        weight = self.weight[batch.index]
        return batch.replace(x=Weighted(batch.x, weight), y=Weighted(batch.y, weight))

    @staticmethod
    def collate(batch: Any) -> Batch:
        """The batch of ``__getitems__``."""
        return batch


class WeightedHead(nn.Module):
    """A head for :class:`WeightedExamples` around another one, ``head``."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head
        self.structure = WeightedStructure(head.structure)

    def compiled_form(self) -> HeadAdapter:
        """The adapter of ``head``: the compiled loop has a factor for each example."""
        return find_adapter(self.head, anywhere=True)

    def forward(self, x: Weighted, lengths: Tensor | None = None) -> Potentials:
        """The potentials of ``head`` times the weights."""
        inner = as_potentials(self.head(x.value) if lengths is None else self.head(x.value, lengths))
        weighted, weight = inner.replace(scale(inner.tensors, x.weight)), x.weight
        adjoint, gram_product, gram = inner.adjoint, inner.gram_product, inner.gram
        weighted.weights = inner.weights
        if adjoint is not None:
            weighted.adjoint = lambda parts: adjoint(scale(parts, weight))
        if gram_product is not None:
            weighted.gram_product = lambda parts: scale(gram_product(scale(parts, weight)), weight)
        if gram is not None:
            weighted.gram = lambda parts: gram(scale(parts, weight))
        return weighted


class WeightedStructure(Around):
    """Another structure, with its losses multiplied; targets are :class:`Weighted`."""

    def __init__(self, inner: Structure) -> None:
        self.structure, self.padding, self.unit = inner, inner.padding, inner.unit
        self._quick_to_decode, self._pairwise_if_few = inner._quick_to_decode, inner._pairwise_if_few

    def _inner(self, output: Any) -> Any:
        return output.value if isinstance(output, Weighted) else output

    def argmax(self, potentials: Potentials) -> Any:
        """Decode as the wrapped structure; TypeError for known scores, which are weighted with the target."""
        if self.known_scores(potentials) is not None:
            raise TypeError(
                "potentials with known scores have no weight without a target: decode by structure.structure"
            )
        return super().argmax(potentials)

    @override
    def augmented_argmax(self, potentials: Potentials, target: Weighted) -> Decoding:
        inverse = torch.where(target.weight > 0.0, 1.0 / target.weight, 0.0)
        unweighted = potentials.replace(scale(potentials.tensors, inverse))
        decoding = as_decoding(self.structure.augmented_argmax(unweighted, target.value))
        value, bound = (None if each is None else each * target.weight for each in (decoding.value, decoding.bound))
        return decoding._replace(value=value, bound=bound)

    @override
    def _difference(self, labeling: Any, target: Weighted, potentials: Potentials) -> Parts:
        return self.structure._difference(self._inner(labeling), target.value, potentials)

    @override
    def loss(self, labeling: Any, target: Weighted) -> Tensor:
        return self.structure.loss(self._inner(labeling), target.value) * target.weight

    @override
    def task_loss(self, labeling: Any, target: Weighted) -> Tensor:
        return self.structure.task_loss(self._inner(labeling), target.value) * target.weight

    @override
    def loss_potentials(self, target: Weighted) -> Any:
        delta, constant = self.structure.loss_potentials(target.value)
        if isinstance(delta, Tensor):
            return scale({"": delta}, target.weight)[""], constant * target.weight
        return scale(dict(delta), target.weight), constant * target.weight

    @override
    def _examine(self, labeling: Any, target: Weighted, potentials: Potentials) -> OracleResult:
        # The potentials have the weight already.
        result = self.structure._examine(self._inner(labeling), target.value, potentials)
        return OracleResult(result.labeling, result.score, result.loss * target.weight, result.made)

    @override
    def _mean_loss(self, psi: Parts, target: Weighted, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        mean = self.structure._mean_loss(psi, target.value, potentials)
        return None if mean is None else (mean[0] * target.weight, mean[1] * target.weight)

    @override
    def _add_difference(self, parts: Parts, labeling: Any, target: Weighted, potentials: Potentials) -> Parts:
        return self.structure._add_difference(parts, self._inner(labeling), target.value, potentials)

    @override
    def relative_scores(self, labelings: Any, target: Weighted, potentials: Potentials) -> Tensor:
        return self.structure.relative_scores(labelings, target.value, potentials)

    @override
    def mean_difference(self, labelings: Any, mass: Tensor, target: Weighted, potentials: Potentials) -> Parts:
        return self.structure.mean_difference(labelings, mass, target.value, potentials)

    @override
    def known_scores(self, potentials: Potentials) -> Parts | None:
        return self.structure.known_scores(potentials)

    @override
    def check_target(self, target: Weighted, potentials: Potentials) -> Weighted:
        weight = _checked(target.weight).to(potentials.device)
        return Weighted(self.structure.check_target(target.value, potentials), weight)

    @override
    def _fingerprint(self) -> str:
        return f"weighted, {self.structure._fingerprint()}"

    @override
    def _extends(self, other: Structure) -> bool:
        return isinstance(other, WeightedStructure) and self.structure._extends(other.structure)

    def __repr__(self) -> str:
        return f"WeightedStructure({self.structure!r})"
