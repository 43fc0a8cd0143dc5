"""Line charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = tuple[Sequence[float], Sequence[float]]


def lines(
    file: Path,
    curves: Mapping[str, Curve],
    xlabel: str,
    ylabel: str,
    *,
    log: str = "both",
    levels: Sequence[float] = (),
    title: str = "",
) -> Path:
    """One chart; returns the file."""
    return grid(file, {title: curves}, [xlabel], ylabel, log=log, levels=levels)


def grid(
    file: Path,
    charts: Mapping[str, Mapping[str, Curve]],
    xlabels: Sequence[str],
    ylabel: str,
    *,
    log: str = "both",
    levels: Sequence[float] = (),
) -> Path:
    """Several charts beside each other, with one axis of values."""
    from torchssvm.solvers.figures import new_figure

    figure = new_figure((7.0 if len(charts) == 1 else 4.0 * len(charts), 4.5))
    for axes, xlabel, (title, curves) in zip(
        figure.subplots(1, len(charts), squeeze=False, sharey=True)[0], xlabels, charts.items(), strict=True
    ):
        for name, (x, y) in curves.items():
            axes.plot(x, y, label=name, marker=".", markersize=4, linewidth=1)
        for level in levels:
            axes.axhline(level, color="grey", linewidth=0.5, linestyle=":")
        axes.set(xlabel=xlabel, title=title)
        axes.set_xscale("log" if log in ("both", "x") else "linear")
        axes.set_yscale("log" if log in ("both", "y") else "linear")
        axes.grid(alpha=0.2)
        axes.legend(fontsize="small")
    figure.axes[0].set_ylabel(ylabel)
    figure.savefig(file, dpi=150)
    return file
