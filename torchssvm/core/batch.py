"""What a data loader hands to a training loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """One batch of examples.

    Attributes:
        x: Input of the features or of the head; any nested structure of tensors, usually ``[B, N, F]``.
        y: Targets, ``[B, ...]`` int64; positions beyond an example's length hold ``-1``.
        index: ``[B]`` int64, the place of every example in its dataset: it names the example's dual block.
        lengths: ``[B]`` int64, or None where every example has the same shape.
    """

    x: Any
    y: Any
    index: Tensor  # type: ignore[assignment]  # it hides tuple.index
    lengths: Tensor | None = None


def tree_map(function: Any, tree: Any) -> Any:
    """Apply ``function`` to every tensor of nested tuples, lists and dicts, keeping their types."""
    if isinstance(tree, Tensor):
        return function(tree)
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
