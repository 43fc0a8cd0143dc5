"""Steps that losses have proposed and no optimizer has taken yet, and who wants to know of steps."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torchssvm.dual.proposal import Proposal


class Observer(Protocol):
    """Wants to know of steps."""

    def after_step(self) -> None:
        """A step was taken or discarded."""
        ...


class PendingSteps:
    """What ``BlockGap`` hands to ``BCFW`` by way of the :class:`DualState`; checkpoints hold ``visits`` only.

    Attributes:
        visits: Training batches seen.
    """

    def __init__(self) -> None:
        self.visits = 0
        self._pending: list[Proposal] = []
        self._settled = False
        self._observers: weakref.WeakSet[Observer] = weakref.WeakSet()

    @property
    def pending(self) -> bool:
        """Whether a backward pass has proposed a step that is not taken yet."""
        return bool(self._pending)

    @property
    def settled_visits(self) -> int:
        """Visits without those whose step is pending, which a checkpoint does not hold."""
        return self.visits - len(self._pending)

    def propose(self, proposal: Proposal) -> None:
        """Keep a step until the optimizer takes it; called by the backward pass of ``BlockGap``."""
        self._pending.append(proposal)
        self.visits += 1

    def take(self) -> list[Proposal]:
        """The steps proposed since the last one; they are forgotten here."""
        proposals, self._pending = self._pending, []
        return proposals

    def settle(self) -> None:
        """Say that the closure of an optimizer's step has moved blocks and weights itself."""
        self._settled = True

    def settled(self) -> bool:
        """Whether it has, since this was last asked."""
        settled, self._settled = self._settled, False
        return settled

    def discard(self) -> None:
        """Forget proposed steps, as ``zero_grad`` forgets their gradients."""
        if self._pending:
            self._pending = []
            self.notify()

    def observe(self, observer: Observer) -> None:
        """Call ``observer.after_step()`` whenever a step was taken or discarded, as long as it lives."""
        self._observers.add(observer)

    def forget(self, observer: Observer) -> None:
        """Call it no more."""
        self._observers.discard(observer)

    def notify(self) -> None:
        """Tell the observers that a step was taken or discarded."""
        for observer in list(self._observers):
            observer.after_step()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles; observers that are copied along observe the copy."""
        return {**vars(self), "_observers": list(self._observers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._observers = weakref.WeakSet(state["_observers"])
