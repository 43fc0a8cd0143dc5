"""Attributes of a Lightning ``Trainer`` that its pages do not promise; the rest of the package uses public hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import lightning as L
from lightning.pytorch.utilities import CombinedLoader

Batches = TypeVar("Batches")


def replace_training_loader(trainer: L.Trainer, replace: Callable[[Any], Batches]) -> Batches:
    """Let the fit iterate ``replace(loader)`` in place of the loader that the user or a hook gives.

    Why: no hook gets the loader that was passed to ``fit`` before it is iterated.
    """
    source: Any = trainer.fit_loop._data_source
    source.instance = batches = replace(source.dataloader())
    return batches


def batches_used(trainer: L.Trainer) -> int:
    """Batches of this epoch after which the step is done.

    Why: callbacks that save checkpoints get no ``batch_idx``, and ``global_step`` counts steps of all optimizers.
    """
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return int(progress.processed)


def begin_next_epoch(trainer: L.Trainer) -> None:
    """After a checkpoint of the last batch of an epoch, have Lightning begin the next epoch as usual.

    Why: it takes the next epoch as begun already and does not count it. The counter of begun epochs would stay one
    behind, and the checkpoints of this run would be misread.
    """
    loop = trainer.fit_loop
    begun: Any = loop.epoch_progress.total
    if loop.restarted_mid_epoch and begun.started == begun.processed:
        loop.reset_restart_stage()


def validation_loaders(trainer: Any) -> list[tuple[Any, int | float]]:
    """The loaders of validation and how many batches of each are used; empty without validation.

    Why: a fit that never validated has not read them.
    """
    if not trainer.enable_validation:
        return []
    if trainer.val_dataloaders is None:
        trainer.fit_loop.epoch_loop.val_loop.setup_data()
    if (given := trainer.val_dataloaders) is None:
        return []
    loaders = CombinedLoader(given, "sequential").flattened
    return [pair for pair in zip(loaders, trainer.num_val_batches, strict=True) if pair[1]]
