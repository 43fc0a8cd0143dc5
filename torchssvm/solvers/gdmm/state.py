"""GDMM's weights in the head, and its checkpoints."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchssvm.core.caller import warn
from torchssvm.core.random_state import check_random_state
from torchssvm.core.schema import (
    Declaration,
    Entry,
    Open,
    Same,
    Stateful,
    check,
    check_seal,
    groups_like,
    version,
    with_seal,
)
from torchssvm.solvers.gdmm.problem import Problem

FORMAT = 2

NUMBERS = {
    "rho": Entry(float, above=0.0),
    "passes": Entry(int, low=0),
    "oracle_calls": Entry(int, low=0),
    "violation": Entry(float, low=0.0),
    "worst_violation": Entry(float, low=0.0),
    "best_dual": Entry(float, low=0.0),
    "best_relaxed_dual": Entry(float, low=0.0),
}
"""Attributes of :class:`torchssvm.GDMM` that are saved as they are."""


class SavedGDMM(Stateful, Optimizer):
    """The part of ``GDMM`` that writes the head's weights, and reads and writes checkpoints."""

    state_name = "GDMM"

    head: nn.Module
    problem: Problem
    num_examples: int
    lam: float
    best_dual: float
    best_relaxed_dual: float
    gap_estimate: float
    _visits: np.ndarray[Any, Any]
    _visited: Tensor
    _generator: torch.Generator
    _handed_over: bool
    _versions: list[int] | None  # None in a state for copies: those of the weights that come with it

    def state_dict(self) -> dict[str, Any]:
        """Duals, multipliers, weights, penalty and the order of the visits, as tensors and numbers."""
        return {
            **super().state_dict(),
            "gdmm": with_seal(
                {
                    "format": FORMAT,
                    **{name: getattr(self, name) for name in NUMBERS},
                    "lam": self.lam,
                    "num_examples": self.num_examples,
                    "features": self.problem.features,
                    "visits": torch.from_numpy(self._visits.copy()),
                    "visited": self._visited.clone(),
                    "generator": self._generator.get_state(),
                    "problem": self.problem.state_dict(),
                }
            ),
        }

    def _schema(self) -> Declaration:
        groups = groups_like(self.param_groups)
        return Open({"gdmm": partial(_check_own, problem=self.problem), "state": dict, "param_groups": groups})

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Continue bit for bit from a state that :meth:`check_state` accepted.

        A state with the same targets but other features is accepted, with a warning. The head gets the current weights
        of the state; in an uninterrupted run it keeps those of the start of a pass until the pass ends.
        """
        own = state["gdmm"]
        same_features = own["features"] == self.problem.features
        if not same_features:
            warn(
                "the state was trained on other features than this GDMM was made with: its duals are kept, the weights "
                "are summed anew from these features, and bounds certified for the others are dropped",
            )
        Optimizer.load_state_dict(self, {name: value for name, value in state.items() if name != "gdmm"})
        self.problem.restore(own["problem"])
        self._generator = torch.Generator()
        self._generator.set_state(own["generator"])
        self._visits, self._visited = own["visits"].numpy().copy(), own["visited"].clone()
        for name in NUMBERS:
            setattr(self, name, own[name])
        if not same_features:
            self.best_dual = self.best_relaxed_dual = 0.0
            self.problem.refresh()
        self._handed_over, self.gap_estimate = False, math.inf
        self._publish()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but hooks, which belong to this object; copies notice later writes to their own weights."""
        state = {name: value for name, value in vars(self).items() if not name.startswith("_optimizer_")}
        return {**state, "_versions": None if self._as_written() else []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._versions is None:
            self._versions = [p._version for p in self.head.parameters()]

    def _publish(self) -> None:
        """Write the weights to the head."""
        with torch.no_grad():
            for parameter, weights in zip(self.head.parameters(), self.problem.held(), strict=True):
                parameter.copy_(weights)
        self._versions = [p._version for p in self.head.parameters()]

    def _as_written(self) -> bool:
        return [p._version for p in self.head.parameters()] == self._versions

    def _check_weights(self) -> None:
        if self._handed_over:
            raise RuntimeError(
                "this GDMM has handed the head's weights over to the dual that dual_state() returned. To go on with "
                "GDMM, load a state saved before, or its own, optim.load_state_dict(optim.state_dict()), which takes "
                "the weights back from that dual; or make a new GDMM"
            )
        if not self._as_written():
            raise RuntimeError(
                "the head's weights were changed by others: they are a function of the duals, which are as they were. "
                "optim.load_state_dict(optim.state_dict()) sets the weights back, and nothing is lost; or make a new "
                "GDMM to start again"
            )


def _check_own(state: Any, where: str, *, problem: Problem) -> None:
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
