"""The schema of GDMM's own part of a checkpoint."""

from __future__ import annotations

from typing import Any

import torch

from torchssvm.core.random_state import check_random_state
from torchssvm.core.schema import Entry, Same, check, check_seal, version
from torchssvm.solvers.gdmm.problem import Problem

FORMAT = 2

NUMBERS = {
    "rho": Entry(float, above=0.0),
    "sweeps": Entry(int, low=0),
    "oracle_calls": Entry(int, low=0),
    "violation": Entry(float, low=0.0),
    "worst_violation": Entry(float, low=0.0),
    "best_dual": Entry(float, low=0.0),
    "best_relaxed_dual": Entry(float, low=0.0),
}
"""Attributes of :class:`torchssvm.GDMM` that are saved as they are."""


def check_own(state: Any, where: str, *, problem: Problem) -> None:
    """Raise ValueError if GDMM's own part of a state does not fit or is damaged; messages call it ``where``."""
    schema = {
        "format": version(FORMAT),
        **NUMBERS,
        "lam": Same(problem.dual.lam),
        "num_examples": Same(problem.dual.num_examples),
        "features": int,  # a digest of the features that the duals were trained on
        "visits": Entry(torch.float64, (3,), low=0.0),  # totals of the current pass
        "visited": Entry(torch.bool, (problem.dual.num_examples,)),
        "generator": check_random_state,  # draws the order of the next pass
        "problem": problem.check_state,
        "seal": int,
    }
    check(state, schema, where)
    check_seal(state, where)
