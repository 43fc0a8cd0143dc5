"""Segments: an output cuts a sequence into segments, each with a label and a duration."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.arguments import (
    check_costs,
    check_flags,
    check_int64,
    check_number,
    check_several,
    check_tensor,
    check_whole,
    row_name,
)
from torchssvm.core.decoding import Decoding, as_decoding
from torchssvm.core.marginals import Marginals
from torchssvm.core.operators import constant, plain, transformed
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Structure, digest, gated
from torchssvm.structures.chain.nbest import NBest, nbest
from torchssvm.structures.common import check_potentials, mask_of, reject_entries
from torchssvm.structures.labelled import Indexed, Labelled, Places
from torchssvm.structures.segments.margins import segment_margins
from torchssvm.structures.segments.oracle import semi_markov, semi_markov_marginals


class Segments(Labelled, Indexed):
    """Sequences cut into segments, with scores for frames, durations and neighbours: a semi-Markov model.

    Potentials: ``emission`` ``[B, N, K]``, the scores of a frame's labels, which are summed over a segment; with
    ``boundary`` ``[B, N, 2 K]``, the second half for a segment that begins at the frame. ``segment`` ``[B, K + D, K]``:
    row j the scores of neighbours (label before, label), row ``K + d - 1`` the scores of duration d by label.

    Labelings and targets: ``[B, N]`` int64 codes, the label of each frame, K more at the first frame of a segment, so
    that two neighbours of one label are told apart; -1 beyond an example's length (values of a target there are
    ignored). :meth:`from_spans` and :meth:`from_frames` make them, :meth:`spans` and :meth:`frames` read them.

    The loss counts frames of another label, ``class_weight`` times each; with ``span_loss``, the target's spans that
    are missed, and spans that the target lacks.

    Args:
        num_labels: K.
        max_duration: D, the largest duration.
        min_duration: The smallest duration of every label, or ``[K]`` by label.
        boundary: Whether frames have scores for segments that begin there.
        span_loss: Whether the loss counts spans, or frames.
        class_weight: ``[K]``, non-negative, by the target's label of a frame; None is 1 for all.

    Raises:
        TypeError: A number is not whole.
        ValueError: ``num_labels`` or ``max_duration`` is less than 1, or ``min_duration`` is not 1 to ``max_duration``,
            or are not K numbers; or ``class_weight`` is not such a vector, or is given with ``span_loss``.

    Example:
        >>> segments = Segments(num_labels=2, max_duration=3)
        >>> emission = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
        >>> codes = segments.argmax({"emission": emission, "segment": torch.zeros(1, 5, 2)}).labeling
        >>> segments.frames(codes)
        tensor([[0, 0, 1]])
    """

    unit, single = "frame", "emission"
    _quick_to_decode = True

    def __init__(
        self,
        num_labels: int,
        max_duration: int,
        *,
        min_duration: int | Sequence[int] = 1,
        boundary: bool = False,
        span_loss: bool = False,
        class_weight: Tensor | None = None,
    ) -> None:
        self.num_labels = check_whole(num_labels, "num_labels")
        self.max_duration = check_whole(max_duration, "max_duration")
        check_flags(boundary=boundary, span_loss=span_loss)
        listed = isinstance(min_duration, list | tuple)
        several: Sequence[Any] = min_duration if listed else [min_duration] * self.num_labels  # type: ignore[assignment]
        form = f", or a list of {num_labels}, one for each label"
        if len(several) != num_labels:
            raise ValueError(f"min_duration={min_duration!r} must be a whole number{form}")
        self.min_duration = [check_whole(least, "min_duration", most=max_duration, advice=form) for least in several]
        if class_weight is not None and span_loss:
            raise ValueError(f"class_weight={class_weight} is for frames: leave it out with span_loss")
        self.boundary, self.span_loss = boundary, span_loss
        self.class_weight = check_costs(class_weight, "class_weight", num_labels)
        self._least = torch.tensor(self.min_duration)

    @override
    def _extends(self, other: Structure) -> bool:
        if type(self) is not Segments or type(other) is not Segments or other.max_duration > self.max_duration:
            return self.same_as(other)
        less = copy.copy(self)
        less.max_duration = other.max_duration
        return less.same_as(other)

    @property
    def _states(self) -> int:
        return self.num_labels

    @override
    def _labels(self, output: Tensor) -> Tensor:
        return self.frames(output)

    @property
    def num_scores(self) -> int:
        """K, or 2 K with ``boundary``: scores of a frame."""
        return self.num_labels * (2 if self.boundary else 1)

    def argmax(self, potentials: Potentials) -> Decoding:
        """The best segments; ties go to the smallest label, then the shortest duration, from the last frame on.

        Raises:
            ValueError: No durations add up to an example's length.
        """
        return self._best(potentials, None)

    def augmented_argmax(self, potentials: Potentials, target: Tensor) -> Decoding:
        """The best segments with the loss added to frames, or to spans."""
        if self.span_loss:
            return self._best(potentials, target)
        return as_decoding(super().augmented_argmax(potentials, target))

    def _best(self, potentials: Potentials, target: Tensor | None) -> Decoding:
        emission, segment = potentials["emission"], potentials["segment"]
        lengths = potentials.lengths
        least, most = min(self.min_duration), self.max_duration
        if least > 1 and not (plain() or transformed()):
            for row, size in enumerate([emission.shape[1]] if lengths is None else lengths.tolist()):
                if -(-size // most) * least > size:
                    raise ValueError(
                        f"lengths has {size} in {row_name(row)}, which no durations of {least} to {most} add up to: "
                        "leave the example out"
                    )
        return Decoding(*semi_markov(emission, segment, constant(self._least, emission.device), lengths, target))

    def marginals(self, potentials: Potentials) -> Marginals:
        """Sum-product; the second half of ``emission``, with ``boundary``, are probabilities of boundaries."""
        emission, segment = potentials["emission"], potentials["segment"]
        least = constant(self._least, emission.device)
        *parts, whole = semi_markov_marginals(emission, segment, least, potentials.lengths)
        return Marginals(dict(zip(("emission", "segment"), parts, strict=True)), whole)

    def max_marginals(self, potentials: Potentials) -> Tensor:
        """Margins of each label of each frame; with ``boundary``, the second half is for segments that begin there."""
        emission, segment = potentials["emission"], potentials["segment"]
        codes = self.argmax(potentials).labeling
        return segment_margins(emission, segment, self._least, (codes >= 0).sum(1), codes)

    @gated
    def nbest(self, potentials: Potentials, n: int) -> NBest:
        """The n best segmentations of every example, the best one first; equals in no certain order.

        It takes O(N D^2 K^2) time, D K times as long as :meth:`argmax`.

        Args:
            n: How many, at least 1.

        Raises:
            ValueError: ``n`` is less than 1, or scores are NaN or infinitely large.
            TypeError: ``n`` is not a number.
        """
        n = check_whole(n, "n")
        emission, segment = potentials["emission"], potentials["segment"]
        lengths = mask_of(potentials.lengths, emission).sum(1).cpu()
        best = best_segmentations(emission, segment, self._least, lengths, n)
        return NBest(*(tensor.to(emission.device) for tensor in best))

    def spans(self, labeling: Tensor) -> list[list[Span]]:
        """The spans (first frame, frame after the last, label) of every example; ValueError for other codes."""
        self._check_codes(_codes(labeling, "labeling", ", as decode returns it"), _within(labeling), "labeling")
        return self._spans(labeling)

    def _spans(self, codes: Tensor) -> list[list[Span]]:
        """:meth:`spans` of codes that are known to be right."""
        spans = []
        for row in codes.tolist():
            row = row[: row.index(-1)] if -1 in row else row
            starts = [t for t, code in enumerate(row) if code >= self.num_labels]
            ends = [*starts[1:], len(row)]
            spans.append([(s, e, row[s] - self.num_labels) for s, e in zip(starts, ends, strict=True)])
        return spans

    def from_spans(self, spans: Sequence[Sequence[Span]]) -> Tensor:
        """The labeling ``[B, N]`` int64 of spans that follow one another from frame 0 on.

        Raises:
            ValueError: There is a gap, a wrong label, or a span longer than ``max_duration``.
        """
        check_several(spans, "spans", "lists of spans, one for each sequence")
        rows = []
        for place, several in enumerate(spans):
            row: list[int] = []
            fault = "" if several else "it must have at least one span"
            for span in several:
                fault = fault or self._span_fault(span, len(row))
                if not fault:
                    start, end, label = span
                    row += [int(label) + self.num_labels] + [int(label)] * int(end - start - 1)
            if fault:
                raise ValueError(f"spans has {several!r} in {row_name(place)}: {fault}")
            rows.append(torch.tensor(row))
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)

    def _span_fault(self, span: Any, at: int) -> str:
        """The rule that a span which begins at frame ``at`` breaks; empty if none."""
        if fault := span_fault(span, at):
            return fault
        start, end, label = span
        if label not in range(self.num_labels):
            return f"labels are 0 to {self.num_labels - 1}"
        return f"max_duration={self.max_duration} is less" if end - start > self.max_duration else ""

    def frames(self, labeling: Tensor) -> Tensor:
        """The label of every frame, ``[B, N]`` int64, -1 beyond each length."""
        codes = check_tensor(labeling, "labeling")  # also [B, C, N]
        return torch.where(codes >= 0, codes.remainder(self.num_labels), -1)

    @override
    def by_position(self, labeling: Tensor) -> Tensor:
        return self.frames(labeling)

    def from_frames(self, labels: Tensor) -> Tensor:
        """The labeling whose segments are the runs of labels ``[B, N]`` int64, -1 beyond each length.

        Raises:
            ValueError: ``labels`` are not such a tensor.
        """
        num_labels = self.num_labels
        _codes(labels, "labels", ", a label for each frame")
        wrong = (labels >= num_labels) | (labels < torch.where(_within(labels), 0, -1))
        reject_entries(wrong, labels, "labels has", f"give 0 to {num_labels - 1}, and -1 behind the last frame")
        begins = torch.ones_like(labels, dtype=torch.bool)
        begins[:, 1:] = labels[:, 1:] != labels[:, :-1]
        return torch.where(labels >= 0, labels + num_labels * begins, -1)

    def _shapes(self, labeling: Tensor) -> dict[str, tuple[int, ...]]:
        table = self.num_labels + self.max_duration, self.num_labels
        return {"emission": (labeling.shape[1], self.num_scores), "segment": table}

    def loss(self, labeling: Tensor, target: Tensor) -> Tensor:
        """Wrong frames, or missed and wrong spans, ``[B]`` float64."""
        if not self.span_loss:
            return super().loss(labeling, target)
        given, true = (durations_of(codes, self.num_labels) for codes in (labeling, target))
        right = (given > 0) & (given == true) & (labeling == target)
        return ((given > 0).sum(1) + (true > 0).sum(1) - 2 * right.sum(1)).double()

    def loss_potentials(self, target: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The cost of each wrong label of a frame; the constant is zero.

        Raises:
            NotImplementedError: With ``span_loss``, which is not linear in the parts.
        """
        if self.span_loss:
            raise NotImplementedError("loss_potentials: span_loss is not linear in the parts")
        delta, zero = super().loss_potentials(target)
        if self.boundary:
            delta = {name: nn.functional.pad(costs, (0, self.num_labels)) for name, costs in delta.items()}
        return delta, zero

    @override
    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        labels, most = self.num_labels, self.max_duration
        batch, longest, _ = potentials["emission"].shape
        check_int64(target, "target", (batch, longest), ", a code for each frame")
        real = mask_of(potentials.lengths, target)
        codes = target.masked_fill(~real, -1)
        self._check_codes(codes, real, "target")
        durations = durations_of(codes, labels)
        least = constant(self._least, codes.device)[self.frames(codes).clamp(min=0)]
        wrong = (durations > 0) & ((durations > most) | (durations < least))
        reject_entries(wrong, durations, "target has the duration", f"give min_duration of its label to {most}")
        return codes

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        labels = self.num_labels
        shapes: dict[str, tuple[int | str, ...]] = {
            "emission": ("B", "N", self.num_scores),
            "segment": ("B", labels + self.max_duration, labels),
        }
        check_potentials(potentials, shapes)

    def _check_codes(self, codes: Tensor, real: Tensor, name: str) -> None:
        """Raise ValueError for wrong codes ``[B, N]``, which are -1 where no frame is ``real``."""
        labels = self.num_labels
        form = f"codes are labels 0 to {labels - 1}, and {labels} more where a segment begins"
        reject_entries((codes >= 2 * labels) | (codes < torch.where(real, 0, -1)), codes, f"{name} has code", form)
        before = torch.cat([torch.full_like(codes[:, :1], -1), self.frames(codes)[:, :-1]], 1)
        wrong = real & (codes < labels) & (codes != before)
        reject_entries(
            wrong, codes, f"{name} has code", "segments begin with a label plus K: use structure.from_frames"
        )

    @override
    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        return {"emission": mask_of(potentials.lengths, potentials["emission"]).unsqueeze(2)}

    @override
    def _plain(self) -> nn.Module:
        from torchssvm.structures.segments.plain import SegmentsDecoder

        return SegmentsDecoder(self)

    @override
    def enumerate(self, potentials: Potentials) -> Iterator[Tensor]:
        batch, longest, _ = potentials["emission"].shape
        lengths = [longest] * batch if potentials.lengths is None else potentials.lengths.tolist()
        limits = self.num_labels, self.min_duration, self.max_duration
        every = {size: torch.tensor(list(every_segmentation(size, *limits))) for size in set(lengths)}
        for place in range(max(len(codes) for codes in every.values())):
            rows = [every[size][place % len(every[size])] for size in lengths]
            padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
            missing = longest - padded.shape[1]
            yield nn.functional.pad(padded, (0, missing), value=-1).to(potentials.device)

    @override
    def _places(self, codes: Tensor) -> Places:  # type: ignore[override]
        count, most = self.num_labels, self.max_duration
        real, begins = codes >= 0, codes >= count
        labels = self.frames(codes).clamp(min=0)
        frames = torch.arange(codes.shape[2], device=codes.device) * self.num_scores + labels
        before = torch.cat([torch.zeros_like(labels[..., :1]), labels[..., :-1]], 2)
        joined = begins & (torch.arange(codes.shape[2], device=codes.device) > 0)
        rows = count + durations_of(codes, count).clamp(1, most) - 1
        places = [
            ("emission", frames, real),
            ("segment", before * count + labels, joined),
            ("segment", rows * count + labels, begins),
        ]
        if self.boundary:
            places.append(("emission", frames + count, begins))
        return [(name, place.masked_fill(~chosen, 0), chosen) for name, place, chosen in places]

    def __repr__(self) -> str:
        least = self.min_duration
        shown = least if len(set(least)) > 1 else least[0]
        weighted = "" if self.class_weight is None else f", class_weight={digest(self.class_weight)}"
        return (
            f"Segments({self.num_labels}, {self.max_duration}, min_duration={shown}, boundary={self.boundary}, "
            f"span_loss={self.span_loss}{weighted})"
        )


def _within(codes: Tensor) -> Tensor:
    """Mask ``[B, N]`` of the places up to the last label or code that is not negative."""
    return (codes >= 0).flip(1).cumsum(1).flip(1) > 0


def best_segmentations(emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor, n: int) -> NBest:
    """The n best codes of every sequence, in O(T D^2 K^2) time and O(T D K + D^2 K^2) memory for each.

    State ``(d - 1) K + k`` is frame d of a segment of label k. Every segmentation is one path of these states: it goes
    on to the next frame of the segment, or pays for the duration and begins another one. ``emission`` is ``[B, N, K]``,
    or ``[B, N, 2 K]`` with scores of frames where a segment begins; ``segment`` ``[B, K + D, K]``; ``least`` ``[K]``
    int64; ``lengths`` ``[B]`` int64, on the CPU.
    """
    emission, segment = emission.detach().double().cpu(), segment.detach().double().cpu()
    batch, longest, width = emission.shape
    states, most = segment.shape[2], segment.shape[1] - segment.shape[2]
    ends = segment[:, states:].clone()  # [B, D, K], what a segment pays where it ends after d frames
    ends[:, torch.arange(1, most + 1).unsqueeze(1) < least.cpu()] = -torch.inf
    size = most * states
    pairs = torch.full((batch, most, states, most, states), -torch.inf, dtype=torch.float64)
    pairs[:, :, :, 0] = ends.unsqueeze(3) + segment[:, None, :states]
    within, label = torch.arange(most - 1).unsqueeze(1), torch.arange(states)
    pairs[:, within, label, within + 1, label] = 0.0
    frames = emission[..., :states].unsqueeze(2).repeat(1, 1, most, 1)  # [B, N, D, K]
    if width > states:
        frames[:, :, 0] += emission[..., states:]
    frames[:, 0, 1:] = -torch.inf
    frames[torch.arange(batch), lengths - 1] += ends
    paths = nbest(frames.view(batch, longest, size), pairs.view(batch, size, size), lengths, n)
    codes = paths.labelings.remainder(states) + states * (paths.labelings < states)
    return NBest(torch.where(paths.labelings < 0, -1, codes), paths.values)


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


def _codes(value: Any, name: str, form: str) -> Tensor:
    """``value``, if it is int64 ``[B, N]``."""
    return check_int64(value, name, value.shape if getattr(value, "ndim", 0) == 2 else ("B", "N"), form)


def span_fault(span: Any, at: int) -> str:
    """The rule that a span which begins at frame ``at`` breaks; empty if none."""
    try:
        start, end, _ = span
        if operator.index(start) == at < operator.index(end):
            return ""
    except (TypeError, ValueError):  # not three, or not whole numbers
        pass
    return f"spans are (start, end, label), whole numbers with start {at} and a larger end, the frame after the last"


def span_f1(
    predicted: Sequence[Sequence[Any]], true: Sequence[Sequence[Any]], overlap: float = 1.0, times: Any = None
) -> float:
    """The F1 score of spans over all sequences; 1 where there are none.

    A span is right where start, end and label are; or, with an ``overlap`` below 1, where the label is, and the frames
    that both spans have are that share or more of the frames that either has (Lea et al., Temporal Convolutional
    Networks for Action Segmentation and Detection, 2017). Then the spans of a sequence must not overlap one another.

    Args:
        overlap: 0.5 to 1.
        times: ``[n]``, how often each sequence counts; None is once.

    Example:
        >>> span_f1([[(0, 2, 1), (2, 3, 0)]], [[(0, 2, 1), (2, 4, 0)]])
        0.5
        >>> span_f1([[(0, 2, 1), (2, 3, 0)]], [[(0, 2, 1), (2, 4, 0)]], overlap=0.5)
        1.0

    Raises:
        TypeError: An argument is not lists of spans, or not a number.
        ValueError: ``predicted``, ``true`` and ``times`` differ in length, or a number is out of range.
    """
    times = [1.0] * len(true) if times is None else times.tolist() if hasattr(times, "tolist") else list(times)
    if not 0.5 <= check_number(overlap, "overlap") <= 1.0:
        raise ValueError(f"overlap={overlap} must be 0.5 to 1")
    right, total = 0.0, 0.0
    for count, *spans in zip(times, predicted, true, strict=True):
        given, correct = ({(begin, end, label) for begin, end, label in several} for several in spans)
        total += check_number(count, "times", 0.0) * (len(given) + len(correct))
        right += count * (len(given & correct) if overlap == 1.0 else _overlapping(given, correct, overlap))
    return float(2.0 * right / total) if total else 1.0


def _overlapping(predicted: set[Any], correct: set[Any], overlap: float) -> int:
    """Number of right spans, counted in one sweep over both."""
    given, true, right = sorted(predicted), sorted(correct), 0
    i = j = 0
    while i < len(given) and j < len(true):
        (start, end, label), (begin, stop, other) = given[i], true[j]
        shared = min(end, stop) - max(start, begin)
        hit = label == other and shared >= overlap * (max(end, stop) - min(start, begin))
        right += hit
        i, j = i + (hit or end <= stop), j + (hit or end > stop)
    return right
