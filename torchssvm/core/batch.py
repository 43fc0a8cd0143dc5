"""Batches of examples, and functions on their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

from torchssvm.core.arguments import NO_LABEL, check_dataset, check_tensor, check_type, describe, naming, row_name
from torchssvm.core.operators import upload
from torchssvm.core.packages import is_ours
from torchssvm.core.potentials import Potentials, as_potentials


@dataclass(slots=True, eq=False)
class Batch:
    """One batch of examples; unpacks as ``x, y, index, lengths = batch``.

    :meth:`to` and :meth:`pin_memory`, which ``DataLoader`` and Lightning call, apply to all its tensors. It is not
    frozen because Lightning casts a copy in place under ``precision="64-true"``; :meth:`replace` makes a new batch.

    Attributes:
        x: Input of the feature extractor or the head; any nested structure of tensors, usually ``[B, N, F]``.
        y: Targets, ``[B, ...]`` int64; positions beyond an example's length hold ``-1``.
        index: ``[B]`` int64, each example's place in the dataset, which is the number of its dual block.
        lengths: ``[B]`` int64, or None if all examples have the same shape.

    Example:
        >>> batch = Batch(x=tokens[:2], y=tags[:2], index=torch.arange(2), lengths=torch.tensor([5, 4]))
        >>> x, y, index, lengths = batch.to("cpu")
        >>> x.shape, lengths
        (torch.Size([2, 5, 4]), tensor([5, 4]))
    """

    x: Any
    y: Any
    index: Tensor
    lengths: Tensor | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.y, self.index, self.lengths))

    def __getitem__(self, place: Any) -> NoReturn:
        """Raise TypeError: a ``DataLoader`` without ``collate_fn`` calls this."""
        raise TypeError("a Batch has no items: give DataLoader(collate_fn=dataset.collate), or take in_order(dataset)")

    def replace(self, **changes: Any) -> Batch:
        """The same batch with some fields changed."""
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on ``device``; see :func:`to_device`."""
        return to_device(self, device)

    def pin_memory(self) -> Batch:
        """The batch in pinned memory."""
        return tree_map(Tensor.pin_memory, self)


Collate = Callable[[list[Any]], Batch]
"""Makes a batch from a list of examples."""


def tree_map(function: Any, tree: Any) -> Any:
    """Apply ``function`` to each tensor in nested batches, tuples, lists and dicts, keeping their types."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Batch):
        return Batch(*(tree_map(function, item) for item in tree))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, item) for item in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(function, item) for item in tree)
    if isinstance(tree, dict):
        return {key: tree_map(function, item) for key, item in tree.items()}
    return tree


def tree_tensors(tree: Any) -> list[Tensor]:
    """The tensors of nested tuples, lists and dicts, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (Batch, tuple, list)):
        return []
    return [tensor for item in tree for tensor in tree_tensors(item)]


def tree_replace(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """``tree`` with other tensors, given in the order of :func:`tree_tensors`."""
    remaining = iter(tensors)
    return tree_map(lambda _: next(remaining), tree)


def device_of(head: nn.Module) -> torch.device:
    """The device of the head; the CPU if it has no weights, or is no module."""
    parameters = head.parameters() if isinstance(head, nn.Module) else iter(())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


def to_device(batch: Any, device: torch.device | str) -> Any:
    """Move all tensors of ``batch`` to ``device``, except meta tensors, which are refused later.

    Copies to an accelerator are asynchronous; those to the host could be read before they arrive. Copies of whole
    numbers remember the CPU tensor that they were made from: a step checks them without waiting for the device.
    """
    on_host = torch.device(device).type == "cpu"

    def move(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return tensor
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor.to(device, non_blocking=not on_host)
        return upload(tensor, device)

    return tree_map(move, batch)


def apply_head(head: Any, batch: Batch) -> Potentials:
    """``head(x)``, or ``head(x, lengths)`` if the batch has lengths; errors then name the examples."""
    with naming(batch.index):
        potentials = as_potentials(head(batch.x) if batch.lengths is None else head(batch.x, batch.lengths))
    potentials.index = batch.index
    return potentials


def fetcher(dataset: Any, collate_fn: Collate | None = None) -> partial[Batch]:
    """A function from indices to a batch, like a ``DataLoader`` without workers; no global generator is used."""
    part = numbered(dataset, collate_fn)
    return partial(_fetched, part, _collate_of(part, collate_fn if part is dataset else None))


def numbered(dataset: Any, collate_fn: Collate | None = None) -> Any:
    """The dataset; a ``Subset`` or ``ConcatDataset``, whose items keep their numbers, as a :class:`Part`."""
    composed = isinstance(dataset, Subset | ConcatDataset)
    return Part(dataset, range(len(dataset)), collate_fn) if composed else dataset


def _collate_of(dataset: Any, collate_fn: Collate | None) -> Collate:
    """``collate_fn``, or ``collate`` of the dataset, or of the datasets in a Subset or ConcatDataset."""
    collate = collate_fn if collate_fn is not None else getattr(dataset, "collate", None)
    if collate is not None:
        return collate
    first, *others = [{"collate": getattr(part, "collate", None), **described(part)} for part in _parts(dataset)]
    if others and (first["collate"] is None or any(other != first for other in others)):
        raise ValueError("dataset is a ConcatDataset whose parts differ in `collate`, features or labels: join them")
    if first["collate"] is None:
        raise ValueError(
            f"dataset={type(dataset).__name__} has no method `collate`, which makes a Batch: use "
            "torchssvm.datasets.PaddedDataset(x, y, lengths), or define it: collate(items) -> Batch"
        )
    return first["collate"]


def _parts(dataset: Any) -> list[Any]:
    """The datasets below nested Subsets and ConcatDatasets."""
    if isinstance(dataset, Subset):
        return _parts(dataset.dataset)
    joined = isinstance(dataset, ConcatDataset)
    return [part for inner in dataset.datasets for part in _parts(inner)] if joined else [dataset]


def _fetched(dataset: Any, collate: Collate, index: Sequence[int]) -> Batch:
    if hasattr(dataset, "__getitems__"):
        return as_batch(collate(dataset.__getitems__(list(index))))
    return as_batch(collate([dataset[i] for i in index]))


def in_order(
    dataset: Any,
    *,
    batch_size: int = 256,
    collate_fn: Collate | None = None,
    lengths: Tensor | Sequence[int] | None = None,
) -> Iterable[Batch]:
    """The batches of one pass over the data: each example once, in order. They can be iterated any number of times.

    Args:
        collate_fn: Makes a ``Batch`` from a list of items; None means ``dataset.collate``.
        lengths: ``[n]`` int64, the length of each example. If given, examples come in ascending order of length, which
            saves padding; a batch of typical lengths comes first, from which memory is estimated. Batches of long
            examples are smaller: examples times the squared largest length is at most ``batch_size`` mean squares.

    Raises:
        ValueError: There is neither ``collate_fn`` nor ``dataset.collate``; or ``lengths`` is not of the dataset's
            size.

    Example:
        >>> [len(batch.index) for batch in in_order(data, batch_size=12)]
        [12, 12, 6]
    """
    check_dataset(dataset)
    n = len(dataset)
    if lengths is not None:
        lengths = torch.as_tensor(lengths).cpu()
        if lengths.shape != (n,):
            raise ValueError(f"lengths has shape {list(lengths.shape)}, and there are {n} examples")
    return _InOrder(range(n), batch_size, lengths, fetcher(dataset, collate_fn))


def rows_in_order(examples: range, batch_size: int, lengths: Tensor | np.ndarray | None = None) -> list[Sequence[int]]:
    """The examples of every batch of :func:`in_order`; ``lengths`` ``[n]`` is of all examples."""
    if lengths is None:
        return [examples[at : at + batch_size] for at in range(0, len(examples), batch_size)]
    chosen = lengths[examples.start : examples.stop]
    return [[examples[row] for row in rows] for rows in _of_similar_length(chosen.tolist(), batch_size)]


def _of_similar_length(sizes: list[int], batch_size: int) -> list[Sequence[int]]:
    num_examples, numbers = len(sizes), sorted(range(len(sizes)), key=sizes.__getitem__)
    squares = [float(sizes[row]) ** 2 for row in numbers]
    mean = sum(squares) / max(num_examples, 1)
    most = batch_size * mean
    rows: list[Sequence[int]] = []
    start = 0
    for end in range(1, num_examples + 1):
        size = end + 1 - start  # with the next example
        if end == num_examples or size > batch_size or size * squares[end] > most:
            rows.append(numbers[start:end])
            start = end
    # The memory of a training set is estimated from its first batch: one of mean length, not the shortest.
    typical = next((k for k, batch in enumerate(rows) if float(sizes[batch[-1]]) ** 2 >= mean), 0)
    return [*rows[typical : typical + 1], *rows[:typical], *rows[typical + 1 :]]


@dataclass(frozen=True)
class _InOrder:
    examples: range
    batch_size: int
    lengths: Tensor | None
    fetch: partial[Batch]

    @cached_property
    def rows(self) -> list[Sequence[int]]:
        return rows_in_order(self.examples, self.batch_size, self.lengths)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Batch]:
        for rows in self.rows:
            yield self.fetch(rows)

    def within(self, examples: range) -> _InOrder:
        """The same pass over some of the examples."""
        return replace(self, examples=examples)


def restrict(batches: Iterable[Batch], examples: range) -> Iterable[Batch]:
    """The batches of these examples; ValueError for a batch that mixes them with others."""
    if isinstance(batches, _InOrder):
        yield from batches.within(examples)
        return
    for batch in check_batches(batches):
        index = getattr(batch, "index", None)
        inside = index is None or not len(index) or [i in examples for i in index.tolist()]
        if inside is True or all(inside):
            yield batch
        elif any(inside):
            raise ValueError(
                f"batches mixes examples of this process, {examples.start} to {examples.stop - 1}, with others: give "
                "in_order(dataset)"
            )


def pass_over(dataset: Any, collate_fn: Collate | None = None, batch_size: int = 256) -> Iterable[Batch]:
    """The batches of an exact pass: :func:`in_order`, by length if the dataset knows its lengths."""
    return in_order(dataset, batch_size=batch_size, collate_fn=collate_fn, lengths=lengths_of(dataset))


def lengths_of(dataset: Any) -> Tensor | None:
    """The attribute ``lengths`` of a dataset, if it is a tensor with a whole number for each example."""
    if isinstance(dataset, Subset):
        of_all = lengths_of(dataset.dataset)
        return None if of_all is None else of_all[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    lengths = getattr(dataset, "lengths", None)
    whole = isinstance(lengths, Tensor) and not lengths.is_floating_point() and lengths.shape == (len(dataset),)
    return lengths.to(torch.int64) if whole else None  # type: ignore[union-attr]


def check_batches(batches: Any, *, reread: bool = False) -> Iterable[Batch]:
    """``batches``, if it yields batches; a map-style dataset with ``collate`` is batched here."""
    if isinstance(batches, Subset | ConcatDataset) or (hasattr(batches, "collate") and hasattr(batches, "__len__")):
        return pass_over(batches)
    if isinstance(batches, Batch) or not isinstance(batches, Iterable) or (reread and isinstance(batches, Iterator)):
        again = " that can be read again" if reread else ""
        raise TypeError(
            f"batches is a {type(batches).__name__}: give a list of Batch, a DataLoader, or "
            f"torchssvm.in_order(dataset){again}"
        )
    return batches


def check_fits(head: Any, structure: Any, data: Any, collate_fn: Collate | None = None) -> None:
    """Raise ValueError if the dataset has other ``in_features`` or ``num_states`` than head or structure.

    Or if it has unknown labels that the structure does not complete. ``data`` is the dataset, or reads its batches.
    Nothing is compared for a user's ``collate_fn``, head or structure, which may change features and states.
    """
    dataset, collate = data, collate_fn
    if isinstance(data, _InOrder):
        dataset, collate = data.fetch.args
    elif isinstance(data, DataLoader):
        dataset, collate = data.dataset, data.collate_fn
    elif collate is None:
        dataset = numbered(data)
    if collate is not None and collate != getattr(dataset, "collate", None):
        return
    if (place := getattr(dataset, "first_unknown", None)) is not None and not hasattr(structure, "complete"):
        raise ValueError(f"dataset.y has label -100 at position {place[1]} of example {place[0]}{NO_LABEL}")
    for name, owner in (("in_features", head), ("num_states", structure), ("num_labels", head)):
        size, given = (getattr(each, name, ...) for each in (owner, dataset))  # None: without labels
        if is_ours(type(owner)) and isinstance(size, int | None) and isinstance(given, int | None) and size != given:
            raise ValueError(
                f"the dataset has {name}={given} and the head {name}={size}: make the test set with "
                "vocabulary=train.vocabulary and labels=train.labels, or the same num_features"
            )


def as_batch(batch: Any) -> Batch:
    """``batch``, if it is a batch; else TypeError."""
    return check_type(batch, Batch, "an item of batches", "a Batch, as DataLoader(collate_fn=dataset.collate) makes it")


def select_tokens(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Pack the tokens that ``mask`` selects: each row's come first, in their order, and the rest is padding.

    For masks whose True do not all come first, such as the first piece of every word of a tokeniser, or tokens that
    have a label: ``x, y, lengths = select_tokens(mask, x, y)``. Labels that are decoded for packed tokens go back by
    ``whole[mask] = labels[labels >= 0]``.

    Args:
        mask: ``[B, N]`` bool, True at the tokens to keep, at least one in every row.
        tensors: ``[B, N, ...]`` each, such as features, through which gradients flow, and labels.

    Returns:
        The tensors ``[B, T, ...]``, T the largest length, with 0 in the padding of floating-point numbers and -1 in
        that of whole numbers; and the lengths, ``[B]`` int64.

    Raises:
        TypeError: A tensor is not one.
        ValueError: ``mask`` is not bool ``[B, N]``, has a row without True, or a tensor has other sizes.

    Example:
        >>> mask = torch.tensor([[False, True, False, True], [True, False, False, False]])
        >>> select_tokens(mask, torch.tensor([[-100, 2, -100, 0], [1, -100, -100, -100]]))
        (tensor([[ 2,  0],
                [ 1, -1]]), tensor([2, 1]))
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.ndim != 2:
        raise ValueError(f"mask must be bool [B, N], True at the tokens to keep, got {describe(mask)}; see .bool()")
    for place, tensor in enumerate(tensors):
        if check_tensor(tensor, f"tensors[{place}]").shape[:2] != mask.shape:
            raise ValueError(f"tensors[{place}] {list(tensor.shape)} and mask {list(mask.shape)} must share B and N")
    lengths = mask.sum(1)
    if bool((empty := lengths == 0).any()):
        raise ValueError(f"mask has no True in {row_name(int(empty.nonzero()[0, 0]))}: leave the example out")
    longest = int(lengths.max()) if len(lengths) else 0
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    order = (order + mask.shape[1] * torch.arange(len(mask), device=mask.device).unsqueeze(1)).flatten()
    padding = torch.arange(longest, device=mask.device) >= lengths.unsqueeze(1)

    def packed(tensor: Tensor) -> Tensor:
        fill = 0 if tensor.is_floating_point() or tensor.dtype == torch.bool else -1
        chosen = tensor.flatten(0, 1).index_select(0, order).view(*padding.shape, *tensor.shape[2:])
        return chosen.masked_fill_(padding.view(*padding.shape, *[1] * (tensor.ndim - 2)), fill)

    return (*map(packed, tensors), lengths)


OUTPUT_SIZES = ("num_states", "num_classes", "num_labels")
SIZES = ("in_features", "edge_features", *OUTPUT_SIZES)
NAMES = ("vocabulary", "labels")


def described(dataset: Any) -> dict[str, Any]:
    """The numbers of features and states of a dataset and, if features have names, the names."""
    dataset = _parts(dataset)[0]
    sizes = {name: size for name in SIZES if isinstance(size := getattr(dataset, name, None), int)}
    names = {name: getattr(dataset, name) for name in NAMES if hasattr(dataset, name)}
    return sizes | (names if "vocabulary" in names else {})


class Part:
    """Some examples of a dataset as a dataset numbered from 0; an item is its number.

    ``torch.utils.data.Subset`` keeps the numbers of the whole dataset, which name other examples' dual blocks.
    Attributes that describe features and states, such as ``in_features`` and ``vocabulary``, are copied from
    ``dataset``.

    Args:
        rows: Which examples, by their places in ``dataset``; int64 ``[m]`` as an attribute.
        collate_fn: Makes a ``Batch`` of items of ``dataset``; None is ``dataset.collate``. ValueError if there is
            neither.

    Attributes:
        lengths: int64 ``[m]`` where ``dataset`` has such a tensor, else None.
    """

    def __init__(self, dataset: Any, rows: Sequence[int] | Tensor, collate_fn: Collate | None = None) -> None:
        self.rows = torch.as_tensor(rows, dtype=torch.int64)
        self._fetch = partial(_fetched, dataset, _collate_of(dataset, collate_fn))
        lengths = lengths_of(dataset)
        self.lengths = None if lengths is None else lengths.cpu()[self.rows]
        if collate_fn is None:  # a user's function may make other features
            vars(self).update(described(dataset))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> int:
        if not 0 <= i < len(self.rows):
            raise IndexError(f"example {i} of a dataset of {len(self.rows)}")
        return i

    def __getitems__(self, items: Sequence[int]) -> Batch:
        return self.collate(items)

    def collate(self, items: Sequence[int] | Batch) -> Batch:
        """The examples with these numbers; a batch of them as it is."""
        if isinstance(items, Batch):
            return items
        index = torch.tensor(list(items), dtype=torch.int64)
        batch = self._fetch(self.rows[index].tolist())
        return batch.replace(index=index.to(batch.index.device))
