"""Sparse features as lists of columns and values, and lists of features by name."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_tensor, check_type, check_whole, describe, number_of
from torchssvm.core.modules import largest_feature
from torchssvm.core.operators import scalars
from torchssvm.core.row_sparse import add_at, per_example_rows
from torchssvm.core.threads import torch_threads

_LARGEST = sys.float_info.max


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

    @classmethod
    def of_rows(cls, matrix: Any) -> SparseFeatures:
        """The rows of a scipy sparse matrix ``[n, F]``, as ``[n, P]``: a saved ``MultilabelSVC`` takes them.

        Raises:
            TypeError: ``matrix`` is no sparse matrix.
        """
        if not hasattr(matrix, "tocsr"):
            raise TypeError(f"matrix must be a scipy sparse matrix [n, F], got {describe(matrix)}")
        rows = matrix.tocsr()
        columns, values = torch.from_numpy(rows.indices), torch.from_numpy(rows.data)
        return padded_lists(rows.indptr[:-1].astype(np.int64), np.diff(rows.indptr), columns, values)

    def dense(self, num_features: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same features as ``[B, N, num_features]``, for small problems; ValueError for columns out of range."""
        _check_columns(self.columns, check_whole(num_features, "num_features"))
        columns, real = self.columns.clamp(min=0).long(), self.columns >= 0
        values = real.to(dtype) if self.values is None else torch.where(real, self.values.to(dtype), 0.0)
        x = torch.zeros(*columns.shape[:-1], num_features, dtype=dtype, device=columns.device)
        return add_at(x, columns, values)  # a column may occur twice in a list


def padded_lists(start: np.ndarray, count: np.ndarray, columns: Tensor, values: Tensor | None = None) -> SparseFeatures:
    """Stretches of one long list side by side, padded to the longest.

    A list begins at ``start`` ``[...]`` int64 and has ``count`` entries of ``columns`` and ``values`` ``[M]``, of which
    None means that all are 1. Returns columns int64 ``[..., P]``, P at least 1, -1 in the padding, and values, 0 there.
    """
    # In NumPy: operations on a sentence take a third of torch's time, and start no threads.
    within = np.arange(count.max(initial=1))
    there = within < count[..., None]
    at = (start[..., None] + within)[there]
    chosen = np.full(there.shape, -1, np.int64)
    chosen[there] = columns.numpy()[at]
    if values is None:
        return SparseFeatures(torch.from_numpy(chosen))
    numbers = values.numpy()
    factors = np.zeros(there.shape, numbers.dtype)
    factors[there] = numbers[at]
    return SparseFeatures(torch.from_numpy(chosen), torch.from_numpy(factors))


def padded_tokens(offsets: Tensor, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of sequences side by side: their numbers ``[B, N]`` int64, 0 in the padding, and a mask of the others.

    Sequence i has the tokens ``offsets[i]`` to ``offsets[i + 1] - 1``; ``rows`` ``[B]`` int64 chooses sequences.
    """
    ends = offsets.numpy()
    start = ends[rows]
    length = ends[rows + 1] - start
    place = np.arange(length.max())
    real = place < length[:, None]
    return np.where(real, start[:, None] + place, 0), real


def padded_sequences(
    token: np.ndarray, real: np.ndarray, rows: Tensor, columns: Tensor, values: Tensor | None
) -> SparseFeatures:
    """:func:`padded_lists` of :func:`padded_tokens`; token t has the entries ``rows[t]`` to ``rows[t + 1] - 1``."""
    ends = rows.numpy()
    start = ends[token]
    return padded_lists(start, (ends[token + 1] - start) * real, columns, values)


def read_token(token: Any, place: tuple[int, int], names: list[str], values: list[float]) -> None:
    """Append the names and values of the features of a token, which has a ``place``: sequence and token.

    A token is ``{name: bool, text or number}``, or a list or set of names, each of the value 1. A text becomes
    ``name=text`` with the value 1, True is 1, and 0 is left out. Names in a dictionary, a list or a set in a dictionary
    become ``name:inner``, as CRFsuite calls them, at any depth.
    """
    if (given := _names_in(token)) is not None:
        names.extend(given)
        values.extend([1.0] * len(given))
    elif isinstance(token, dict | Mapping):
        _read_values(token, "", place, names, values)
    else:
        raise TypeError(
            f"{_where(*place)} is a {type(token).__name__}: give {{name: text, number or bool}}, or a list of names"
        )


def _where(place: int, at: int) -> str:
    return f"token {at} of sequence {number_of(place)}"


def _names_in(value: Any) -> Sequence[str] | None:
    """A list or set of texts as a list, sets in alphabetical order, which is one in all processes; None for others."""
    if not isinstance(value, _LISTS):
        return None
    try:
        "".join(value)  # takes texts alone, and a sixth of the time of a check of each
    except TypeError:
        return None
    return sorted(value) if isinstance(value, set | frozenset) else value


_LISTS = (list, tuple, set, frozenset)
_NUMBER = (bool, float, int, Real, np.bool_)  # the usual ones first: a check of Real is slow


def _read_values(
    token: Mapping[Any, Any], prefix: str, place: tuple[int, int], names: list[str], values: list[float]
) -> None:
    """Append the names, behind ``prefix``, and the values of a dictionary's features."""
    for name, value in token.items():
        if isinstance(value, str):
            names.append(f"{prefix}{name}={value}")
            values.append(1.0)
        elif isinstance(name, str) and isinstance(value, _NUMBER) and abs(float(value)) <= _LARGEST:
            if value:
                names.append(prefix + name)
                values.append(float(value))
        elif isinstance(value, Mapping):
            _read_values(value, f"{prefix}{name}:", place, names, values)
        elif (inside := _names_in(value)) is not None:
            names.extend(f"{prefix}{name}:{inner}" for inner in inside)
            values.extend([1.0] * len(inside))
        else:
            raise ValueError(
                f"{_where(*place)} has the feature {name!r}={value!r}: names are texts, values texts, finite numbers "
                "or bools"
            )


def _ends(counts: np.ndarray) -> np.ndarray:
    """0, and the sum of the counts up to each: ``[n + 1]`` int64."""
    ends = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=ends[1:])
    return ends


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
        self._read(X, lambda names: map(vocabulary.get, names, itertools.repeat(-1)))

    def _read(self, X: Sequence[Sequence[Any]], columns_of: Callable[[Sequence[str]], Iterable[int]]) -> None:
        columns: list[int] = []
        values: list[float] = []
        ends = [0]
        for place, sequence in enumerate(X):
            names: list[str] = []
            for at, token in enumerate(sequence):
                read_token(token, (place, at), names, values)
                ends.append(len(values))
            columns.extend(columns_of(names))
        lengths, numbers = np.array([len(sequence) for sequence in X], np.int64), None
        if values.count(1.0) < len(values):
            with np.errstate(over="ignore"):  # to inf, silently as in torch
                numbers = np.array(values, np.float32)
        self._set(lengths, np.array(ends, np.int64), np.array(columns, np.int32), numbers)

    def _set(self, lengths: np.ndarray, rows: np.ndarray, columns: np.ndarray, values: np.ndarray | None) -> None:
        """Set the attributes; features of the column -1 are left out."""
        real = columns >= 0
        if not real.all():
            rows = _ends(real)[rows]
            columns, values = columns[real], None if values is None else values[real]
        self.lengths, self.offsets = torch.from_numpy(lengths), torch.from_numpy(_ends(lengths))
        self.rows, self.columns = torch.from_numpy(rows), torch.from_numpy(columns)
        self.values = None if values is None or (values == 1.0).all() else torch.from_numpy(values)

    def has_beyond(self, column: int, first: int) -> bool:
        """Whether one of the ``first`` sequences has a feature at this column or behind it."""
        return bool((self.columns[: self.rows[self.offsets[first]]] >= column).any())

    def batch(self, rows: np.ndarray) -> SparseFeatures:
        """The sequences ``rows`` ``[B]``: ``[B, N, P]``, -1 in the columns where a list or a sequence ends."""
        return padded_sequences(*padded_tokens(self.offsets, rows), self.rows, self.columns, self.values)

    def tokens(self, rows: np.ndarray) -> TokenLists:
        """What a head makes of :meth:`batch`, without the padding of the lists."""
        token, real = padded_tokens(self.offsets, rows)
        ends = self.rows.numpy()
        first = ends[token].ravel()
        counts = ((ends[token + 1] - ends[token]) * real).ravel()
        starts = counts.cumsum() - counts
        at = np.repeat(first - starts, counts)
        at += np.arange(len(at))
        columns = torch.from_numpy(self.columns.numpy()[at].astype(np.int64))
        values = None if self.values is None else torch.from_numpy(self.values.numpy()[at])
        return TokenLists(columns, values, torch.from_numpy(counts), torch.from_numpy(starts), token.shape)


class NamedLists(FeatureLists):
    """Sequences whose names of features are read once, before it is known which of them have a column.

    ``columns`` are the numbers of names in the order in which they occur.
    """

    def __init__(self, X: Sequence[Sequence[Any]]) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._read(X, lambda names: map(self._numbers.__getitem__, names))

    def with_more(self, X: Sequence[Sequence[Any]]) -> NamedLists:
        """These sequences, and others behind them."""
        numbers = self._numbers.copy()
        numbers.default_factory = itertools.count(len(numbers)).__next__
        more, joined = copy.copy(self), copy.copy(self)
        joined._numbers = numbers
        more._read(X, lambda names: map(numbers.__getitem__, names))
        values = None
        if self.values is not None or more.values is not None:
            values = np.concatenate(
                [np.ones(len(o.columns), np.float32) if o.values is None else o.values for o in (self, more)]
            )
        rows = np.concatenate([self.rows, self.rows[-1] + more.rows[1:]])
        lengths, columns = (np.concatenate([getattr(o, name) for o in (self, more)]) for name in ("lengths", "columns"))
        joined._set(lengths, rows, columns, values)
        return joined

    def vocabulary(self, min_count: int, known: Mapping[str, int] | None = None) -> dict[str, int]:
        """The columns of ``known``, then one for each other feature that occurs ``min_count`` times, sorted."""
        counts, old = torch.bincount(self.columns, minlength=len(self._numbers)).tolist(), known or {}
        new = sorted(name for name, number in self._numbers.items() if counts[number] >= min_count and name not in old)
        return {**old, **{name: column for column, name in enumerate(new, len(old))}}

    def lists(self, vocabulary: Mapping[str, int]) -> FeatureLists:
        """The features that have a column, in these columns."""
        column = np.array([vocabulary.get(name, -1) for name in self._numbers], np.int32)
        chosen = FeatureLists.__new__(FeatureLists)
        values = None if self.values is None else self.values.numpy()
        chosen._set(self.lengths.numpy(), self.rows.numpy(), column[self.columns.numpy()], values)
        return chosen


class Lists(NamedTuple):
    """Features, token after token; the columns of each token are ascending and unique.

    ``counts`` ``[tokens]`` int64 are the numbers of features of each token, ``columns`` ``[M]`` int32, and ``values``
    ``[M]`` of the weights' dtype.
    """

    counts: Tensor
    columns: Tensor
    values: Tensor


def check_finite(x: Tensor | SparseFeatures, index: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError, naming example and place, for the first feature that is not finite or overflows when squared.

    ``index`` ``[B]`` int64 are the examples, ``dtype`` is that of the weights.
    """
    columns, numbers = (x.columns, x.values) if isinstance(x, SparseFeatures) else (None, x)
    if numbers is None:
        return
    if columns is not None:
        numbers = torch.where(columns >= 0, numbers, 0.0)
    numbers = numbers.detach()
    inside, limit = numbers.to(dtype), largest_feature(dtype)
    if not inside.numel() or all(abs(end) <= limit for end in scalars(*inside.aminmax())):  # False of NaN
        return
    wrong = ~(inside.abs() <= limit)
    place = wrong.nonzero()[0].tolist()
    column = place[-1] if columns is None else int(columns[tuple(place)])
    at = place[1:-1]  # of a token or a node, or of an edge or an arc
    where, padding = (f"position {', '.join(map(str, at))}, ", ", padding included") if at else ("", "")
    finite = bool(torch.isfinite(numbers[tuple(place)].to(dtype)))
    fault = "overflow when squared" if finite else "are not finite"
    raise ValueError(
        f"x of example {int(index[place[0]])} holds numbers that {fault} in {dtype}{padding}: "
        f"{float(numbers[tuple(place)])} at {where}column {column}"
    )


def lists_of(x: Tensor) -> Lists:
    """The lists of dense features ``[tokens, F]``."""
    present = (x != 0).numpy()
    place = np.flatnonzero(present)  # twice as fast as torch's nonzero
    columns = torch.from_numpy((place % x.shape[1]).astype(np.int32))
    return Lists(torch.from_numpy(present.sum(1)), columns, x.flatten()[torch.from_numpy(place)])


@torch.no_grad()
def lists_within(x: Any, inside: Tensor, num_features: int, dtype: torch.dtype) -> Lists:
    """The lists of ``SparseFeatures`` at the positions ``inside`` ``[B, N]``; repeated columns add up."""
    lists = as_lists(x, num_features, dtype)
    real = inside.flatten()
    keep = real[lists.token]
    place = (real.cumsum(0) - 1)[lists.token[keep]]  # among the tokens that are inside
    key = place * num_features + lists.columns[keep]
    values = torch.ones(len(key), dtype=dtype) if lists.values is None else lists.values[keep]
    if not bool((key.diff() > 0).all()):
        key, order = key.sort(stable=True)
        key, first = key.unique_consecutive(return_inverse=True)
        values = torch.zeros(len(key), dtype=dtype).index_add_(0, first, values[order])
    counts = torch.bincount(key // num_features, minlength=int(real.sum()))
    return Lists(counts, (key % num_features).to(torch.int32), values)


@dataclass(frozen=True, eq=False)
class TokenLists:
    """The features of a batch's tokens, one token after another.

    Attributes:
        columns: ``[M]`` int64.
        values: ``[M]`` of the weights' dtype; None means all 1.
        counts: ``[B N]`` int64, the number of features of each token.
        starts: ``[B N]`` int64, the first feature of each token.
        shape: B and N.
    """

    columns: Tensor
    values: Tensor | None
    counts: Tensor
    starts: Tensor
    shape: tuple[int, int]

    @functools.cached_property
    def token(self) -> Tensor:
        """``[M]`` int64, ascending: the token of each feature, 0 to B N - 1."""
        tokens = torch.arange(len(self.counts), device=self.counts.device)
        return torch.repeat_interleave(tokens, self.counts, output_size=len(self.columns))

    def emission(self, weight: Tensor) -> Tensor:
        """``x W``, ``[B, N, K]``, in plain operations."""
        rows = weight[self.columns] if self.values is None else weight[self.columns] * self.values.unsqueeze(1)
        total = weight.new_zeros(len(self.starts), weight.shape[1]).index_add(0, self.token, rows)
        return total.view(*self.shape, weight.shape[1])

    def per_example(self, v: Tensor, num_features: int) -> Tensor:
        """``sum_t x_t v_t^T`` of every example, ``[B, F, K]``: a coalesced sparse tensor with K dense numbers a row."""
        batch, longest = self.shape
        rows = v.reshape(batch * longest, -1)
        keep = (rows != 0).any(1)[self.token]
        token, columns = self.token[keep], self.columns[keep]
        values = rows[token]
        if self.values is not None:
            values = values * self.values.detach()[keep].unsqueeze(1)
        return per_example_rows(token // longest, columns, values, (batch, num_features, rows.shape[1]))

    def respond(self) -> Callable[[Tensor], Tensor]:
        """A function of v ``[B, N, K]``, used several times a batch: ``x x^T v`` of every example, ``[B, N, K]``."""
        products = functools.cache(self.token_products)
        return lambda v: products(v.dtype) @ v if self.shape[1] <= STORED else self._by_weights(v)

    def _by_weights(self, v: Tensor) -> Tensor:
        """``x x^T v``, over the columns that occur in an example."""
        width = int(self.columns.max()) + 1 if len(self.columns) else 0
        own, place = (self.token // self.shape[1] * width + self.columns).unique(return_inverse=True)
        factors = torch.ones_like(self.columns) if self.values is None else self.values.detach()
        factors, rows = factors.to(v.dtype).unsqueeze(1), v.flatten(0, 1)
        weights = v.new_zeros(len(own), v.shape[2]).index_add_(0, place, factors * rows[self.token])
        return torch.zeros_like(rows).index_add_(0, self.token, factors * weights[place]).view_as(v)

    def token_products(self, dtype: torch.dtype) -> Tensor:
        """``x_t . x_u`` of each example's tokens, ``[B, N, N]``, over the columns that occur in the example."""
        batch, longest = self.shape
        values = torch.ones(len(self.token), dtype=dtype, device=self.token.device)
        if self.values is not None:
            values = self.values.detach()
        products = values.new_empty(batch, longest, longest)
        sizes = torch.bincount(self.token // longest, minlength=batch).tolist()
        tokens, columns, numbers = (t.split(sizes) for t in (self.token, self.columns, values))
        for b in range(batch):
            own, place = columns[b].unique(return_inverse=True)
            x = values.new_zeros(longest, len(own))
            # A column may occur twice in a list; CUDA sorts the places and adds in a fixed order.
            x.index_put_((tokens[b] - b * longest, place), numbers[b], accumulate=True)
            torch.mm(x, x.t(), out=products[b])
        return products


def check_lists(x: Any) -> SparseFeatures:
    """The features, if type, shapes and dtypes fit; see :func:`as_lists`."""
    columns, values = check_type(x, SparseFeatures, "x", "torchssvm.SparseFeatures(columns, values)")
    check_tensor(columns, "x.columns")
    fits = columns.dtype in (torch.int64, torch.int32) and columns.ndim == 3 and columns.shape[1] > 0
    if values is not None:
        fits = fits and check_tensor(values, "x.values").is_floating_point() and values.shape == columns.shape
    if not fits:
        got = describe(columns) if values is None else f"{describe(columns)} and {describe(values)}"
        raise ValueError(f"x.columns must be int64 [B, N, P], and x.values None or floats of this shape; got {got}")
    return x


def one_token(x: SparseFeatures) -> SparseFeatures:
    """Lists ``[B, P]`` as lists of examples of one token; :func:`check_lists` refuses others."""
    return SparseFeatures(x.columns.unsqueeze(1), None if x.values is None else x.values.unsqueeze(1))


@torch.no_grad()
def lists_of_rows(x: SparseFeatures, num_features: int, dtype: torch.dtype) -> Lists:
    """The lists of features ``[B, P]``, one for each example; repeated columns add up. Errors as :func:`as_lists`."""
    columns, values = check_lists(one_token(x))
    real = columns.squeeze(1) >= 0
    flat, counts = x.columns[real], real.sum(1)
    starts = counts.cumsum(0) - counts
    ascending = flat.diff() > 0
    ascending[starts[(starts > 0) & (starts < len(flat))] - 1] = True  # where the next list begins
    if not bool(ascending.all()):
        inside = torch.ones(len(x.columns), 1, dtype=torch.bool)
        return lists_within(SparseFeatures(columns, values), inside, num_features, dtype)
    _check_columns(columns, num_features)
    own = torch.ones(len(flat), dtype=dtype) if x.values is None else x.values[real].to(dtype)
    return Lists(counts, flat.to(torch.int32), own)


def _check_columns(columns: Tensor, num_features: int) -> None:
    least, most = (int(end) for end in columns.aminmax()) if columns.numel() else (0, -1)
    if least < -1 or most >= num_features:
        raise ValueError(f"x.columns has {least} to {most}: columns are 0 to {num_features - 1}, or -1")


def padded_product(x: Any, weight: Tensor) -> Tensor:
    """``x W`` with the lists as they are padded, in plain operators: ``[B, N, P]`` and ``[F, K]`` -> ``[B, N, K]``.

    Columns are 0 to F - 1, which a traced graph does not check, and -1 as padding; errors are those of
    :func:`as_lists`.
    """
    columns, values = check_lists(x)
    if not torch.compiler.is_compiling():
        _check_columns(columns, len(weight))
    real = columns >= 0
    factors = real.to(weight.dtype) if values is None else torch.where(real, values.to(weight.dtype), 0.0)
    batch, longest = columns.shape[:2]
    with torch_threads(columns.numel() * weight.shape[1]):
        flat = nn.functional.embedding_bag(
            columns.clamp(min=0).flatten(0, 1), weight, mode="sum", per_sample_weights=factors.flatten(0, 1)
        )
    return flat.view(batch, longest, weight.shape[1])


def as_lists(x: Any, num_features: int, dtype: torch.dtype) -> TokenLists:
    """Check a batch of features and drop the padding of the lists; :meth:`FeatureLists.tokens` has dropped it."""
    if isinstance(x, TokenLists):
        return x if x.values is None or x.values.dtype is dtype else replace(x, values=x.values.to(dtype))
    columns, values = check_lists(x)
    real = columns >= 0
    flat = columns[real].to(torch.int64)
    _check_columns(columns, num_features)
    counts = real.sum(2).flatten()
    chosen = None if values is None else values[real].to(dtype)
    return TokenLists(flat, chosen, counts, counts.cumsum(0) - counts, (columns.shape[0], columns.shape[1]))


STORED = 256
"""The length up to which products of all pairs of tokens are made: above, they take more time than going through the
weights, and memory with the square of the length."""


def respond(x: Tensor, v: Tensor) -> Tensor:
    """``x x^T v`` of every example, ``[B, N, K]``, of features ``[B, N, F]`` and v ``[B, N, K]``."""
    if x.shape[1] > STORED:
        return x @ (x.transpose(1, 2) @ v)
    return (x @ x.transpose(1, 2)) @ v
