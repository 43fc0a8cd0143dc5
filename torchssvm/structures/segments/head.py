"""The linear head of segments: scores of frames are linear in features, scores of segments are weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.potentials import Potentials
from torchssvm.core.precision import full_precision, product
from torchssvm.structures.common import LinearHead, check_shape, fitting, read_span, weight
from torchssvm.structures.segments.structure import Segments


class LinearSegments(LinearHead):
    """Potentials of segments, ``emission[t] = W x[t] + bias`` and ``segment = S``; all weights are zero at the start.

    The parameter ``emission`` is W, ``[K, F]`` as in ``nn.Linear``, or ``[2 K, F]`` with the structure's ``boundary``;
    ``segment`` is S, ``[K + D, K]``: neighbours, then durations. :attr:`transition` and :attr:`duration` are its parts.

    Args:
        in_features: F, numbers per frame.
        num_labels: K.
        max_duration: D, the largest duration.
        structure: How outputs are decoded and what they cost; None is ``Segments(num_labels, max_duration)``, with the
            number of wrong frames as the loss.

    Raises:
        TypeError: A size is not a number, or ``structure`` is not a structure of segments.
        ValueError: A size is out of range, or ``structure`` has another number of labels or largest duration.

    Example:
        >>> head = LinearSegments(in_features=4, num_labels=3, max_duration=5)
        >>> potentials = head(tokens[:2], torch.tensor([5, 4]))
        >>> potentials["emission"].shape, potentials["segment"].shape
        (torch.Size([2, 5, 3]), torch.Size([2, 8, 3]))
        >>> head.structure.decode(potentials).shape
        torch.Size([2, 5])
    """

    bias: Tensor

    def __init__(
        self, in_features: int, num_labels: int, max_duration: int, *, structure: Segments | None = None
    ) -> None:
        super().__init__()
        in_features, plain = check_whole(in_features, "in_features", 0), Segments(num_labels, max_duration)
        such = "Segments(num_labels, max_duration)"
        self.structure = fitting(
            structure, lambda: plain, such, ["boundary"], num_labels=num_labels, max_duration=max_duration
        )
        self.in_features = in_features
        self.emission = weight(torch.zeros(self.structure.num_scores, in_features))
        self.segment = weight(torch.zeros(plain.num_labels + plain.max_duration, plain.num_labels))
        self.bias = weight(torch.zeros(self.structure.num_scores))

    @property
    def transition(self) -> Tensor:
        """``[K, K]``, the scores of neighbours (label before, label)."""
        return self.segment[: self.structure.num_labels]

    @property
    def duration(self) -> Tensor:
        """``[D, K]``, the scores of durations 1 to D by label."""
        return self.segment[self.structure.num_labels :]

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"in_features={self.in_features}, structure={self.structure}"

    def compiled_form(self) -> Any:
        """What the compiled loop needs of the head; None where it has none."""
        from torchssvm.structures.segments.kind import SegmentsAdapter

        return SegmentsAdapter(self) if type(self.structure) is Segments else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Potentials:
        """Features ``[B, N, F]`` -> potentials; runs in the weights' dtype, autocast off.

        Args:
            x: Features; values beyond a length must be finite and are otherwise ignored.
            lengths: ``[B]`` int64, 1 to N; None means N for all.

        Raises:
            ValueError: A shape or a length does not fit.
        """
        batch, longest, _ = check_shape(x, "x", "B", "N", self.in_features).shape
        lengths, _ = read_span(lengths, batch, longest, x.device)
        with full_precision(x.device):
            x = x.to(self.emission.dtype)
            emission = product(x, self.emission) + self.bias
            segment = self.segment.expand(batch, *self.segment.shape)

        tensors = {"emission": emission, "segment": segment}
        return Potentials(tensors, lengths, ragged={"emission": 0}, **self._with_pairs(x, "emission", "segment"))
