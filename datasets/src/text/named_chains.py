"""Chains of tokens whose features have names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchssvm.core.arguments import check_object, check_readable, check_several, check_whole, places_of
from torchssvm.core.sparse_features import FeatureLists, NamedLists

from .sparse_chains import SparseChains


class NamedChains(SparseChains):
    """A map-style dataset of n sequences of tokens with features by name, for ``SparseLinearChain``.

    Items and batches are as in :class:`SparseChains`.

    Args:
        x: For every sequence, for every token, its features: a list of names, each of the value 1, or
            ``{name: text, number, True or False}``, where a text becomes the feature ``name=text``.
        y: For every sequence, the label of each token, a text.
        vocabulary: The column of every feature by its name, from the training set; features without a column are
            left out. None gives a column to each feature of ``x`` that occurs at least ``min_count`` times.
        labels: The labels in the order of the states, from the training set; None is the labels of ``y`` in
            alphabetical order.
        min_count: As above; of no meaning with a vocabulary.

    Attributes:
        vocabulary: As given, or made.
        labels: As given, or made.

    Raises:
        ValueError: ``x`` and ``y`` differ in length, there is no token in a sequence or no feature, or a label is not
            one of ``labels``, which has one twice; a feature's value is neither a text, nor a finite number or bool; or
            a column is negative.
        TypeError: A token or a label is of another kind.

    Example:
        >>> x = [[{"word": "the", "first": True}, {"word": "cat"}], [["word=dogs"]]]
        >>> train = NamedChains(x, [["DET", "NOUN"], ["NOUN"]])
        >>> train.vocabulary
        {'first': 0, 'word=cat': 1, 'word=dogs': 2, 'word=the': 3}
        >>> test = NamedChains([[["word=cat"]]], [["NOUN"]], vocabulary=train.vocabulary, labels=train.labels)
        >>> test[0].x.columns, test[0].y
        (tensor([[1]]), tensor([1]))
    """

    what = "sequences"

    def __init__(
        self,
        x: Sequence[Sequence[Any]],
        y: Sequence[Sequence[str]],
        *,
        vocabulary: Mapping[str, int] | None = None,
        labels: Sequence[str] | None = None,
        min_count: int = 1,
    ) -> None:
        check_whole(min_count, "min_count")
        check_object({} if vocabulary is None else vocabulary, "vocabulary", "items", '{"word=the": 0}')
        for name, given in (("x", x), ("y", y), ("labels", labels or ())):
            check_several(given, name, "a list")
            check_readable(given, name)
        _check_lengths(x, y)
        known = sorted({label for sequence in y for label in sequence}, key=str) if labels is None else list(labels)
        if wrong := [label for label in known if not isinstance(label, str)]:
            raise TypeError(f"the label {wrong[0]!r} must be a text")
        state = places_of(known)
        for name, column in (vocabulary or {}).items():
            check_whole(column, f"vocabulary[{name!r}]", 0)
        if wrong := [label for sequence in y for label in sequence if label not in state]:
            raise ValueError(f"y holds {wrong[0]!r}, which is not one of labels={known}")
        named = NamedLists(x) if vocabulary is None else None
        columns = dict(vocabulary or {}) if named is None else named.vocabulary(min_count)
        if not columns:
            raise ValueError(f"x has no feature that occurs min_count={min_count} times")
        lists = FeatureLists(x, columns) if named is None else named.lists(columns)
        super().__init__(
            offsets=lists.offsets,
            rows=lists.rows,
            columns=lists.columns,
            states=torch.tensor([state[label] for sequence in y for label in sequence]),
            in_features=1 + max(columns.values()),
            num_states=len(known),
            values=lists.values,
        )
        self.vocabulary, self.labels = columns, known


def _check_lengths(x: Any, y: Any) -> None:
    if not len(x) or len(x) != len(y):
        raise ValueError(f"x has {len(x)} sequences and y has {len(y)}: give at least one, and labels for each")
    for i, (tokens, labels) in enumerate(zip(x, y, strict=True)):
        check_readable(tokens, f"x[{i}]")
        check_readable(labels, f"y[{i}]")
        if isinstance(labels, str):
            raise TypeError(f"y[{i}]={labels!r} must be a list of labels, one for each token of x[{i}]")
        if not len(tokens) or len(tokens) != len(labels):
            raise ValueError(f"x[{i}] has {len(tokens)} tokens and y[{i}] has {len(labels)} labels: at least one each")
