"""Segmentation of sequences: spans of frames, each with a label."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from torchssvm.core.arguments import check_readable, check_whole, number_of
from torchssvm.estimators.base import SequenceEstimator
from torchssvm.estimators.examples import (
    ARRAYS,
    PerExample,
    batches_of,
    check_counts,
    check_kind,
    check_list,
    check_lists,
    counted,
    labelled,
    listed,
    rows_of,
    size_of,
    state_weights,
    states_of,
    times_of,
)
from torchssvm.structures.segments.head import LinearSegments
from torchssvm.structures.segments.structure import Segments, span_f1, span_fault

Span = tuple[int, int, Any]
"""First frame, the frame after the last, and label."""


@dataclass(eq=False, repr=False, kw_only=True)
class SegmentSVC(SequenceEstimator):
    """Cuts sequences into labelled segments by a semi-Markov model, trained by max margin to a certified gap.

    The score of a segmentation is the sum of ``coef_`` times the features of each frame and ``intercept_``, of
    ``durations_`` of its segments, and of ``transitions_`` of neighbours.

    ``X`` is a list of arrays ``[N_i, F]``, a row for each frame. ``y`` is a list of lists: of spans
    ``(start, end, label)``, which follow one another from 0 to N_i, or of labels of frames, whose runs are the
    segments. Labels are texts or numbers.

    Args:
        C, lam, tol, max_passes, random_state, verbose, warm_start: As in :class:`MultinomialSVC`.
        max_duration: The largest duration in frames; None takes it from the training set, or from all so far with
            ``warm_start``.
        min_duration: The smallest duration of every label, or a list by label, in the order of ``classes_``.
        boundary: Whether features also score that a segment begins at a frame.
        span_loss: Whether the loss counts missed and wrong spans, or wrong frames.
        class_weight: None, "balanced", or a dictionary by label: the cost of a wrong frame, by its true label.

    Attributes:
        classes_: ``[K]``, the labels in ascending order.
        coef_: ``[K, F]``; ``[2 K, F]`` with ``boundary``, first frames in the second half.
        intercept_: ``[K]``, or ``[2 K]``.
        transitions_: ``[K, K]``, from the label before to the label after.
        durations_: ``[D, K]``, of durations 1 to D by label.
        temperature_: Scores are divided by it for probabilities; :meth:`calibrate` sets it.
        n_features_in_, feature_names_in_: F; and the names of columns, where X had them.
        certificate_, n_passes_, history_, head_, structure_: As in :class:`MultinomialSVC`.

    Example:
        >>> X = [[[1.0], [0.9], [0.0], [0.1]], [[0.0], [1.0], [1.1]]]
        >>> y = [[(0, 2, "on"), (2, 4, "off")], [(0, 1, "off"), (1, 3, "on")]]
        >>> SegmentSVC(C=10.0).fit(X, y).predict([[[0.1], [0.0], [1.0]]])
        [[(0, 2, 'off'), (2, 3, 'on')]]
    """

    _kind = ARRAYS

    max_duration: int | None = None
    min_duration: Any = 1
    boundary: bool = False
    span_loss: bool = False
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SegmentSVC:
        """Train on the sequences ``X`` and their segments ``y``.

        Args:
            sample_weight: ``[n]``, how often each sequence counts, as in :class:`MultinomialSVC`.

        Raises:
            ValueError: A parameter is out of range, a sequence is empty, there is one label only, spans do not follow
                one another or are longer than ``max_duration`` or shorter than ``min_duration``, or X and y do not fit.
        """
        self._check_parameters()
        X, y = listed(X), listed(y)
        check_list(X)
        X, y, times, total = counted(X, y, sample_weight)
        self._check_kind(X)
        self._check_names(X, reset=self._begins)
        rows, lengths = rows_of(X), [size_of(sequence) for sequence in X]
        spans = _spans_of(y, lengths)
        classes, states = states_of(check_lists(_labels_of(spans), [len(row) for row in spans], "span"))
        longest = max(end - start for row in spans for start, end, _ in row)
        if self.max_duration is not None:
            most = check_whole(self.max_duration, "max_duration")
        else:
            most = max(longest, self.structure_.max_duration if self._goes_on and self._run else 1)
        if longest > most:
            raise ValueError(f"max_duration={most}, and y has a segment of {longest} frames: give {longest}, or None")
        frames = _frames(states, spans)
        weights = state_weights(self.class_weight, classes, frames, times)
        options = {"min_duration": self.min_duration, "boundary": self.boundary, "span_loss": self.span_loss}
        structure = Segments(len(classes), most, class_weight=weights, **options)
        head = LinearSegments(rows[0].shape[1], len(classes), most, structure=structure)
        head = head.double() if rows[0].dtype == np.float64 else head
        examples = labelled(lengths, _codes(frames, spans, len(classes)), batches_of(rows))
        head = self._train(head, examples, self._lam(total or len(lengths)), weight=times)
        self.classes_, self.n_features_in_ = classes, head.in_features
        trained = (head.emission, head.bias, head.transition, head.duration)
        self.coef_, self.intercept_, self.transitions_, self.durations_ = (t.detach().numpy().copy() for t in trained)
        return self

    def predict(self, X: Any) -> PerExample:
        """The best segmentation of every sequence, spans ``(start, end, label)``; [] for an empty one."""
        check_is_fitted(self)
        X = listed(X)
        check_list(X)
        outputs = PerExample([] for _ in X)
        for index, _, potentials in self._scored(X):
            for i, spans in zip(index, self.structure_._spans(self.structure_.decode(potentials)), strict=True):
                names = self.classes_[[label for _, _, label in spans]].tolist()
                outputs[i] = [(s, e, name) for (s, e, _), name in zip(spans, names, strict=True)]
        return outputs

    def _states(self, y: Any, lengths: list[int]) -> list[np.ndarray]:
        spans = _spans_of(y, lengths)
        classes, states = states_of(check_lists(_labels_of(spans), [len(row) for row in spans], "span"), self.classes_)
        self._check_known(classes)
        return _codes(_frames(states, spans), spans, len(classes))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The F1 score of spans: one is right where start, end and label are; ``sample_weight`` as in :meth:`fit`."""
        X, y = listed(X), listed(y)
        check_list(X)
        spans = _spans_of(y, [size_of(sequence) for sequence in X])
        check_kind(_labels_of(spans), self.classes_)
        return span_f1(self.predict(X), spans, times=times_of(sample_weight, len(X)))


def _spans_of(y: Any, lengths: list[int]) -> list[list[Span]]:
    filled = [row for row in y if hasattr(row, "__len__") and len(row)] if hasattr(y, "__len__") else []
    if not filled or not isinstance(next(iter(filled[0])), tuple | list | dict):
        return [_runs(labels) for labels in check_lists(y, lengths, "frame")]
    check_readable(y, "y")
    check_counts(lengths, y)
    for row, (spans, length) in enumerate(zip(y, lengths, strict=True)):
        place, at = number_of(row), 0
        check_readable(spans, f"y[{place}]")
        for span in spans:
            if fault := span_fault(span, at):
                raise ValueError(f"y[{place}] has {span!r}: {fault}")
            at = span[1]
        if at != length:
            raise ValueError(f"y[{place}] has spans up to {at}, and X[{place}] has {length} frames: cover them all")
    return [[(start, end, label) for start, end, label in spans] for spans in y]


def _runs(labels: Any) -> list[Span]:
    spans: list[Span] = []
    for label, run in itertools.groupby(labels):
        start = spans[-1][1] if spans else 0
        spans.append((start, start + len(list(run)), label))
    return spans


def _frames(states: list[np.ndarray], spans: list[list[Span]]) -> list[np.ndarray]:
    return [np.repeat(k, [end - start for start, end, _ in row]) for k, row in zip(states, spans, strict=True)]


def _codes(frames: list[np.ndarray], spans: list[list[Span]], classes: int) -> list[np.ndarray]:
    """The targets of the structure: the states of frames, marked in place where a span begins."""
    for states, row in zip(frames, spans, strict=True):
        states[[start for start, _, _ in row]] += classes
    return frames


def _labels_of(spans: list[list[Span]]) -> list[list[Any]]:
    return [[label for _, _, label in row] for row in spans]
