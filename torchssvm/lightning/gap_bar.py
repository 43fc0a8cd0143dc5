"""Lightning's progress bar for a run that is certified: one line with gap, dual and passes."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar

from torchssvm.lightning.duality_gap import DualityGap
from torchssvm.lightning.loaders import fit_of
from torchssvm.solvers.trainer import ProgressLine


class GapBar(ProgressBar):
    """A progress bar of one line: ``gap 0.0098 (6.1 %)  dual 0.15  passes 560  3 s``.

    ``Trainer(callbacks=[DualityGap(), GapBar()])`` shows it in place of Lightning's own bar, whose batches and epochs
    say little of a run that ends by its gap. Certificates are those of the :class:`DualityGap` among the callbacks,
    figures between them are estimates, marked by ``~``. While :class:`JointTraining` trains head and features together,
    the line shows the epoch and the loss. It is written to stderr; a log gets a line at most every ten seconds.

    Of several processes the first shows the line, with rho: how much the directions of the processes overlapped in the
    last round, from 1, for not at all, to their number.

    Example:
        >>> shown = {**quiet, "enable_progress_bar": True}
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[DualityGap(every_n_epochs=1), GapBar()], **shown)
        >>> trainer.fit(StructuredSVM(LinearMulticlass(4, 3), lam=0.1), loader)
    """

    several_epochs = True  # may be made at once: the line shows none

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._line: ProgressLine | None = None
        self._seen = 0  # certificates

    def disable(self) -> None:
        """Show nothing from now on."""
        self._enabled = False
        self._close()

    def enable(self) -> None:
        """Show the next fit."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on a line of its own."""
        if self._line is not None:
            self._line.clear()
        print(*args, **kwargs)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin the line."""
        gap = _find_gap(trainer)
        self._seen = 0 if gap is None or trainer.ckpt_path is None else len(gap.history)
        self._line = ProgressLine() if self._enabled else None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show a new certificate, or estimates."""
        line = self._line
        if line is None or self._show_certificate(trainer):
            return
        fit = fit_of(trainer, pl_module)
        if not fit.solves_head:
            shown = trainer.progress_bar_metrics
            figures = (f"{name} {value:.4g}" for name, value in shown.items() if isinstance(value, float))
            line.message(lambda: "  ".join([f"epoch {trainer.current_epoch}", *figures]))
            return
        dual = fit.dual
        line.rho = dual.rho if dual.ranks else None
        value = None if hasattr(fit, "gdmm") else dual.value  # GDMM knows nothing of it between certificates
        line.update(fit.passes, dual.gap_estimate, value)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show a new certificate."""
        self._show_certificate(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the last certificate on the screen."""
        if (gap := _find_gap(trainer)) is not None:
            gap.finish(trainer, pl_module)
        self._show_certificate(trainer)
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """End the line of an interrupted run."""
        self._close()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """End the line."""
        self._close()

    def _show_certificate(self, trainer: L.Trainer) -> bool:
        gap = _find_gap(trainer)
        if self._line is None or gap is None or len(gap.history) <= self._seen:
            return False
        self._seen = len(gap.history)
        self._line.certified(gap.history[-1].certificate)
        return True

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies have no line, which is a stream."""
        return {**vars(self), "_line": None}


def _find_gap(trainer: L.Trainer) -> DualityGap | None:
    return next((c for c in trainer.callbacks if isinstance(c, DualityGap)), None)  # type: ignore[attr-defined]
