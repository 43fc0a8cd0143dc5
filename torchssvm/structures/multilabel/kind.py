"""Sets of labels for the compiled loop: one row of emissions, and one of pairs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.lists import Lists, lists_of_rows
from torchssvm.core.structure import Labeling
from torchssvm.kinds.adapter import HeadAdapter, Ragged
from torchssvm.kinds.examples import Examples
from torchssvm.structures.multilabel.kind_numba import LabelSets, SingleLabels, make_room


class LabelSetAdapter(HeadAdapter):
    """:class:`LinearMultilabel` and :class:`SparseLinearMultilabel`; limits of messages, and of branch and bound."""

    matrix, table = "unary", "pairwise"
    emission, ragged = "unary", False

    def __init__(self, head: Any, max_rounds: int, effort: int) -> None:
        super().__init__(head, (max_rounds, effort))
        self.pairs = None if head.pairwise is None else "pairwise"

    @property
    def pair_rows(self) -> int:
        """One row holds all pairs."""
        return int(self.pairs is not None)

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """Every label, on or off."""
        costs = self.structure.costs.cpu().expand(len(target), -1)  # type: ignore[attr-defined]
        return target.flatten(), costs.flatten(), torch.full((len(target),), self.num_states)

    def lists(self, sizes: Tensor, own: dict[str, Ragged]) -> Tensor:
        """One row for each example."""
        return torch.ones_like(sizes)

    def features(self, x: Any, target: Labeling) -> Tensor | Lists:
        """One row for each example."""
        if isinstance(x, Tensor):
            return x
        return lists_of_rows(x, self.head.in_features, self.head.unary.dtype)

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """One row for each example."""
        one = torch.ones_like(lengths)
        pairs = {} if self.pairs is None else {self.pairs: (one, (self.pair_width,))}
        return {self.emission: (one, (self.num_states,)), **pairs}

    def kind(self, *_: Any) -> Any:
        """With the limits of the decoder."""
        return LabelSets(self.limits)

    def whole(self) -> HeadAdapter | None:
        """Labels without pairs are solved one by one."""
        return None if self.pairs is not None else SingleLabelsAdapter(self.head, *self.limits)

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the decoder."""
        return partial(make_room, self.num_states)

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """Off and on."""
        return 0, torch.ones_like(lengths)


class SingleLabelsAdapter(LabelSetAdapter):
    """Sets of labels without pairs, whose blocks are solved whole."""

    def kind(self, *_: Any) -> Any:
        """Without a decoder."""
        return SingleLabels(self.num_states)

    def room_of(self, examples: Examples) -> Any:
        """None."""
        return None
