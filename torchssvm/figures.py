"""Figures of matplotlib, which is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(figsize: tuple[float, float]) -> Figure:
    """A figure that opens no window and changes no global state of matplotlib.

    Args:
        figsize: Width and height in inches.

    Raises:
        ImportError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise ImportError("the picture needs matplotlib: pip install 'torchssvm[plot]'") from error
    return Figure(figsize=figsize, layout="constrained")
