"""Sparse features, as lists of columns and values, and lists of features by name, of which they are made."""

from __future__ import annotations

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole, number_of
from torchssvm.core.row_sparse import add_at


class SparseFeatures(NamedTuple):
    """Sparse features of a batch: a list of columns for each token, or for each arc with :class:`LinearArcs`.

    If a column occurs more than once in a list, its values add up.

    Attributes:
        columns: ``[B, N, P]`` (arcs: ``[B, N, N+1, P]``) int64 or int32: the non-zero features, 0 to F - 1; -1 is
            padding.
        values: Shaped like ``columns``, of the weights' dtype, finite and ignored in the padding; None means all 1.

    Example:
        >>> columns = torch.tensor([[[0, 7], [3, -1]]])  # two tokens: one has features 0 and 7, one has feature 3
        >>> features = SparseFeatures(columns)
        >>> SparseLinearChain(in_features=10, num_states=2)(features)["emission"].shape
        torch.Size([1, 2, 2])
    """

    columns: Tensor
    values: Tensor | None = None

    def dense(self, num_features: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same features as ``[B, N, num_features]``; for small problems.

        Raises:
            ValueError: A column is beyond ``num_features``.
        """
        check_whole(num_features, "num_features")
        if self.columns.numel() and int(self.columns.max()) >= num_features:
            raise ValueError(f"columns hold {int(self.columns.max())}, so num_features={num_features} must be larger")
        columns, real = self.columns.clamp(min=0).long(), self.columns >= 0
        values = real.to(dtype) if self.values is None else torch.where(real, self.values.to(dtype), 0.0)
        x = torch.zeros(*columns.shape[:-1], num_features, dtype=dtype, device=columns.device)
        return add_at(x, columns, values)  # a column may occur twice in a list


def padded_lists(start: Tensor, count: Tensor, columns: Tensor, values: Tensor | None = None) -> SparseFeatures:
    """Stretches of one long list side by side, padded to the longest.

    A list begins at ``start`` ``[...]`` int64 and has ``count`` entries of ``columns`` and ``values`` ``[M]``, of which
    None means that all are 1. Returns columns int64 ``[..., P]``, P at least 1, -1 in the padding, and values, 0 there.
    """
    within = torch.arange(int(count.max()) if count.any() else 1)
    there = within < count.unsqueeze(-1)
    if not len(columns):  # nothing can be read
        zeros = None if values is None else torch.zeros(there.shape, dtype=values.dtype)
        return SparseFeatures(torch.full(there.shape, -1), zeros)
    at = torch.where(there, start.unsqueeze(-1) + within, 0)
    found = torch.where(there, columns[at].long(), -1)
    return SparseFeatures(found, None if values is None else torch.where(there, values[at], 0.0))


def named_tokens(X: Iterable[Sequence[Any]]) -> Iterator[list[tuple[str, float]]]:
    """The features of each token, by name: a text becomes ``name=text`` with the value 1, True is 1, 0 is left out.

    Those of a dictionary in a dictionary are ``name:inner``, as CRFsuite calls them; there is one level of these. A
    token is ``{name: bool, text or number}``, or a list of names, each of the value 1.

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
        f"is a {type(token).__name__}: give {{name: text, number, True or False}}, a list of names, or arrays [N, F]"
    )


def _values_of(token: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    for name, value in token.items():
        if not isinstance(name, str):
            raise TypeError(f"has a feature named {name!r}: names are texts")
        if isinstance(value, str):
            yield f"{name}={value}", 1.0
        elif isinstance(value, Mapping) and not any(isinstance(inner, Mapping) for inner in value.values()):
            yield from ((f"{name}:{inner}", number) for inner, number in _values_of(value))
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


class FeatureLists:
    """The features of sequences that have a column in ``vocabulary``, token after token.

    Attributes:
        lengths: int64 ``[n]``, tokens of each sequence.
        offsets: int64 ``[n + 1]``: sequence i has the tokens ``offsets[i]`` to ``offsets[i + 1] - 1``.
        rows: int64 ``[tokens + 1]``: token t has the features ``columns[rows[t] : rows[t + 1]]``, with these values.
        columns: int32 ``[M]``.
        values: float32 ``[M]``; None where all are 1.
    """

    def __init__(self, X: Sequence[Sequence[Any]], vocabulary: Mapping[str, int]) -> None:
        self._read(X, vocabulary.get)

    def _read(self, X: Sequence[Sequence[Any]], find: Callable[[str], int | None]) -> None:
        columns: list[int] = []
        values: list[float] = []
        ends = [0]
        for token in named_tokens(X):
            for name, value in token:
                if (column := find(name)) is not None:
                    columns.append(column)
                    values.append(value)
            ends.append(len(columns))
        lengths, numbers = torch.tensor([len(sequence) for sequence in X]), torch.tensor(values, dtype=torch.float32)
        self._set(lengths, torch.tensor(ends), torch.tensor(columns, dtype=torch.int32), numbers)

    def _set(self, lengths: Tensor, rows: Tensor, columns: Tensor, values: Tensor | None) -> None:
        self.lengths, self.rows, self.columns = lengths, rows, columns
        self.offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        self.values = None if values is None or bool((values == 1.0).all()) else values

    def has_beyond(self, column: int, first: int) -> bool:
        """Whether one of the ``first`` sequences has a feature at this column or behind it."""
        return bool((self.columns[: self.rows[self.offsets[first]]] >= column).any())

    def batch(self, rows: Tensor) -> SparseFeatures:
        """The sequences ``rows`` ``[B]``: ``[B, N, P]``, -1 in the columns where a list or a sequence ends."""
        place = torch.arange(int(self.lengths[rows].max()))
        real = place < self.lengths[rows].unsqueeze(1)
        token = torch.where(real, self.offsets[rows].unsqueeze(1) + place, 0)
        count = torch.where(real, self.rows[token + 1] - self.rows[token], 0)
        return padded_lists(self.rows[token], count, self.columns, self.values)


class NamedLists(FeatureLists):
    """Sequences whose names of features are read once, before it is known which of them have a column.

    ``columns`` are the numbers of names in the order in which they occur.
    """

    def __init__(self, X: Sequence[Sequence[Any]]) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._read(X, self._numbers.__getitem__)

    def with_more(self, X: Sequence[Sequence[Any]]) -> NamedLists:
        """These sequences, and others behind them."""
        numbers = self._numbers.copy()
        numbers.default_factory = itertools.count(len(numbers)).__next__
        more, found = copy.copy(self), copy.copy(self)
        found._numbers = numbers
        more._read(X, numbers.__getitem__)
        values = None
        if self.values is not None or more.values is not None:
            values = torch.cat([torch.ones(len(o.columns)) if o.values is None else o.values for o in (self, more)])
        rows = torch.cat([self.rows, self.rows[-1] + more.rows[1:]])
        lengths, columns = (torch.cat([getattr(o, name) for o in (self, more)]) for name in ("lengths", "columns"))
        found._set(lengths, rows, columns, values)
        return found

    def vocabulary(self, min_count: int, known: Mapping[str, int] | None = None) -> dict[str, int]:
        """A column for each feature that occurs at least ``min_count`` times, in alphabetical order, behind ``known``.

        What is known has its column, however often it occurs.
        """
        counts, held = torch.bincount(self.columns, minlength=len(self._numbers)).tolist(), known or {}
        new = sorted(name for name, number in self._numbers.items() if counts[number] >= min_count and name not in held)
        return {**held, **{name: column for column, name in enumerate(new, len(held))}}

    def lists(self, vocabulary: Mapping[str, int]) -> FeatureLists:
        """The features that have a column, in these columns."""
        column = torch.tensor([vocabulary.get(name, -1) for name in self._numbers], dtype=torch.int32)
        columns, found = column[self.columns.long()], FeatureLists.__new__(FeatureLists)
        real = columns >= 0
        rows = torch.nn.functional.pad(real.cumsum(0), (1, 0))[self.rows]
        found._set(self.lengths, rows, columns[real], None if self.values is None else self.values[real])
        return found
