"""What a data loader hands to a training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Batch:
    """One batch of examples; unpacks as ``x, y, index, lengths = batch``.

    Every tensor in it is moved by :meth:`to` and :meth:`pin_memory`, which a ``DataLoader`` and Lightning call. It is
    not frozen, since Lightning casts a copy in place under ``precision="64-true"``; :meth:`replace` makes another one.

    Attributes:
        x: Input of the features or of the head; any nested structure of tensors, usually ``[B, N, F]``.
        y: Targets, ``[B, ...]`` int64; positions beyond an example's length hold ``-1``.
        index: ``[B]`` int64, the place of every example in its dataset: it names the example's dual block.
        lengths: ``[B]`` int64, or None where every example has the same shape.
    """

    x: Any
    y: Any
    index: Tensor
    lengths: Tensor | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.y, self.index, self.lengths))

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
"""Makes a batch of a list of examples."""


def tree_map(function: Any, tree: Any) -> Any:
    """Apply ``function`` to every tensor of batches and nested tuples, lists and dicts, keeping their types."""
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
    found: list[Tensor] = []
    tree_map(found.append, tree)
    return found


def tree_replace(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """``tree`` with other tensors, given in the order of :func:`tree_tensors`."""
    remaining = iter(tensors)
    return tree_map(lambda _: next(remaining), tree)


def to_device(batch: Any, device: torch.device | str) -> Any:
    """Move every tensor of ``batch`` to ``device``; meta tensors have no numbers to move, and are refused later.

    The host goes on while pinned memory is copied to an accelerator. It waits for copies to itself, which it could read
    before they have arrived.
    """
    on_host = torch.device(device).type == "cpu"

    def move(tensor: Tensor) -> Tensor:
        return tensor if tensor.is_meta else tensor.to(device, non_blocking=not on_host)

    return tree_map(move, batch)


def apply_head(head: Any, batch: Batch) -> Any:
    """``head(x)``, or ``head(x, lengths)`` for batches whose examples differ in length."""
    return head(batch.x) if batch.lengths is None else head(batch.x, batch.lengths)


def fetcher(dataset: Any, collate_fn: Collate | None = None) -> Callable[[Sequence[int]], Batch]:
    """What makes a batch of indices, as a ``DataLoader`` without workers does, without touching the global generator.

    Raises:
        ValueError: There is neither ``collate_fn`` nor ``dataset.collate``.
    """
    collate = collate_fn if collate_fn is not None else getattr(dataset, "collate", None)
    if collate is None:
        raise ValueError(
            f"collate_fn=None, and {type(dataset).__name__} has no method `collate`: pass what makes a Batch of items"
        )
    if hasattr(dataset, "__getitems__"):
        return lambda index: collate(dataset.__getitems__(list(index)))
    return lambda index: collate([dataset[i] for i in index])


def in_order(dataset: Any, *, batch_size: int = 256, collate_fn: Collate | None = None) -> Iterable[Batch]:
    """The batches of an exact pass: every example once, in order; they can be read any number of times.

    Args:
        dataset: Map-style; an item's index is its place.
        batch_size: Examples of a batch.
        collate_fn: Makes a ``Batch`` of a list of items; None is ``dataset.collate``.

    Raises:
        ValueError: There is neither ``collate_fn`` nor ``dataset.collate``.
    """
    return _InOrder(dataset, batch_size, fetcher(dataset, collate_fn))


@dataclass(frozen=True)
class _InOrder:
    dataset: Any
    batch_size: int
    fetch: Callable[[Sequence[int]], Batch]

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.dataset), self.batch_size):
            yield self.fetch(range(start, min(start + self.batch_size, len(self.dataset))))


def check_batches(batches: Any, *, reread: bool = False) -> Iterable[Batch]:
    """What batches can be read from.

    Args:
        batches: As the user gave them.
        reread: Whether they will be read more than once.

    Raises:
        TypeError: It is a single batch, or nothing that can be iterated over, or can be read only once.
    """
    if isinstance(batches, Batch) or not isinstance(batches, Iterable):
        raise TypeError(f"batches is a {type(batches).__name__}: give a list of torchssvm.Batch, or a DataLoader")
    if reread and isinstance(batches, Iterator):
        raise TypeError(
            f"batches is a {type(batches).__name__}, which can be read only once, and every pass reads them: give a "
            "list of torchssvm.Batch, a DataLoader, or torchssvm.in_order(dataset)"
        )
    return batches


def first_occurrences(index: Tensor, numbers: Sequence[int] | None = None) -> Tensor:
    """Rows that hold a number for the first time, in order: ``[R]`` int64.

    Args:
        index: ``[B]`` int64.
        numbers: The same numbers, if they have been read already.
    """
    size = index.shape[0]
    if len(set(index.tolist() if numbers is None else numbers)) == size:
        return torch.arange(size, device=index.device)
    ordered, rows = index.sort(stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return rows[first].sort().values
