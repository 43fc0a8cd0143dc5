"""The visits of a compiled loop as a step that ``BCFW`` takes, among those of the torch loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from torchssvm.solvers.compiled.solver import CompiledBCFW


class ProposedVisits:
    """Put it into ``dual.mailbox``: ``BCFW.step`` then has the loop visit the blocks, which moves the weights itself.

    Args:
        loop: The loop, of the optimizer's dual.
        index: ``[V]`` int64, the examples, visited one after another.
    """

    def __init__(self, loop: CompiledBCFW, index: Tensor) -> None:
        self.loop, self.index = loop, index

    def take(self, optimizer: Any, together: list[Any]) -> None:
        """Visit the blocks, and publish the mean step as the optimizer's ``lr``."""
        dual = self.loop.dual
        for proposal in together:
            dual.visits += 1  # before the dual tells its observers of the step
            try:
                mean_step = proposal.loop.visit(proposal.index)
            except BaseException:
                dual.visits -= 1
                raise
            optimizer.show_rate(mean_step / dual.lam)
