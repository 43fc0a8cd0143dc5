"""The part of ``StructuredSVM`` that trains the features below the head too."""

from __future__ import annotations

from typing import Any

from torchssvm.lightning.alternating_run import AlternatingRun
from torchssvm.lightning.joint_run import HeadChoice, JointRun
from torchssvm.lightning.predicting import Predicting


class JointModel(Predicting):
    """Hands the hooks of a fit to what trains features and head.

    A subclass sets ``_stages``; None trains the head alone.
    """

    _stages: JointRun | AlternatingRun | None

    @property
    def solves_head(self) -> bool:
        """Whether the head holds weights of the dual: not so while ``JointTraining`` trains it with the features."""
        return self._stages is None or self._stages.solves

    @property
    def choice(self) -> HeadChoice | None:
        """Which head the last fit with ``JointTraining`` kept; None without one, or without validation data."""
        return None if self._stages is None else self._stages.choice

    def choose_head(self) -> None:
        """After ``JointTraining``: keep the head that validates better; a second call does nothing."""
        if self._stages is not None:
            self._stages.choose(self)

    def on_train_end(self) -> None:
        """Choose the head."""
        super().on_train_end()
        self.choose_head()

    def on_fit_end(self) -> None:
        """Likewise after a resumed run that had nothing left to train."""
        super().on_fit_end()
        self.choose_head()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the next steps on the features depend on."""
        super().on_save_checkpoint(checkpoint)
        if self._stages is not None:
            self._stages.save(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the resume point until training continues."""
        super().on_load_checkpoint(checkpoint)
        if self._stages is not None and self._run.resume is not None:
            self._stages.load(checkpoint, self)
