"""Sequences of tokens as users give them: arrays, scipy sparse matrices, or lists of tokens with named features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy import sparse

from torchssvm.core.arguments import number_of
from torchssvm.core.sparse_features import FeatureLists
from torchssvm.estimators.examples import check_matrix, padded, reader, size_of

ARRAYS, MATRICES, NAMED = "arrays", "scipy sparse matrices", "lists of tokens with named features"


def check_list(X: Any, what: str = "sequences") -> None:
    """Raise ValueError for anything without a length, such as a generator, which could be read once only."""
    if isinstance(X, str | Mapping) or sparse.issparse(X) or not hasattr(X, "__len__"):
        raise ValueError(f"X must be a list of {what}, not {_short(X)}: list(X) makes one of what can be iterated")


def listed(X: Any) -> Any:
    """What can be read once only, X itself or the sequences in it, as lists."""
    X = list(X) if isinstance(X, Iterator) else X
    if isinstance(X, list | tuple) and any(isinstance(own, Iterator) for own in X):
        return [list(own) if isinstance(own, Iterator) else own for own in X]
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
        if kinds[place] != kinds[0]:
            raise ValueError(
                f"X[{number_of(place)}] is not one of the {kinds[0]}, as X[0] is: give one kind for all sequences"
            )
    return kinds[0]


def _is_array(sequence: Any) -> bool:
    if hasattr(sequence, "__array__") and np.asarray(sequence).dtype != object:
        return True
    token = next(iter(sequence))
    row = isinstance(token, list | tuple) and bool(token) and isinstance(token[0], Real)
    return row or isinstance(token, np.ndarray | Real)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"


def rows_of(X: Any, size: int | None = None) -> list[Any]:
    """Arrays or matrices as floating ones of one dtype, ``[N_i, F]``; matrices are in CSR form.

    Args:
        X: Sequences of the kind ``ARRAYS`` or ``MATRICES``.
        size: F; None is that of the first sequence.
    """
    found = []
    for place, sequence in enumerate(X):
        check_matrix(sequence, f"X[{number_of(place)}]")
        try:
            rows: Any = sequence if sparse.issparse(sequence) else np.asarray(sequence)
            rows = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"X[{number_of(place)}] must be an array [N, F] of numbers: {error}") from error
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
    lists = reader(sparse.vstack([*X, empty], format="csr"))
    return lambda places: lists(padded([np.arange(ends[i], ends[i + 1]) for i in places], ends[-1]))
