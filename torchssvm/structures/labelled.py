"""Shared by structures of labels: costs of wrong labels, and parts at places of the potentials."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_int64
from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.decoding import Decoding
from torchssvm.core.operators import constant, on_host, upload
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.row_sparse import add_at
from torchssvm.core.structure import Structure, reject_rows
from torchssvm.core.triton_support import fits_triton
from torchssvm.structures.common import WeightedLabels, check_edges, check_kind, check_labels, check_shape, mask_of

Places = list[tuple[str, Tensor, Tensor]]
"""Potential's name, places in it flattened, ``[B, C, M]``, and a mask of the real ones; names may repeat."""


_SIGNS = torch.tensor([1.0, -1.0])  # of a labeling and the target


class Labelled(Structure):
    """Labels ``[B, N]``, each with a cost if it is wrong; labelings and targets may be tuples that begin with them."""

    single: str
    """The name of the potentials of single labels."""

    num_states: int

    normalize = False
    """Whether costs are divided by an example's number of labels."""

    class_weight: Tensor | None = None
    """``[K]``, the cost of a wrong label by the true one; None is 1 for all."""

    @property
    def _states(self) -> int:
        return self.num_states

    def _labels(self, output: Any) -> Tensor:
        """The labels ``[B, N]`` of a labeling or target; -1 in the padding."""
        return leading(output)[0]

    def costs(self, target: Any) -> Tensor:
        """The cost of a wrong label at each place: ``[B, N]`` float64, zero in the padding."""
        labels = self._labels(target)
        real = labels >= 0
        costs = real.to(torch.float64)
        if isinstance(target, WeightedLabels):
            costs = costs * target.weights.to(torch.float64)
        if self.class_weight is not None:
            costs = costs * constant(self.class_weight, labels.device)[labels.clamp(min=0)]
        return costs / real.sum(1, keepdim=True).clamp(min=1) if self.normalize else costs

    @override
    def resize(self, labelings: Any, target: Any) -> Any:
        return super().resize(labelings, tree_tensors(target)[: len(tree_tensors(labelings))])

    @override
    def loss(self, labeling: Any, target: Any) -> Tensor:
        return (self.costs(target) * (self._labels(labeling) != self._labels(target))).sum(1)

    def loss_potentials(self, target: Any) -> tuple[dict[str, Tensor], Tensor]:
        """The cost of each label, ``[B, N, K]``, 0 at the target; pairs cost nothing, and the constant is zero."""
        # To add a cost everywhere and subtract it at the target would leave rounding errors.
        delta = self.costs(target).unsqueeze(2).repeat(1, 1, self._states)
        labels = self._labels(target).clamp(min=0).unsqueeze(2)
        return {self.single: delta.scatter_(2, labels, 0.0)}, delta.new_zeros(len(delta))

    def augmented_argmax(self, potentials: Potentials, target: Any) -> Decoding | Any:
        """Decodes with the costs added; scores of the target stay as they are, bit for bit."""
        if type(self).loss_potentials is not Labelled.loss_potentials:
            return super().augmented_argmax(potentials, target)
        scores, labels = potentials.tensors[self.single], self._labels(target).clamp(min=0).unsqueeze(2)
        added = scores + self.costs(target).to(scores.dtype).unsqueeze(2)
        added = added.scatter_(2, labels, scores.gather(2, labels))
        return self.argmax(potentials.replace({**potentials.tensors, self.single: added}))

    def _mean_loss(self, psi: Parts, target: Any, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        """Costs on a device are made on the CPU, which knows the target."""
        if type(self).loss_potentials is not Labelled.loss_potentials or not fits_triton(psi[self.single]):
            return super()._mean_loss(psi, target, potentials)
        from torchssvm.structures.labelled_triton import mean_loss_triton

        costs = upload(self.costs(tree_map(on_host, target)), psi[self.single].device)
        mean, sizes = mean_loss_triton(psi[self.single], self._labels(target), costs)
        return mean, sizes


class Summed(Structure):
    """A structure that handles several labelings of each example at once: their scores, and sums of their parts."""

    tensors = 1
    """Number of leading tensors of a labeling, or target, that determine its parts."""

    @abstractmethod
    def _scores(self, labelings: list[Tensor], potentials: Potentials) -> Tensor:
        """The scores of labelings ``[B, C, ...]``: ``[B, C]`` float64."""

    @abstractmethod
    def _add(self, parts: Parts, labelings: list[Tensor], mass: Tensor) -> Parts:
        """Add the parts of labelings ``[B, C, ...]``, weighted by ``mass`` ``[B, C]``, to ``parts``, which are zero."""

    @override
    def _difference(self, labeling: Any, target: Any, potentials: Potentials) -> Parts:
        mass = constant(_SIGNS, potentials.device).expand(potentials.batch_size, 2)
        return self._add(zeros_like(potentials), self._stack(labeling, target), mass)

    @override
    def relative_scores(self, labelings: Any, target: Any, potentials: Potentials) -> Tensor:
        scores = self._scores(with_target(labelings, target, self.tensors), potentials)
        return scores[:, :-1] - scores[:, -1:]

    @override
    def mean_difference(self, labelings: Any, mass: Tensor, target: Any, potentials: Potentials) -> Parts:
        mass = torch.cat([mass, -mass.sum(1, keepdim=True)], 1)
        return self._add(zeros_like(potentials), with_target(labelings, target, self.tensors), mass)

    def _add_difference(self, parts: Parts, labeling: Any, target: Any, potentials: Potentials) -> Parts:
        """In place; these parts are zero in the padding. Shared parts cancel first, as x + 1 - 1 rounds a small x."""
        for name, tensor in self._difference(labeling, target, potentials).items():
            parts[name].add_(tensor)
        return parts

    def _stack(self, *labelings: Any) -> list[Tensor]:
        """Labelings ``[B, ...]`` as ``[B, C, ...]``."""
        several = zip(*(leading(one, self.tensors) for one in labelings), strict=True)
        return [torch.stack(each, 1) for each in several]


class Indexed(Summed):
    """A structure whose parts are indicators, and counts, at places of the potentials."""

    @abstractmethod
    def _places(self, *labelings: Tensor) -> Places:
        """Places of the parts of labelings ``[B, C, ...]``."""

    @abstractmethod
    def _shapes(self, labeling: Any) -> dict[str, tuple[int, ...]]:
        """The shapes of the parts of a labeling, without the batch."""

    @override
    def parts(self, labeling: Any) -> dict[str, Tensor]:
        labels = leading(labeling)[0]
        device, batch = labels.device, len(labels)
        like = {name: torch.zeros(batch, *shape, device=device) for name, shape in self._shapes(labeling).items()}
        return self._add(like, self._stack(labeling), torch.ones(batch, 1, device=device))

    @override
    def _scores(self, labelings: list[Tensor], potentials: Potentials) -> Tensor:
        total = torch.zeros(labelings[0].shape[:2], dtype=torch.float64, device=potentials.device)
        for name, places, real in self._places(*labelings):
            tensor = potentials[name].detach()
            if len(tensor) > 1 and tensor.stride(0) == 0:  # one for all examples
                scores = tensor[0].flatten()[places]
            else:
                scores = tensor.flatten(1).gather(1, places.flatten(1)).view(places.shape)
            total = total + scores.masked_fill(~real, 0.0).sum(2, dtype=torch.float64)
        return total

    @override
    def _add(self, parts: Parts, labelings: list[Tensor], mass: Tensor) -> Parts:
        alike = mass.shape[1] == 1  # all terms that share a place are equal
        for name, places, real in self._places(*labelings):
            flat = parts[name].flatten(1)
            weights = mass.to(flat.dtype).unsqueeze(2) * real
            add_at(flat, places.flatten(1), weights.flatten(1), any_order=alike)
        return parts


def zeros_like(potentials: Potentials) -> Parts:
    """Parts that are zero, without a graph."""
    return {name: tensor.new_zeros(tensor.shape) for name, tensor in potentials.tensors.items()}


def leading(labeling: Any, count: int = 1) -> Sequence[Tensor]:
    """The first tensors of a labeling or target: of a tuple, or the only tensor."""
    return (labeling,) if isinstance(labeling, Tensor) else labeling[:count]


def every_labeling(states: int, real: Tensor) -> Iterator[Tensor]:
    """All labels ``[B, N]`` of so many states, -1 where ``real`` is False."""
    for numbers in itertools.product(range(states), repeat=real.shape[1]):
        yield torch.tensor(numbers, device=real.device).expand(real.shape).masked_fill(~real, -1)


_MOST_LISTED = 4096


class EdgePotentials(Potentials):
    """Scores of the nodes ``[B, N, ...]`` and edges ``[B, E, ...]`` of graphs, which they carry."""

    __slots__ = ("edges",)
    carried = ("edges",)

    def __init__(self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None, options: Any) -> None:
        ragged = None if lengths is None else {"node": 0}
        super().__init__({"node": node, "edge": edge}, lengths, ragged=ragged, **options)
        self.edges = check_edges(edges, edge.shape[1], node.shape, self.lengths)


class LabelledGraphs(Labelled):
    """One of several labels for each node of a graph; subclasses say what an edge gets from the labels of its ends.

    Labelings and targets begin with the labels ``[B, N]`` and with a number of each edge ``[B, E]``; both are int64,
    and -1 in the padding. A target also has the cost of a wrong label at each node.
    """

    unit = single = "node"
    balanced = False
    _target: Callable[..., Any]

    _potentials: type[Potentials]
    """The class of the potentials, which have ``edges``."""

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        check_kind(potentials, self._potentials)

    @abstractmethod
    def _labeling(self, labels: Tensor, edges: Tensor) -> Any:
        """The labeling with these labels."""

    @override
    def costs(self, target: Any) -> Tensor:
        return target.costs

    def check_target(self, target: Tensor | WeightedLabels, potentials: Any) -> Any:
        """Check shapes and numbers; add what the target has at the edges and the cost of a wrong label at each node."""
        labels, weights = target if isinstance(target, WeightedLabels) else (target, None)
        shape = potentials["node"].shape[:2]
        check_int64(labels, "target", shape, ", a label for every node, or WeightedLabels with such labels")
        real = mask_of(potentials.lengths, potentials["node"])
        check_labels(labels, self._states, real)
        labels = labels.masked_fill(~real, -1)
        costs = self._costs(labels, node_costs(weights, real))
        return self._target(*self._labeling(labels, potentials.edges), costs)

    def enumerate(self, potentials: Any) -> Iterator[Any] | None:
        """All labelings of small graphs, of up to 4096 labelings; None for larger ones."""
        longest = potentials["node"].shape[1]
        if self._states**longest > _MOST_LISTED:
            return None
        real = mask_of(potentials.lengths, potentials["node"])
        return (self._labeling(labels, potentials.edges) for labels in every_labeling(self._states, real))

    def _costs(self, labels: Tensor, weights: Tensor) -> Tensor:
        # Running sums: padding does not change their bits, and so not the digest of the target.
        total = weights.cumsum(1)[:, -1:]
        if self.balanced:
            of_class = torch.cat([(weights * (labels == k)).cumsum(1)[:, -1:] for k in range(self._states)], 1)
            present = (of_class > 0).sum(1, keepdim=True)
            of_target = of_class.gather(1, labels.clamp(min=0))
            weights = torch.where(of_target > 0, weights * total / (of_target * present), 0.0)
        return torch.where(total > 0, weights / total, 0.0) if self.normalize else weights


def node_costs(weights: Tensor | None, real: Tensor) -> Tensor:
    """The cost of a wrong label at each node, ``[B, N]`` float64: its weight, or 1; 0 beyond an example's nodes."""
    if weights is None:
        return real.to(torch.float64)
    costs = check_shape(weights, "target.weights", *real.shape).to(torch.float64).masked_fill(~real, 0.0)
    wrong = ~((costs >= 0) & torch.isfinite(costs)).all(1)
    reject_rows(wrong, "target has weights that are negative or not finite in {rows}")
    return costs


def at_least(decoding: Decoding, target: Any, true_score: Tensor) -> Decoding:
    """``decoding``, with the target, which begins as a labeling, where its score ``[B]`` is higher."""
    assert decoding.value is not None
    worse, labels = (decoding.value < true_score).unsqueeze(1), leading(decoding.labeling, 2)
    pairs = zip(labels, leading(target, len(labels)), strict=True)
    labeling = tree_replace(decoding.labeling, [torch.where(worse, true, labels) for labels, true in pairs])
    return decoding._replace(labeling=labeling, value=torch.maximum(decoding.value, true_score))


def with_target(labelings: Any, target: Any, tensors: int) -> list[Tensor]:
    """The leading tensors of labelings ``[B, C, ...]`` and of the target, ``[B, C + 1, ...]``."""
    pairs = zip(leading(labelings, tensors), leading(target, tensors), strict=True)
    return [torch.cat([several, true.unsqueeze(1)], 1) for several, true in pairs]
