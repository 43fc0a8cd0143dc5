"""Multiclass classification: an output is one of K classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.arguments import check_int64, check_whole
from torchssvm.core.decoding import Decoding
from torchssvm.core.marginals import Marginals
from torchssvm.core.operators import constant, on_host
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.row_sparse import add_at
from torchssvm.core.structure import Structure, digest
from torchssvm.structures.common import check_labels, check_potentials, check_shape
from torchssvm.structures.max_marginals import tree_margins
from torchssvm.structures.sampling import draw


class ClassDecoder(nn.Module):
    """The best class of a :class:`~torchssvm.Multiclass`, in plain torch operators; ties go to the smallest."""

    ragged = False

    def forward(self, potentials: Parts, lengths: None) -> Tensor:
        """The only potentials ``[B, K]`` -> ``[B]`` int64."""
        (scores,) = potentials.values()
        return scores.argmax(1)


class Multiclass(Structure):
    """One label of K for every example; potentials ``[B, K]``, labelings ``[B]`` int64.

    Args:
        num_classes: K, the number of classes.
        cost: ``[K, K]``, ``cost[target, label]``, non-negative with a zero diagonal; None is the zero-one loss.

    Raises:
        ValueError: ``num_classes`` is less than 1; ``cost`` has another shape, a negative entry or a non-zero diagonal.

    Example:
        >>> cost = torch.tensor([[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [5.0, 1.0, 0.0]])
        >>> structure = Multiclass(3, cost=cost)
        >>> structure.loss(torch.tensor([2]), torch.tensor([0]))
        tensor([5.], dtype=torch.float64)
    """

    _quick_to_decode = True

    def __init__(self, num_classes: int, cost: Tensor | None = None) -> None:
        num_classes = check_whole(num_classes, "num_classes")
        if cost is None:
            cost = 1.0 - torch.eye(num_classes)
        check_shape(cost, "cost", num_classes, num_classes)
        if not bool(torch.isfinite(cost).all()) or bool((cost < 0).any()) or bool(cost.diagonal().any()):
            raise ValueError("cost must be finite and non-negative, with zeros on its diagonal")
        self.num_classes = num_classes
        self.cost = cost.to(torch.float64)

    def constructor_arguments(self) -> dict[str, Any]:
        """Constructor arguments that are not attributes of the same name, to rebuild an equal structure."""
        return {"cost": None if self._is_zero_one() else self.cost.cpu()}

    def argmax(self, potentials: Potentials) -> Decoding:
        """The class with the highest potential; ties go to the smallest class."""
        value, labels = potentials.single.max(1)
        return Decoding(labels, value)

    @override
    def max_marginals(self, potentials: Potentials) -> Tensor:
        scores = potentials.single.detach().unsqueeze(1)
        labels = self.argmax(potentials).labeling.unsqueeze(1)
        none = scores.new_zeros(len(scores), 1, 1).expand(-1, *[self.num_classes] * 2)
        return tree_margins(scores, none, labels * 0 - 1, labels * 0, labels).squeeze(1)

    @override
    def marginals(self, potentials: Potentials) -> Marginals:
        scores = potentials.single.detach()
        (name,) = potentials.tensors
        return Marginals({name: scores.softmax(1)}, scores.to(torch.float64).logsumexp(1))

    @override
    def _sample(self, potentials: Potentials, n: int, generator: torch.Generator | None) -> Tensor:
        return draw(potentials.single.double().softmax(1).unsqueeze(1).expand(-1, n, -1), generator)

    def parts(self, labeling: Tensor) -> Tensor:
        """Indicator of the class, ``[B, K]``."""
        parts = torch.zeros(len(labeling), self.num_classes, device=labeling.device)
        return parts.scatter_(1, labeling.unsqueeze(1), 1.0)

    @override
    def relative_scores(self, labelings: Tensor, target: Tensor, potentials: Potentials) -> Tensor:
        scores = potentials.single.to(torch.float64)
        return scores.gather(1, labelings) - scores.gather(1, target.unsqueeze(1))

    @override
    def mean_difference(self, labelings: Tensor, mass: Tensor, target: Tensor, potentials: Potentials) -> Parts:
        ((name, tensor),) = potentials.tensors.items()
        mass = mass.to(tensor.dtype)
        parts = add_at(tensor.new_zeros(tensor.shape), labelings, mass)
        return {name: add_at(parts, target.unsqueeze(1), -mass.sum(1, keepdim=True))}

    def loss(self, labeling: Tensor, target: Tensor) -> Tensor:
        """``cost[target, labeling]``, ``[B]`` float64."""
        return constant(self.cost, target.device)[target, labeling]

    def loss_potentials(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """``cost[target]`` ``[B, K]``, and zeros."""
        delta = constant(self.cost, target.device)[target]
        return delta, delta.new_zeros(len(delta))

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        check_potentials(potentials, ("B", self.num_classes))

    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        """Check that ``target`` is int64 ``[B]`` with classes 0 to K - 1."""
        check_int64(target, "target", (potentials.batch_size,), ", a class for each example")
        check_labels(on_host(target), self.num_classes)
        return target

    @override
    def _plain(self) -> nn.Module:
        return ClassDecoder()

    @override
    def enumerate(self, potentials: Potentials) -> Iterator[Tensor]:
        for label in range(self.num_classes):
            yield torch.full((potentials.batch_size,), label, device=potentials.device)

    def __repr__(self) -> str:
        return f"Multiclass({self.num_classes}{'' if self._is_zero_one() else f', cost={digest(self.cost)}'})"

    def _is_zero_one(self) -> bool:
        return torch.equal(self.cost.cpu(), 1.0 - torch.eye(self.num_classes, dtype=torch.float64))
