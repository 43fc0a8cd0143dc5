"""Segmentations as codes of frames, as spans, and as labels of frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_int64, check_whole
from torchssvm.core.naming import row_name

Span = tuple[int, int, int]
"""First frame, the frame after the last, and label."""


def as_spans(codes: Tensor, num_labels: int) -> list[list[Span]]:
    """The spans of every sequence ``[B, N]`` of codes, in order."""
    found = []
    for row in codes.tolist():
        row = row[: row.index(-1)] if -1 in row else row
        starts = [t for t, code in enumerate(row) if code >= num_labels]
        ends = [*starts[1:], len(row)]
        found.append([(s, e, row[s] - num_labels) for s, e in zip(starts, ends, strict=True)])
    return found


def from_spans(spans: Sequence[Sequence[Span]], num_labels: int) -> Tensor:
    """The codes ``[B, N]`` of spans, N the largest length, -1 beyond each.

    Raises:
        ValueError: A sequence has no span, a span does not begin where the one before it ends, or a label is not one.
    """
    num_labels = check_whole(num_labels, "num_labels")
    rows = []
    for place, several in enumerate(spans):
        row: list[int] = []
        for start, end, label in several:
            if start != len(row) or end <= start or not 0 <= label < num_labels:
                raise ValueError(
                    f"spans has {(start, end, label)} in {row_name(place)}: it must be (start, end, label) with "
                    f"start {len(row)}, where the span before it ends, a larger end, and a label 0 to {num_labels - 1}"
                )
            row += [label + num_labels] + [label] * (end - start - 1)
        if not row:
            raise ValueError(f"spans has no span in {row_name(place)}: a sequence has at least one")
        rows.append(torch.tensor(row))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def from_frames(labels: Tensor, num_labels: int) -> Tensor:
    """The codes of labels of frames ``[B, N]`` int64, negative beyond each length: every run is one segment.

    Raises:
        ValueError: ``labels`` are not such a tensor, or one is ``num_labels`` or more.
    """
    check_int64(labels, "labels", tuple(labels.shape[:2]) or (0, 0), ", a label for each frame")
    if bool((labels >= num_labels).any()):
        raise ValueError(f"labels has {int(labels.max())}; labels are 0 to {num_labels - 1}")
    begins = torch.ones_like(labels, dtype=torch.bool)
    begins[:, 1:] = labels[:, 1:] != labels[:, :-1]
    return torch.where(labels >= 0, labels + num_labels * begins, -1)


def as_frames(codes: Tensor, num_labels: int) -> Tensor:
    """The label of every frame, -1 beyond each length."""
    return torch.where(codes >= 0, codes.remainder(num_labels), -1)


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
