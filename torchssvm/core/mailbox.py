"""The mailbox: a loss puts proposed steps into it, an optimizer takes them out, and observers are told."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torchssvm.core.undisturbed import undisturbed


class ProposedStep(Protocol):
    """A step that an optimizer can take."""

    def take(self, optimizer: Any, together: list[Any]) -> None:
        """Take this step and those accumulated with it, this one first; the optimizer's weights change."""
        ...


class Observer(Protocol):
    """An object that is told about steps."""

    def after_step(self) -> None:
        """Called after a step was taken or discarded."""
        ...


class Mailbox:
    """Proposed steps in the order of their proposal, ``waiting`` to be taken; several if gradients are accumulated."""

    def __init__(self) -> None:
        self.waiting: list[ProposedStep] = []
        self._observers: weakref.WeakSet[Observer] = weakref.WeakSet()

    def put(self, step: ProposedStep) -> None:
        """Keep a step until it is taken."""
        self.waiting.append(step)

    def take(self) -> list[ProposedStep]:
        """Remove and return all waiting steps."""
        taken, self.waiting = self.waiting, []
        return taken

    def observe(self, observer: Observer) -> None:
        """Call ``observer.after_step()`` after each step taken or discarded; the reference is weak."""
        self._observers.add(observer)

    def forget(self, observer: Observer) -> None:
        """Stop calling ``observer.after_step()``."""
        self._observers.discard(observer)

    @undisturbed()
    def notify(self) -> None:
        """Tell the observers that a step was taken or discarded."""
        for observer in list(self._observers):
            observer.after_step()

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles; observers copied together with the mailbox observe the copy."""
        return {**vars(self), "_observers": list(self._observers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._observers = weakref.WeakSet(state["_observers"])
