"""The private state of a Lightning ``Trainer`` that this package touches; everything else is public.

Lightning has no public way to replace the training loader before it is first iterated, nor to say that an epoch ended
with the batch after which a checkpoint was saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import lightning as L

Batches = TypeVar("Batches")


def replace_training_loader(trainer: L.Trainer, replace: Callable[[Any], Batches]) -> Batches:
    """Let the fit iterate ``replace(loader)`` in place of the loader that the user or a hook gives."""
    source: Any = trainer.fit_loop._data_source
    source.instance = batches = replace(source.dataloader())
    return batches


def batches_used(trainer: L.Trainer) -> int:
    """Batches of this epoch after which the step is done, also within callbacks that save checkpoints."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return int(progress.processed)


def begin_next_epoch(trainer: L.Trainer) -> None:
    """After a checkpoint of the last batch of an epoch, have Lightning begin the next epoch as usual.

    Lightning takes the next epoch as begun already and does not count it: the counter of begun epochs would stay one
    behind, and the checkpoints of this run would be misread.
    """
    loop = trainer.fit_loop
    begun: Any = loop.epoch_progress.total
    if loop.restarted_mid_epoch and begun.started == begun.processed:
        loop.reset_restart_stage()
