"""Whether another C predicts held-out label sets better than the guess, by more than chance."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from torchssvm.core.batch import Part, apply_head, pass_over
from torchssvm.path.choose_lam import HeldOutPoint, LamChoice, choose_lam
from torchssvm.solvers.evaluation import merge_evaluations
from torchssvm.solvers.solver import Relative, Solver

FACTORS = (3.0, 1.0, 0.3, 0.1)
"""Of the guess, to choose from: at larger lambdas pairs outweigh labels, and many labels are slow to decode."""

PARTS = 3  # a third of the examples is held out
_SMALL = 1000  # with fewer examples every third is held out once
COARSE = 0.05  # the gap at each lambda that is tried, as a share of the primal
_ERRORS = 3.0  # the guess is kept unless another lambda's micro F1 is higher by more than so many standard errors


def choose_from_guess(
    head: Any, examples: Any, guess: float, *, tol: float, max_passes: float, seed: int, progress: bool
) -> LamChoice:
    """The guess, or another lambda that predicts held-out sets better by more than chance, by micro F1.

    Lambdas are compared on the same held-out examples; the standard error is of a ratio of sums. The head stays as it
    is.
    """
    n = len(examples)
    parts = np.array_split(np.random.RandomState(seed).permutation(n), PARTS)
    tried: list[list[HeldOutPoint]] = []
    counts: list[list[np.ndarray]] = []  # of each part, by lambda, as _counted gives them
    for rows in parts if n < _SMALL else parts[:1]:
        held_out = Part(examples, np.sort(rows).tolist())
        rest, seen = Part(examples, np.setdiff1d(np.arange(n), rows).tolist()), list[np.ndarray]()

        def score(trained: Any, held_out: Any = held_out, seen: list[np.ndarray] = seen) -> float:
            seen.append(_counted(trained, held_out))
            return _micro_f1(seen[-1])

        scale = n / len(rest)  # keeps lam n as for all examples
        choice = choose_lam(
            copy.deepcopy(head),
            rest,
            held_out,
            [factor * guess * scale for factor in FACTORS],
            score=score,
            tolerance=Relative(max(COARSE, tol)),
            max_passes=max_passes,
            solver=Solver(seed=seed),
            progress=progress,
        )
        points = zip(choice.points, FACTORS, strict=True)
        tried.append([point._replace(lam=factor * guess) for point, factor in points])
        counts.append(seen)
    merged, sets = [], [np.concatenate(each, 1) for each in zip(*counts, strict=True)]
    for same, counted in zip(zip(*tried, strict=True), sets, strict=True):
        passes, seconds = (sum(getattr(each, name) for each in same) for name in ("passes", "seconds"))
        evaluated = merge_evaluations([each.held_out for each in same])
        merged.append(
            same[-1]._replace(held_out=evaluated, score=_micro_f1(counted), passes=passes, seconds=seconds, losses=None)
        )
    at = FACTORS.index(1.0)
    best = max(range(len(merged)), key=lambda place: merged[place].score)
    gain = merged[best].score - merged[at].score
    noise = float(np.sqrt(np.square(_influence(sets[best]) - _influence(sets[at])).sum()))
    return LamChoice(head, merged[best if gain > _ERRORS * noise else at], tuple(merged), guess=guess)


@torch.no_grad()
def _counted(head: Any, held_out: Any) -> np.ndarray:
    """Of each example, the number of right labels, and of true and predicted labels together: ``[2, m]``."""
    counts = []
    for batch in pass_over(held_out):
        labels = head.structure.decode(apply_head(head, batch))
        counts.append(torch.stack([(labels * batch.y).sum(1), labels.sum(1) + batch.y.sum(1)]))
    return torch.cat(counts, 1).numpy()


def _micro_f1(counted: np.ndarray) -> float:
    right, of = counted.sum(1)
    return float(2.0 * right / max(of, 1))


def _influence(counted: np.ndarray) -> np.ndarray:
    """By how much each example moves micro F1, ``[m]``."""
    right, of = counted
    return (2.0 * right - _micro_f1(counted) * of) / max(of.sum(), 1)
