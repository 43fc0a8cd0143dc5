"""Segments for the compiled loop: a row of emissions for each frame, and a table of neighbours and durations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.structure import Labeling
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.kinds.examples import Examples, Model


class SegmentsAdapter(HeadAdapter):
    """:class:`LinearSegments`."""

    emission, pairs = "emission", "segment"

    @property
    def num_states(self) -> int:
        """K, or 2 K with boundaries."""
        return self.structure.num_scores  # type: ignore[attr-defined]

    @property
    def pair_width(self) -> int:
        """K."""
        return self.structure.num_labels  # type: ignore[attr-defined]

    @property
    def pair_rows(self) -> int:
        """Neighbours and durations."""
        return len(self.head.segment)

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """Frames within the lengths, which cost 1."""
        real = target >= 0
        return target[real], torch.ones(int(real.sum()), dtype=torch.float64), real.sum(1)

    def features(self, x: Any, target: Labeling) -> Tensor:
        """Frames within the lengths."""
        return x[target >= 0]

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """Rows of frames, and one table."""
        table = torch.ones_like(lengths), tuple(self.head.segment.shape)
        return {"emission": (lengths, (self.num_states,)), "segment": table}

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """Codes, 0 to 2 K - 1."""
        return 0, torch.full_like(lengths, 2 * self.pair_width - 1)

    def complete(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Examples:
        """Inner products, and the kind."""
        from torchssvm.structures.segments.kind_numba import Segmentations

        structure: Any = self.structure
        least = torch.tensor(structure.min_duration).numpy()
        kind = Segmentations(least, structure.num_labels, structure.boundary, structure.span_loss)
        return super().complete(examples, own)._replace(kind=kind)

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the decoder."""
        from torchssvm.structures.segments.kind_numba import make_room

        longest = max((examples.start[1:] - examples.start[:-1]).tolist(), default=0)
        return partial(make_room, longest, self.pair_rows, self.pair_width)

    def weights(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Frames, the table and the bias."""
        return self.head.emission.t(), self.head.segment, self.head.bias, None, None

    def trained(self, model: Model) -> list[Any]:
        """Frames, the table and the bias."""
        emission, bias = self.unpadded(model)
        return [emission.T, model.transition, bias]

    def longest_labeling(self, longest: int) -> Labeling:
        """``[1, longest]``."""
        return torch.full((1, longest), 2 * self.pair_width - 1)
