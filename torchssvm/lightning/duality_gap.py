"""The exact gap during a run: what is logged, what stops it, and why it stopped."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from torchssvm.certificate import Certificate
from torchssvm.factorwise import FactorwiseCertificate
from torchssvm.lightning.exact_pass import certify_run, passes_so_far
from torchssvm.lightning.loaders import exact_pass_loader
from torchssvm.report import Entry, History


class DualityGap(Callback):
    """Certifies the weights every few epochs and when the run ends; stops at ``gap <= tolerance``.

    An exact pass over the training examples, in their order, gives primal, dual and gap, logged under these names with
    ``oracle_calls``, ``passes`` and ``exact``: 1, or 0 where an approximate oracle makes primal and gap upper bounds.
    Only such a certificate stops a run. The pass also brings the gap estimates up to date, from which a
    ``GapBatchSampler`` draws. Weights follow features that have moved first, so that the certificate is for the
    features as they stand.

    It works for every module whose optimizer is a ``BCFW`` and whose ``forward`` gives the potentials, and for
    :class:`FactorwiseSVM`, whose passes are those of its epochs. GDMM trains a relaxation of the problem: the gap that
    stops it is ``relaxed_gap``, logged beside the others with ``relaxed_primal`` and ``relaxed_dual``; on chains it is
    the gap itself, on label sets see :class:`torchssvm.FactorwiseCertificate`.

    Args:
        tolerance: Stop when the certified gap is at most this.
        every_n_epochs: Epochs between certificates.
        max_passes: Stop at the first epoch's end with as many effective passes; None is no limit.
        batch_size: Examples of a batch of the exact pass; None is four training batches, at least 64. Not needed
            where a compiled loop or GDMM holds the examples.
        violation: The mean consistency violation that a run of :class:`FactorwiseSVM` must reach too; 0 to 1.

    Attributes:
        history: All certificates with the seconds since the fit began; a resumed run keeps those before it.
        stopped_because: Why the run ended, a sentence; None while it runs.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        tolerance: float = 0.01,
        every_n_epochs: int = 10,
        max_passes: float | None = None,
        batch_size: int | None = None,
        violation: float = 0.01,
    ) -> None:
        if not (tolerance >= 0.0 and math.isfinite(tolerance)):
            raise ValueError(f"tolerance={tolerance} must be at least 0 and finite")
        for name, value in (("every_n_epochs", every_n_epochs), ("max_passes", max_passes), ("batch_size", batch_size)):
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be positive")
        if not 0.0 <= violation <= 1.0:
            raise ValueError(f"violation={violation} must be 0 to 1")
        self.tolerance = tolerance
        self.violation = violation
        self.every_n_epochs = every_n_epochs
        self.max_passes = max_passes
        self.batch_size = batch_size
        self.history: History = []
        self.stopped_because: str | None = None
        self._certified_step = -1  # trainer.global_step of the last certificate
        self._last_epoch = -1  # the last epoch whose end was seen to
        self._start: float | None = None
        self._loader: DataLoader | None = None

    @property
    def certificate(self) -> Certificate | None:
        """The last one."""
        return self.history[-1].certificate if self.history else None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock; a run that is not resumed forgets the one before."""
        if trainer.ckpt_path is None:
            self.history, self._certified_step, self._last_epoch = [], -1, -1
        self.stopped_because = None
        self._loader = None
        self._start_clock()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Make up for the end of an epoch that the interrupted run did not come to, or stop as it did."""
        self._end_epoch(trainer, pl_module, trainer.current_epoch - 1, log=False)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Certify if it is time."""
        self._end_epoch(trainer, pl_module, trainer.current_epoch, log=True)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Certify the final weights."""
        self.finish(trainer, pl_module)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Certify a run that was resumed with nothing left to train."""
        self.finish(trainer, pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Say that the run was cut off."""
        self.stopped_because = f"interrupted: {type(exception).__name__}" + (f": {exception}" if str(exception) else "")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Let the worker processes go."""
        self._loader = None

    def certify(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Certificate:
        """The certificate of the weights as they stand, made now unless the last one is of this very step."""
        if self._certified_step == trainer.global_step and self.history:
            return self.history[-1].certificate
        follow_features: Any = getattr(pl_module, "follow_features", None)
        if follow_features is not None:
            follow_features()
        if self._loader is None:
            self._loader = exact_pass_loader(_training_loader(trainer, pl_module), self.batch_size)
        certificate = certify_run(trainer, pl_module, self._loader, refresh=True)
        self.history.append(Entry(certificate, self._seconds()))
        self._certified_step = trainer.global_step
        return certificate

    def finish(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Certify the final weights and settle why the run ended; the second call does nothing."""
        if self.stopped_because is not None:
            return
        if self._certified_step != trainer.global_step or not self.history:
            metrics = _metrics(self.certify(trainer, pl_module))
            for logger in trainer.loggers:  # no logging through the module any more
                logger.log_metrics(metrics, step=trainer.global_step)
                logger.save()
        self.stopped_because = self._reason(trainer)

    def _end_epoch(self, trainer: L.Trainer, pl_module: L.LightningModule, epoch: int, *, log: bool) -> None:
        if epoch > self._last_epoch:
            self._last_epoch = epoch
            spent = self.max_passes is not None and passes_so_far(trainer) >= self.max_passes
            if (epoch + 1) % self.every_n_epochs == 0 or spent:
                certificate = self.certify(trainer, pl_module)
                if log:
                    metrics = _metrics(certificate)
                    # The same ones in the bar each time, as Lightning asks: an exact run may turn inexact, and back.
                    shown = ("primal", "gap", "exact", *(["relaxed_gap"] if "relaxed_gap" in metrics else []))
                    pl_module.log_dict({name: metrics[name] for name in shown}, prog_bar=True)
                    pl_module.log_dict({name: metrics[name] for name in metrics if name not in shown})
        if self.history and self._certified_step == trainer.global_step and (self._reached() or self._spent()):
            trainer.should_stop = True

    def _reached(self) -> bool:
        certificate = self.certificate
        if isinstance(certificate, FactorwiseCertificate):
            return certificate.relaxed_gap <= self.tolerance and certificate.violation <= self.violation
        return certificate is not None and certificate.gap <= self.tolerance

    def _spent(self) -> bool:
        return (
            self.max_passes is not None and self.certificate is not None and self.certificate.passes >= self.max_passes
        )

    def _reason(self, trainer: L.Trainer) -> str:
        certificate = self.certificate
        assert certificate is not None
        if isinstance(certificate, FactorwiseCertificate):
            kind = " of the relaxation" if certificate.has_relaxation else ""
            gap = f"violation {certificate.violation:.2g}, certified gap{kind} {certificate.relaxed_gap:.6g}"
        else:
            kind = "" if certificate.exact else " (upper bound: approximate oracle)"
            gap = f"certified gap {certificate.gap:.6g}{kind}"
        if self._reached():
            return f"{gap} <= tolerance {self.tolerance:g}"
        short = f"{gap} > tolerance {self.tolerance:g}"
        if self._spent():
            return f"max_passes={self.max_passes:g} reached, {short}"
        if trainer.max_steps not in (None, -1) and trainer.global_step >= trainer.max_steps:
            return f"max_steps={trainer.max_steps} reached, {short}"
        if trainer.max_epochs not in (None, -1) and trainer.current_epoch >= (trainer.max_epochs or 0):
            return f"max_epochs={trainer.max_epochs} reached, {short}"
        return f"stopped by another callback, {short}"

    def _start_clock(self) -> None:
        before = self.history[-1].seconds if self.history else 0.0
        self._start = time.perf_counter() - before

    def _seconds(self) -> float:
        if self._start is None:
            self._start_clock()
        assert self._start is not None
        return time.perf_counter() - self._start

    def state_dict(self) -> dict[str, Any]:
        """The history as numbers, and which step and epoch it reaches."""
        return {
            "history": [{**dataclasses.asdict(c), "at": seconds} for c, seconds in self.history],
            "certified_step": self._certified_step,
            "last_epoch": self._last_epoch,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the history of the interrupted run."""
        entries = [dict(entry) for entry in state_dict["history"]]
        self.history = [Entry(seconds=entry.pop("at"), certificate=_read(entry)) for entry in entries]
        self._certified_step = state_dict["certified_step"]
        self._last_epoch = state_dict["last_epoch"]


def _read(entry: dict[str, Any]) -> Certificate:
    return FactorwiseCertificate(**entry) if "violation" in entry else Certificate(**entry)


def _metrics(certificate: Certificate) -> dict[str, float]:
    names = ["primal", "dual", "gap", "oracle_calls", "passes", "exact"]
    if isinstance(certificate, FactorwiseCertificate):
        names += ["relaxed_primal", "relaxed_dual", "relaxed_gap"]
    return {name: float(getattr(certificate, name)) for name in names}


def _training_loader(trainer: L.Trainer, pl_module: L.LightningModule) -> DataLoader:
    loader = getattr(pl_module, "training_loader", None) or trainer.train_dataloader
    if not isinstance(loader, DataLoader):
        raise TypeError(f"a certificate is made over the dataset of one DataLoader, not of a {type(loader).__name__}")
    return loader
