"""Segments for the compiled loop: a row of emissions for each frame, and a table of neighbours and durations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.kinds.examples import Examples
from torchssvm.structures.segments.kind_numba import Segmentations, make_room


class SegmentsAdapter(HeadAdapter):
    """:class:`LinearSegments`."""

    matrix, table = "emission", "segment"
    emission, pairs = "emission", "segment"

    @property
    def pair_rows(self) -> int:
        """Neighbours and durations."""
        return len(self.head.segment)

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """Codes, 0 to 2 K - 1."""
        return 0, torch.full_like(lengths, 2 * self.pair_width - 1)

    def kind(self, *_: Any) -> Segmentations:
        """The structure's settings."""
        structure: Any = self.structure
        least = torch.tensor(structure.min_duration).numpy()
        return Segmentations(least, structure.num_labels, structure.boundary, structure.span_loss)

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the decoder."""
        longest = max((examples.start[1:] - examples.start[:-1]).tolist(), default=0)
        return partial(make_room, longest, self.pair_rows, self.pair_width)
