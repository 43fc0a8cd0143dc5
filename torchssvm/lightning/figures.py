"""Figures of a fit, where callbacks, progress bars and loggers read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import lightning as L
import torch


def publish(trainer: L.Trainer, figures: Mapping[str, float], in_bar: Collection[str] = ()) -> None:
    """Set the metrics that callbacks read, and of them those ``in_bar``, also where a module cannot log."""
    device = trainer.strategy.root_device
    trainer.callback_metrics.update({name: torch.tensor(value, device=device) for name, value in figures.items()})
    trainer.progress_bar_metrics.update({name: figures[name] for name in in_bar})


def log(module: L.LightningModule, figures: Mapping[str, float], **options: Any) -> None:
    """Give figures to the loggers, with the ``options`` of ``log_dict``.

    Why: Lightning's way takes longer than a short epoch, so it is gone only where there is a logger.
    """
    if module.trainer.loggers:
        module.log_dict(dict(figures), **options)
    else:
        module.trainer.logged_metrics.update(figures)  # type: ignore[arg-type]
