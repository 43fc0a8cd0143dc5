"""Compressed sparse rows (CSR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from torchssvm.core.arguments import check_readable, check_tensor
from torchssvm.core.sparse_features import padded_lists


@dataclass(frozen=True)
class SparseRows:
    """A matrix ``[n, num_columns]``, stored by its nonzero entries.

    Attributes:
        indptr: int64 ``[n + 1]``: row i has the entries ``indptr[i]`` to ``indptr[i + 1] - 1``.
        indices: int32 ``[M]``, columns, ascending within a row.
        values: float32 ``[M]``.
        num_columns: Number of columns.

    Example:
        >>> rows = SparseRows.of_dense(torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]]))
        >>> rows.indices, rows.values
        (tensor([1, 0, 2], dtype=torch.int32), tensor([2., 1., 3.]))
        >>> rows.dense(torch.tensor([1]))
        tensor([[1., 0., 3.]])
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor
    num_columns: int

    @classmethod
    def of(cls, counts: ArrayLike, indices: ArrayLike, values: ArrayLike, num_columns: int) -> SparseRows:
        """Rows from the number of entries of each and all entries, which are sorted by column; zeros are dropped."""
        for name, array in (("counts", counts), ("indices", indices), ("values", values)):
            check_readable(array, name)
        sizes = np.array(counts, np.int64)
        columns, numbers = np.array(indices, np.int32), np.array(values, np.float32)
        row = np.repeat(np.arange(len(sizes)), sizes)
        order = np.lexsort((columns, row))
        order = order[numbers[order] != 0]  # some are too small for float32
        return cls(
            torch.from_numpy(np.searchsorted(row[order], np.arange(len(sizes) + 1))),
            torch.from_numpy(columns[order]),
            torch.from_numpy(numbers[order]),
            num_columns,
        )

    @classmethod
    def of_dense(cls, matrix: Tensor) -> SparseRows:
        """The nonzero entries of a matrix ``[n, columns]``."""
        row, column = check_tensor(matrix, "matrix").nonzero(as_tuple=True)
        counts = torch.bincount(row, minlength=len(matrix))
        start = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        return cls(start, column.to(torch.int32), matrix[row, column].float(), matrix.shape[1])

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def row(self) -> Tensor:
        """The row of every entry, int64 ``[M]``."""
        return torch.repeat_interleave(torch.arange(len(self)), self.indptr.diff(), output_size=len(self.indices))

    def counts(self) -> Tensor:
        """Number of entries of each column, int64 ``[num_columns]``."""
        return torch.bincount(self.indices, minlength=self.num_columns)

    def columns(self, which: Sequence[int]) -> SparseRows:
        """The matrix of these columns, each at most once, numbered in the order given."""
        place = torch.full((self.num_columns,), -1, dtype=torch.int32)
        place[torch.tensor(which, dtype=torch.int64)] = torch.arange(len(which), dtype=torch.int32)
        numbers = place[self.indices.long()]
        keep = numbers >= 0
        row, indices, values = self.row[keep], numbers[keep], self.values[keep]
        order = torch.argsort(row * max(len(which), 1) + indices)
        before = torch.cat([torch.zeros(1, dtype=torch.int64), keep.cumsum(0)])
        return SparseRows(before[self.indptr], indices[order], values[order], len(which))

    def take(self, rows: Tensor) -> SparseRows:
        """These rows, int64 ``[R]``, in this order."""
        counts = self.indptr.diff()[rows]
        start = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        at = torch.repeat_interleave(self.indptr[rows] - start[:-1], counts) + torch.arange(int(start[-1]))
        return SparseRows(start, self.indices[at], self.values[at], self.num_columns)

    def unit_rows(self) -> SparseRows:
        """Every row divided by its Euclidean norm; zero rows stay zero."""
        squares = torch.zeros(len(self), dtype=torch.float64).index_add_(0, self.row, self.values.double() ** 2)
        norms = squares.sqrt()[self.row]
        return SparseRows(self.indptr, self.indices, (self.values.double() / norms).float(), self.num_columns)

    def with_ones(self) -> SparseRows:
        """One more column, the last, of ones."""
        n = len(self)
        at = self.indptr[1:]  # the new entries stand at the ends of their rows
        position = torch.arange(len(self.indices)) + self.row
        indices = torch.empty(len(self.indices) + n, dtype=torch.int32)
        values = torch.empty(len(indices), dtype=torch.float32)
        indices[position], values[position] = self.indices, self.values
        indices[at + torch.arange(n)], values[at + torch.arange(n)] = self.num_columns, 1.0
        return SparseRows(self.indptr + torch.arange(n + 1), indices, values, self.num_columns + 1)

    def dense(self, rows: Tensor | None = None) -> Tensor:
        """These rows (None: all) as a dense matrix, float32 ``[R, num_columns]``."""
        taken = torch.arange(len(self)) if rows is None else rows
        columns, values = self.lists(taken)
        rows = torch.zeros(len(taken), self.num_columns + 1)  # the last column takes the padding
        rows.scatter_(1, torch.where(columns < 0, self.num_columns, columns), values)
        return rows[:, :-1].contiguous()

    def lists(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Columns int64 ``[R, P]``, -1 where a row has fewer than P entries, and values float32 ``[R, P]``, then 0."""
        ends, places = self.indptr.numpy(), rows.numpy()
        start = ends[places]
        columns, values = padded_lists(start, ends[places + 1] - start, self.indices, self.values)
        assert values is not None
        return columns, values
