"""What heads share that score the labels of nodes and the pairs of labels at edges, by features of both."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Labeling, reject_rows
from torchssvm.kinds.adapter import HeadAdapter, Ragged, Weights
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.links import LinkRoom, Links


class LinkAdapter(HeadAdapter):
    """A head with weights ``node`` ``[K, F]`` and ``edge`` ``[G, K, K]``, and perhaps a bias of the nodes."""

    matrix, table = "node", "edge"
    emission, pairs, ragged_labels, carries, notes = "node", "edge", True, True, True

    def __init__(self, head: Any, symmetric: bool, limits: Sequence[int] = ()) -> None:
        super().__init__(head, limits)
        self._symmetric = symmetric
        self.ragged, self._nodes, self._edges = False, 0, 0

    def inputs(self, x: Any) -> Any:
        """Those of the nodes."""
        return x[0]

    @abstractmethod
    def edges_of(self, x: Any, potentials: Potentials) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers of edges ``[B]``, their ends ``[B, E, 2]``, features ``[B, E, G]``, and which are turned ``[B, E]``.

        An edge has the ends (-1, -1) where there is none.
        """

    @abstractmethod
    def linked(self, links: Links, examples: Examples) -> Any:
        """The kind of examples with these edges."""

    @abstractmethod
    def labeling(self, labels: Tensor, pairs: Tensor) -> Labeling:
        """The named tuple of a labeling."""

    def own(self, x: Any, target: Labeling, potentials: Potentials) -> dict[str, Ragged]:
        """The edges.

        Raises:
            ValueError: Batches have lengths and none, or none and other numbers of nodes; or features are not finite.
        """
        ragged, nodes = potentials.lengths is not None, potentials["node"].shape[1]
        if self._nodes and (ragged != self.ragged or (not ragged and nodes != self._nodes)):
            raise ValueError(
                f"a batch has {nodes} nodes and {'' if ragged else 'no '}lengths, and one before it {self._nodes} "
                f"nodes and {'' if self.ragged else 'no '}lengths: examples of different sizes need lengths, in every "
                "batch"
            )
        self.ragged, self._nodes = ragged, max(self._nodes, nodes)
        self._edges = max(self._edges, potentials["edge"].shape[1])
        counts, ends, z, turned = self.edges_of(x, potentials)
        real = torch.arange(ends.shape[1]) < counts.unsqueeze(1)
        z = z.detach().to(self.head.edge.dtype)
        reject_rows((~torch.isfinite(z).all(2) & real).any(1), "x has features of edges that are not finite in {rows}")
        return {"ends": (counts, ends[real]), "z": (counts, z[real]), "turned": (counts, turned[real])}

    def kind(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Any:
        """From the edges."""
        start, ends = own["ends"]
        counts = start.diff()
        place = torch.arange(int(counts.max()) if len(counts) else 0)
        inside = place < counts.unsqueeze(1)
        self._ends = torch.full((*inside.shape, 2), -1)  # [n, E, 2]
        self._ends[inside] = ends
        arrays: Any = (tensor.contiguous().numpy() for tensor in (start, ends, own["z"][1], own["turned"][1]))
        return self.linked(Links(*arrays, self._symmetric, self.num_states), examples)  # type: ignore[call-arg]

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """Rows of nodes, if they are padded, and matrices of edges."""
        one, states = torch.ones_like(lengths), self.num_states
        nodes = (lengths, (states,)) if self.ragged else (one, (self._nodes, states))
        return {"node": nodes, "edge": (one, (self._edges, states, states))}

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room for weights of edges and for the decoder."""
        return partial(_make_room, (len(self.head.edge), self.num_states**2), self.decoder_room(examples))

    @abstractmethod
    def decoder_room(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the decoder."""

    def weights(self) -> Weights:
        """A row of pairs for each feature of edges."""
        emission, _, *biases = super().weights()
        return emission, self.head.edge.flatten(1), *biases

    def longest_labeling(self, longest: int) -> Labeling:
        """Labels ``[1, longest]``, and the pairs that they make."""
        states = self.num_states
        return self.labeling(torch.full((1, longest), states - 1), torch.full((1, self._edges), states**2 - 1))

    def finish(self, labelings: list[Tensor], examples: Tensor, slots: Tensor) -> None:
        """The pairs that the labels make."""
        labels, ends = labelings[0][examples, slots].long(), self._ends[examples]
        both = labels.gather(1, ends.clamp(min=0).flatten(1)).view(ends.shape)
        pairs = (both[..., 0] * self.num_states + both[..., 1]).masked_fill(ends[..., 0] < 0, -1)
        labelings[1][examples, slots, : pairs.shape[1]] = pairs.to(labelings[1].dtype)


def _make_room(size: tuple[int, int], decoder: Callable[[], Any]) -> LinkRoom:
    return LinkRoom(np.zeros(size), decoder())
