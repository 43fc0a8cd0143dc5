"""Lambda of decisions by held-out regret, at a few times the costs of one run."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from torchssvm.estimators.anchor import part
from torchssvm.path.choose_lam import LamChoice, choose_lam
from torchssvm.path.guess_lam import guess_lam
from torchssvm.solvers.choice import BATCH, Solver
from torchssvm.solvers.run_options import RunOptions
from torchssvm.solvers.schedules import WhenEstimated
from torchssvm.solvers.tolerance import Relative
from torchssvm.structures.decisions.data import DecisionProblems
from torchssvm.structures.decisions.head import LinearDecisions

COARSE = 0.1
"""The gap, as a share of the primal, to which each lambda is trained."""

FACTORS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""Lambdas that are tried, as multiples of the guess."""

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
    careful: bool,
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
        careful: Whether a smaller lambda must lower the mean regret by more than its standard error.
        tol: The relative gap of the run that follows; a path is not trained to a smaller one.
        max_passes: The most passes of a lambda.
        solver: As in :func:`torchssvm.solve`.
        seed: Of the order of the examples.
        progress: Whether a line follows the run.
    """
    held: list[Tensor] = []  # the regrets of the best lambda

    def score(trained: nn.Module) -> float:
        found = regrets(trained, held_out)
        lower = (held[0] - found).to(torch.float64) if held else found
        if not held or not careful or float(lower.mean()) > _error(lower):
            held[:] = [found]
        return -float(held[0].mean())

    some = part(train, torch.arange(min(SAMPLE, len(train))))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the primal is 0 at zero weights")  # an anchor may be right
        guess = guess_lam(head, some) * len(some) / len(train)
        return choose_lam(
            head,
            train,
            held_out,
            [factor * guess for factor in FACTORS],
            tolerance=Relative(max(tol, COARSE)),
            score=score,
            patience=2,
            budget=BUDGET,
            max_passes=max_passes,
            solver=solver,
            options=RunOptions(batch_size=BATCH, seed=seed, schedule=WhenEstimated(CHECKED)),
            progress=progress,
        )


def regrets(head: nn.Module, problems: DecisionProblems) -> Tensor:
    """The regret of every problem, ``[n]``."""
    structure = problems.structure
    with torch.no_grad():
        return structure.regret(structure.decode(head(problems.x)), problems.target)


def _error(differences: Tensor) -> float:
    """The standard error of their mean."""
    n = len(differences)
    return float(differences.std()) / n**0.5 if n > 1 else 0.0
