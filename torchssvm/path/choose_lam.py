"""The lambda that predicts held-out data best, by training from the largest to the smallest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from torchssvm.core.arguments import as_number, check_dataset, check_number, check_whole, or_default
from torchssvm.core.batch import pass_over
from torchssvm.core.compiling import clock
from torchssvm.core.figures import new_figure
from torchssvm.core.problem import find_structure
from torchssvm.core.structure import Structure
from torchssvm.path.grid import KeepDual, KeepWeights, check_lams
from torchssvm.path.guess_lam import guess_lam
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.choice import Solver
from torchssvm.solvers.evaluation import Evaluation, evaluate
from torchssvm.solvers.parameter_groups import NamedBounds
from torchssvm.solvers.progress_line import shown
from torchssvm.solvers.run_options import RunOptions
from torchssvm.solvers.tolerance import Relative, Tolerance, is_within
from torchssvm.solvers.trainer import check_limits
from torchssvm.solvers.training import device_of, make_trainer, move, on_device, warn_if_short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FACTORS = (10.0, 3.0, 1.0, 0.3, 0.1)
"""Lambdas that are tried where none are given, as multiples of the guess."""

STEP = 3.0
"""Where the best of them is at an end, the next lambda beyond is so many times larger or smaller."""

MOST = 8
"""At most so many lambdas are tried where none are given."""


class HeldOutPoint(NamedTuple):
    """What training at one lambda gave.

    Attributes:
        lam: Lambda.
        certificate: Of the last exact pass; ``certificate.passes`` counts those of the lambdas before too.
        held_out: Loss and errors on the held-out examples.
        score: What decides; the larger is the better.
        passes: Effective passes that this lambda took.
        seconds: Wall-clock seconds that this lambda took, without those of scoring.
    """

    lam: float
    certificate: Certificate
    held_out: Evaluation
    score: float
    passes: float
    seconds: float


@dataclass(frozen=True, eq=False)
class LamChoice:
    """The lambda that was chosen, and all that were tried; ``print`` shows them as a table.

    Attributes:
        head: The head, with the weights of ``best``.
        best: The point with the largest score; of several, that of the largest lambda.
        points: All points, in descending order of lambda.
        untried: The lambdas that ``patience`` left out.

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

    @property
    def advice(self) -> str | None:
        """Which lambdas to try too, where the best one is at an end of those that were tried; else None."""
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
            row = [f"{point.lam:.3g}", f"{point.lam * own.num_examples:.3g}", f"{100 * own.relative_gap:.2g} %"]
            row += [f"{point.passes:.0f}", f"{point.seconds:.1f}", f"{point.held_out.loss:.4g}"]
            row += ["" if error is None else f"{100 * error:.2f} %" for error in errors]
            row += [f"{point.score:.4g}"] if scored else []
            rows.append(row)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines[1 + self.points.index(self.best)] += "  best"
        if self.untried:
            lines.append("not tried: lam = " + ", ".join(f"{lam:.3g}" for lam in self.untried))
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


def choose_lam(
    head: nn.Module,
    dataset: Any,
    held_out: Any,
    lams: Sequence[float] | None = None,
    *,
    tolerance: Tolerance | None = None,
    score: Callable[[nn.Module], float] | None = None,
    patience: int | None = None,
    budget: float | None = None,
    max_passes: float = 1000.0,
    solver: Solver | None = None,
    structure: Structure | None = None,
    bounds: NamedBounds | None = None,
    options: RunOptions | None = None,
    memory_limit: int | None = None,
    on_point: Callable[[HeldOutPoint], None] | None = None,
    progress: bool = True,
) -> LamChoice:
    """Train at every lambda, score held-out examples, and leave the weights that score best in the head.

    The largest lambda comes first, from zero weights, as it takes the fewest passes; each smaller one starts from the
    weights before it ([G16] Proposition 1). Every lambda ends with a certificate. The solver is that of
    :func:`torchssvm.solve`.

    Where no lambdas are given and the best is the largest or the smallest, up to three more are tried beyond it, each 3
    times the last or a third of it, from the dual as it is then, until one does not score better. Lambdas that are
    given are all that is tried; ``choice.advice`` says whether the best of them is at an end.

    Args:
        head: Features -> potentials, linear in all its weights; its weights are replaced.
        dataset: The training set: map-style, n examples with ``collate``; an item's index is its place.
        held_out: Examples that are not trained on: map-style, at least one, of the same kind.
        lams: Distinct positive numbers, in any order; None is 10, 3, 1, 0.3 and 0.1 times
            :func:`torchssvm.guess_lam`, and more beyond their ends as above.
        tolerance: The gap to reach at each lambda, a number or ``Relative(share)``; None is ``Relative(0.01)``, 1 % of
            the primal.
        score: Scores the head that it is given; the larger is the better. None is minus the mean loss of the held-out
            examples.
        patience: Leave out the smaller lambdas, which take the most passes, once so many in a row did not raise the
            best score; None tries all.
        budget: The smaller lambdas may take so many times the passes that the best one and those before it took. One
            that does not reach ``tolerance`` in what is left, or in ``max_passes``, is not chosen and is the last; the
            last too is one with less than twice its own passes left, as the next one takes more. None tries all.
        max_passes: Most effective passes for each lambda; a run that ends by it warns.
        solver: As in :func:`torchssvm.solve`, like the next four.
        structure: What an output is.
        bounds: Bounds on the weights.
        options: Order of the examples, seed, and when exact passes are made; its ``collate_fn`` is for both datasets.
        memory_limit: Bytes that the dual's blocks may take.
        on_point: Called after each lambda, while the head holds its weights.
        progress: Whether one line on stderr shows lambda, gap, dual, passes and seconds.

    Returns:
        The choice; the head holds its weights. Its certificate, ``choice.best.certificate``, is of these weights.

    Raises:
        ValueError: ``lams`` is empty, or holds a duplicate or a number that is not positive; ``held_out`` is empty or
            the training set; another argument is out of range; or a score is not a number.
        TypeError: An argument is of another kind.
        MemoryError: As :func:`torchssvm.solve`.

    Example:
        >>> from torchssvm.datasets import hold_out
        >>> train, held_out = hold_out(data, share=0.2)
        >>> head = LinearMulticlass(4, 3)
        >>> choice = choose_lam(head, train, held_out, lams=[1.0, 0.1, 0.01])
        >>> choice.best.lam in (1.0, 0.1, 0.01)
        True
    """
    ordered = check_lams(lams) if lams is not None else []
    tolerance = tolerance if tolerance is not None else Relative(0.01)
    check_limits(tolerance, max_passes)
    if patience is not None:
        check_whole(patience, "patience")
    if budget is not None:
        check_number(budget, "budget", above=0.0)
    for name, function in (("score", score), ("on_point", on_point)):
        if function is not None and not callable(function):
            raise TypeError(f"{name}={function!r} must be a function, such as lambda head: ...")
    options, structure = or_default(options, RunOptions, "options"), find_structure(head, structure)
    check_dataset(dataset)
    device = device_of(head)
    batches = _held_out_batches(head, dataset, held_out, structure, options, device)

    if lams is None:
        guess = guess_lam(head, dataset, structure=structure, collate_fn=options.collate_fn)
        ordered = [factor * guess for factor in FACTORS]
    trainer = make_trainer(
        head,
        dataset,
        ordered[0],
        solver=solver,
        structure=structure,
        bounds=bounds,
        options=options,
        memory_limit=memory_limit,
        progress=progress,
    )
    points: list[HeldOutPoint] = []
    untried: list[float] = []
    best: tuple[HeldOutPoint, list[torch.Tensor]] | None = None
    since = 0  # lambdas since the best one
    left = math.inf  # passes of the budget
    with shown(progress) as line:
        try:
            while ordered:
                lam = ordered.pop(0)
                if line is not None:
                    line.prefix = f"lam {lam:.3g}"
                start, before, most = clock(), trainer.dual.passes, max_passes
                if points:
                    smaller = lam < trainer.dual.lam
                    (KeepWeights() if smaller else KeepDual())(trainer.dual, lam)
                    most = min(max_passes, left) if smaller else max_passes
                certificate = trainer.solve(tolerance, max_passes=before + most, progress=line or False)
                seconds = clock() - start
                reached = is_within(certificate.gap, tolerance, certificate.primal)
                if budget is None:
                    warn_if_short(certificate, tolerance, max_passes)
                with on_device(head, device):
                    found = evaluate(head, structure, batches, device)
                    value = -found.loss if score is None else _score(head, score)
                value = float(trainer.dual.ranks.gather(torch.tensor(value, dtype=torch.float64))[0])  # all follow one
                if math.isnan(value):
                    raise ValueError(f"score(head) is nan at lam={lam:g}: it must be a number, the larger the better")
                point = HeldOutPoint(lam, certificate, found, value, certificate.passes - before, seconds)
                points.append(point)
                since, left = since + 1, left - point.passes
                allowed = reached or budget is None or best is None
                if best is None or (allowed and (value, lam) > (best[0].score, best[0].lam)):
                    best, since = (point, [parameter.detach().clone() for parameter in head.parameters()]), 0
                    left = math.inf if budget is None else budget * certificate.passes
                if on_point is not None:
                    if line is not None:
                        line.clear()  # the callback may print
                    with on_device(head, device):
                        on_point(point)
                if since == patience or left < 2 * point.passes or (budget is not None and not reached):
                    untried, ordered = untried + ordered, []
                if lams is None and not ordered and len(points) + len(untried) < MOST:
                    ordered = _beyond(best[0].lam, [each.lam for each in points], untried)
        finally:  # an interrupted search leaves the best weights too
            if best is not None:
                with torch.no_grad():
                    for parameter, held in zip(head.parameters(), best[1], strict=True):
                        parameter.copy_(held)
            move(head, device)
    assert best is not None  # there is a lambda
    points.sort(key=lambda point: -point.lam)
    return LamChoice(head, best[0], tuple(points), tuple(untried))


def _beyond(best: float, tried: list[float], untried: list[float]) -> list[float]:
    """The lambda to try next where the best one is at an end of those that were tried; else none."""
    if best == max(tried):
        return [STEP * best]
    return [best / STEP] if best == min(tried) and not untried else []


@torch.no_grad()
def _score(head: nn.Module, score: Callable[[nn.Module], float]) -> float:
    """What ``score`` says.

    Raises:
        ValueError: It has changed the weights, which are then put back: the path goes on from them.
    """
    held = [parameter.detach().clone() for parameter in head.parameters()]
    try:
        with torch.enable_grad():
            found = as_number(score(head), "score(head)")
    finally:
        changed = [(p, own) for p, own in zip(head.parameters(), held, strict=True) if not torch.equal(p, own)]
        for parameter, own in changed:
            parameter.copy_(own)
    if changed:
        raise ValueError("score(head) has changed the head's weights: score a copy, copy.deepcopy(head)")
    return found


def _held_out_batches(
    head: nn.Module, dataset: Any, held_out: Any, structure: Structure, options: RunOptions, device: Any
) -> Any:
    """The batches of the held-out examples; the first of them is decoded, to refuse what does not fit.

    Raises:
        ValueError, TypeError: See :func:`choose_lam`.
    """
    if not hasattr(held_out, "__len__"):
        raise TypeError(f"held_out must be a map-style dataset with a length, not a {type(held_out).__name__}")
    if held_out is dataset:
        raise ValueError("held_out is the training set itself: give examples that are not trained on")
    if not len(held_out):
        raise ValueError("held_out is empty: give examples that are not trained on")
    batches = pass_over(held_out, options.collate_fn)
    evaluate(head, structure, itertools.islice(batches, 1), device)
    return batches
