"""What an oracle found, scored and compared with the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from torchssvm.core.potentials import Parts


@dataclass(eq=False)
class OracleResult:
    """One output of every example of a batch, as the max oracle, the cache or a structure's examination found it.

    Attributes:
        labeling: The outputs s_i.
        score: ``<p(s_i) - p(y_i), theta_i>``, ``[B]`` float64.
        loss: ``L_i(s_i)``, ``[B]`` float64.
        hinge: ``L_i(s_i) + <p(s_i) - p(y_i), theta_i>``, ``[B]`` float64: the structured hinge H_i of an exact oracle.
        upper: ``[B]`` float64, an upper bound of H_i; None where ``hinge`` is one.
        exact: Whether ``hinge`` is H_i.
        relaxed: Whether the outputs may lie outside of the hull of outputs.
        decoded: ``[B]`` bool, whether the max oracle was asked; None where it was for all.
        column: ``[B]`` int64, the column of ``Stored.atoms`` that holds the labeling already, 0 where none does; None
            where nobody asked.
        made: ``p(s_i) - p(y_i)`` if they were made to score the outputs; else None.
        make: Makes them; None where nobody may ask for them.
    """

    labeling: Any
    score: Tensor
    loss: Tensor
    made: Parts | None = None
    upper: Tensor | None = None
    exact: bool = True
    relaxed: bool = False
    decoded: Tensor | None = None
    column: Tensor | None = None
    make: Callable[[], Parts] | None = None

    @cached_property
    def hinge(self) -> Tensor:
        """Score plus loss."""
        return self.score + self.loss

    @property
    def bound(self) -> Tensor:
        """``upper``, or ``hinge`` where that is None."""
        return self.hinge if self.upper is None else self.upper

    @property
    def parts(self) -> Parts:
        """``p(s_i) - p(y_i)``, made when they are first asked for."""
        if self.made is None:
            assert self.make is not None, "these outputs came without a way to make their parts"
            self.made = self.make()
        return self.made
