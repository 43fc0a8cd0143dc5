"""Spans, durations of segments, and all segmentations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Span = tuple[int, int, int]
"""First frame, the frame after the last, and label."""


def durations_of(codes: Tensor, num_labels: int) -> Tensor:
    """The duration of the segment that begins at each frame of ``[..., N]`` codes; 0 where none does."""
    longest = codes.shape[-1]
    begins = codes >= num_labels
    place = torch.arange(longest, device=codes.device).expand(codes.shape)
    # The first frame behind t that begins a segment, or is none.
    stops = torch.where(begins | (codes < 0), place, longest)
    after = torch.cat([stops[..., 1:], torch.full_like(stops[..., :1], longest)], -1)
    return torch.where(begins, after.flip(-1).cummin(-1).values.flip(-1) - place, 0)


def every_segmentation(length: int, num_labels: int, least: Sequence[int], most: int) -> Iterator[list[int]]:
    """The codes of all segmentations of a sequence."""
    if not length:
        yield []
    for label in range(num_labels):
        for duration in range(least[label], min(most, length) + 1):
            for rest in every_segmentation(length - duration, num_labels, least, most):
                yield [label + num_labels] + [label] * (duration - 1) + rest


def span_f1(found: Sequence[Sequence[Any]], true: Sequence[Sequence[Any]]) -> float:
    """The F1 score of spans over all sequences: one is right where start, end and label are; 1 where there are none.

    Example:
        >>> span_f1([[(0, 2, 1), (2, 3, 0)]], [[(0, 2, 1), (2, 4, 0)]])
        0.5
    """
    pairs = [(set(own), set(others)) for own, others in zip(found, true, strict=True)]
    total = sum(len(own) + len(others) for own, others in pairs)
    return 2.0 * sum(len(own & others) for own, others in pairs) / total if total else 1.0
