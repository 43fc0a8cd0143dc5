"""The lambda that predicts held-out data best, by training from the largest to the smallest."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from torchssvm.core.arguments import as_number, check_dataset, check_number, check_whole, or_default, warn
from torchssvm.core.batch import device_of
from torchssvm.core.moved import moved
from torchssvm.core.problem import find_structure
from torchssvm.core.structure import Structure
from torchssvm.path.held_out import Run, divided, held_out_batches, scored
from torchssvm.path.lam_choice import HeldOutPoint, LamChoice, chosen_of, highest, near
from torchssvm.path.walk import walk
from torchssvm.solvers.guess_lam import guess_lam, guess_or_none
from torchssvm.solvers.solver import Relative, Solver, Tolerance, is_within
from torchssvm.solvers.trainer import check_limits, shown
from torchssvm.solvers.training import make_trainer, move, on_device, warn_if_short

FACTORS = (10.0, 3.0, 1.0, 0.3, 0.1)
"""Lambdas that are tried where none are given, as multiples of the guess."""

STEP = 3.0
"""Where the best of them is at an end, the next lambda beyond is so many times larger or smaller."""

COARSE = 0.05
"""The gap of a fold, as a share of the primal: it is enough to compare lambdas, see docs/choosing.md."""

MOST = 8
"""At most so many lambdas are tried where none are given."""


def check_lams(lams: Any) -> list[float]:
    """The lambdas of a list in descending order.

    TypeError if they are no list of numbers; ValueError if it is empty or holds a duplicate or a number that is not
    positive.
    """
    if isinstance(lams, str | numbers.Number) or not isinstance(lams, Iterable):
        raise TypeError(f"lams={lams!r} must be a list of numbers, not a {type(lams).__name__}")
    ordered = sorted((as_number(lam, f"lams[{place}]") for place, lam in enumerate(lams)), reverse=True)
    if not ordered or not all(0.0 < lam < math.inf for lam in ordered) or len(set(ordered)) < len(ordered):
        raise ValueError(f"lams={ordered} must hold distinct positive numbers, at least one")
    return ordered


@moved("options", "bounds", "memory_limit")
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
    them. That takes as many trainings, to a gap of 5 % of the primal where no tolerance is given.

    The largest lambda comes first, from zero weights, as it takes the fewest passes; each smaller one starts from the
    weights before it ([G16] Proposition 1). Every lambda ends with a certificate. The solver is that of
    :func:`torchssvm.solve`.

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
            the primal, or ``Relative(0.05)`` without a fold and 1 % of the head's own primal at the end.
        score: Scores the head that it is given; the larger is the better. None is minus the mean loss of the held-out
            examples.
        patience: Leave out the smaller lambdas, which take the most passes, once so many in a row did not raise the
            best score; None tries all.
        budget: The smaller lambdas may take so many times the passes that the best one and those before it took. One
            that does not reach ``tolerance`` in what is left, or in ``max_passes``, is not chosen and is the last; the
            last too is one with less than twice its own passes left, as the next one takes more. None tries all.
        max_passes: Most effective passes for each lambda; a run that ends by it warns.
        solver: As there; its seed also divides the examples into folds.
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
    ordered = check_lams(lams) if lams is not None else []
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
        raise ValueError(
            f"held_out={'None' if held_out is None else '...'} and folds={folds}: give examples that are not trained "
            "on, or folds=5, which holds every example out once"
        )
    if folds is None:
        sets = [(dataset, held_out_batches(head, dataset, held_out, structure, device))]
    else:
        sets = divided(dataset, check_whole(folds, "folds", 2), solver.seed)

    guess = guess_lam(head, dataset, structure=structure) if lams is None else guess_or_none(head, dataset, structure)
    if lams is None:
        assert guess is not None
        ordered = [factor * guess for factor in FACTORS]
    make = partial(make_trainer, solver=solver, structure=structure, progress=progress)
    runs = []
    for own, batches in sets:
        trained, scale = head if folds is None else copy.deepcopy(head), len(dataset) / len(own)
        runs.append(Run(trained, make(trained, own, scale * ordered[0]), batches, scale))
    points: list[HeldOutPoint] = []
    eligible: list[HeldOutPoint] = []
    untried: list[float] = []
    weights: dict[float, list[torch.Tensor]] = {}
    since = 0  # lambdas since the one with the highest score
    left = math.inf  # passes of the budget

    def ahead() -> Iterator[tuple[float, float]]:
        """The lambdas, as long as there are some, and the most passes of a run at each."""
        while ordered:
            lam = ordered.pop(0)
            smaller = not points or lam < min(point.lam for point in points)
            yield lam, min(max_passes, left / len(runs)) if smaller else max_passes

    with shown(progress) as line:
        try:
            for solved in walk([(run.trainer, run.scale) for run in runs], ahead(), coarse, line=line):
                certificates = [each.result for each in solved]
                reached = all(is_within(own.gap, coarse, own.primal) for own in certificates)
                if budget is None:
                    for certificate in certificates:
                        warn_if_short(certificate, coarse, max_passes)
                point = scored(runs, solved, structure, score, device)
                points.append(point)
                since, left = since + 1, left - point.passes
                if not eligible or reached or budget is None:
                    eligible.append(point)
                    weights[point.lam] = [parameter.detach().clone() for parameter in runs[0].head.parameters()]
                    eligible = near(eligible)
                    weights = {each.lam: weights[each.lam] for each in eligible}
                    if highest(eligible) is point:
                        since, left = 0, math.inf if budget is None else budget * sum(p.passes for p in points)
                if on_point is not None:
                    with on_device(runs[0].head, device):
                        on_point(point)
                if since == patience or left < 2 * point.passes or (budget is not None and not reached):
                    untried, ordered = untried + ordered, []
                if lams is None and not ordered and len(points) + len(untried) < MOST:
                    ordered = _beyond(eligible, [each.lam for each in points], untried)
        finally:  # an interrupted search leaves the best weights too
            if eligible:
                with torch.no_grad():
                    for parameter, held in zip(head.parameters(), weights[chosen_of(eligible).lam], strict=True):
                        parameter.copy_(held)
            move(head, device)
    points.sort(key=lambda point: -point.lam)
    best = chosen_of(eligible)
    if folds is not None:
        with on_device(head, device):
            certificate = make(head, dataset, best.lam).solve(tolerance, max_passes=max_passes, progress=progress)
        warn_if_short(certificate, tolerance, max_passes)
        last = best._replace(certificate=certificate)
        points[points.index(best)], best = last, last
    choice = LamChoice(head, best, tuple(points), tuple(untried), guess)
    if choice.far is not None:
        warn(choice.far)
    return choice


def _beyond(points: list[HeldOutPoint], tried: list[float], untried: list[float]) -> list[float]:
    """The lambda to try next where the chosen one is the largest, or the smallest scores highest; else none."""
    if chosen_of(points).lam == max(tried):
        return [STEP * max(tried)]
    low = highest(points).lam
    return [low / STEP] if low == min(tried) and not untried else []
