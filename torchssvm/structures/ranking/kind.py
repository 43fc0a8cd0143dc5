"""Rankings for the compiled loop: a row of features for each document."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.potentials import Potentials
from torchssvm.kinds.adapter import Ragged
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.vector import VectorAdapter
from torchssvm.structures.ranking.by_place import ByPlace
from torchssvm.structures.ranking.kind_numba import Places, Swaps, make_room
from torchssvm.structures.ranking.pairs import PairSwaps


class RankingAdapter(VectorAdapter):
    """:class:`LinearRanking` with one of the measures of this folder.

    A labeling is what the measure's oracle gives: a place for each document, or two.
    """

    emission = "scores"

    def __init__(self, head: Any) -> None:
        super().__init__(head)
        self.measure = head.structure.measure
        self.roles = 2 if isinstance(self.measure, PairSwaps) else 1

    def targets(self, target: Any) -> tuple[Tensor, Tensor, Tensor]:
        """-1, which stands for the mean of the orders by descending grade."""
        sizes = self.roles * (target.grades >= 0).sum(1)
        total = int(sizes.sum())
        return torch.full((total,), -1), torch.zeros(total, dtype=torch.float64), sizes

    def lists(self, sizes: Tensor, own: dict[str, Ragged]) -> Tensor:
        """A row for each document."""
        return sizes // self.roles

    def lengths(self, sizes: Tensor, potentials: Potentials) -> Tensor:
        """Documents."""
        return sizes // self.roles

    def label_counts(self, lengths: Tensor) -> Tensor:
        """A place of each document in each role."""
        return lengths * self.roles

    def features(self, x: Any, target: Any) -> Tensor:
        """The documents of each list."""
        return x[target.grades >= 0]

    def own(self, x: Any, target: Any, potentials: Potentials) -> dict[str, Ragged]:
        """What the measure knows of the documents."""
        self.note(potentials, (potentials.single.shape[1],))
        grades, measure = target.grades, self.measure
        real = grades >= 0
        sizes = real.sum(1)
        if isinstance(measure, ByPlace):
            return {
                "ideal": (sizes, measure.ideal(grades)[real]),
                "gain": (sizes, measure.relative_gain(grades)[real]),
            }
        ranks = [row[own].unique(return_inverse=True)[1] for row, own in zip(grades, real, strict=True)]
        return {"level": (sizes, torch.cat(ranks)), "share": (torch.ones_like(sizes), measure.share(grades))}

    def kind(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Any:
        """That of the measure."""
        held: Any = [values.numpy() for _, values in own.values()]
        if isinstance(self.measure, PairSwaps):
            room = np.zeros(4 * len(held[0]) + 2 * len(held[1]), np.int32)
            return Swaps(*held, room)  # type: ignore[call-arg]
        discount = self.measure.discount(torch.arange(int(np.diff(examples.line).max()))).numpy()
        return Places(*held, discount)  # type: ignore[call-arg]

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the oracles."""
        return partial(make_room, int(np.diff(examples.start).max()))

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """A number for each document, in rows of their own if there are lengths."""
        return {self.emission: (lengths, ()) if self.ragged else (torch.ones_like(lengths), self.sizes)}

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """The places."""
        return 0, self.label_counts(lengths) - 1

    def as_sequences(self, labelings: Tensor) -> Tensor:
        """The places, document by document."""
        return labelings.flatten(2)

    def longest_labeling(self, longest: int) -> Tensor:
        """``[1, N]``, or ``[1, N, 2]``."""
        most = max(longest, self.roles)
        return torch.full((1, most) if self.roles == 1 else (1, most // 2, 2), most - 1)
