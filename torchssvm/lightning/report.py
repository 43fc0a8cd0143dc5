"""The report of a run, written when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader
from typing_extensions import override

from torchssvm.compiler.jit import compiling_seconds
from torchssvm.core.batch import Batch, apply_head, to_device
from torchssvm.core.decoding import as_decoding
from torchssvm.core.modules import evaluating
from torchssvm.lightning.duality_gap import DualityGap
from torchssvm.lightning.fit import InPrecision, fit_of, of_all
from torchssvm.lightning.training_batches import exact_pass_loader
from torchssvm.solvers.evaluation import evaluate
from torchssvm.solvers.report import RunReport


class Report(Callback):
    """Writes ``report.json`` and ``convergence.png`` when training ends, and a table to the screen.

    The run's :class:`DualityGap` gives the certificates; without that callback only the final weights are
    certified. Training and test examples (of ``test_dataloader``, else of validation) are decoded once. A run that is
    interrupted from the keyboard leaves a report of its certificates so far. ``seconds`` of the report do not count
    ``compiling_seconds``, which the process has spent on compiling kernels: 0 from the second run on.

    Args:
        task: Title of the report; None is a description of the training dataset.
        draw_examples: ``(figure, batch, labelings) -> None`` draws a few test examples with their predictions below the
            curves, such as ``torchssvm.datasets.ocr.drawing.draw_words``.

    Attributes:
        report: The report; None before it is written.

    Example:
        >>> report = Report(folder="report", task="toy data")
        >>> trainer = L.Trainer(max_epochs=50, callbacks=[DualityGap(), report], **quiet)
        >>> trainer.fit(StructuredSVM(LinearMulticlass(4, 3), lam=0.1), loader, loader)
        task                 toy data
        n                    30
        ...
        >>> report.report.to_dict()["n"]
        30
    """

    def __init__(
        self,
        folder: str | Path = "runs/report",
        task: str | None = None,
        draw_examples: Callable[[Any, Batch, Any], None] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.task = task
        self.draw_examples = draw_examples
        self.report: RunReport | None = None
        self._estimates: list[tuple[float, float, float]] = []
        self._own = DualityGap(tolerance=0.0)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.report, self._estimates = None, []
        self._own.on_fit_start(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        gap, fit = self._gap(trainer), fit_of(trainer, pl_module)
        figures = fit.figures(gap.pacing) if fit.solves_head else {}
        if "gap_estimate" in figures:  # every block has been seen
            self._estimates.append((gap.seconds, figures["dual"], figures["gap_estimate"]))

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        gap = self._gap(trainer)
        gap.finish(trainer, pl_module)
        if not gap.history:  # the fit ended in the first stage of JointTraining
            return
        if (choose_head := getattr(pl_module, "choose_head", None)) is not None:
            choose_head()
        fit = fit_of(trainer, pl_module)
        loaders = {"train": exact_pass_loader(fit.training_loader, gap.batch_size), "test": _test_batches(trainer)}
        forward = InPrecision(trainer, pl_module)
        with evaluating(pl_module):
            evaluations = {
                name: of_all(evaluate(forward, fit.dual.structure, loader, pl_module.device))
                for name, loader in loaders.items()
                if loader is not None
            }
        self._write(trainer, pl_module, gap, **evaluations)

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        gap = self._gap(trainer)
        if isinstance(exception, KeyboardInterrupt) and gap.history:
            gap.on_exception(trainer, pl_module, exception)
            self._write(trainer, pl_module, gap)
            rank_zero_only(print)(self.report)

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.report is None:
            self.on_train_end(trainer, pl_module)
        text = self._gap(trainer).stopped_because if self.report is None else f"{self.report}\nwritten to {self.folder}"
        rank_zero_only(print)(text)

    def _gap(self, trainer: L.Trainer) -> DualityGap:
        return next((c for c in trainer.callbacks if isinstance(c, DualityGap)), self._own)  # type: ignore[attr-defined]

    def _write(self, trainer: L.Trainer, pl_module: L.LightningModule, gap: DualityGap, **evaluations: Any) -> None:
        fit = fit_of(trainer, pl_module)
        seed = os.environ.get("PL_GLOBAL_SEED")
        dataset = fit.training_loader.dataset
        self.report = RunReport(
            self.task if self.task is not None else str(dataset).partition(" object at")[0].strip("<"),
            gap.history,
            num_weights=sum(p.numel() for p in fit.dual.parameters),
            stopped_because=gap.stopped_because or "not known",
            seed=None if seed is None else int(seed),
            device=pl_module.device,
            estimates=self._estimates,
            extra={
                "epochs": trainer.current_epoch,
                "steps": trainer.global_step,
                "compiling_seconds": compiling_seconds(),  # of this process; seconds do not count them
            },
            **evaluations,
        )
        if not trainer.is_global_zero:
            return
        batches = _test_batches(trainer) if self.draw_examples is not None and evaluations else None
        draw = None if batches is None else partial(self._draw, pl_module, next(iter(batches)))
        self.report.write(self.folder, draw)

    def _draw(self, pl_module: L.LightningModule, batch: Batch, figure: Any) -> None:
        assert self.draw_examples is not None
        batch = to_device(batch, pl_module.device)
        structure = fit_of(pl_module.trainer, pl_module).dual.structure
        with evaluating(pl_module):
            labeling = as_decoding(structure.argmax(apply_head(pl_module, batch).detach())).labeling
        self.draw_examples(figure, batch, labeling)


def _test_batches(trainer: L.Trainer) -> Iterable[Batch] | None:
    """The batches of the test loaders, else of the validation loaders, else None; of several processes, a part each."""
    loaders: Any = trainer.val_dataloaders
    for owner in (trainer.datamodule, trainer.lightning_module):  # type: ignore[attr-defined]
        if owner is not None and is_overridden("test_dataloader", owner):
            loaders = owner.test_dataloader()
            if trainer.world_size > 1 and isinstance(loaders, DataLoader):
                loaders = exact_pass_loader(loaders)
            break
    return chain.from_iterable(loaders) if isinstance(loaders, list | tuple) else loaders
