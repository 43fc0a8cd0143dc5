"""Tables of refusals: one test for all rows of a callable, which names the rows that fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, in one test: its arguments are those that are no column of the table."""
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [row if len(columns) > 1 else (row,) for row in rows]

    def of(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **others: Any) -> None:
            wrong = []
            for place, row in enumerate(table):
                try:
                    test(*args, **dict(zip(columns, row, strict=True)), **others)
                except (Exception, pytest.fail.Exception) as error:
                    wrong.append((f"row {place}, {row}: {type(error).__name__}: {error}", error))
            if wrong:
                raise AssertionError("\n".join(text for text, _ in wrong)) from wrong[0][1]

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[p for name, p in signature.parameters.items() if name not in columns]
        )
        return run

    return of
