"""The training set of a compiled loop: token after token, without padding, and as lists where mostly zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import OLD_NUMBERS, naming
from torchssvm.core.batch import Batch, as_batch, restrict, to_device
from torchssvm.core.potentials import as_potentials
from torchssvm.core.sparse_features import STORED, Lists, SparseFeatures, check_finite, lists_of
from torchssvm.core.threads import torch_threads
from torchssvm.dual.checks import check_batch, digest_examples
from torchssvm.dual.state import DualState
from torchssvm.kinds.adapter import Extra, HeadAdapter
from torchssvm.kinds.examples import Examples, with_types
from torchssvm.structures.weighted import apart, joined

_DENSE = 0.6  # a list leaves out zeros, and takes slightly more time for each number


class Piece(NamedTuple):
    """The examples of one batch, without padding."""

    index: Tensor  # type: ignore[assignment]  # it hides tuple.index; [B] int64
    sizes: Tensor  # [B] int64, numbers of labels
    rows: Tensor  # [B] int64, numbers of rows of features
    lengths: Tensor  # [B] int64
    x: Tensor | Lists  # [rows, F], or lists; lists without values are of ones
    labels: Tensor  # [labels] int64
    cost: Tensor  # [labels] float64
    targets: Tensor  # [B] int64, their digests
    weight: Tensor  # [B] float64
    extra: Extra  # further entries for the kind
    inner: Tensor | None = None  # products of their rows, where they are known


def pack(
    adapter: HeadAdapter, dual: DualState, batches: Iterable[Batch], earlier: Piece | None = None
) -> tuple[Examples, Piece]:
    """Every example that this process holds, in order, as NumPy arrays; the head and the structure check them.

    The examples of ``earlier`` are in no batch; they may have fewer features. Also returns all examples as one piece,
    which shares memory with the arrays.
    """
    n, dtype = len(dual.own), dual.parameters[0].dtype
    sizes, lengths, lines, targets = torch.zeros(4, n, dtype=torch.int64)
    weight = torch.ones(n, dtype=torch.float64)
    pieces: list[Piece] = []
    nonzeros = 0

    def read() -> Iterator[Piece]:
        if earlier is not None:
            yield earlier
        for batch in restrict(batches, dual.own) if dual.ranks else batches:
            batch, weight = apart(as_batch(batch), dual.structure)
            yield _piece(adapter, dual, to_device(batch, "cpu"), weight, dtype)

    for piece in read():
        twice = piece.index[sizes[piece.index] > 0]
        if len(twice) or len(piece.index.unique()) < len(piece.index):
            example = int(twice[0]) if len(twice) else int(piece.index.mode().values)
            raise ValueError(f"batches gave example {example + dual.own.start} twice: {OLD_NUMBERS}")
        sizes[piece.index], lengths[piece.index], targets[piece.index] = piece.sizes, piece.lengths, piece.targets
        lines[piece.index], weight[piece.index] = piece.rows, piece.weight
        if isinstance(piece.x, Tensor):
            kept = piece is earlier  # what was dense stays so
            nonzeros += piece.x.numel() if kept else int(np.count_nonzero((piece.x != 0).numpy()))
        else:
            nonzeros += len(piece.x.columns)
        pieces.append(piece)
    if not bool((sizes > 0).all()):
        missing = ((sizes == 0).nonzero().flatten() + dual.own.start).tolist()
        raise ValueError(f"batches left out {len(missing)} of {n} examples, {missing[:5]} among them: give each once")
    start, line_start = offsets(sizes), offsets(lines)
    labels, rows, features = int(start[-1]), int(line_start[-1]), len(adapter.weights.emission)
    dense = all(isinstance(piece.x, Tensor) for piece in pieces) and nonzeros > _DENSE * rows * features
    y, cost = torch.empty(labels, dtype=torch.int64), torch.empty(labels, dtype=torch.float64)
    x = torch.empty(rows if dense else 0, features, dtype=dtype)
    extra = {name: _join(name, pieces, n) for name in list(pieces[0].extra)}
    counts = torch.zeros(int(line_start[-1]), dtype=torch.int64)
    lists: list[tuple[Tensor | slice, Tensor, Tensor]] = []
    while pieces:
        piece = pieces.pop()  # each piece is freed after it has been copied
        place = _places(start[piece.index], piece.sizes)
        y[place], cost[place] = piece.labels, piece.cost
        line = _places(line_start[piece.index], lines[piece.index])
        if dense and isinstance(piece.x, Tensor):
            width = piece.x.shape[1]
            x[line, :width], x[line, width:] = piece.x, 0.0
        else:
            listed = lists_of(piece.x) if isinstance(piece.x, Tensor) else piece.x
            counts[line] = listed.counts
            lists.append((line, listed.columns, listed.values))
    row = offsets(counts)
    column = torch.empty(int(row[-1]), dtype=torch.int32)
    value = torch.ones(int(row[-1]) if any(len(values) for _, _, values in lists) else 0, dtype=dtype)
    while lists:
        place, columns, values = lists.pop()
        entries = _places(row[place], counts[place])
        column[entries] = columns
        if len(values):
            value[entries] = values
    if bool((value == 1).all()):  # lists of ones take half the memory
        value = value.new_empty(0)
    products = num_products(lines) if adapter.products else torch.zeros_like(lines)
    inner_start = offsets(products)
    inner = torch.full((int(inner_start[-1]),), -1.0, dtype=dtype)
    if earlier is not None and earlier.inner is not None:
        inner[_places(inner_start[earlier.index], products[earlier.index])] = earlier.inner
    labelled = y, cost, cost.to(dtype), weight, start
    pairs = adapter.weights.tensors()[1]
    in_rows = line_start, lines, torch.full_like(lines, 0 if pairs is None else len(pairs)), inner, inner_start[:-1]
    arrays: Any = (tensor.numpy() for tensor in (x, value, column, row, *labelled, *in_rows))
    none = 2 * (np.zeros(0, np.int32), np.zeros(0, np.int64))
    examples = with_types(Examples(dense, *arrays, STORED if adapter.products else 0, *none))  # type: ignore[call-arg]
    ragged = {name: (starts.diff(), values) for name, (starts, values) in extra.items()}
    all_x = x if dense else Lists(counts, column, value)
    whole = Piece(torch.arange(n), sizes, lines, lengths, all_x, y, cost, targets, weight, ragged, inner)
    return adapter.complete(examples, extra), whole


def staying(adapter: HeadAdapter, piece: Piece, kept: Tensor) -> Piece:
    """The examples of a piece that stay: that at the place ``kept[i]`` is example i, where it is not -1."""
    index = (kept >= 0).nonzero().flatten()
    at, lines = kept[index], piece.rows

    def taken(values: Tensor, sizes: Tensor) -> Tensor:
        return values[_places(offsets(sizes)[:-1][at], sizes[at])]

    x = piece.x
    if isinstance(x, Lists):
        counts = taken(x.counts, lines)
        ends = offsets(x.counts)
        place = _places(taken(ends[:-1], lines), counts)
        x = Lists(counts, x.columns[place], x.values[place] if len(x.values) else x.values)
    else:
        x = taken(x, lines)
    extra = {name: (sizes[at], taken(values, sizes)) for name, (sizes, values) in piece.extra.items()}
    labels, cost = (taken(values, piece.sizes) for values in (piece.labels, piece.cost))
    inner = taken(piece.inner, num_products(lines)) if piece.inner is not None and adapter.products else None
    same = piece.sizes[at], lines[at], piece.lengths[at], x, labels, cost, piece.targets[at], piece.weight[at]
    return Piece(index, *same, extra, inner)


def _join(name: str, pieces: list[Piece], num_examples: int) -> tuple[Tensor, Tensor]:
    """Where each example's entries begin, and the entries of all; they are taken out of the pieces."""
    counts = torch.zeros(num_examples, dtype=torch.int64)
    for piece in pieces:
        counts[piece.index] = piece.extra[name][0]
    start, like = offsets(counts), pieces[0].extra[name][1]
    values = like.new_empty(int(start[-1]), *like.shape[1:])
    for piece in pieces:
        values[_places(start[piece.index], counts[piece.index])] = piece.extra.pop(name)[1]
    return start, values


def num_products(lengths: Tensor) -> Tensor:
    """How many inner products of tokens are stored for examples of these lengths."""
    return torch.where(lengths > STORED, 0, lengths * (lengths + 1) // 2)


def long_features(examples: Examples) -> int:
    """The size of ``Scratch.sums_of_label``: features and bias, if an example has rows without stored products."""
    if examples.reach is None or len(examples.distinct):
        return 0
    return max(examples.x.shape[1], int(examples.column.max(initial=-1)) + 1) + 1


@torch_threads()
def _piece(adapter: HeadAdapter, dual: DualState, batch: Batch, weight: Tensor | None, dtype: torch.dtype) -> Piece:
    given = adapter.inputs(batch.x)
    if not isinstance(given, SparseFeatures) and (not isinstance(given, Tensor) or given.layout != torch.strided):
        raise TypeError(f"x={type(given).__name__} must be a dense tensor, or SparseFeatures for a sparse head")
    with torch.no_grad():
        potentials = as_potentials(adapter.apply(batch))
    index = check_batch(dual, batch.index, potentials)
    adapter.carries |= any(getattr(potentials, name) is not None for name in potentials.carried)
    target = adapter.structure.check_target(batch.y, potentials)
    check_finite(given, index, dtype)
    with naming(batch.index):
        read = adapter.read(batch.x, target, potentials)
    x = read.features
    return Piece(
        index,
        read.sizes,
        read.sizes if read.rows is None else read.rows,
        read.sizes if read.lengths is None else read.lengths,
        x if isinstance(x, Lists) else x.detach().to(dtype),
        read.labels,
        read.cost,
        digest_examples(joined(target, weight), potentials),
        torch.ones(len(index), dtype=torch.float64) if weight is None else weight.cpu(),
        read.extra or {},
    )


def offsets(sizes: Tensor) -> Tensor:
    """The offsets at which runs of these sizes begin, and the end of the last run."""
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))


def _places(start: Tensor, sizes: Tensor) -> Tensor | slice:
    """``start_i, start_i + 1, ...`` of every run, one after another."""
    ends = sizes.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    if total and torch.equal(start[1:], start[0] + ends[:-1]):  # batches in order, which are copied at once
        return slice(int(start[0]), int(start[0]) + total)
    return torch.repeat_interleave(start - ends + sizes, sizes) + torch.arange(total)
