"""Thresholds of margins that predict held-out label sets with the highest F1."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.batch import Part, apply_head, pass_over
from torchssvm.core.max_marginals import margins_by_decoding
from torchssvm.core.potentials import Potentials
from torchssvm.estimators.choose_c import COARSE, PARTS
from torchssvm.solvers.solver import Relative, Solver
from torchssvm.solvers.training import make_trainer
from torchssvm.structures.weighted import WeightedExamples, WeightedHead

F1, BY_LABEL = "f1", "f1-by-label"

_SHARED = 20.0
"""Positives of all labels that are added to those of each label: docs/guides/label-sets.md has figures without them."""


def margins_of(structure: Any, potentials: Potentials) -> Tensor:
    """For each label, the best score of a set with it less the best of one without it, ``[B, K]`` float64.

    Where branch and bound leaves sets open, its best set counts.
    """
    if not structure.pairwise:
        return potentials["unary"].double()
    return margins_by_decoding(structure, lambda given: structure.argmax(given)._replace(exact=True), potentials)


def held_out_margins(
    head: Any,
    examples: Any,
    lam: float,
    times: np.ndarray | None,
    *,
    tol: float,
    max_passes: float,
    seed: int,
    progress: bool,
) -> np.ndarray:
    """The margins of each example by a head that was trained on two thirds without it, ``[n, K]``, at the same C.

    The head stays as it is. ``times`` ``[n]`` says how often each example counts; None is once.
    """
    n = len(examples)
    margins = np.zeros((n, head.structure.num_labels))
    for rows in np.array_split(np.random.RandomState(seed).permutation(n), PARTS):
        rest = np.setdiff1d(np.arange(n), rows)
        trained, given = copy.deepcopy(head), examples if times is None else WeightedExamples(examples, times)
        trainer = make_trainer(
            trained if times is None else WeightedHead(trained),
            Part(given, rest.tolist()),
            lam * n / len(rest),
            solver=Solver(seed=seed),
            progress=progress,
        )
        trainer.solve(Relative(max(COARSE, tol)), max_passes=max_passes, progress=progress)
        with torch.no_grad():
            for batch in pass_over(Part(examples, rows.tolist())):
                potentials = apply_head(trained, batch)
                margins[rows[batch.index.numpy()]] = margins_of(trained.structure, potentials).numpy()
    return margins


def choose_thresholds(margins: np.ndarray, y: np.ndarray, times: np.ndarray | None, by_label: bool) -> np.ndarray:
    """The thresholds above which labels are predicted, ``[K]``; 0 where no label is ever on.

    One for all labels, with the highest F1 of all decisions (micro F1). Or one ``by_label``, with the highest F1 of its
    decisions and those of all labels, which count as 20 positives: with few positives a threshold is near the common
    one. A label that is never on has 0 then. Of equal F1 the highest threshold is taken.

    Args:
        margins: ``[n, K]``, of examples that were not trained on.
        y: ``[n, K]``, 1 where a label is on.
        times: ``[n]``, how often each example counts; None is once.
    """
    weight = np.broadcast_to(1.0 if times is None else times[:, None], y.shape)
    positives = float((weight * y).sum())
    if not positives:
        return np.zeros(y.shape[1])
    cuts, right, predicted = _cuts(margins.ravel(), y.ravel(), weight.ravel())
    if not by_label:
        return np.full(y.shape[1], cuts[(right / (predicted + positives)).argmax()])
    chosen, share = np.zeros(y.shape[1]), _SHARED / positives
    for k in np.flatnonzero(y.any(0)):
        cut, hits, taken = _cuts(margins[:, k], y[:, k], weight[:, k])
        at = np.searchsorted(-cuts, -cut)  # the common cut that takes the same decisions, or one more
        both = float((weight[:, k] * y[:, k]).sum()) + _SHARED
        chosen[k] = cut[((hits + share * right[at]) / (taken + share * predicted[at] + both)).argmax()]
    return chosen


def _cuts(margins: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thresholds between neighbouring margins, descending, and the right and all decisions above each of them."""
    order = np.argsort(-margins, kind="stable")
    margins = margins[order]
    # The last threshold is half of the range below all margins, or 1, as far as the hinge moves a label from 0.
    below = np.append(margins[1:], margins[-1] - max(margins[0] - margins[-1], 2.0))
    ends = margins > below
    ends[-1] = True
    right, predicted = (weight * y)[order].cumsum(), weight[order].cumsum()
    return (0.5 * (margins + below))[ends], right[ends], predicted[ends]
