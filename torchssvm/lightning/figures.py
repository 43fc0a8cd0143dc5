"""Figures of a fit, where callbacks, progress bars and loggers read them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import lightning as L
import torch

from torchssvm.dual.state import DualState
from torchssvm.solvers.trainer import Pacing


def figures_of(dual: DualState, pacing: Pacing | None) -> dict[str, float]:
    """Dual and oracle calls now, and the estimate of the gap, by ``pacing``, once every block has been seen."""
    figures, estimate = {"dual": dual.value(), "oracle_calls": float(dual.oracle_calls)}, (pacing or dual).gap_estimate
    return {**figures, "gap_estimate": estimate} if estimate < math.inf else figures


def publish(trainer: L.Trainer, figures: Mapping[str, float], in_bar: Collection[str] = ()) -> None:
    """Set the metrics that callbacks read, and of them those ``in_bar``, also where a module cannot log."""
    values = torch.tensor(list(figures.values()), device=trainer.strategy.root_device)
    trainer.callback_metrics.update(zip(figures, values.unbind(), strict=True))
    trainer.progress_bar_metrics.update({name: figures[name] for name in in_bar})


def log(module: L.LightningModule, figures: Mapping[str, float], **options: Any) -> None:
    """Give figures to the loggers, with the ``options`` of ``log_dict``.

    Why: ``log_dict`` takes as long as a short epoch, so it is called only where there is a logger.
    """
    if module.trainer.loggers:
        module.log_dict(dict(figures), **options)
    else:
        module.trainer.logged_metrics.update({name: torch.tensor(value) for name, value in figures.items()})
