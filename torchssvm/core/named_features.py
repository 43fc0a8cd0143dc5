"""Tokens described by named features, as lists of columns."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.naming import number_of
from torchssvm.core.sparse_features import SparseFeatures, padded_lists


def named_tokens(X: Iterable[Sequence[Any]]) -> Iterator[list[tuple[str, float]]]:
    """The features of each token, by name: a text becomes ``name=text`` with the value 1, True is 1, 0 is left out.

    Args:
        X: Sequences of tokens: ``{name: bool, text or number}``, or a list of names, each of the value 1.

    Raises:
        TypeError: A token is something else.
        ValueError: A number is not finite.
    """
    for place, sequence in enumerate(X):
        for at, token in enumerate(sequence):
            try:
                yield list(_named_values(token))
            except (TypeError, ValueError) as error:
                raise type(error)(f"token {at} of sequence {number_of(place)} {error}") from None


def _named_values(token: Any) -> Iterable[tuple[str, float]]:
    if isinstance(token, list | tuple | set | frozenset) and all([isinstance(name, str) for name in token]):
        return zip(token, itertools.repeat(1.0), strict=False)
    if isinstance(token, Mapping):
        return _values_of(token)
    raise TypeError(
        f"is a {type(token).__name__}: give {{name: text, number, True or False}}, or a list of "
        "names; or one array [N, F] for each sequence"
    )


def _values_of(token: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    for name, value in token.items():
        if not isinstance(name, str):
            raise TypeError(f"has a feature named {name!r}: names are texts")
        if isinstance(value, str):
            yield f"{name}={value}", 1.0
        elif isinstance(value, Real | np.bool_):
            try:
                number = float(value)
            except OverflowError:  # a whole number of hundreds of digits
                number = math.inf
            if not math.isfinite(number):
                raise ValueError(f"has the feature {name!r} = {number}, which is not finite")
            if number:
                yield name, number
        else:
            raise TypeError(f"has the feature {name!r} = {value!r}: values are texts, numbers, True or False")


def vocabulary_of(X: Iterable[Sequence[Any]], min_count: int) -> dict[str, int]:
    """A column for every feature that occurs at least ``min_count`` times, in alphabetical order."""
    counts = Counter(name for token in named_tokens(X) for name, _ in token)
    return {name: column for column, name in enumerate(sorted(name for name in counts if counts[name] >= min_count))}


class FeatureLists:
    """The known features of sequences, token after token.

    Args:
        X: Sequences of tokens.
        vocabulary: The column of each feature; features that it does not have are left out.

    Attributes:
        lengths: int64 ``[n]``, tokens of each sequence.
        offsets: int64 ``[n + 1]``: sequence i has the tokens ``offsets[i]`` to ``offsets[i + 1] - 1``.
        rows: int64 ``[tokens + 1]``: token t has the features ``columns[rows[t] : rows[t + 1]]``, with these values.
        columns: int32 ``[M]``.
        values: float32 ``[M]``; None where all are 1.
    """

    def __init__(self, X: Sequence[Sequence[Any]], vocabulary: Mapping[str, int]) -> None:
        self.lengths = torch.tensor([len(sequence) for sequence in X])
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])
        columns: list[int] = []
        values: list[float] = []
        ends = [0]
        for token in named_tokens(X):
            for name, value in token:
                if (column := vocabulary.get(name)) is not None:
                    columns.append(column)
                    values.append(value)
            ends.append(len(columns))
        self.columns, self.rows = torch.tensor(columns, dtype=torch.int32), torch.tensor(ends)
        found = torch.tensor(values, dtype=torch.float32)
        self.values = None if bool((found == 1.0).all()) else found

    def batch(self, rows: Tensor) -> SparseFeatures:
        """The sequences ``rows`` ``[B]``: ``[B, N, P]``, -1 in the columns where a list or a sequence ends."""
        place = torch.arange(int(self.lengths[rows].max()))
        real = place < self.lengths[rows].unsqueeze(1)
        token = torch.where(real, self.offsets[rows].unsqueeze(1) + place, 0)
        count = torch.where(real, self.rows[token + 1] - self.rows[token], 0)
        return padded_lists(self.rows[token], count, self.columns, self.values)
