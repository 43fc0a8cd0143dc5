"""Bipartite matchings for the compiled loop: a row of features for each edge, a row of scores for each left node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.potentials import SINGLE, Potentials
from torchssvm.core.structure import fit
from torchssvm.kinds.adapter import Ragged
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.vector import VectorAdapter
from torchssvm.structures.matching.kind_numba import Edges, make_edge_room, spread


class MatchingAdapter(VectorAdapter):
    """:class:`LinearEdges`: a label says whether an edge is in the matching; rows of labels and scores have T numbers.

    T is the largest number of right nodes that :meth:`own` has seen in a batch.
    """

    emission = SINGLE
    ragged_labels, exact_labelings = True, True
    sizes = (1, 1)

    @property
    def num_states(self) -> int:
        """T."""
        return self.sizes[1]

    def inputs(self, x: Any) -> Any:
        """The features, with the numbers of right nodes or without."""
        return x if isinstance(x, Tensor) else x.features

    def targets(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The edges between the nodes of each example, and what a wrong label costs."""
        real = target >= 0
        delta: Any = self.structure.loss_potentials(target)[0]
        return target[real], delta.abs()[real], real.sum((1, 2))

    def features(self, x: Any, target: Tensor) -> Tensor:
        """Those of the same edges."""
        return self.inputs(x)[target >= 0]

    def lengths(self, sizes: Tensor, potentials: Potentials) -> Tensor:
        """Left nodes."""
        return torch.full_like(sizes, potentials.single.shape[1]) if potentials.lengths is None else potentials.lengths

    def own(self, x: Any, target: Tensor, potentials: Potentials) -> dict[str, Ragged]:
        """The numbers of left and of right nodes."""
        self.note(potentials, tuple(potentials.single.shape[1:]))
        sides = [(target >= 0).any(axis).sum(1) for axis in (2, 1)]
        return {"sides": (torch.ones_like(sides[0]), torch.stack(sides, 1))}

    def complete(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Examples:
        """Rows of labels of T numbers, and the kind."""
        heights, widths = (side.contiguous().numpy() for side in own["sides"][1].unbind(1))
        start = np.append(0, (heights * self.num_states).cumsum())
        y, cost = np.full(start[-1], -1), np.zeros(start[-1])
        spread(examples.line, widths, start, self.num_states, examples.y, examples.cost, y, cost)
        found = examples._replace(y=y, cost=cost, added=cost.astype(examples.added.dtype), start=start)
        return found._replace(kind=Edges(heights, widths))

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the oracle."""
        return partial(make_edge_room, int(examples.kind.heights.max()), self.num_states)

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """A row of T for each left node; or one of S T where no batch has lengths."""
        if self.ragged:
            return {self.emission: (lengths, (self.num_states,))}
        return {self.emission: (torch.ones_like(lengths), self.sizes)}

    def label_counts(self, lengths: Tensor) -> Tensor:
        """A row of T for each left node."""
        return lengths * self.num_states

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """-1 beyond the nodes, or whether an edge is in the matching."""
        return -1, torch.ones_like(lengths)

    def as_sequences(self, labelings: Tensor) -> Tensor:
        """The rows, one after another; of the sizes of :meth:`longest_labeling` they share the memory."""
        return fit(labelings, self.sizes, -1).flatten(2)

    def longest_labeling(self, longest: int) -> Tensor:
        """``[1, S, T]``, of the largest batches."""
        return torch.ones(1, *self.sizes, dtype=torch.int64)
