"""Optional packages: an error that says how to install them, and matplotlib's figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def needs(message: str, *packages: str) -> Iterator[None]:
    """Replace the error of a missing package by ``message``; other import errors pass through.

    Args:
        message: Names the feature that needs the packages, and the extra that installs them.
        packages: The packages' import names.

    Raises:
        ImportError: One of ``packages`` is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise ImportError(message) from error


def new_figure(figsize: tuple[float, float]) -> Figure:
    """A figure that opens no window and changes no global state of matplotlib.

    Args:
        figsize: Width and height in inches.

    Raises:
        ImportError: matplotlib is missing.
    """
    with needs("the picture needs matplotlib: pip install 'torchssvm[plot]'", "matplotlib"):
        from matplotlib.figure import Figure
    return Figure(figsize=figsize, layout="constrained")
