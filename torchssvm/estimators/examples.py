"""A training set in memory, from a function that makes batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse

from torchssvm.core.batch import Batch
from torchssvm.core.sparse_features import SparseFeatures, padded_lists


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


def check_matrix(X: Any, name: str = "X") -> None:
    """Check that numbers are real, and the arrays of a sparse matrix, which SciPy trusts and would read beyond.

    Args:
        X: An array, a sparse matrix, a table of pandas, or lists.
        name: Its name in the error.
    """
    _check_real(X, name)
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


def reader(X: Any) -> Callable[[torch.Tensor], Any]:
    """A function of rows ``[...]`` of an array: their features ``[..., F]``; or of a CSR matrix: lists of these."""
    if not sparse.issparse(X):
        return torch.from_numpy(np.require(X, requirements=["C", "W"])).__getitem__
    held = (np.require(array, requirements=["C", "W"]) for array in (X.indptr, X.indices, X.data))  # joblib's are not
    ends, columns, values = map(torch.from_numpy, held)
    ends = ends.long()

    def lists(rows: torch.Tensor) -> SparseFeatures:
        return padded_lists(ends[rows], ends[rows + 1] - ends[rows], columns, values)

    return lists
