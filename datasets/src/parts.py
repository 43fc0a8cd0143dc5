"""A training set and held-out examples, out of any dataset."""

from __future__ import annotations

from typing import Any

import torch

from torchssvm.core.arguments import as_number, check_dataset, check_seed
from torchssvm.core.batch import Collate, Part


def size_of_share(n: int, share: Any) -> int:
    """The number of examples in a share of n; ValueError if it leaves one of two parts empty."""
    count = round(n * as_number(share, "share")) if 0.0 < as_number(share, "share") < 1.0 else 0
    if not 0 < count < n:
        raise ValueError(f"share={share} of {n} examples leaves one of the parts empty: give one such as 0.2")
    return count


def hold_out(
    dataset: Any, share: float = 0.2, *, seed: int = 0, collate_fn: Collate | None = None
) -> tuple[Part, Part]:
    """A training set, and held-out examples drawn at random; both are numbered from 0.

    Args:
        dataset: Map-style, at least two examples.
        share: Share of the examples to hold out; their number is rounded.
        seed: Of the draw.
        collate_fn: Makes a ``Batch`` of items of ``dataset``; None is ``dataset.collate``.

    Returns:
        ``train, held_out``.

    Raises:
        ValueError: ``share`` leaves one of the parts empty, ``seed`` is out of range, or nothing collates.
        TypeError: An argument is of another kind.

    Example:
        >>> train, held_out = hold_out(data, share=0.2)
        >>> len(train), len(held_out)
        (24, 6)
    """
    check_dataset(dataset)
    n = len(dataset)
    count = size_of_share(n, share)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(check_seed(seed)))
    rest, some = order[count:].sort().values, order[:count].sort().values
    return Part(dataset, rest, collate_fn), Part(dataset, some, collate_fn)
