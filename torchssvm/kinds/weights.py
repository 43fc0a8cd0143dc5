"""The weights of a head as the compiled loop reads and writes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from typing_extensions import override

_LANES = 8  # rows of the weights are padded to a multiple of this
_COPIED = 1 << 16  # most numbers copied for the padding: 256 KB in float32


class Model(NamedTuple):
    """Weights: emissions ``[F, W]``, pairs ``[K, K]`` or ``[0, K]`` where there are none, and three biases ``[W]``.

    W is at least K; rows are padded with zeros, see :attr:`HeadWeights.width`.

    ``has_bias`` and ``has_boundary`` say which of the three biases are used.
    """

    emission: Any
    transition: Any
    bias: Any
    first: Any
    last: Any
    has_bias: bool
    has_boundary: bool


Tensors = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class HeadWeights:
    """The weights of a head, by the names of its parameters; a parameter that is None or missing is left out.

    Args:
        head: The head; ``head.by_feature(weight)`` has a row for each feature.
        emission: The weights of features.
        pairs: The weights of pairs; None if the head has none.
        biases: The biases of all rows, of the first and of the last one.
    """

    def __init__(
        self, head: Any, emission: str = "weight", pairs: str | None = None, biases: tuple[str, ...] = ("bias",)
    ) -> None:
        self.head, self._emission, self._pairs, self._biases = head, emission, pairs, biases

    @property
    def emission(self) -> Tensor:
        """``[F, K]``, sharing its memory with the head."""
        return self.head.by_feature(getattr(self.head, self._emission))

    @property
    def pairs(self) -> Tensor | None:
        """The parameter of the pairs."""
        return None if self._pairs is None else getattr(self.head, self._pairs)

    def tensors(self) -> Tensors:
        """Emissions, rows of pairs, and biases of all rows, of the first and of the last one: views of the head's."""
        pairs = None if self.pairs is None else self.pairs.unsqueeze(0).flatten(0, -2)
        biases = [getattr(self.head, name, None) for name in self._biases] + [None, None]
        return self.emission, pairs, biases[0], biases[1], biases[2]

    @property
    def num_states(self) -> int:
        """K."""
        return self.emission.shape[1]

    @property
    def has_bias(self) -> bool:
        """Whether every row has a feature that is always 1."""
        return self.tensors()[2] is not None

    @property
    def pair_width(self) -> int:
        """Numbers of a row of pairs."""
        return self.num_states if self.pairs is None else self.pairs.shape[-1]

    @property
    def width(self) -> int:
        """W, the padded length of a row of the emissions.

        Rows that fill vector registers make the loop an eighth faster, as long as the weights fit in the cache.
        """
        rows, states = self.emission.shape
        wide = -(-states // _LANES) * _LANES
        return wide if states >= _LANES and rows * wide <= _COPIED else states

    def model(self) -> Model:
        """The arrays of the loop, which share the memory of the head if its layout is the same."""
        emission, pairs, *biases = (None if w is None else w.detach() for w in self.tensors())
        assert emission is not None
        width = self.width
        first = _fill_up(emission, width)
        wide = [first, *(np.zeros(width, first.dtype) if w is None else _fill_up(w, width) for w in biases)]
        pairs = emission.new_zeros(0, self.pair_width) if pairs is None else pairs
        return Model(wide[0], pairs.numpy(), *wide[1:], biases[0] is not None, biases[1] is not None)  # type: ignore

    def take_back(self, model: Model) -> None:
        """Write the weights of ``model`` to the head, if they are a copy."""
        emission, _, *biases = self.tensors()
        for weights, array in ((emission, model.emission), *zip(biases, model[2:5], strict=True)):
            if weights is not None and not np.may_share_memory(target := weights.detach().numpy(), array):
                target[...] = array[..., : target.shape[-1]]

    def trained(self, model: Model) -> list[Any]:
        """The arrays of ``model`` for the head's parameters, in their order, without the padding of rows."""
        parameters = {name: p for name, p in self.head._parameters.items() if p is not None}
        rows = [array[..., : self.num_states] for array in (model.emission, model.bias, model.first, model.last)]
        arrays = {self._emission: self.head.by_feature(rows[0]), **dict(zip(self._biases, rows[1:], strict=False))}
        if self._pairs is not None and self._pairs in parameters:
            arrays[self._pairs] = model.transition.reshape(parameters[self._pairs].shape)
        return [arrays[name] for name in parameters if name in arrays]


class VectorWeights(HeadWeights):
    """One vector ``head.weight``, whose product with a row of features is a score; or ``[F, K]``, for K scores."""

    @property
    @override
    def emission(self) -> Tensor:
        return self.head.weight.view(len(self.head.weight), -1)

    @property
    @override
    def width(self) -> int:
        return self.num_states  # rows are not padded

    @override
    def tensors(self) -> Tensors:
        return self.emission, None, None, None, None

    @override
    def trained(self, model: Model) -> list[Any]:
        return [model.emission.reshape(self.head.weight.shape)]


def _fill_up(tensor: Tensor, width: int) -> np.ndarray:
    """The tensor's memory if its rows are contiguous and have this width; else a copy with rows padded by zeros."""
    states = tensor.shape[-1]
    if states == width:
        return tensor.contiguous().numpy()
    padded = tensor.new_zeros(*tensor.shape[:-1], width).numpy()  # torch aligns memory to cache lines
    padded[..., :states] = tensor.numpy()
    return padded
