"""A progress bar: tqdm's where it is installed, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_SECONDS = 10.0  # between two lines


def progress(items: Iterable[T], total: int, text: str, show: bool = True) -> Iterator[T]:
    """Yields the items, and says on standard error how many there have been."""
    if not show:
        yield from items
        return
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        pass
    else:
        yield from tqdm(items, total=total, desc=text)
        return
    said = time.monotonic()
    for number, item in enumerate(items, 1):
        yield item
        if number == total or time.monotonic() - said > _SECONDS:
            said = time.monotonic()
            print(f"{text}: {number} of {total}", file=sys.stderr)
