"""Synthetic sequences of events that last some frames each."""

from __future__ import annotations

from typing import Literal

import torch

from torchssvm.core.arguments import check_choice, check_number, check_seed, check_whole
from torchssvm.structures.segments.structure import Segments, Span

from ..padded import PaddedDataset


class EventSequences(PaddedDataset):
    """Sequences cut into events: what follows what, and how long it lasts, says as much as the noisy frames.

    An event of label k is followed by one of two other labels as a rule, and lasts about as long as its label does,
    from 2 to ``max_duration`` frames: labels of even number last half as long as others. A frame has ``in_features``
    numbers, the mean of its label in Gaussian noise. An item is ``(x, y, index)``, ``y`` the codes that
    :class:`~torchssvm.Segments` takes. Both splits have the same labels.

    Args:
        split: ``"train"`` or ``"test"``, drawn apart.
        num_sequences: n.
        length: Frames of a sequence, at least 2.
        num_labels: K, at least 3.
        max_duration: The longest event, at least 4.
        in_features: F.
        noise: Standard deviation of the noise.
        seed: Of the labels and of the draws.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> events = EventSequences("train", num_sequences=3, length=20)
        >>> events.x.shape, events.y.shape
        (torch.Size([3, 20, 8]), torch.Size([3, 20]))
    """

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        *,
        num_sequences: int = 64,
        length: int = 100,
        num_labels: int = 5,
        max_duration: int = 10,
        in_features: int = 8,
        noise: float = 1.5,
        seed: int = 0,
    ):
        check_choice(split, "split", "train", "test")
        n, length = check_whole(num_sequences, "num_sequences"), check_whole(length, "length", 2)
        labels, most = check_whole(num_labels, "num_labels", 3), check_whole(max_duration, "max_duration", 4)
        features, noise = check_whole(in_features, "in_features"), check_number(noise, "noise", 0.0)
        shared = torch.Generator().manual_seed(2 * check_seed(seed))
        means = torch.randn(labels, features, generator=shared)
        random = torch.Generator().manual_seed(2 * seed + 1)
        random.manual_seed(int(torch.randint(2**40, (2,), generator=random)[int(split == "test")]))

        def draw(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=random))

        sequences = []
        for _ in range(n):
            spans: list[Span] = []
            label = draw(0, labels - 1)
            while (start := spans[-1][1] if spans else 0) < length:
                longest = most if label % 2 else most // 2
                end = min(start + draw(longest // 2, longest), length)
                spans.append((start, end, label))
                # Of ten events seven are followed by one of the next two labels, others by any other.
                label = (label + (draw(1, 2) if draw(0, 9) < 7 else draw(1, labels - 1))) % labels
            sequences.append(spans)
        codes = Segments(labels, most).from_spans(sequences)
        x = means[codes % labels] + noise * torch.randn(n, length, features, generator=random)
        super().__init__(x, codes)
