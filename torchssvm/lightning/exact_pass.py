"""What callbacks need of a fit: its dual, its training set, when exact passes are made, and the passes themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from torch.utils.data import DataLoader

from torchssvm.core.gradients import evaluating
from torchssvm.dual.state import DualState
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.certificate import Certificate, certify
from torchssvm.solvers.trainer import Pacing


class Fit:
    """What callbacks ask of a fit: here of a module of the user's own, with BCFW, whose ``forward`` gives potentials.

    The modules of this package have the same properties and methods.

    Attributes:
        dual: The training problem: n, lam, structure and parameters; with BCFW also the dual.
        solves_head: Whether the head holds weights of the dual; only these are certified.
    """

    solves_head = True

    def __init__(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.dual = find_dual(trainer)
        self._trainer, self._module = trainer, module

    @property
    def passes(self) -> float:
        """Effective passes so far."""
        return self.dual.passes

    @property
    def training_loader(self) -> DataLoader:
        """The training loader; TypeError if training does not take its examples from one DataLoader."""
        loader: Any = self._trainer.train_dataloader
        if not isinstance(loader, DataLoader):
            raise TypeError(f"training must take its examples from one DataLoader, not a {type(loader).__name__}")
        return loader

    def pacing(self, **rules: Any) -> Pacing | None:
        """Says when exact passes are made, by these rules; None where epochs say it."""
        return Pacing(self.dual, **rules)

    def certify(self, batches: Iterable[Any]) -> Certificate:
        """An exact pass, from whose weights the next step starts; ``batches`` have every training example once."""
        return certify_by_torch(self._trainer, self._module, self.dual, batches)


def fit_of(trainer: L.Trainer, module: L.LightningModule) -> Fit:
    """What callbacks ask: the module itself, if it is of this package. RuntimeError before a fit."""
    found: Any = module if hasattr(module, "solves_head") else Fit(trainer, module)
    return found


def find_dual(trainer: L.Trainer) -> DualState:
    """The dual of the trainer's BCFW; RuntimeError if it has none (yet)."""
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, BCFW):
            return optimizer.dual
    raise RuntimeError("the trainer has no BCFW optimizer, so there is no dual: a fit has to begin first")


def certify_by_torch(
    trainer: L.Trainer, module: L.LightningModule, dual: DualState, batches: Iterable[Any]
) -> Certificate:
    """Certify the module's weights on its current features, in the trainer's precision, whose bar shows the pass."""
    batches = map(trainer.precision_plugin.convert_input, visible(trainer, batches, "Certifying"))
    with evaluating(module):
        return certify(in_precision(trainer, module), dual, batches, refresh=True)


def in_precision(trainer: L.Trainer, module: L.LightningModule) -> Callable[..., Any]:
    """The module's forward under the trainer's autocast, which ends before the potentials are used."""
    precision = trainer.precision_plugin

    def forward(*args: Any) -> Any:
        with precision.forward_context():
            return module(*precision.convert_input(args))

    return forward


def visible(trainer: L.Trainer, loader: Iterable[Any], description: str) -> Iterator[Any]:
    """The batches, with a progress bar of their own if the trainer shows one."""
    bar = trainer.progress_bar_callback
    total = len(loader) if isinstance(loader, Sized) else None
    if isinstance(bar, TQDMProgressBar) and bar.is_enabled:
        from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

        yield from Tqdm(loader, desc=description, total=total, leave=False, dynamic_ncols=True, position=1)
    elif isinstance(bar, RichProgressBar) and bar.is_enabled and bar.progress is not None:
        task = bar._add_task(total or 0, description)
        try:
            for number, batch in enumerate(loader, 1):
                yield batch
                bar.progress.update(task, completed=number)
        finally:
            bar.progress.remove_task(task)
            bar.refresh()
    else:
        yield from loader
