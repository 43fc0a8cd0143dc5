"""Where a loss leaves the steps that it proposes, until an optimizer takes them, and who wants to know of steps."""

from __future__ import annotations

import weakref
from typing import Any, Protocol


class ProposedStep(Protocol):
    """A step that an optimizer can take."""

    def take(self, optimizer: Any, together: list[Any]) -> None:
        """Take this step and those that were accumulated with it.

        Args:
            optimizer: Whose weights move.
            together: All of them, this one first.
        """
        ...


class Observer(Protocol):
    """Wants to know of steps."""

    def after_step(self) -> None:
        """A step was taken or discarded."""
        ...


class Mailbox:
    """Proposed steps in the order in which they came; it does not know what is in them.

    Attributes:
        waiting: The steps that nobody has taken yet: several where gradients are accumulated.
    """

    def __init__(self) -> None:
        self.waiting: list[ProposedStep] = []
        self._observers: weakref.WeakSet[Observer] = weakref.WeakSet()

    def put(self, step: ProposedStep) -> None:
        """Keep a step until it is taken."""
        self.waiting.append(step)

    def take(self) -> list[ProposedStep]:
        """The steps proposed since the last call; they are forgotten here."""
        taken, self.waiting = self.waiting, []
        return taken

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
