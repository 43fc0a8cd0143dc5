"""What the weights of decisions are regularised towards: zero, or the predictor of least squares."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchssvm.core.batch import tree_map
from torchssvm.structures.decisions.data import DecisionProblems, Situations

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
