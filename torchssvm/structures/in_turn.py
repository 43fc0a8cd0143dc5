"""Steps on the blocks of a batch one after another, for heads that the compiled loop knows."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchssvm.core.potentials import InTurn


def solve_in_turn(head: nn.Module, x: Any, *problem: Any) -> InTurn:
    """See ``torchssvm.solvers.compiled.batch``, which is imported only where it is used."""
    from torchssvm.solvers.compiled.batch import solve_in_turn as solve

    return solve(head, x, *problem)
