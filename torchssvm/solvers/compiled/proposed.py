"""Visits of a compiled loop as a step that an optimizer takes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor

from torchssvm.core.interrupts import undisturbed
from torchssvm.solvers.compiled.solver import CompiledBCFW


class ProposedVisits:
    """A proposal for ``dual.mailbox``: ``BCFW.step`` then lets the loop visit the blocks and move the weights.

    ``visits`` are examples ``[V]`` int64, visited one after another; or the number of visits, of blocks that are drawn.
    """

    def __init__(self, loop: CompiledBCFW, visits: Tensor | int) -> None:
        self.loop, self.visits = loop, visits

    def take(self, optimizer: Any, together: list[Any]) -> None:
        """Visit the blocks, and publish the mean step as the optimizer's ``lr``."""
        dual = self.loop.dual
        for proposal in together:
            # An exchange with other processes may wait for long, and can be interrupted.
            with nullcontext() if dual.ranks else undisturbed():
                dual.visits += 1  # before the dual notifies its observers
                try:
                    visits = proposal.visits
                    (proposal.loop.visit if isinstance(visits, Tensor) else proposal.loop.step)(visits)
                except BaseException:
                    dual.visits -= 1
                    raise
                optimizer.show_rate(proposal.loop.mean_step / dual.lam)
