"""The compiled form of a head of one's own, declared by its weights and a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.potentials import SINGLE, Potentials
from torchssvm.core.structure import Labeling
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.kinds.examples import Examples, Model


class Form(HeadAdapter):
    """What the compiled loop needs of a linear head on dense features, whose targets are one number for each label.

    Features are ``[B, F]``, one row for each example, or ``[B, N, F]``, N rows; with lengths, an example of length T
    has the first T rows and labels. The potentials of a row are ``x weight + bias``; those of pairs, if any, are
    weights, the same for all examples. Labelings and targets are int64 ``[B, N]``, -1 beyond the length.

    Args:
        head: The head, whose structure is ``head.structure``. Its parameters are the tensors below, or views of them.
        kind: A named tuple of numbers and arrays that all examples share. Its class has versions of ``score``,
            ``decode`` and ``add_labeling`` of :mod:`torchssvm.kinds.block`.
        weight: ``[F, K]``.
        bias: ``[K]``, or None.
        pairs: ``[rows, width]``, or None.
        emission: Name of the potentials of rows; of a head that returns one tensor, the default.
        transition: Name of the potentials of pairs.
        labels: The number of values of a label.
        cost: What a wrong label costs.
        room: Makes the arrays that ``decode`` finds as ``scratch.room``, for each thread its own.

    Raises:
        ValueError: A tensor is not a parameter of the head, or a view of one.
    """

    def __init__(
        self,
        head: Any,
        kind: Any,
        weight: Tensor,
        *,
        bias: Tensor | None = None,
        pairs: Tensor | None = None,
        emission: str = SINGLE,
        transition: str = "transition",
        labels: int = 2,
        cost: float = 1.0,
        room: Callable[[], Any] | None = None,
    ) -> None:
        self.head, self.structure, self._kind, self.emission = head, head.structure, kind, emission
        self.pairs = None if pairs is None else transition
        self._weights, self.has_bias = (weight, pairs, bias), bias is not None
        self._labels, self._cost, self._room = labels, cost, room
        self.ragged = self._by_row = False
        places = [None if w is None else w.data_ptr() for w in self._weights]
        self._order = [places.index(p.data_ptr()) if p.data_ptr() in places else -1 for p in head.parameters()]
        if sorted(self._order) != [k for k, place in enumerate(places) if place is not None]:
            raise ValueError(
                f"weight, bias and pairs must be the parameters of head={type(head).__name__}(...), or views of them, "
                "each of them once"
            )

    @property
    def num_states(self) -> int:
        """K."""
        return self._weights[0].shape[1]

    @property
    def width(self) -> int:
        """K."""
        return self.num_states

    @property
    def pair_rows(self) -> int:
        """Those of ``pairs``."""
        return 0 if self._weights[1] is None else len(self._weights[1])

    @property
    def pair_width(self) -> int:
        """That of ``pairs``."""
        return self.num_states if self._weights[1] is None else self._weights[1].shape[1]

    def width_of(self, rows: int) -> int:
        """K: rows are not padded."""
        return self.num_states

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """Labels within the lengths."""
        real = target >= 0
        labels = target[real]
        return labels, torch.full((len(labels),), self._cost, dtype=torch.float64), real.sum(1)

    def own(self, x: Any, target: Labeling, potentials: Potentials) -> dict[str, tuple[Tensor, Tensor]]:
        """Nothing; what the potentials are like is noted."""
        self.ragged, self._by_row = potentials.lengths is not None, x.ndim == 3
        self._shapes = {name: tuple(t.shape[1:]) for name, t in potentials.tensors.items()}
        return {}

    def features(self, x: Any, target: Labeling) -> Tensor:
        """Rows within the lengths."""
        return x if x.ndim == 2 else x[target >= 0]

    def lists(self, sizes: Tensor, own: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
        """One row for each label, or for each example."""
        return sizes if self._by_row else torch.ones_like(sizes)

    def complete(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Examples:
        """Inner products, and the kind."""
        return super().complete(examples, own)._replace(kind=self._kind)

    def room_of(self, examples: Examples) -> Any:
        """As it was given."""
        return self._room

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """As the potentials are."""
        one = torch.ones_like(lengths)
        rows = (lengths, (self.num_states,)) if self.ragged else (one, self._shapes[self.emission])
        return {self.emission: rows} | ({} if self.pairs is None else {self.pairs: (one, self._shapes[self.pairs])})

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """The smallest and the largest value of a label."""
        return 0, torch.full_like(lengths, self._labels - 1)

    def weights(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """As they were given."""
        return *self._weights, None, None

    def trained(self, model: Model) -> list[Any]:
        """By parameter."""
        arrays = model.emission, model.transition, model.bias
        found = []
        for place, parameter in zip(self._order, self.head.parameters(), strict=True):
            weights, array = self._weights[place], arrays[place]
            assert weights is not None
            turned = weights.ndim == parameter.ndim == 2 and weights.stride() != parameter.stride()
            found.append(array.T if turned else array.reshape(parameter.shape))
        return found

    def as_sequences(self, labelings: Tensor) -> Tensor:
        """The labelings, which are sequences."""
        return labelings

    def longest_labeling(self, longest: int) -> Tensor:
        """``[1, longest]``."""
        return torch.full((1, longest), self._labels - 1)
