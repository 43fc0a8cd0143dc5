"""A training set in memory, from a function that makes batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.class_weight import compute_class_weight

from torchssvm.core.arguments import check_readable, name_rows, number_of
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
        n: Number of examples; None is that of the lengths.
    """

    compared = True  # the estimators know which examples stay, from digests or copies of their own

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
    found = np.full((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), fill, arrays[0].dtype)
    for row, array in zip(found, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(found)


def check_matrix(X: Any, name: str = "X", *, labels: bool = False) -> None:
    """Check that numbers are real and not masked, and the arrays of a sparse matrix, which SciPy trusts.

    Unless they are ``labels``, columns have names that scikit-learn compares: texts, or none.
    """
    check_readable(X, name)
    _check_real(X, name)
    columns = list(getattr(X, "columns", ()))
    if not labels and columns != list(range(len(columns))) and not all(isinstance(column, str) for column in columns):
        raise ValueError(f"{name} has columns {columns[:4]} whose order is not checked: name all columns by texts")
    if not sparse.issparse(X):
        return
    try:
        if X.format in ("csr", "csc", "bsr"):
            if (np.diff(X.indptr) < 0).any():  # SciPy does not look at it where the last number is negative
                raise ValueError("indptr must not descend")
            type(X)((X.data, X.indices, X.indptr), X.shape).check_format(full_check=True)
        else:
            entries = X.tocoo()
            type(entries)((entries.data, (entries.row, entries.col)), entries.shape)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{name} is a damaged sparse matrix: {error}. Make it anew from its entries") from error


def _check_real(value: Any, name: str) -> None:
    """Raise ValueError for complex numbers, dates and times, which a cast to floating point takes in silence."""
    try:
        if hasattr(value, "dtypes") and getattr(value, "ndim", None) == 2:
            kinds = list(value.dtypes)  # of each column of a table
        else:
            kinds = [getattr(value, "dtype", None) or np.asarray(value).dtype]
    except ValueError:  # lists of several lengths, which are refused later
        return
    for dtype in kinds:
        if getattr(dtype, "kind", "O") == "c":
            raise ValueError(f"Complex data not supported: {name} holds {dtype}, give two real features for each")
        if getattr(dtype, "kind", "O") in "mM":
            raise ValueError(f"{name} holds {dtype}: give numbers, such as days since some date")


def columns_of(tables: Iterable[Any], known: list[Any] | None, name: str) -> list[Any] | None:
    """The names of the columns of tables: ``known``, else those of the first table; None where no table has names.

    ValueError for a table with other columns, or in another order.
    """
    for table in tables:
        columns = list(getattr(table, "columns", ()))
        if not columns:
            continue
        known = known or columns
        if columns != known:
            new, old = next(pair for pair in itertools.zip_longest(columns, known) if pair[0] != pair[1])
            raise ValueError(
                f"{name} has column {new!r} in the place of {old!r}: give the columns of fit, in their order"
            )
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
    """The rows of an array, or of a CSR matrix as lists, with the targets ``y`` ``[n, ...]``."""
    read = _reader(X)

    def fetch(rows: np.ndarray) -> Batch:
        index = torch.from_numpy(rows)
        return Batch(read(index), y[index], index)

    return Examples(fetch, n=len(y))


def _reader(X: Any) -> Callable[[torch.Tensor], Any]:
    """A function of rows ``[...]`` of an array: their features ``[..., F]``; or of a CSR matrix: lists of these."""
    if not sparse.issparse(X):
        return torch.from_numpy(np.require(X, requirements=["C", "W"])).__getitem__
    held = (np.require(array, requirements=["C", "W"]) for array in (X.indptr, X.indices, X.data))  # joblib's are not
    ends, columns, values = map(torch.from_numpy, held)
    ends = ends.long()

    def lists(rows: torch.Tensor) -> SparseFeatures:
        return padded_lists(ends[rows], ends[rows + 1] - ends[rows], columns, values)

    return lists


NO_LABELS = (-1, -100)
"""Numbers that stand for a missing label elsewhere, in scikit-learn and torch."""


def check_lists(y: Any, sizes: Sequence[int], what: str) -> list[Sequence[Any]]:
    """The labels of every example, if there is one, a text or a number, for each of its tokens or nodes, ``sizes`` of
    them.

    ``what`` is "token" or "node", for error messages.
    """
    check_readable(y, "y")
    if not hasattr(y, "__len__") or len(sizes) != len(y):
        count = len(y) if hasattr(y, "__len__") else f"={y!r}"
        raise ValueError(f"X has {len(sizes)} examples and y has {count}: each example needs its labels")
    y = list(y)
    kinds: set[type] = set()
    for row, (size, labels) in enumerate(zip(sizes, y, strict=True)):
        place = number_of(row)
        if isinstance(labels, str) or not hasattr(labels, "__len__"):
            raise ValueError(f"y[{place}]={labels!r} must be a list of labels, one for each {what} of X[{place}]")
        check_readable(labels, f"y[{place}]")
        y[row] = labels = np.asarray(labels) if hasattr(labels, "__array__") else labels
        if getattr(labels, "ndim", 1) != 1:
            raise ValueError(f"y[{place}] has shape {list(labels.shape)}, and [N] is expected: a label for each {what}")
        if size != len(labels):
            raise ValueError(f"X[{place}] has {size} {what}s and y[{place}] has {len(labels)} labels")
        for at, label in enumerate(labels):
            kind = str if isinstance(label, str) else Real if isinstance(label, Real | np.bool_) else None
            if kind is None or label != label:
                raise ValueError(f"y[{place}][{at}]={label!r} must be a text or a number, the label of a {what}")
            if kind is Real and label in NO_LABELS:
                raise ValueError(
                    f"y[{place}][{at}]={label!r} marks a {what} without a label, and every {what} needs one: leave "
                    f"such {what}s out of X and y; where it is a label of its own, give texts, as str(label)"
                )
            kinds.add(kind)
            if len(kinds) > 1:
                raise ValueError(
                    f"y has texts and numbers, and y[{place}][{at}]={label!r} is the first of the second kind: give "
                    "labels of one kind, as str(label)"
                )
    return y


def check_missing(y: Any) -> None:
    """Raise ValueError for masked classes and for -100, which torch leaves out; -1 is one of two in scikit-learn."""
    check_readable(y, "y")
    if (y := np.asarray(y)).ndim and y.dtype.kind in "if" and (missing := y == -100).any():
        place = number_of(int(missing.nonzero()[0][0]))
        raise ValueError(
            f"y[{place}]=-100 marks an example without a class: leave such examples out of X and y; "
            "where it is a class of its own, give texts, as y.astype(str)"
        )


def check_classes(y: np.ndarray, classes: np.ndarray) -> None:
    """Raise ValueError for one class, or -100."""
    check_missing(y)
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {classes.tolist()[0]!r}: at least two classes are needed")


def states_of(y: Sequence[Sequence[Any]], known: np.ndarray | None = None) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct labels, ``known`` ones first and the others in ascending order; the state of each label."""
    everything = np.array(list(itertools.chain.from_iterable(y)))
    classes, states = np.unique(everything, return_inverse=True)
    if len(classes) < 2 and known is None:
        raise ValueError(f"y has one label only, {classes.tolist()}: at least two classes are needed")
    if known is not None:
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
        found = np.ones(n) if sample_weight is None else np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError):  # texts, ragged lists
        advice = "; class_weight takes 'balanced'" if isinstance(sample_weight, str) else ""
        raise ValueError(f"sample_weight={sample_weight!r} must be [{n}], a number for each example{advice}") from None
    if found.shape != (n,):
        raise ValueError(
            f"sample_weight has shape {list(found.shape)}, and [{n}] is expected, a number for each example"
        )
    if not (np.isfinite(found).all() and (found >= 0.0).all() and found.any()):
        raise ValueError("sample_weight must hold finite numbers that are not negative, and not only zeros")
    return found


def counted(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, np.ndarray | None, float | None]:
    """The examples whose weight is not 0; their weights divided by the mean, ``[n]``, and the sum of the weights.

    Both are None where no weights are given: then n takes the place of the sum. Errors of ``fit`` name the examples by
    their places among all.
    """
    if sample_weight is None:
        return X, y, None, None
    times = times_of(sample_weight, size_of(X))
    kept = times.nonzero()[0]
    if len(kept) < len(times) == len(y):
        X, y = (own[kept] if hasattr(own, "shape") else [own[i] for i in kept] for own in (X, y))
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
        least = counts[counts > 0.0].min(initial=np.inf)  # that of a class which does not occur
        return counts.sum() / (len(classes) * np.maximum(counts, least))
    if class_weight is not None and not isinstance(class_weight, dict):
        raise ValueError(f"class_weight={class_weight!r} must be None, 'balanced' or a dictionary by class")
    known, named = set(classes.tolist()), class_weight or {}
    if known - set(named) and (others := [name for name in named if name not in known]):
        raise ValueError(f"class_weight names {others[0]!r}, and the classes are {classes.tolist()}")
    found = compute_class_weight(class_weight, classes=classes, y=classes)
    if not (np.isfinite(found).all() and (found >= 0.0).all()):
        raise ValueError(f"class_weight={class_weight!r} must hold finite numbers that are not negative")
    return found


def state_weights(
    class_weight: Any, classes: np.ndarray, states: Sequence[np.ndarray], times: np.ndarray | None = None
) -> torch.Tensor | None:
    """:func:`weights_of` for lists of states, and how often each list counts; None for 1 throughout."""
    if class_weight is None:
        return None
    each = None if times is None else np.repeat(times, [len(own) for own in states])
    return torch.from_numpy(weights_of(class_weight, classes, np.concatenate(states), each))


def labelled(
    lengths: Sequence[int],
    states: Sequence[np.ndarray] | None,
    features: Callable[[np.ndarray], Any],
    costs: torch.Tensor | None = None,
) -> Examples:
    """A training set of examples with a state for each of the ``lengths`` tokens or nodes; without ``states``, all are
    0.

    ``features`` takes places ``[B]`` to the features of these examples. ``costs`` ``[K]`` are those of a wrong label,
    by the true one: targets are then :class:`WeightedLabels`.
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
    """Raise ValueError for texts where the classes are numbers, or numbers where they are texts: none would be right.

    All labels are of one kind, so that the first one tells.
    """
    first = next(itertools.chain.from_iterable(y), None)
    if first is not None and isinstance(first, str) != isinstance(classes[0], str):
        new, known = (np.asarray(label).item() for label in (first, classes[0]))
        raise ValueError(f"y has labels such as {new!r}, and had {known!r} before: give one kind")


def accuracy(
    y: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]], classes: np.ndarray, sample_weight: Any = None
) -> float:
    """The share of right labels among all, each as often as its example counts; ``classes`` are those of training."""
    check_kind(y, classes)
    right = np.array([sum(a == b for a, b in zip(*pair, strict=True)) for pair in zip(y, found, strict=True)], float)
    times = times_of(sample_weight, len(y))
    return float(times @ right) / (float(times @ [len(own) for own in y]) or 1.0)


ARRAYS, MATRICES, NAMED = "arrays", "scipy sparse matrices", "lists of tokens with named features"


def check_list(X: Any, what: str = "sequences") -> None:
    """Raise ValueError for anything without a length or an order: a generator could be read once only."""
    if isinstance(X, str | Mapping) or sparse.issparse(X) or not hasattr(X, "__len__"):
        raise ValueError(f"X must be a list of {what}, not {_short(X)}: list(X) makes one of what can be iterated")
    check_readable(X, "X")


def by_place(X: Any) -> Any:
    """X; a Series of pandas, whose ``X[0]`` is what has the label 0, as a list."""
    return list(X) if hasattr(X, "iloc") and X.ndim == 1 else X


def listed(X: Any) -> Any:
    """What can be read once only, X itself or the sequences in it, as lists; others as :func:`by_place`."""
    X = list(X) if isinstance(X, Iterator) else by_place(X)
    if isinstance(X, list | tuple) and any(isinstance(own, Iterator) or by_place(own) is not own for own in X):
        return [list(own) if isinstance(own, Iterator) else by_place(own) for own in X]
    return X


def kind_of(X: Any) -> str:
    """What the sequences are: ``ARRAYS``, ``MATRICES`` or ``NAMED``."""
    check_list(X)
    if not len(X):
        raise ValueError(f"X must be a list of sequences, at least one, not {_short(X)}")
    kinds = []
    for place, sequence in enumerate(X):
        matrix = sparse.issparse(sequence)
        if not matrix and (isinstance(sequence, str | Mapping) or not hasattr(sequence, "__len__")):
            raise ValueError(f"X[{number_of(place)}]={_short(sequence)} must be a sequence of tokens")
        if not size_of(sequence):
            raise ValueError(f"X[{number_of(place)}] has no token: leave empty sequences out of the training set")
        kinds.append(MATRICES if matrix else ARRAYS if _is_array(sequence) else NAMED)
        if kinds[place] == NAMED:
            check_readable(sequence, f"X[{number_of(place)}]")
        if kinds[place] != kinds[0]:
            raise ValueError(
                f"X[{number_of(place)}] is not one of the {kinds[0]}, as X[0] is: give one kind for all sequences"
            )
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


def as_floats(value: Any, name: str, form: str) -> Any:
    """An array or a sparse matrix in float64 or, of numbers of any other type, float32."""
    try:
        rows = value if sparse.issparse(value) else np.asarray(value)
        return rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be an array {form} of numbers: {error}") from error


def rows_of(X: Any, size: int | None = None) -> list[Any]:
    """Sequences of ``ARRAYS`` or ``MATRICES`` as floating ones of one dtype, ``[N_i, F]``; matrices are in CSR form.

    ``size`` is F; None is that of the first sequence.
    """
    found = []
    for place, sequence in enumerate(X):
        check_matrix(sequence, f"X[{number_of(place)}]")
        rows = as_floats(sequence, f"X[{number_of(place)}]", "[N, F]")
        if rows.ndim != 2 or rows.shape[1] != (rows.shape[1] if size is None else size):
            expected = f"[N, {'F' if size is None else size}]"
            raise ValueError(
                f"X[{number_of(place)}] has shape {list(rows.shape)}, and {expected} is expected, a row for each token"
                + (": a single sequence is [X], and a single feature X.reshape(-1, 1)" if rows.ndim == 1 else "")
            )
        size = rows.shape[1]
        rows = rows.tocsr() if sparse.issparse(rows) else rows
        if not np.isfinite(rows.data if sparse.issparse(rows) else rows).all():
            raise ValueError(f"X[{number_of(place)}] has numbers that are not finite")
        found.append(rows)
    dtype = np.result_type(*{rows.dtype for rows in found})
    return [rows.astype(dtype, copy=False) for rows in found]


def batches_of(X: Any) -> Callable[[np.ndarray], Any]:
    """A function of places ``[B]``: the features of these sequences, padded.

    Args:
        X: What :func:`rows_of` returns, or lists of named features.
    """
    if isinstance(X, FeatureLists):
        return lambda places: X.batch(torch.from_numpy(places))
    if not sparse.issparse(X[0]):
        return lambda places: padded([X[i] for i in places], 0.0)
    ends = np.cumsum([0, *(rows.shape[0] for rows in X)])
    empty = sparse.csr_matrix((1, X[0].shape[1]), dtype=X[0].dtype)  # the row of the padding
    lists = _reader(sparse.vstack([*X, empty], format="csr"))
    return lambda places: lists(padded([np.arange(ends[i], ends[i + 1]) for i in places], ends[-1]))
