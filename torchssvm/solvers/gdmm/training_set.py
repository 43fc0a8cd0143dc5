"""The training set of GDMM, without padding: lists of features, targets and costs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from torchssvm.compiler.jit import njit, njit_fastmath
from torchssvm.core.batch import Batch, check_batches, tree_tensors
from torchssvm.kinds.examples import Examples
from torchssvm.solvers.gdmm.ragged import offsets


class TrainingSet(NamedTuple):
    """Features of the rows (tokens of all chains, or examples with label sets); biases are features that are 1."""

    column: Any  # [M] int32
    value: Any  # [M] of the weights' dtype
    row: Any  # [rows + 1] int64, where each row's features begin
    y: Any  # chains: [rows] int64; label sets: [rows, K] bool
    cost: Any  # float64, the cost of a wrong label: [rows] of chains, [K] of label sets
    start: Any  # [n + 1] int64, where the rows of each chain, or the labels of each set, begin
    square: Any  # [rows] float64, |x|^2


def make_training_set(examples: Examples, num_features: int, has_bias: bool, has_boundary: bool) -> TrainingSet:
    """Lists of features with the biases among them: ``num_features`` for all, the next two for both ends of a chain."""
    rows = int(examples.line[-1])
    if examples.dense:
        tokens, columns = np.nonzero(examples.x)
        counts = np.bincount(tokens, minlength=rows)
        values = examples.x[tokens, columns]
    else:
        counts, columns, values = np.diff(examples.row), examples.column, examples.value
        values = values if len(values) else np.ones(len(columns), values.dtype)
    pieces = [(np.repeat(np.arange(rows), counts), columns, values)]
    if has_bias:
        pieces.append((np.arange(rows), np.full(rows, num_features), np.ones(rows, values.dtype)))
    if has_boundary:
        ones = np.ones(len(examples.start) - 1, values.dtype)
        pieces.append((examples.start[:-1], np.full(len(ones), num_features + 1), ones))
        pieces.append((examples.start[1:] - 1, np.full(len(ones), num_features + 2), ones))
    token, column, value = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    order = np.argsort(token, kind="stable")
    row = offsets(np.bincount(token, minlength=rows))
    return TrainingSet(
        column[order].astype(np.int32),
        np.ascontiguousarray(value[order]),
        row,
        examples.y,
        examples.cost,
        examples.start,
        np.bincount(token, weights=squares_of(value), minlength=rows),
    )


def squares_of(value: np.ndarray) -> np.ndarray:
    """The squares of features, float64."""
    with np.errstate(over="ignore"):
        square = value.astype(np.float64) ** 2
        if not np.isfinite(square.sum()):
            raise ValueError("x holds numbers whose squares overflow: scale the features to about 1")
    return square


def digest_features(data: TrainingSet) -> int:
    """A digest that almost surely differs if any feature differs."""
    digest = 0
    for array in (data.column, data.value, data.row):
        digest = zlib.crc32(np.ascontiguousarray(array).data, digest)
    return digest


def with_fixed_features(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches; raises ValueError for features that require a gradient."""
    for batch in check_batches(batches):
        if isinstance(batch, Batch) and any(x.requires_grad for x in tree_tensors(batch.x)):
            raise ValueError("x requires a gradient, but GDMM keeps features fixed: detach x, or train with BCFW")
        yield batch


@njit_fastmath
def add_row(scores, row, factor):
    """``scores += factor row``."""
    for k in range(len(scores)):
        scores[k] += factor * row[k]


@njit
def score_row(t, data, weights, scores):
    """The scores of all labels from the features of row t, into ``scores`` ``[K]``."""
    scores[:] = 0.0
    for p in range(data.row[t], data.row[t + 1]):
        add_row(scores, weights[data.column[p]], data.value[p])
