"""Tokens described by named features, as lists of columns."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torchssvm.core.named_features import named_values
from torchssvm.core.sparse_features import SparseFeatures


def vocabulary_of(X: Iterable[Sequence[Any]], min_count: int) -> dict[str, int]:
    """A column for every feature that occurs at least ``min_count`` times, in alphabetical order."""
    counts = Counter(name for sequence in X for token in sequence for name, _ in named_values(token))
    return {name: column for column, name in enumerate(sorted(name for name in counts if counts[name] >= min_count))}


class FeatureLists:
    """The known features of sequences, token after token.

    Args:
        X: Sequences of tokens.
        vocabulary: The column of each feature; features that it does not have are left out.
    """

    def __init__(self, X: Sequence[Sequence[Any]], vocabulary: Mapping[str, int]) -> None:
        self.lengths = np.array([len(sequence) for sequence in X], np.int64)
        self._tokens = np.concatenate([[0], self.lengths.cumsum()])
        columns: list[int] = []
        values: list[float] = []
        ends = [0]
        for token in itertools.chain.from_iterable(X):
            for name, value in named_values(token):
                if (column := vocabulary.get(name)) is not None:
                    columns.append(column)
                    values.append(value)
            ends.append(len(columns))
        self._columns, self._values = np.array(columns, np.int32), np.array(values, np.float32)
        self._ends = np.array(ends, np.int64)
        self._ones = bool((self._values == 1.0).all())

    def batch(self, rows: np.ndarray) -> SparseFeatures:
        """``[B, N, P]``, -1 in the columns where a list or a sequence ends."""
        real = np.arange(self.lengths[rows].max()) < self.lengths[rows][:, None]
        token = np.where(real, self._tokens[rows][:, None] + np.arange(real.shape[1]), 0)
        counts = np.where(real, self._ends[token + 1] - self._ends[token], 0)
        there = np.arange(max(int(counts.max()), 1)) < counts[..., None]
        at = np.where(there, self._ends[token][..., None] + np.arange(there.shape[2]), 0)[there]
        columns = np.full(there.shape, -1, np.int64)
        columns[there] = self._columns[at]
        if self._ones:
            return SparseFeatures(torch.from_numpy(columns))
        values = np.zeros(there.shape, np.float32)
        values[there] = self._values[at]
        return SparseFeatures(torch.from_numpy(columns), torch.from_numpy(values))
