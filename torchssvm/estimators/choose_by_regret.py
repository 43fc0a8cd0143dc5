"""Lambda of decisions by held-out regret, at a few times the costs of one run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchssvm.core.arguments import or_default
from torchssvm.core.batch import tree_map
from torchssvm.path.choose_lam import LamChoice, choose_lam
from torchssvm.solvers.guess_lam import guess_lam
from torchssvm.solvers.solver import Relative, Solver, WhenEstimated
from torchssvm.steps.directions import FrankWolfe
from torchssvm.structures.decisions.data import DecisionProblems, Situations
from torchssvm.structures.decisions.head import LinearDecisions

Array = NDArray[Any]

ANCHORS = ("zero", "least-squares")


def anchor(
    problems: Sequence[DecisionProblems], kind: str, intercept_scaling: float, weight: Array | None = None
) -> tuple[list[DecisionProblems], tuple[Array, Array]]:
    """Problems with the anchor's costs among the known ones, and with the feature of the intercepts.

    Args:
        problems: The anchor is fitted on the first of them.
        kind: One of ``ANCHORS``.
        intercept_scaling: The size of that feature; 0 adds none.
        weight: ``[n]``, how often each example of the first counts.

    Returns:
        The problems, and the anchor's weights and intercepts as :func:`least_squares` returns them.
    """
    base = (np.zeros(1), np.zeros(1))
    if kind == "least-squares":
        base = least_squares(problems[0], bool(intercept_scaling), weight)
    found = []
    for one in problems:
        anchored, x = copy.copy(one), situations(one)
        features, fixed = x.x, x.fixed
        if kind != "zero":
            own = torch.from_numpy(linear(features, *base))
            fixed = own if fixed is None else own + fixed
        if intercept_scaling:
            ones = torch.full((*features.shape[:-1], 1), float(intercept_scaling), dtype=features.dtype)
            features = torch.cat([features, ones], -1)
        anchored.x = Situations(features, fixed, x.given)
        found.append(anchored)
    return found, base


def least_squares(problems: DecisionProblems, intercept: bool, weight: Array | None = None) -> tuple[Array, Array]:
    """The weights ``[D, F]`` and the intercepts ``[D]`` of least squares; ``[1, F]`` and ``[1]`` for shared ones."""
    given = situations(problems)
    x, costs = given.x.to(torch.float64).numpy(), problems.target.cost.numpy()
    if given.fixed is not None:
        costs = costs - given.fixed.numpy()
    if x.ndim == 3:
        x, costs = x.reshape(-1, x.shape[-1]), costs.reshape(-1, 1)
    ones = np.full((len(x), 1), float(intercept))
    roots = np.ones(1) if weight is None else np.sqrt(np.repeat(weight, len(x) // len(weight)))
    found = np.linalg.lstsq(np.hstack([x, ones]) * roots[:, None], costs * roots[:, None], rcond=None)[0].T
    return found[:, :-1], found[:, -1]


def linear(features: Tensor, coef: Array, intercept: Array) -> Array:
    """``W x + b``, ``[n, D]`` float64."""
    x = features.to(torch.float64).numpy()
    return np.asarray(x @ coef[0] + intercept[0] if x.ndim == 3 else x @ coef.T + intercept)


def situations(problems: DecisionProblems) -> Situations:
    """The features of problems, with what else is known of them."""
    return problems.x if isinstance(problems.x, Situations) else Situations(problems.x)


def part(problems: DecisionProblems, rows: Tensor) -> DecisionProblems:
    """Some of the problems, with their solutions."""
    found = copy.copy(problems)
    found.x, found.target = tree_map(lambda tensor: tensor[rows], (problems.x, problems.target))
    return found


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
