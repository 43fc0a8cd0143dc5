"""How errors name the rows of a batch, by the numbers of their examples where known; and what is this package's own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor


class _Here(threading.local):
    index: Tensor | None = None


_here = _Here()


class naming:
    """A context in which errors name row b of a batch as example ``index[b]``; None is a batch without numbers."""

    def __init__(self, index: Tensor | None) -> None:
        self.index = index

    def __enter__(self) -> None:
        self.before, _here.index = _here.index, self.index

    def __exit__(self, *_: Any) -> None:
        _here.index = self.before


def name_rows(index: Tensor) -> None:
    """From here on to the end of the innermost :class:`naming`, errors name row b as example ``index[b]``."""
    _here.index = index


def row_name(row: int) -> str:
    """``example 17`` where the index of the batch is known, else ``row 3 of the batch``."""
    numbers = _numbers([row])
    return f"row {row} of the batch" if numbers is None else f"example {numbers[0]}"


def number_of(row: int) -> int:
    """The number of the example at ``row``, where the index is known, else ``row``."""
    numbers = _numbers([row])
    return row if numbers is None else numbers[0]


def row_names(rows: Sequence[int]) -> str:
    """``examples [17, 4]``, or ``rows [3, 5]``: the first eight, and how many more there are."""
    first = list(rows[:8])
    numbers = _numbers(first)
    more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
    return f"rows {first}{more}" if numbers is None else f"examples {numbers}{more}"


def _numbers(rows: Sequence[int]) -> list[int] | None:
    index = _here.index
    if not isinstance(index, Tensor) or index.ndim != 1 or max(rows, default=0) >= len(index):
        return None
    return [int(index[row]) for row in rows]


def is_ours(kind: Any) -> bool:
    """Whether a class or function is defined in this package."""
    return kind.__module__.startswith("torchssvm.")
