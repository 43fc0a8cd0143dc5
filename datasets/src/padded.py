"""Padded sequences in one tensor, so that a batch is one ``index_select``."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_int64, check_length_form, check_tensor
from torchssvm.core.batch import Batch
from torchssvm.core.packages import warn

PADDING = -1
"""The label at the padded positions of ``y``."""

_ROWS = 256  # examples that are packed at a time

_Item = TypeVar("_Item")

_NOT_DENSE = (
    "; for features by name take torchssvm.datasets.NamedChains(x, y), for lists of columns "
    "torchssvm.datasets.SparseChains"
)


class Example(NamedTuple):
    """One example: its features, its target, and its number in the training set.

    Example:
        >>> words = PaddedDataset(x=torch.zeros(2, 3, 4), y=torch.tensor([[0, 1, 0], [1, 1, 1]]))
        >>> example = words[1]
        >>> example.index, example.y
        (1, tensor([1, 1, 1]))
    """

    x: Any  # [T, ...]: a Tensor, or SparseFeatures
    y: Tensor  # [T]
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks an example for


def place_of(i: int, n: int, what: str = "examples") -> int:
    """The position of item i of n, 0 to n-1; negative numbers count from the end.

    IndexError if there is no such item, TypeError if i is not a whole number.
    """
    at = _whole(i)
    if not -n <= at < n:
        raise IndexError(f"index {at} is out of range for a dataset of {n} {what}")
    return at % n


def places_of(indices: Sequence[int] | Tensor, n: int, what: str = "examples") -> list[int]:
    """The positions of a batch's items among n; errors as of :func:`place_of`, and ValueError if there is none."""
    places = indices.reshape(-1).tolist() if isinstance(indices, Tensor) else list(indices)
    if set(map(type, places)) != {int}:
        places = [_whole(i) for i in places]
    if not places:
        raise ValueError("indices is empty: a batch needs at least one example")
    low, high = min(places), max(places)
    if low < -n or high >= n:
        raise IndexError(f"index {high if high >= n else low} is out of range for a dataset of {n} {what}")
    return [i % n for i in places] if low < 0 else places


def _whole(i: Any) -> int:
    try:
        return operator.index(i)
    except TypeError:
        advice = ": give a sampler of batches as DataLoader(..., batch_sampler=)" if isinstance(i, list) else ""
        raise TypeError(f"index {i!r} must be a whole number, not a {type(i).__name__}{advice}") from None


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """The rows of a tensor on any device; ``rows`` is on the CPU."""
    return tensor.index_select(0, rows.to(tensor.device, non_blocking=True))


def padded(tensors: Sequence[Tensor], fill: int) -> Tensor:
    """Tensors with equally many axes in one tensor ``[B, ...]``, padded with ``fill``; truth values with False."""
    sizes = [max(each) for each in zip(*(tensor.shape for tensor in tensors), strict=True)]
    rows = tensors[0].new_full((len(tensors), *sizes), False if tensors[0].dtype == torch.bool else fill)
    for row, tensor in zip(rows, tensors, strict=True):
        row[tuple(slice(size) for size in tensor.shape)] = tensor
    return rows


def collating(make: Callable[[Sequence[_Item]], Batch]) -> Callable[[Batch | Sequence[_Item]], Batch]:
    """A ``collate_fn`` that takes a list of examples, or a batch from ``__getitems__``, which it returns.

    ``make`` makes a batch of at least one example.
    """

    def collate(examples: Batch | Sequence[_Item]) -> Batch:
        if isinstance(examples, Batch):
            return examples
        if not examples:
            raise ValueError("examples is empty: a batch needs at least one example")
        return make(examples)

    functools.update_wrapper(collate, make, ("__module__", "__name__", "__qualname__", "__doc__"))
    del collate.__wrapped__  # type: ignore[attr-defined]  # it takes examples only, and this one a batch too
    return collate


def _check_alike(xs: Sequence[Tensor], first: int) -> None:
    """Raise ValueError where the axes from the ``first`` one on have other sizes in some examples."""
    if len(sizes := {tuple(x.shape[first:]) for x in xs}) > 1:
        listed = ", ".join(str(list(size)) for size in sorted(sizes))
        raise ValueError(f"the examples of a batch have features {listed}: join only datasets whose x has equal sizes")


@collating
def stack(examples: Sequence[Example]) -> Batch:
    """Examples of one size, without lengths."""
    xs, ys, numbers = zip(*examples, strict=True)
    _check_alike(xs, 0)
    return Batch(torch.stack(xs), torch.stack(ys), torch.tensor(numbers, device=ys[0].device))


def _inside(y: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Which labels lie within the lengths, ``[n, N]`` bool; None if all do, or there is one for each example."""
    if lengths is None or y.ndim < 2:
        return None
    return torch.arange(y.shape[1], device=y.device) < lengths.to(y.device).unsqueeze(1)


def _first_unknown(y: Tensor, inside: Tensor | None) -> list[int] | None:
    """The place of the first label -100 of a token; None if there is none."""
    if y.is_floating_point() or y.ndim < 2:  # values, or classes
        return None
    unknown = y == -100
    if inside is not None:
        unknown &= inside.view(*inside.shape, *[1] * (y.ndim - 2))
    return unknown.nonzero()[0].tolist() if bool(unknown.any()) else None


def _check_sets(x: Tensor, y: Tensor) -> None:
    """Raise ValueError where ``y`` are sets of labels, of another size than the tokens."""
    if y.dtype != torch.bool or y.ndim != 3:
        return
    if y.shape[:2] != x.shape[:2]:
        raise ValueError(
            f"y {list(y.shape)}, the labels that tokens may have, and x {list(x.shape)} must share n and N"
        )


def _warn_of_labels_beyond(y: Tensor, inside: Tensor) -> None:
    """Warn where the padding of labels holds several values: lengths that are too short drop labels."""
    padding = y[~inside]
    blank = -1 if bool((padding == -1).any()) else padding[:1]
    if len(padding) and bool((wrong := padding != blank).any()):
        i, place = (~inside).nonzero()[wrong.nonzero()[0, 0]].tolist()
        warn(
            f"y holds several values beyond lengths, which are left out, such as {y[i, place].tolist()} at position "
            f"{place} of example {i}, whose length is {int(inside[i].sum())}: are lengths too short? Padding of -1 "
            "says that they are not"
        )


class PaddedDataset(Dataset[Example]):
    """A map-style dataset of n labelled sequences; :meth:`collate` and ``__getitems__`` make its batches.

    Args:
        x: features, [n, N, ...], zero at the padded positions; they may be on another device than the rest.
        y: labels, int64 [n, N], -1 at the padded positions, and -100 where a label is unknown, for
            :func:`torchssvm.latent` and :class:`torchssvm.HiddenStates`. Or, for them, the labels that each token may
            have: bool [n, N, L], True at one or more for every token, False in the padding.
        lengths: int64 [n], each in 1..N; None if nothing is padded, and then x may be [n, ...] and y [n].
        index: int64 [n], the number of each example's dual block; None is 0..n-1.

    Raises:
        TypeError: x or y is not a dense tensor; for features by name there is :class:`NamedChains`.
        ValueError: There is no example; or sizes, lengths or numbers do not fit.

    Example:
        >>> lengths = torch.tensor([3, 1])
        >>> words = PaddedDataset(x=torch.zeros(2, 3, 4), y=torch.tensor([[0, 1, 0], [1, -1, -1]]), lengths=lengths)
        >>> x, y, index = words[1]  # without its padding
        >>> x.shape, y
        (torch.Size([1, 4]), tensor([1]))
        >>> words.collate([words[0], words[1]]).lengths
        tensor([3, 1])
    """

    _held: Tensor  # x, or its bytes
    _dtype: torch.dtype  # of x

    def __init__(self, x: Tensor, y: Tensor, lengths: Tensor | None = None, index: Tensor | None = None):
        check_tensor(x, "x", _NOT_DENSE)
        check_tensor(y, "y")
        if not x.ndim or not len(x):
            raise ValueError(f"x has shape {list(x.shape)}: it must hold at least one example")
        n = len(x)
        if index is None:
            index = torch.arange(n)
        for name, tensor in (("y", y), ("lengths", lengths), ("index", index)):
            if isinstance(tensor, Tensor) and tensor.shape[:1] != (n,):
                raise ValueError(f"x has {n} examples but {name} has {len(tensor) if tensor.ndim else 'no axis'}")
        check_int64(index, "index", (n,), ", one number for each example")
        if len(index.unique()) < n or bool((index < 0).any()):
            raise ValueError("index must hold another number, at least 0, for every example: it names its dual block")
        if lengths is not None:
            check_length_form(lengths, n)
            longest = x.shape[1] if x.ndim > 1 else 0
            if bool(((lengths < 1) | (lengths > longest)).any()):
                raise ValueError(
                    f"lengths must lie between 1 and {longest}, got {int(lengths.min())} to {int(lengths.max())}"
                )
        inside = _inside(y, lengths)
        _check_sets(x, y)
        self.first_unknown = _first_unknown(y, inside)
        if inside is not None:
            _warn_of_labels_beyond(y, inside)
        self.x = x
        self._pack()
        self.y = y
        self.lengths = lengths
        self.index = index
        self._in_order = bool((index == torch.arange(n, device=index.device)).all())
        self._index: list[int] = index.tolist()
        # A copy on the CPU: the length of a batch must not wait for a device.
        self._cut: list[int] | None = None if lengths is None else lengths.tolist()
        if lengths is None:
            self.collate = stack  # type: ignore[method-assign]  # as batches of __getitems__ have none

    @property
    def x(self) -> Tensor:
        """Features, ``[n, N, ...]``; they may be changed in place."""
        self._held = self._held.to(self._dtype)
        return self._held

    @x.setter
    def x(self, x: Tensor) -> None:
        self._held, self._dtype = x, x.dtype

    def _pack(self) -> None:
        """Keep small whole numbers, such as pixels, as bytes until ``x`` is read: fetches are limited by memory."""
        x = self._held
        if x.dtype == torch.float32:
            pieces = [piece.to(torch.uint8) for piece in x.split(_ROWS)]
            if all(bool((piece == small).all()) for piece, small in zip(x.split(_ROWS), pieces, strict=True)):
                self._held = torch.cat(pieces)

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {len(self)} examples, x {list(self._held.shape)}, y {list(self.y.shape)}"

    def __getitem__(self, i: int) -> Example:
        at = place_of(i, len(self))
        x, y = self._held[at].to(self._dtype), self.y[at]
        if self._cut is not None:
            x, y = x[: self._cut[at]], y[: self._cut[at]]
        return Example(x, y, self._index[at])

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """The examples at ``indices`` as one batch, cropped to its longest; a ``DataLoader`` calls this."""
        indices = places_of(indices, len(self))
        rows = torch.tensor(indices)
        x, y = self._held, self.y
        if self._cut is not None:
            longest = max([self._cut[i] for i in indices])
            x, y = x[:, :longest], y[:, :longest]
        return Batch(
            x=_rows(x, rows).to(self._dtype),
            y=_rows(y, rows),
            index=rows.to(self.index.device) if self._in_order else _rows(self.index, rows),
            lengths=None if self.lengths is None else _rows(self.lengths, rows),
        )

    @staticmethod
    @collating
    def collate(examples: Sequence[Example]) -> Batch:
        """Examples, padded to the longest."""
        xs, ys, numbers = zip(*examples, strict=True)
        if ys[0].dim() == 0:  # not sequences
            return stack(examples)
        _check_alike(xs, 1)
        index = torch.tensor(numbers, device=ys[0].device)
        lengths = torch.tensor([len(y) for y in ys], device=ys[0].device)
        return Batch(
            x=pad_sequence(list(xs), batch_first=True),
            y=padded(ys, PADDING),
            index=index,
            lengths=lengths,
        )
