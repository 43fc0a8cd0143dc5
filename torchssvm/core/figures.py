"""Figures of matplotlib, an optional package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchssvm.core.extras import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
