"""The lambda that predicts held-out data best, by training from the largest to the smallest."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import as_number, check_dataset, check_number, check_several, check_whole, or_default
from torchssvm.core.batch import NAMES, Part, check_fits, device_of, numbered, pass_over
from torchssvm.core.packages import warn
from torchssvm.core.problem import find_structure
from torchssvm.core.structure import Structure
from torchssvm.path.run import Solved, train_at
from torchssvm.solvers.advice import FAR_ABOVE, FAR_BELOW, guess_or_none, warn_if_short
from torchssvm.solvers.certificate import Certificate, weights_kept, write
from torchssvm.solvers.evaluation import Evaluation, evaluate, merge_evaluations
from torchssvm.solvers.figures import new_figure
from torchssvm.solvers.guess_lam import guess_lam
from torchssvm.solvers.progress_line import shown
from torchssvm.solvers.solver import Relative, Solver, Tolerance, is_within, percent
from torchssvm.solvers.trainer import check_limits
from torchssvm.solvers.training import make_trainer, move, on_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Run(NamedTuple):
    """The training of one fold, or the only one."""

    head: nn.Module
    trainer: Any
    batches: Any  # of its held-out examples
    scale: float  # of lambda: lam n is the same as for all examples


def scored(
    runs: list[Run],
    solved: list[Solved],
    structure: Structure,
    score: Callable[[nn.Module], float] | None,
    device: torch.device,
) -> HeldOutPoint:
    """The point of all runs at a lambda, with the evaluation of their held-out examples."""
    evaluations, values, lam = [], [], solved[0].lam
    for run in runs:
        with on_device(run.head, device):
            evaluations.append(evaluate(run.head, structure, run.batches, device))
            value = -evaluations[-1].loss if score is None else _score(run.head, score)
        value = float(run.trainer.dual.ranks.gather(torch.tensor(value, dtype=torch.float64))[0])  # all follow one
        if math.isnan(value):
            raise ValueError(f"score(head) is nan at lam={lam:g}: return a number, the larger the better")
        values.append(value)
    evaluation = evaluations[0] if len(evaluations) == 1 else merge_evaluations(evaluations)
    if score is None:
        mean, losses = -evaluation.loss, evaluation.losses
    else:
        mean, losses = sum(values) / len(values), -torch.tensor(values, dtype=torch.float64)
    passes, seconds = (sum(getattr(each, name) for each in solved) for name in ("passes", "seconds"))
    return HeldOutPoint(lam, solved[-1].result, evaluation, mean, passes, seconds, losses)


@torch.no_grad()
def _score(head: nn.Module, score: Callable[[nn.Module], float]) -> float:
    """The score of the head; weights that ``score`` changes are put back."""
    with weights_kept(list(head.parameters())), torch.enable_grad():
        given: Any = score(head)
    one = isinstance(given, torch.Tensor) and given.numel() == 1
    return as_number(float(given) if one else given, "score(head)")


def divided(dataset: Any, folds: int, seed: int) -> list[tuple[Part, Any]]:
    """For every fold, the other examples and the batches of its examples."""
    n = len(dataset)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    sets = []
    for fold in torch.tensor_split(order, folds):
        rest = torch.ones(n, dtype=torch.bool)
        rest[fold] = False
        held_out = Part(dataset, fold.sort().values)
        sets.append((Part(dataset, rest.nonzero().flatten()), pass_over(held_out)))
    return sets


def held_out_batches(head: nn.Module, dataset: Any, held_out: Any, structure: Structure, device: Any) -> Any:
    """The batches of the held-out examples; the first is decoded, to refuse what does not fit: see ``choose_lam``."""
    check_dataset(held_out, "held_out")
    if held_out is dataset or not len(held_out):
        raise ValueError("held_out is empty, or the training set: give examples that are not trained on")
    dataset, held_out = numbered(dataset), numbered(held_out)
    batches = pass_over(held_out)
    check_fits(head, structure, held_out)
    for name in NAMES if hasattr(dataset, "vocabulary") and hasattr(held_out, "vocabulary") else ():
        one, other = getattr(dataset, name, None), getattr(held_out, name, None)
        compares: Any = type(one).__eq__
        if compares is not object.__eq__ and one != other:
            raise ValueError(f"held_out has another {name} than dataset: make it with {name}=train.{name}")
    evaluate(head, structure, itertools.islice(batches, 1), device)
    return batches


class HeldOutPoint(NamedTuple):
    """The result of training at one lambda.

    Attributes:
        lam: Lambda.
        certificate: Of the last exact pass; ``certificate.passes`` counts the passes of earlier lambdas too.
        held_out: Loss and errors on the held-out examples.
        score: The score that decides; larger is better.
        passes: Effective passes that this lambda took, of all folds.
        seconds: Wall-clock seconds of training at this lambda, without scoring.
        losses: The loss of each held-out example; with the user's ``score``, minus the score of each fold.
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
        guess: The lambda of :func:`torchssvm.guess_lam`; None where it has no answer.

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
        return f"every lam is far {side} the guess of guess_lam: try lam around {self.guess:.3g}"

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
        held_out = self.best.held_out
        names = [] if held_out.example_error is None else ["example"] if held_out.is_plain else ["token", "example"]
        rows = [["lam", "lam n", "gap", "passes", "seconds", "loss", *(f"wrong {name}s" for name in names)]]
        rows[0] += ["score"] if scored else []
        for point in self.points:
            proof, errors = point.certificate, [getattr(point.held_out, f"{name}_error") for name in names]
            mark = "" if proof.exact else "of a relaxation " if proof.relaxed else "<"  # an upper bound
            row = [f"{point.lam:.3g}", f"{point.lam * proof.num_examples:.3g}", f"{mark}{percent(proof.relative_gap)}"]
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
                f"lam = {self.best.lam:.3g} is chosen: lam = {top.lam:.3g} scores highest, by less than the standard "
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
    """The point with the highest score; of several, the point of the largest lambda."""
    return max(points, key=lambda point: (point.score, point.lam))


def chosen_of(points: Sequence[HeldOutPoint]) -> HeldOutPoint:
    """The largest lambda of those that are :func:`near` the highest score."""
    return max(near(points), key=lambda point: point.lam)


def near(points: Sequence[HeldOutPoint]) -> list[HeldOutPoint]:
    """The points that score less than the highest by at most the standard error of the difference.

    Differences are taken example by example; they vary far less than the losses.
    """
    top = highest(points)
    return [point for point in points if point is top or top.score - point.score <= _error(point, top)]


def _error(a: HeldOutPoint, b: HeldOutPoint) -> float:
    """The standard error of the mean difference of two points' losses; 0 where it is unknown."""
    if a.losses is None or b.losses is None or len(a.losses) < 2:
        return 0.0
    error = float((a.losses - b.losses).std()) / len(a.losses) ** 0.5
    return error * (1.0 + 1e-9)  # one error more among n examples is exactly one standard error


FACTORS = (10.0, 3.0, 1.0, 0.3, 0.1)  # lambdas that are tried where none are given, as multiples of the guess
STEP = 3.0  # where the best of them is at an end, the next lambda beyond is so many times larger or smaller
COARSE = 0.05  # the gap of a fold, as a share of the primal: it is enough to compare lambdas, see docs/choosing.md
MOST = 8  # at most so many lambdas are tried where none are given


def check_lams(lams: Any) -> list[float]:
    """The lambdas of a list in descending order.

    TypeError if they are no list of numbers; ValueError if it is empty or holds a duplicate or a number that is not
    positive.
    """
    check_several(lams, "lams")
    ordered = sorted((as_number(lam, f"lams[{place}]") for place, lam in enumerate(lams)), reverse=True)
    if not ordered or not all(0.0 < lam < math.inf for lam in ordered) or len(set(ordered)) < len(ordered):
        raise ValueError(f"lams={ordered} must be distinct positive numbers, at least one")
    return ordered


def choose_lam(
    head: nn.Module,
    dataset: Any,
    held_out: Any = None,
    lams: Sequence[float] | None = None,
    *,
    folds: int | None = None,
    tolerance: Tolerance | None = None,
    score: Callable[[nn.Module], float] | None = None,
    patience: int | None = None,
    budget: float | None = None,
    max_passes: float = 1000.0,
    solver: Solver | None = None,
    structure: Structure | None = None,
    on_point: Callable[[HeldOutPoint], None] | None = None,
    progress: bool = True,
) -> LamChoice:
    """Train at every lambda, score held-out examples, and leave the weights of the lambda that is chosen in the head.

    Chosen is the largest lambda whose held-out losses are not worse than the best ones by more than the standard error
    of the difference, example by example: less is chance, and a larger lambda is trained in fewer passes. A ``score``
    is one number, so that the highest is chosen, except with ``folds``, which are compared one by one.

    With ``folds``, every example is held out once, by training without its fold; then the head is trained on all of
    them. Each fold is trained to a gap of 5 % of the primal where no tolerance is given.

    The largest lambda comes first, from zero weights, as it takes the fewest passes; each smaller one starts from the
    weights before it ([G16] Proposition 1). Every lambda ends with a certificate. The solver is chosen as
    in :func:`torchssvm.solve`.

    Where no lambdas are given and the best is the largest or the smallest, up to three more are tried beyond it, each 3
    times the last or a third of it, from the dual as it is then, until one does not score better. Lambdas that are
    given are all that is tried; ``choice.advice`` says whether the best of them is at an end.

    Args:
        head, dataset, structure: As in :func:`torchssvm.solve`.
        held_out: Examples that are not trained on: map-style, at least one, of the same kind; None with ``folds``.
        lams: Distinct positive numbers, in any order; None is 10, 3, 1, 0.3 and 0.1 times
            :func:`torchssvm.guess_lam`, and more beyond their ends as above.
        folds: Into how many parts the examples are divided at random, at least 2; in place of ``held_out``.
        tolerance: The gap to reach at each lambda, a number or ``Relative(share)``; None is ``Relative(0.01)``, 1 % of
            the primal, or ``Relative(0.05)`` without a fold and 1 % of the final head's primal.
        score: Scores the head that it is given; the larger is the better. None is minus the mean loss of the held-out
            examples.
        patience: Leave out the smaller lambdas, which take the most passes, once so many in a row did not raise the
            best score; None tries all.
        budget: The smaller lambdas may take so many times the passes that the best one and those before it took. One
            that does not reach ``tolerance`` in the passes left, or in ``max_passes``, is not chosen and is the last;
            so is one with less than twice its passes left, as the next one takes more. None tries all.
        max_passes: Most effective passes for each lambda; a run that ends by it warns.
        solver: As in :func:`torchssvm.solve`; its seed also divides the examples into folds.
        on_point: Called after each lambda, while the head holds its weights.
        progress: Whether one line on stderr shows lambda, gap, dual, passes and seconds.

    Returns:
        The choice; the head holds its weights. Its certificate, ``choice.best.certificate``, is of these weights.

    Raises:
        ValueError: ``lams`` is empty, or holds a duplicate or a number that is not positive; ``held_out`` is empty or
            the training set; ``held_out`` and ``folds`` are both given, or neither;
            another argument is out of range; or a score is not a number.
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
    lams = None if lams is None else check_lams(lams)
    coarse = tolerance if tolerance is not None else Relative(0.01 if folds is None else COARSE)
    tolerance = tolerance if tolerance is not None else Relative(0.01)
    check_limits(tolerance, max_passes)
    if patience is not None:
        check_whole(patience, "patience")
    if budget is not None:
        check_number(budget, "budget", above=0.0)
    for name, function in (("score", score), ("on_point", on_point)):
        if function is not None and not callable(function):
            raise TypeError(f"{name}={function!r} must be a function, such as lambda head: ...")
    solver, structure = or_default(solver, Solver, "solver"), find_structure(head, structure)
    check_dataset(dataset)
    device = device_of(head)
    if (held_out is None) == (folds is None):
        raise ValueError(f"folds={folds}: give either held_out or folds, and not both")
    if folds is None:
        sets = [(dataset, held_out_batches(head, dataset, held_out, structure, device))]
    else:
        sets = divided(dataset, check_whole(folds, "folds", 2, most=len(dataset)), solver.seed)

    guess = guess_lam(head, dataset, structure=structure) if lams is None else guess_or_none(head, dataset, structure)
    search = _Search(lams, guess, max_passes=max_passes, folds=len(sets), patience=patience, budget=budget)
    make = partial(make_trainer, solver=solver, structure=structure, progress=progress)
    runs = []
    for train, batches in sets:
        fold_head, scale = head if folds is None else copy.deepcopy(head), len(dataset) / len(train)
        runs.append(Run(fold_head, make(fold_head, train, scale * search.waiting[0]), batches, scale))
    trainers = [(run.trainer, run.scale) for run in runs]
    with shown(progress) as line:
        try:
            while search.waiting:
                lam, most = search.next()
                solved = train_at(lam, trainers, coarse, most, line=line)
                certificates = [each.result for each in solved]
                if budget is None:
                    for certificate in certificates:
                        warn_if_short(certificate, coarse, max_passes)
                point = scored(runs, solved, structure, score, device)
                reached = all(is_within(each.gap, coarse, each.primal) for each in certificates)
                search.add(point, runs[0].head, reached=reached)
                if on_point is not None:
                    with on_device(runs[0].head, device):
                        on_point(point)
        finally:  # an interrupted search leaves the best weights too
            if search.eligible:
                write(search.weights[search.best.lam], head.parameters())
            move(head, device)
    points, best = search.points, search.best
    if folds is not None:
        with on_device(head, device):
            certificate = make(head, dataset, best.lam).solve(tolerance, max_passes=max_passes, progress=progress)
        warn_if_short(certificate, tolerance, max_passes)
        final = best._replace(certificate=certificate)
        points[points.index(best)], best = final, final
    points.sort(key=lambda point: -point.lam)
    choice = LamChoice(head, best, tuple(points), tuple(search.untried), guess)
    if choice.far is not None:
        warn(choice.far)
    return choice


class _Search:
    """The lambdas to try, the points that were tried, and those that may be chosen, with their weights.

    ``lams`` are tried in their order; None stands for multiples of ``guess``, and more beyond the ends where the best
    is there. ``patience`` and ``budget`` are as in :func:`choose_lam`.
    """

    def __init__(
        self,
        lams: list[float] | None,
        guess: float | None,
        *,
        max_passes: float,
        folds: int,
        patience: int | None,
        budget: float | None,
    ) -> None:
        self.extends = lams is None
        self.waiting: list[float] = [factor * guess for factor in FACTORS] if lams is None and guess else lams or []
        self.points: list[HeldOutPoint] = []
        self.eligible: list[HeldOutPoint] = []
        self.weights: dict[float, list[Tensor]] = {}
        self.untried: list[float] = []
        self.max_passes, self.folds, self.patience, self.budget = max_passes, folds, patience, budget
        self._since = 0  # lambdas since the one with the highest score
        self._left = math.inf  # passes of the budget, of all folds together

    def next(self) -> tuple[float, float]:
        """The next lambda, and the most passes that each fold may take; larger lambdas have no budget."""
        lam = self.waiting.pop(0)
        smaller = not self.points or lam < min(point.lam for point in self.points)
        return lam, min(self.max_passes, self._left / self.folds) if smaller else self.max_passes

    def add(self, point: HeldOutPoint, head: nn.Module, *, reached: bool) -> None:
        """Note a point and the weights of ``head``, and decide which lambdas follow.

        With a budget, a point that has not ``reached`` its tolerance is not chosen, and is the last.
        """
        self.points.append(point)
        self._since, self._left = self._since + 1, self._left - point.passes
        if not self.eligible or reached or self.budget is None:
            weights = {**self.weights, point.lam: [parameter.detach().clone() for parameter in head.parameters()]}
            self.eligible = near([*self.eligible, point])
            self.weights = {each.lam: weights[each.lam] for each in self.eligible}
            if highest(self.eligible) is point:
                taken = sum(each.passes for each in self.points)
                self._since, self._left = 0, math.inf if self.budget is None else self.budget * taken
        short = self.budget is not None and not reached
        if self._since == self.patience or self._left < 2 * point.passes or short:
            self.untried, self.waiting = self.untried + self.waiting, []
        if self.extends and not self.waiting and len(self.points) + len(self.untried) < MOST:
            self.waiting = self._beyond()

    def _beyond(self) -> list[float]:
        """The lambda beyond the end at which the best one lies; none where it lies at no end."""
        tried = [point.lam for point in self.points]
        if self.best.lam == max(tried):
            return [STEP * max(tried)]
        low = highest(self.eligible).lam
        return [low / STEP] if low == min(tried) and not self.untried else []

    @property
    def best(self) -> HeldOutPoint:
        """The point that is chosen of those so far."""
        return chosen_of(self.eligible)
