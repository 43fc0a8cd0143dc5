"""Checks of users' data, and training sets in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.class_weight import compute_class_weight

from torchssvm.core.arguments import check_ordered, check_readable, name_rows, number_of
from torchssvm.core.batch import Batch
from torchssvm.core.sparse_features import FeatureLists, SparseFeatures, padded_lists
from torchssvm.structures.common import WeightedLabels


def size_of(rows: Any) -> int:
    """The number of tokens or examples: scipy's sparse matrices have no ``len``."""
    return int(rows.shape[0]) if sparse.issparse(rows) else len(rows)


class Examples:
    """A map-style dataset of n examples whose batches a function makes.

    Args:
        fetch: ``[B]`` int64, places 0 to n - 1 -> the batch of these examples.
        lengths: The number of tokens or nodes of each example; None where examples have no length.
        n: Number of examples; needed without ``lengths``.
    """

    compared = True  # the estimators compare the examples of two fits themselves

    def __init__(self, fetch: Callable[[np.ndarray], Batch], lengths: np.ndarray | None = None, n: int | None = None):
        self.fetch = fetch
        self.lengths = None if lengths is None else torch.as_tensor(lengths, dtype=torch.int64)
        self._n = n if self.lengths is None else len(self.lengths)

    def __len__(self) -> int:
        return int(self._n or 0)

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        """The examples as one batch."""
        return self.fetch(np.asarray(rows, np.int64))

    @staticmethod
    def collate(batch: Any) -> Batch:
        """The batch of ``__getitems__``."""
        return batch


def padded(arrays: Sequence[np.ndarray], fill: float) -> torch.Tensor:
    """Arrays ``[N_i, ...]`` in one tensor ``[B, N, ...]``, filled up by ``fill``."""
    rows = np.full((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), fill, arrays[0].dtype)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(rows)


def check_matrix(X: Any, name: str = "X", *, labels: bool = False) -> None:
    """Check that numbers are real and not masked, and that a sparse matrix is well formed.

    Unless they are ``labels``, columns have names that scikit-learn compares: texts, or none.
    """
    check_readable(X, name)
    check_rows(X, name)
    try:
        table = hasattr(X, "dtypes") and getattr(X, "ndim", None) == 2
        dtypes = list(X.dtypes) if table else [getattr(X, "dtype", None) or np.asarray(X).dtype]
    except ValueError:  # lists of several lengths are refused later
        dtypes = []
    for dtype in dtypes:
        if getattr(dtype, "kind", "O") in "cmM":
            raise ValueError(f"Complex data not supported, nor dates: {name} holds {dtype}")
    columns = list(getattr(X, "columns", ()))
    if not labels and columns != list(range(len(columns))) and not all(isinstance(column, str) for column in columns):
        raise ValueError(f"{name} has columns {columns[:4]}: name all columns by texts, so that their order is checked")
    if sparse.issparse(X) and X.format in ("csr", "csc", "bsr"):
        X.check_format(full_check=True)


_ROWS = {
    "X": "give as many numbers in every row",
    "y": "give a class for each row, or a matrix of 0 and 1, as MultiLabelBinarizer makes it",
}


def check_rows(values: Any, name: str) -> None:
    """Raise ValueError, with its number, for the first row that is a set, or longer or shorter than row 0."""
    if not isinstance(values, list | tuple) and getattr(getattr(values, "dtype", None), "kind", "") != "O":
        return
    first: int | None = None
    for row, entries in enumerate(np.asarray(values) if hasattr(values, "iloc") else values):
        several = isinstance(entries, list | tuple) or (isinstance(entries, np.ndarray) and entries.ndim > 0)
        size = len(entries) if several else None
        first = size if row == 0 else first
        if size != first or isinstance(entries, Set):
            place = number_of(row) if name in _ROWS else row  # rows within an example have their numbers
            has = "is a set" if isinstance(entries, Set) else f"has {_count(size)}, and {name}[0] has {_count(first)}"
            raise ValueError(f"{name}[{place}]={_short(entries)} {has}: {_ROWS.get(name, _ROWS['X'])}")


def _count(size: int | None) -> str:
    return "no entries" if size is None else f"{size} entr{'y' if size == 1 else 'ies'}"


def columns_of(tables: Iterable[Any], known: list[Any] | None, name: str) -> list[Any] | None:
    """Check that all tables have the columns ``known``, in their order, and return these names.

    Without ``known``, the first table that names its columns gives them; None where no table does.
    """
    for table in tables:
        columns = list(getattr(table, "columns", ()))
        if not columns:
            continue
        known = known or columns
        if columns != known:
            raise ValueError(f"{name} has columns {columns}, and fit had {known}: give these, in their order")
    return known


class PerExample(list[Any]):
    """A list with one output for each example, which NumPy and scikit-learn join as an array of n objects.

    Without it they make one array of all labels, which fails where examples have different sizes.
    """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.empty(len(self), object)
        for place, output in enumerate(self):
            array[place] = output
        return array


def of_matrix(X: Any, y: torch.Tensor) -> Examples:
    """A training set of the rows of an array, or of a CSR matrix as lists, with the targets ``y`` ``[n, ...]``."""
    read = _reader(X)

    def fetch(rows: np.ndarray) -> Batch:
        index = torch.from_numpy(rows)
        return Batch(read(index), y[index], index)

    return Examples(fetch, n=len(y))


def _reader(X: Any) -> Callable[[torch.Tensor], Any]:
    """Return a function from row numbers ``[...]`` to features ``[..., F]``, as lists where X is a CSR matrix."""
    if not sparse.issparse(X):
        return torch.from_numpy(np.require(X, requirements=["C", "W"])).__getitem__
    # arrays that joblib maps are not writable
    arrays = (np.require(array, requirements=["C", "W"]) for array in (X.indices, X.data))
    columns, values = map(torch.from_numpy, arrays)
    ends = X.indptr.astype(np.int64)

    def lists(rows: torch.Tensor) -> SparseFeatures:
        places = rows.numpy()
        start = ends[places]
        return padded_lists(start, ends[places + 1] - start, columns, values)

    return lists


NO_LABELS = (-1, -100)  # numbers that mark a missing label in scikit-learn and torch


def check_counts(sizes: Any, y: Any, name: str = "y") -> None:
    """Raise ValueError unless ``y`` has an entry for each of the examples of X."""
    if not hasattr(y, "__len__") or size_of(y) != len(sizes):
        count = size_of(y) if hasattr(y, "__len__") else _short(y)
        raise ValueError(f"X has {len(sizes)} examples and {name} has {count}: give one for each example")


def _no_label(name: str) -> ValueError:
    return ValueError(f"{name} marks a missing label: leave it out of X and y, or give texts, as str(label)")


def check_lists(y: Any, sizes: Sequence[int], what: str) -> list[Sequence[Any]]:
    """Check that each example has as many labels as ``sizes`` says, all of them texts or all numbers; return them.

    ``what`` has a label, "token" or "node", for error messages.
    """
    check_readable(y, "y")
    check_counts(sizes, y)
    y = list(y)
    first: type | None = None
    for row, (size, labels) in enumerate(zip(sizes, y, strict=True)):
        place = number_of(row)
        check_readable(labels, f"y[{place}]")
        y[row] = labels = np.asarray(labels) if hasattr(labels, "__array__") else labels
        listed = hasattr(labels, "__len__") and not isinstance(labels, str) and getattr(labels, "ndim", 1) == 1
        if not listed:
            raise ValueError(f"y[{place}]={_short(labels)} must be {size} labels, one for each {what} of X[{place}]")
        if len(labels) != size:
            raise ValueError(
                f"X[{place}] has {size} {what}s and y[{place}] has {len(labels)} labels: give each one label"
            )
        for at, label in enumerate(labels):
            kind = str if isinstance(label, str) else Real if isinstance(label, Real | np.bool_) else None
            first = first or kind
            if kind is None or kind is not first or label != label:
                raise ValueError(f"y[{place}][{at}]={label!r}: labels must be all texts or all numbers, as str(label)")
            if kind is Real and label in NO_LABELS:
                raise _no_label(f"y[{place}][{at}]={label!r}")
    return y


def check_missing(y: Any) -> None:
    """Raise ValueError for masked classes and for -100, which torch leaves out; -1 is one of two in scikit-learn."""
    check_readable(y, "y")
    check_rows(y, "y")
    if (y := np.asarray(y)).ndim and y.dtype.kind in "if" and (missing := y == -100).any():
        raise _no_label(f"y[{number_of(int(missing.nonzero()[0][0]))}]=-100")


def check_classes(classes: np.ndarray) -> None:
    """Raise ValueError for fewer than two classes."""
    if len(classes) < 2:
        raise ValueError(f"y has the labels {classes.tolist()}, one class only: give examples of at least two")


def states_of(y: Sequence[Sequence[Any]], known: np.ndarray | None = None) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct labels, ``known`` ones first and the others in ascending order; the state of each label."""
    everything = np.array(list(itertools.chain.from_iterable(y)))
    classes, states = np.unique(everything, return_inverse=True)
    if known is None:
        check_classes(classes)
    else:
        check_kind([classes], known)
        both = np.concatenate([known, classes[~np.isin(classes, known)]])
        order = both.argsort()
        states, classes = order[both[order].searchsorted(classes)][states], both
    ends = np.cumsum([len(labels) for labels in y])[:-1]
    return classes, np.split(states.astype(np.int64), ends)


def times_of(sample_weight: Any, n: int) -> np.ndarray:
    """How often each example counts, ``[n]`` float64, checked; None is once each."""
    check_readable(sample_weight, "sample_weight")
    try:
        times = np.ones(n) if sample_weight is None else np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError):  # texts, ragged lists
        times = np.zeros(0)
    if times.shape != (n,) or not (np.isfinite(times).all() and (times >= 0.0).all() and times.any()):
        raise ValueError(f"sample_weight={_short(sample_weight)} must hold {n} finite numbers >= 0, not all zero")
    return times


def counted(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, np.ndarray | None, float | None]:
    """The examples whose weight is not 0, their weights divided by the mean ``[n]``, and the sum of the weights.

    Without weights the last two are None. Errors that follow name examples by their places before any was left out.
    """
    if sample_weight is None:
        return X, y, None, None
    times = times_of(sample_weight, size_of(X))
    kept = times.nonzero()[0]
    if len(kept) < len(times) == len(y):
        X, y = (given[kept] if hasattr(given, "shape") else [given[i] for i in kept] for given in (X, y))
        times = times[kept]
        name_rows(torch.from_numpy(kept))
    return X, y, times / times.mean(), float(times.sum())


def weights_of(
    class_weight: Any, classes: np.ndarray, codes: np.ndarray, sample_weight: np.ndarray | None = None
) -> np.ndarray:
    """The weight of the loss of each true class, ``[K]`` float64.

    ``classes`` are ``[K]``, ``codes`` the class of every label, 0 to K - 1, and ``sample_weight`` says how often each
    label counts in "balanced"; None is once.
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(codes, sample_weight, len(classes)).astype(np.float64)
        least = counts[counts > 0.0].min(initial=np.inf)  # stands for the count of a class that does not occur
        return counts.sum() / (len(classes) * np.maximum(counts, least))
    weights, known = class_weight or {}, set(classes.tolist())
    numbers = isinstance(weights, dict) and all(0.0 <= weight < np.inf for weight in weights.values())
    if not numbers or not (known <= set(weights) or set(weights) <= known):
        raise ValueError(f"class_weight={class_weight!r} must be None, 'balanced' or finite numbers >= 0 by class")
    return compute_class_weight(class_weight, classes=classes, y=classes)


def state_weights(
    class_weight: Any, classes: np.ndarray, states: Sequence[np.ndarray], times: np.ndarray | None = None
) -> torch.Tensor | None:
    """:func:`weights_of` for lists of states, and how often each list counts; None for 1 throughout."""
    if class_weight is None:
        return None
    each = None if times is None else np.repeat(times, [len(row) for row in states])
    return torch.from_numpy(weights_of(class_weight, classes, np.concatenate(states), each))


def labelled(
    lengths: Sequence[int],
    states: Sequence[np.ndarray] | None,
    features: Callable[[np.ndarray], Any],
    costs: torch.Tensor | None = None,
) -> Examples:
    """A training set of examples with a state for each token or node; all states are 0 where None is given.

    Args:
        lengths: ``[n]``, the number of tokens or nodes.
        states: The state of each token or node.
        features: A function from places ``[B]`` to the features of these examples.
        costs: ``[K]``, the cost of a wrong label by the true one; targets are then :class:`WeightedLabels`.
    """
    sizes = np.asarray(lengths, np.int64)
    y = [np.zeros(size, np.int64) for size in sizes] if states is None else states

    def fetch(rows: np.ndarray) -> Batch:
        target: Any = padded([y[i] for i in rows], -1)
        if costs is not None:
            target = WeightedLabels(target, costs[target.clamp(min=0)])
        return Batch(features(rows), target, torch.from_numpy(rows), torch.from_numpy(sizes[rows]))

    return Examples(fetch, sizes)


def check_kind(y: Iterable[Iterable[Any]], classes: np.ndarray) -> None:
    """Raise ValueError where labels are texts and classes are numbers, or the other way; the first label tells."""
    first = next(itertools.chain.from_iterable(y), None)
    if first is not None and isinstance(first, str) != isinstance(classes[0], str):
        new, known = (np.asarray(label).item() for label in (first, classes[0]))
        raise ValueError(f"y has labels such as {new!r}, and had {known!r} before: give one kind")


def accuracy(
    y: Sequence[Sequence[Any]], predicted: Sequence[Sequence[Any]], classes: np.ndarray, sample_weight: Any = None
) -> float:
    """The share of right labels among all, each as often as its example counts; ``classes`` are ``classes_``."""
    check_kind(y, classes)
    right = np.array(
        [sum(a == b for a, b in zip(*pair, strict=True)) for pair in zip(y, predicted, strict=True)], float
    )
    times = times_of(sample_weight, len(y))
    return float(times @ right) / (float(times @ [len(row) for row in y]) or 1.0)


ARRAYS, MATRICES, NAMED = "arrays", "scipy sparse matrices", "lists of tokens with named features"


def check_list(X: Any, what: str = "sequences", least: int = 0) -> None:
    """Raise ValueError for anything without a length or an order, or with fewer than ``least`` entries."""
    if isinstance(X, str | Mapping) or sparse.issparse(X) or not hasattr(X, "__len__") or len(X) < least:
        raise ValueError(f"X must be a list of {what}{', not empty' * least}, not {_short(X)}: list(X) may make one")
    check_readable(X, "X")


def by_place(X: Any) -> Any:
    """X, but a Series of pandas, which is indexed by label, as a list."""
    return list(X) if hasattr(X, "iloc") and X.ndim == 1 else X


def listed(X: Any) -> Any:
    """X and the sequences in it, iterators read into lists, and others as :func:`by_place` gives them."""
    X = list(X) if isinstance(X, Iterator) else by_place(X)
    if isinstance(X, list | tuple) and any(isinstance(row, Iterator) or by_place(row) is not row for row in X):
        return [list(row) if isinstance(row, Iterator) else by_place(row) for row in X]
    return X


def kind_of(X: Any) -> str:
    """The kind of the sequences: ``ARRAYS``, ``MATRICES`` or ``NAMED``."""
    check_list(X, least=1)
    kinds = []
    for place, sequence in enumerate(X):
        name, matrix = f"X[{number_of(place)}]", sparse.issparse(sequence)
        wrong = not matrix and (isinstance(sequence, str | Mapping) or not hasattr(sequence, "__len__"))
        if wrong or not size_of(sequence):
            raise ValueError(f"{name}={_short(sequence)} must be a sequence of tokens: leave empty ones out")
        kinds.append(MATRICES if matrix else ARRAYS if _is_array(sequence) else NAMED)
        if kinds[place] == NAMED:
            check_ordered(sequence, name)
        if kinds[place] != kinds[0]:
            raise ValueError(f"{name} is one of {kinds[place]}, and X[0] of {kinds[0]}: give one kind for all")
    return kinds[0]


def _is_array(sequence: Any) -> bool:
    if hasattr(sequence, "columns") or (hasattr(sequence, "__array__") and np.asarray(sequence).dtype != object):
        return True  # tables of several types are arrays of objects
    token = next(iter(sequence))
    row = isinstance(token, list | tuple) and bool(token) and isinstance(token[0], Real)
    return row or isinstance(token, np.ndarray | Real)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"


def as_floats(value: Any, name: str) -> Any:
    """An array or a sparse matrix in float64, or in float32 where its numbers are of another type."""
    try:
        rows = value if sparse.issparse(value) else np.asarray(value)
        return rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be an array of numbers: {error}") from error


def rows_of(X: Any, size: int | None = None) -> list[Any]:
    """Sequences of ``ARRAYS`` or ``MATRICES`` in one floating dtype, ``[N_i, F]``; matrices are in CSR form.

    ``size`` is F; None takes the number of features of the first sequence.
    """
    matrices = []
    for place, sequence in enumerate(X):
        name = f"X[{number_of(place)}]"
        check_matrix(sequence, name)
        rows = as_floats(sequence, name)
        check_shape(rows, name, "N", "F" if size is None else size)
        size = rows.shape[1]
        rows = rows.tocsr() if sparse.issparse(rows) else rows
        check_finite(rows.data if sparse.issparse(rows) else rows, name)
        matrices.append(rows)
    dtype = np.result_type(*{rows.dtype for rows in matrices})
    return [rows.astype(dtype, copy=False) for rows in matrices]


def check_shape(array: Any, name: str, *sizes: int | str) -> None:
    """Raise ValueError for an array of other sizes; a letter allows any size."""
    fits = (isinstance(size, str) or size == given for size, given in zip(sizes, array.shape, strict=False))
    if len(array.shape) != len(sizes) or not all(fits):
        raise ValueError(f"{name} has shape {list(array.shape)}: give [{', '.join(map(str, sizes))}]")


def check_finite(numbers: np.ndarray, name: str) -> None:
    """Raise ValueError for numbers that are infinite or NaN."""
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} has numbers that are not finite: replace them, or leave the example out")


def batches_of(X: Any) -> Callable[[np.ndarray], Any]:
    """Return a function from places ``[B]`` to the padded features of these sequences.

    ``X`` comes from :func:`rows_of`, or is lists of named features.
    """
    if isinstance(X, FeatureLists):
        return X.batch
    if not sparse.issparse(X[0]):
        return lambda places: padded([X[i] for i in places], 0.0)
    ends = np.cumsum([0, *(rows.shape[0] for rows in X)])
    empty = sparse.csr_matrix((1, X[0].shape[1]), dtype=X[0].dtype)  # the row of the padding
    lists = _reader(sparse.vstack([*X, empty], format="csr"))
    return lambda places: lists(padded([np.arange(ends[i], ends[i + 1]) for i in places], ends[-1]))
