"""Bounds of a training problem's optimum: the values of a QP solver's points, made feasible."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import qpsolvers
import scipy.sparse

from cases.problems import Reference


@dataclass
class Bounds:
    """A dual at a point of the simplices (or polytopes), and the primal at its weights: the optimum is in between."""

    low: float
    high: float


def enclose(truth: Reference) -> Bounds:
    """The optimum over all outputs; to 1e-7, or it is an error."""
    sizes = [len(losses) for losses in truth.losses]
    matrix = np.concatenate(truth.changes) / truth.n
    sums = scipy.sparse.block_diag([np.ones((1, size)) for size in sizes], format="csc")
    result = solve_dual(matrix, np.concatenate(truth.losses) / truth.n, truth.lam, A=sums, b=np.ones(truth.n))
    alphas = [np.clip(a, 0.0, None) for a in np.split(result, np.cumsum(sizes)[:-1])]
    alphas = [a / a.sum() for a in alphas]
    return checked(Bounds(truth.dual(alphas), truth.primal(truth.weights(alphas))))


def solve_dual(matrix: np.ndarray, losses: np.ndarray, lam: float, **constraints: Any) -> np.ndarray:
    """``argmin 1/(2 lam) |mu matrix|^2 - mu losses`` for mu at least 0, as near as the solver comes."""
    gram, low = scipy.sparse.csc_matrix(matrix @ matrix.T / lam), np.zeros(len(losses))
    for tolerance in (1e-11, 1e-9, 1e-8):
        near = {name: tolerance for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas")}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Clarabel.rs terminated with status AlmostSolved")
            result = qpsolvers.solve_qp(P=gram, q=-losses, lb=low, solver="clarabel", **near, **constraints)
        if result is not None:
            return result
    raise AssertionError("the solver returned no point")


def checked(bounds: Bounds) -> Bounds:
    assert -1e-9 <= bounds.high - bounds.low <= 1e-7 * (1.0 + bounds.high), "the reference itself is not solved"
    return bounds
