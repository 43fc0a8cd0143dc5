"""Lambda of decisions by held-out regret, at a few times the costs of one run."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import or_default
from torchssvm.estimators.anchor import part, situations
from torchssvm.path.choose_lam import choose_lam
from torchssvm.path.lam_choice import LamChoice
from torchssvm.solvers.guess_lam import guess_lam
from torchssvm.solvers.solver import Relative, Solver, WhenEstimated
from torchssvm.steps.directions import FrankWolfe
from torchssvm.structures.decisions.data import DecisionProblems, Situations
from torchssvm.structures.decisions.head import LinearDecisions

COARSE = 0.1
"""The gap, as a share of the primal, to which each lambda is trained."""

FACTORS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""Lambdas that are tried, as multiples of the guess."""

AT_ANCHOR = 100.0
"""With an anchor, the first one: the weights hardly leave the anchor."""

SAMPLE = 16
"""Examples of which lambda is guessed."""

BUDGET = 3.0
"""Lambdas below the best one may take so many times the passes that it and those before it took."""

CHECKED = 3.0
"""Passes between exact passes: few are needed at large lambdas."""


def choose_by_regret(
    head: LinearDecisions,
    train: DecisionProblems,
    held_out: DecisionProblems,
    *,
    anchored: bool,
    tol: float,
    max_passes: float,
    solver: Solver | None,
    seed: int,
    progress: bool,
) -> LamChoice:
    """Follow lambda from large to small, to a loose gap, until smaller ones cost more than they may.

    Args:
        head: A new head.
        train: What is trained on.
        held_out: What decides.
        anchored: Whether to begin at a lambda so large that the weights stay at the anchor.
        tol: The relative gap of the run that follows; a path is not trained to a smaller one.
        max_passes: The most passes of a lambda.
        solver: As in :func:`torchssvm.solve`; None takes Frank-Wolfe steps where decoding is quick.
        seed: Of the order of the examples.
        progress: Whether a line follows the run.
    """

    def score(trained: nn.Module) -> float:
        return -float(regrets(trained, held_out).mean())

    if solver is None and train.structure.quick_to_decode:
        solver = Solver(direction=FrankWolfe())  # the quickest to a loose gap
    some = part(train, torch.arange(min(SAMPLE, len(train))))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the primal is 0 at zero weights")  # an anchor may be right
        guess = _guess(head, some) * len(some) / len(train)
        return choose_lam(
            head,
            train,
            held_out,
            [factor * guess for factor in ((AT_ANCHOR, *FACTORS) if anchored else FACTORS)],
            tolerance=Relative(max(tol, COARSE)),
            score=score,
            patience=2,
            budget=BUDGET,
            max_passes=max_passes,
            solver=replace(or_default(solver, Solver, "solver"), seed=seed, schedule=WhenEstimated(CHECKED)),
            progress=progress,
        )


def _guess(head: LinearDecisions, problems: DecisionProblems) -> float:
    """A lambda for these problems; where the anchor fits all of them, as if there were none."""
    x = situations(problems)
    try:
        return guess_lam(head, problems)
    except ValueError:
        if x.fixed is None:
            raise
    bare = copy.copy(problems)
    bare.x = Situations(x.x, None, x.given)
    return guess_lam(head, bare)


def regrets(head: nn.Module, problems: DecisionProblems) -> Tensor:
    """The regret of every problem, ``[n]``."""
    structure = problems.structure
    with torch.no_grad():
        return structure.regret(structure.decode(head(problems.x)), problems.target)
