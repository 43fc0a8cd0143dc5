"""Heads with one vector of weights, for the compiled loop: each row of features makes one score."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from torchssvm.core.potentials import Potentials
from torchssvm.kinds.adapter import HeadAdapter, Weights
from torchssvm.kinds.examples import Model


class VectorAdapter(HeadAdapter):
    """A head whose scores are ``x . weight``. Batches have lengths, or none has.

    Inner products of an example's rows would be as many as pairs of scores: sums over the features take less.
    """

    products, notes = False, True
    _known = False

    def __init__(self, head: Any) -> None:
        self.head, self.structure, self.has_bias = head, head.structure, False

    @property
    def num_states(self) -> int:
        """One score a row."""
        return 1

    @property
    def width(self) -> int:
        """That of a row of scores, which is not combined with rows of the weights."""
        return self.num_states

    def weights(self) -> Weights:
        """One column."""
        return self._emission(), None, None, None, None

    def _emission(self) -> Tensor:
        return self.head.weight.unsqueeze(1)

    def model(self, rows: Tensor | None = None) -> Model:
        """The weights, sharing the memory of the head."""
        weight = self.head.weight.detach().numpy()
        none = np.zeros(1, weight.dtype)
        return Model(weight[:, None], np.zeros((0, self.num_states), weight.dtype), none, none, none, False, False)

    def take_back(self, model: Model) -> None:
        """The memory is shared."""

    def trained(self, model: Model) -> list[Any]:
        """The weights."""
        return [model.emission[..., 0]]

    def note(self, potentials: Potentials, sizes: tuple[int, ...]) -> None:
        """Note whether potentials have lengths, and the largest sizes of a batch; ValueError if others came before."""
        ragged = potentials.lengths is not None
        if not self._known:
            self._known, self.ragged, self.sizes = True, ragged, sizes
        if ragged != self.ragged or (not ragged and sizes != self.sizes):
            raise ValueError(
                f"a batch has sizes {list(sizes)} and {'' if ragged else 'no '}lengths, and one before it "
                f"{list(self.sizes)} and {'' if self.ragged else 'no '}lengths: examples of different sizes need "
                "lengths, in every batch"
            )
        self.sizes = tuple(map(max, sizes, self.sizes))
