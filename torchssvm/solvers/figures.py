"""Figures of matplotlib, which is imported when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchssvm.core.arguments import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(figsize: tuple[float, float]) -> Figure:
    """An empty figure, which opens no window and changes no global state of matplotlib.

    Args:
        figsize: Width and height in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with needs("the picture needs matplotlib: pip install 'torchssvm[plot]'", "matplotlib"):
        from matplotlib.figure import Figure
    return Figure(figsize=figsize, layout="constrained")
