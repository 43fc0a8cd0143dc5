"""The picture of a comparison: medians over the seeds, with a band from the smallest to the largest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compare.race import Row
from torchssvm.core.figures import new_figure

_CLOCKS = {"passes": "effective passes", "seconds": "seconds of training"}
_FIGURES = {"suboptimality": "primal suboptimality", "gap": "own duality gap", "test_error": "test error"}
_SMALLEST = 1e-12  # what a logarithmic axis shows of rounding
_LARGEST = 2.0  # zero weights have an objective of about 1: what is far above it is cut off


def draw(rows: Sequence[Row], file: Path) -> None:
    """One column of panels for each task, lambda and clock; rows as ``Results.finish`` returns them.

    A seed's curve joins its checks by straight lines in logarithms, and keeps its last value when it is over, until the
    last seed of the solver is. The curve of a solver is the median over its seeds.

    Raises:
        ImportError: matplotlib is missing.
    """
    problems = list(dict.fromkeys((row.task, row.lam) for row in rows))
    solvers = list(dict.fromkeys(row.solver for row in rows))
    styles = _styles(solvers)
    width = 2 * len(problems)
    figure = new_figure(figsize=(1.5 + 3.6 * width, 9.0))
    axes = figure.subplots(len(_FIGURES), width, squeeze=False, sharey="row")
    for column, (problem, clock) in enumerate((problem, clock) for problem in problems for clock in _CLOCKS):
        axes[0, column].set_title(f"{problem[0]}, λ = {problem[1]:.4g}", fontsize="medium")
        for ax, name in zip(axes[:, column], _FIGURES, strict=True):
            for solver in solvers:
                runs = _runs(rows, problem, solver)
                if runs:
                    _band(ax, runs, clock, name, solver, styles[solver])
            ax.set_xscale("log")
            if name != "test_error":
                ax.set_yscale("log")
                ax.set_ylim(top=min(ax.get_ylim()[1], _LARGEST))
            ax.grid(alpha=0.25, linewidth=0.5)
            ax.label_outer(remove_inner_ticks=False)
        axes[-1, column].set_xlabel(_CLOCKS[clock])
    for ax, label in zip(axes[:, 0], _FIGURES.values(), strict=True):
        ax.set_ylabel(label)
    found = {label: line for ax in axes.flat for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(
        [found[solver] for solver in solvers],
        solvers,
        loc="outside lower center",
        ncols=min(len(solvers), 2 * width),
        fontsize="small",
    )
    figure.savefig(file, dpi=130)


def _styles(solvers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour for every method; dashed with a cache, thick when compiled."""
    from matplotlib import colormaps

    def method(solver: str) -> str:
        return solver.removeprefix("compiled-").removesuffix("-cache")

    methods = list(dict.fromkeys(map(method, solvers)))
    colours = colormaps["tab10" if len(methods) <= 10 else "tab20"]
    return {
        solver: {
            "color": colours(methods.index(method(solver)) % colours.N),
            "linestyle": "--" if solver.endswith("-cache") else "-",
            "linewidth": 2.4 if solver.startswith("compiled-") else 1.1,
        }
        for solver in solvers
    }


def _runs(rows: Sequence[Row], problem: tuple[str, float], solver: str) -> list[list[Row]]:
    runs: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if (row.task, row.lam) == problem and row.solver == solver:
            runs[row.seed].append(row)
    return list(runs.values())


def _band(ax: Any, runs: list[list[Row]], clock: str, name: str, label: str, style: dict[str, Any]) -> None:
    times = [np.array([max(getattr(row, clock), _SMALLEST) for row in run]) for run in runs]
    first, last = max(t[0] for t in times), max(t[-1] for t in times)
    grid = np.geomspace(first, max(last, first), 200)
    curves = []
    for t, run in zip(times, runs, strict=True):
        values = np.array([max(getattr(row, name), _SMALLEST) for row in run])
        curves.append(np.exp(np.interp(np.log(grid), np.log(t), np.log(values))))
    ax.plot(grid, np.median(curves, 0), label=label, **style)
    if len(curves) > 1:
        ax.fill_between(grid, np.min(curves, 0), np.max(curves, 0), color=style["color"], alpha=0.15, linewidth=0)
