"""The pictures of a regularisation path and of what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchssvm import RegularizationPath
from torchssvm.core.figures import new_figure
from torchssvm.path import plot

_PANELS = {
    "passes": "effective passes so far",
    "seconds": "seconds so far",
    "test_error": "test error",
}


def draw_path(path: RegularizationPath, rows: Sequence[Mapping[str, Any]], method: str, file: Path) -> None:
    """Gap, norm of the weights and test error of one path, with the spot checks of its first seed in red.

    Args:
        path: That of seed 0.
        rows: Rows of results.csv.
        method: Which of them are the path's.
        file: Where to.
    """
    own = [row for row in rows if row["method"] == method and row["seed"] == 0]
    errors = {row["lam"]: row["test_error"] for row in own if row["kind"] == "served"}
    figure = plot(path, scores=errors, score_name="test error")
    spots = [row for row in own if row["kind"] == "spot"]
    figure.axes[0].plot(
        [row["lam"] for row in spots],
        [row["recomputed_gap"] for row in spots],
        "r.",
        markersize=5,
        label="recomputed",
    )
    figure.axes[0].legend(loc="lower left", fontsize="small")
    figure.savefig(file, dpi=130)


def draw_costs(rows: Sequence[Mapping[str, Any]], methods: Sequence[str], file: Path) -> None:
    """What each method has spent when it comes to a lambda, and its test error there; one line for each seed."""
    figure = new_figure(figsize=(12.0, 3.8))
    colours = {method: f"C{place}" for place, method in enumerate(methods)}
    for ax, (column, label) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
        for method in methods:
            for seed in sorted({row["seed"] for row in rows if row["method"] == method}):
                mine = [row for row in rows if (row["method"], row["seed"]) == (method, seed) and column in row]
                name = method if seed == 0 else None
                values = [row[column] for row in mine]
                ax.plot([row["lam"] for row in mine], values, ".-", color=colours[method], label=name, ms=3, lw=0.9)
        ax.set(xscale="log", xlabel="λ", ylabel=label)
        if column != "test_error":
            ax.set_yscale("log")
        ax.invert_xaxis()
        ax.grid(alpha=0.25, linewidth=0.5)
        ax.legend(fontsize="small")
    figure.savefig(file, dpi=130)
