"""Exact passes during a Lightning run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from torch import nn

from torchssvm.dual.state import DualState
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.certificate import Certificate, certify
from torchssvm.solvers.gdmm.solver import GDMM


def find_bcfw(trainer: L.Trainer) -> BCFW:
    """The optimizer that holds the dual.

    Raises:
        RuntimeError: The trainer has none (yet).
    """
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, BCFW):
            return optimizer
    raise RuntimeError("the trainer has no BCFW optimizer, so there is no dual: a fit has to begin first")


def find_gdmm(trainer: L.Trainer) -> GDMM | None:
    """The GDMM optimizer of the trainer; None if it has none."""
    return next((optimizer for optimizer in trainer.optimizers if isinstance(optimizer, GDMM)), None)


def find_problem(trainer: L.Trainer) -> DualState:
    """The training problem: n, lam, structure and parameters.

    Raises:
        RuntimeError: The trainer has neither BCFW nor GDMM (yet).
    """
    gdmm = find_gdmm(trainer)
    return find_bcfw(trainer).dual if gdmm is None else gdmm.problem.dual


def passes_so_far(trainer: L.Trainer) -> float:
    """Effective passes of BCFW, or passes of GDMM."""
    gdmm = find_gdmm(trainer)
    return find_bcfw(trainer).dual.passes if gdmm is None else float(gdmm.passes)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the ``with`` block; afterwards every submodule has its former mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def certify_run(trainer: L.Trainer, module: L.LightningModule, loader: Iterable[Any], *, refresh: bool) -> Certificate:
    """Certify the module's current weights on its current features, in the trainer's precision.

    Args:
        trainer: The trainer; its progress bar shows the pass.
        module: Its ``forward`` gives the potentials.
        loader: Every training example once; unused if a compiled loop or GDMM holds them.
        refresh: As in :func:`torchssvm.certify`.
    """
    if (gdmm := find_gdmm(trainer)) is not None:
        return gdmm.certify()
    dual = find_bcfw(trainer).dual
    make_loop: Any = getattr(module, "compiled_loop", None)
    if make_loop is not None and (loop := make_loop()) is not None:
        return loop.certify(refresh=refresh)
    batches = map(trainer.precision_plugin.convert_input, visible(trainer, loader, "Certifying"))
    with evaluating(module):
        return certify(in_precision(trainer, module), dual, batches, refresh=refresh)


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
