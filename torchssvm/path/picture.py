"""A picture of a regularisation path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchssvm.core.extras import new_figure
from torchssvm.path.result import RegularizationPath

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(
    path: RegularizationPath, *, scores: Mapping[float, float] | None = None, score_name: str = "validation score"
) -> Figure:
    """Gap, norm of the weights and, if given, scores against lambda, with the breakpoints marked.

    Args:
        path: The path.
        scores: A score for some lambdas, such as the result of ``path.scores(head, score)``.
        score_name: Label of the scores' axis.

    Returns:
        A ``matplotlib.figure.Figure``; opens no window and leaves matplotlib's global state alone.

    Raises:
        ImportError: matplotlib is missing.
    """
    figure = new_figure((7, 6.5 if scores else 4.6))
    axes = figure.subplots(3 if scores else 2, 1, sharex=True)
    marks = path.breakpoints.tolist()
    largest = 3 * marks[0]
    smallest = path.lowest if path.lowest > 0.0 else marks[-1] / 30
    lams = [smallest * (largest / smallest) ** (step / 400) for step in range(401)]
    # Both ends of every piece, so that each jump is visible.
    lams += marks + [mark * (1 + 1e-9) for mark in marks]
    lams = sorted(lam for lam in lams if smallest <= lam <= largest)

    gap = "certified gap" if path.certified else "gap (estimate)"
    axes[0].plot(lams, [path.gap_estimate(lam) for lam in lams], linewidth=0.8, label=gap)
    allowed = [path.largest_gap(lam) for lam in lams]
    axes[0].plot(lams, allowed, color="black", linewidth=0.8, linestyle="--", label=f"ε = {path.epsilon:g}")
    axes[0].set_ylabel(gap)
    axes[0].set_ylim(bottom=0.0)
    axes[0].legend(loc="lower left", fontsize="small")
    axes[1].plot(lams, [path.norm(lam) for lam in lams], linewidth=0.8)
    axes[1].set_ylabel("|w|")
    axes[1].set_yscale("log")
    if scores:
        axes[2].plot(list(scores), list(scores.values()), ".-", markersize=3, linewidth=0.8)
        axes[2].set_ylabel(score_name)
    for ax in axes:  # a mark for every breakpoint, along the lower edge
        ax.plot(marks, [0.0] * len(marks), "|", color="black", markersize=6, transform=ax.get_xaxis_transform())
    axes[-1].set_xscale("log")
    axes[-1].invert_xaxis()
    axes[-1].set_xlabel(f"λ ({len(marks)} breakpoints marked)")
    return figure
