"""What choosing lambda gives: every lambda that was tried, and the one that was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from torchssvm.core.arguments import new_figure
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.evaluation import Evaluation
from torchssvm.solvers.guess_lam import FAR_ABOVE, FAR_BELOW
from torchssvm.solvers.solver import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class HeldOutPoint(NamedTuple):
    """What training at one lambda gave.

    Attributes:
        lam: Lambda.
        certificate: Of the last exact pass; ``certificate.passes`` counts those of the lambdas before too.
        held_out: Loss and errors on the held-out examples.
        score: What decides; the larger is the better.
        passes: Effective passes that this lambda took, of all folds.
        seconds: Wall-clock seconds that this lambda took, without those of scoring.
        losses: The loss of each held-out example; with a score of one's own, minus that of each fold.
    """

    lam: float
    certificate: Certificate
    held_out: Evaluation
    score: float
    passes: float
    seconds: float
    losses: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LamChoice:
    """The lambda that was chosen, and all that were tried; ``print`` shows them as a table.

    Attributes:
        head: The head, with the weights of ``best``.
        best: The point that was chosen: the largest lambda that is not worse than the one with the highest score by
            more than the standard error of the difference.
        points: All points, in descending order of lambda.
        untried: The lambdas that ``patience`` left out.
        guess: That of :func:`torchssvm.guess_lam`; None where it has no answer.

    Example:
        >>> from torchssvm.datasets import hold_out
        >>> choice = choose_lam(LinearMulticlass(4, 3), *hold_out(data), lams=[1.0, 0.1])
        >>> [point.lam for point in choice.points]
        [1.0, 0.1]
        >>> print(str(choice).splitlines()[0])
        lam  lam n  gap  passes  seconds  loss  wrong examples
    """

    head: nn.Module
    best: HeldOutPoint
    points: tuple[HeldOutPoint, ...]
    untried: tuple[float, ...] = ()
    guess: float | None = None

    @property
    def far(self) -> str | None:
        """What to try, where every lambda is far from the guess, on one side of it; else None."""
        low, high = self.points[-1].lam, self.points[0].lam
        if self.guess is None or not (low > FAR_ABOVE * self.guess or FAR_BELOW * high < self.guess):
            return None
        side = "above" if low > self.guess else "below"
        return f"every lam is far {side} {self.guess:.3g}, that of guess_lam: try lam around {self.guess:.3g}"

    @property
    def advice(self) -> str | None:
        """Which lambdas to try too, where the best one is at an end of those that were tried; else None."""
        if self.far is not None:
            return self.far
        if self.best is self.points[0]:
            return f"the largest lam was the best: try lam above {self.best.lam:.3g} too"
        if self.best is self.points[-1] and not self.untried:
            return f"the smallest lam was the best: try lam below {self.best.lam:.3g} too"
        return None

    def __str__(self) -> str:
        scored = any(point.score != -point.held_out.loss for point in self.points)
        names = ("example",) if self.best.held_out.is_plain else ("token", "example")
        rows = [["lam", "lam n", "gap", "passes", "seconds", "loss", *(f"wrong {name}s" for name in names)]]
        rows[0] += ["score"] if scored else []
        for point in self.points:
            own, errors = point.certificate, [getattr(point.held_out, f"{name}_error") for name in names]
            mark = "" if own.exact else "of a relaxation " if own.relaxed else "<"  # an upper bound
            row = [f"{point.lam:.3g}", f"{point.lam * own.num_examples:.3g}", f"{mark}{percent(own.relative_gap)}"]
            row += [f"{point.passes:.0f}", f"{point.seconds:.1f}", f"{point.held_out.loss:.4g}"]
            row += ["" if error is None else f"{100 * error:.2f} %" for error in errors]
            row += [f"{point.score:.4g}"] if scored else []
            rows.append(row)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines[1 + self.points.index(self.best)] += "  best"
        if self.untried:
            lines.append("not tried: lam = " + ", ".join(f"{lam:.3g}" for lam in self.untried))
        top = highest(self.points)
        if top is not self.best:
            lines.append(
                f"lam = {top.lam:.3g} scores highest, and lam = {self.best.lam:.3g} not less by more than the standard "
                "error of the difference"
            )
        return "\n".join([*lines, self.advice] if self.advice else lines)

    def plot(self) -> Figure:
        """The held-out loss, or the score if one was given, over lambda.

        Returns:
            A ``matplotlib.figure.Figure``; opens no window and leaves matplotlib's global state alone.

        Raises:
            ImportError: matplotlib is missing.
        """
        figure = new_figure((6, 3.6))
        axes = figure.subplots()
        scored = any(point.score != -point.held_out.loss for point in self.points)
        values = [point.score if scored else point.held_out.loss for point in self.points]
        axes.plot([point.lam for point in self.points], values, ".-")
        axes.plot([self.best.lam], [values[self.points.index(self.best)]], "o", label=f"best: λ = {self.best.lam:.3g}")
        axes.set(xscale="log", xlabel="λ", ylabel="score" if scored else "held-out loss")
        axes.legend(fontsize="small")
        return figure


def highest(points: Sequence[HeldOutPoint]) -> HeldOutPoint:
    """The point with the highest score; of several, that of the largest lambda."""
    return max(points, key=lambda point: (point.score, point.lam))


def chosen_of(points: Sequence[HeldOutPoint]) -> HeldOutPoint:
    """The largest lambda of those that are :func:`near` the highest score."""
    return max(near(points), key=lambda point: point.lam)


def near(points: Sequence[HeldOutPoint]) -> list[HeldOutPoint]:
    """The points that score less than the highest by at most the standard error of the difference.

    Differences are those of the same held-out examples, which vary far less than the losses themselves.
    """
    top = highest(points)
    return [point for point in points if point is top or top.score - point.score <= _error(point, top)]


def _error(a: HeldOutPoint, b: HeldOutPoint) -> float:
    """The standard error of the mean difference of two points' losses; 0 where it is unknown."""
    if a.losses is None or b.losses is None or len(a.losses) < 2:
        return 0.0
    error = float((a.losses - b.losses).std()) / len(a.losses) ** 0.5
    return error * (1.0 + 1e-9)  # one error more among n examples is exactly one standard error
