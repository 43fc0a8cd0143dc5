"""Optional packages: an error that says how to install them, and matplotlib's figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def needs(message: str, *packages: str) -> Iterator[None]:
    """Replace the ImportError of a missing one of ``packages`` by ``message``; other import errors pass through."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise ImportError(message) from error


def new_figure(figsize: tuple[float, float]) -> Figure:
    """A figure, in inches, that opens no window and changes no global state of matplotlib, which it needs."""
    with needs("the picture needs matplotlib: pip install 'torchssvm[plot]'", "matplotlib"):
        from matplotlib.figure import Figure
    return Figure(figsize=figsize, layout="constrained")
