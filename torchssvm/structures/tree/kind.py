"""Trees and forests for the compiled loop: a row of emissions for each node, matrices of pairs for edges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Labeling
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.link_adapter import LinkAdapter
from torchssvm.kinds.links import Links
from torchssvm.structures.tree.kind_numba import Forests, Trees, make_room


class TreeAdapter(HeadAdapter):
    """:class:`LinearTree`."""

    matrix, table = "node", "edge"
    emission, pairs = "node", "edge"

    @property
    def _shared(self) -> bool:
        return self.structure.shared  # type: ignore[attr-defined]

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """Rows of nodes; matrices by the child unless one serves all edges."""
        states, matrices = self.num_states, torch.ones_like(lengths) if self._shared else lengths
        return {"node": (lengths, (states,)), "edge": (matrices, (states, states))}

    def kind(self, *_: Any) -> Trees:
        """With the tree of all examples."""
        parent = self.structure.parent.cpu().numpy()  # type: ignore[attr-defined]
        return Trees(parent, self._shared, self.num_states)

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the decoder."""
        longest = len(self.structure.parent)  # type: ignore[attr-defined]
        return partial(make_room, longest, self.num_states, examples.added.dtype)


class ForestAdapter(LinkAdapter):
    """:class:`LinearForest`; ``labeling`` makes a labeling of labels and pairs."""

    def __init__(self, head: Any, labeling: Callable[[Tensor, Tensor], Labeling]) -> None:
        super().__init__(head, symmetric=False)
        self._labeling = labeling

    def labeling(self, labels: Tensor, pairs: Tensor) -> Labeling:
        """A ``ForestLabeling``."""
        return self._labeling(labels, pairs)

    def edges_of(self, x: Any, potentials: Potentials) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of each node and its parent."""
        _, z, _, forward = x
        parent = potentials.parent  # type: ignore[attr-defined]  # which has been checked
        batch, longest = parent.shape
        sizes = torch.full((batch,), longest) if potentials.lengths is None else potentials.lengths
        child = torch.arange(longest).expand_as(parent)
        ends = torch.stack([parent, torch.where(parent >= 0, child, -1)], 2)
        return sizes, ends, z, ~forward.bool()

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """Both by the node, which are rows if they are padded."""
        shapes, states = super().part_shapes(lengths), self.num_states
        return {**shapes, "edge": (lengths, (states, states))} if self.ragged else shapes

    def linked(self, links: Links, examples: Examples) -> Forests:
        """Forests."""
        return Forests(links, np.ascontiguousarray(links.ends[:, 0]))

    def decoder_room(self, examples: Examples) -> Callable[[], Any]:
        """That of trees."""
        return partial(make_room, int(np.diff(examples.start).max()), self.num_states, examples.added.dtype)
