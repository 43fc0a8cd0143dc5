"""Certifies a run under Lightning: logs the exact gap, stops at a tolerance, and records why the run ended."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader
from typing_extensions import override

from torchssvm.compiler.jit import clock
from torchssvm.core.arguments import check_number, check_object
from torchssvm.lightning.figures import log, publish
from torchssvm.lightning.fit import Fit, certify_by_torch, fit_of
from torchssvm.lightning.refusals import refuse_callbacks
from torchssvm.lightning.training_batches import exact_pass_loader
from torchssvm.solvers.advice import warn_if_far
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.gdmm.reports import FactorwiseCertificate
from torchssvm.solvers.report import Entry, History
from torchssvm.solvers.solver import Relative, Schedule, Tolerance, check_tolerance, is_within
from torchssvm.solvers.trainer import PACED, Pacing

_EPOCHS = 10  # between certificates, where neither epochs nor a schedule say so
_MONITORED = ("primal", "dual", "gap", "exact", "gap_age", "passes", "oracle_calls", "gap_estimate", "relaxed_gap")


class DualityGap(Callback):
    """Certifies the weights when the schedule says so, or every few epochs, and at the end; stops at the tolerance.

    An exact pass decodes every training example and gives primal, dual and gap. Only this certificate stops a run. The
    pass also refreshes the gap estimates, from which examples are drawn. If the features have been trained, the weights
    are recomputed first, so that the certificate is for the current features.

    Logged at the end of every epoch from the first certificate on; ``ModelCheckpoint(monitor="gap")`` and
    ``EarlyStopping(monitor="gap")`` work at any position among the callbacks:

    * ``gap``, ``primal``, ``exact``: of the last pass; ``exact`` is 0 if an approximate oracle makes primal and gap
      upper bounds, or if they are of a relaxation (``Certificate.relaxed``). ``gap_age`` is the number of epochs
      since that pass, 0 for a pass at the end of this epoch.
    * ``dual``, ``oracle_calls``, ``passes``: current values (``dual`` of :class:`FactorwiseSVM`: of the last pass).
    * ``gap_estimate`` of BCFW: current value; the gap of the last pass while a block's gap is unknown.

    If another callback has ``monitor="gap"`` or another of these figures, the first epoch ends with a pass; if that
    epoch has validation within it, a pass comes before its first step too. If validation ends an epoch, the pass comes
    before it. The patience of ``EarlyStopping`` counts epochs, most of which have no new gap: give it a patience of
    twice ``every_n_epochs``.

    While ``JointTraining`` trains head and features together, nothing is certified or logged. Callbacks
    that monitor these figures then read the primal and the gap to the dual value of an empty dual, at the end of every
    epoch.

    Of several processes, all make the passes, each over its examples, and have the same certificates.

    The callback works for every module whose optimizer is a ``BCFW`` and whose ``forward`` gives the potentials, and
    for :class:`FactorwiseSVM`, where an epoch is a pass. GDMM trains a relaxation of the problem: the run stops on
    ``relaxed_gap``, logged and shown beside the ``gap`` of the problem, together with ``relaxed_primal`` and
    ``relaxed_dual``. On chains it is the gap itself, on label sets see
    :class:`torchssvm.solvers.gdmm.FactorwiseCertificate`.

    Lightning's progress bars show gap, dual and passes.

    Args:
        tolerance: Stop when the certified gap (:class:`FactorwiseSVM`: the gap of the relaxation) is at most this: a
            number, or ``Relative(0.01)``, a share of the primal.
        every_n_epochs: Epochs between certificates; the first epoch has one too. None follows ``schedule``, and is 10
            for :class:`FactorwiseSVM`.
        max_passes: Stop where this many effective passes are reached; None is no limit.
        batch_size: Examples of a batch of the exact pass; None is four training batches, at least 64. Unused if a
            compiled loop or GDMM holds the examples.
        violation: :class:`FactorwiseSVM` stops only if the mean consistency violation, 0 to 1, is at most this.
        schedule: When passes are made, as in :func:`torchssvm.solve`. It is asked after the last batch of an epoch,
            and of a longer epoch after each quarter of its batches: compiled fits of up to 10,000 examples have one
            batch an epoch. None is ``WhenEstimated()``. Its answers must follow from the dual's counters and the
            certificates.

    Attributes:
        history: All certificates with the seconds since the fit began; a resumed run keeps the earlier ones.
        stopped_because: Why the run ended, as a sentence; None while it runs.
        pacing: Says during a fit when passes are made; None where epochs say it.

    Raises:
        ValueError: An argument is out of range, or both ``every_n_epochs`` and ``schedule`` are given.
        TypeError: ``schedule`` is not a Schedule.

    Example:
        >>> gap = DualityGap(tolerance=Relative(0.05), every_n_epochs=5)
        >>> trainer = L.Trainer(max_epochs=200, callbacks=[gap], **quiet)
        >>> trainer.fit(StructuredSVM(LinearMulticlass(4, 3), lam=0.1), loader)
        >>> gap.certificate.relative_gap <= 0.05
        True
        >>> "5 % of the primal" in gap.stopped_because
        True
    """

    def __init__(
        self,
        tolerance: Tolerance = Relative(0.01),  # noqa: B008 - it cannot change
        every_n_epochs: int | None = None,
        max_passes: float | None = None,
        batch_size: int | None = None,
        violation: float = 0.01,
        schedule: Schedule | None = None,
    ) -> None:
        for name, value in (("every_n_epochs", every_n_epochs), ("max_passes", max_passes), ("batch_size", batch_size)):
            if value is not None:
                check_number(value, name, above=0.0, finite=False)
        check_number(violation, "violation", least=0.0)
        if schedule is not None:
            check_object(schedule, "schedule", "due", "WhenEstimated()")
            if every_n_epochs is not None:
                raise ValueError(f"every_n_epochs={every_n_epochs} and schedule={schedule}: give one of them")
        self.tolerance = check_tolerance(tolerance)
        self.schedule = schedule
        self.violation = violation
        self.every_n_epochs = every_n_epochs
        self.max_passes = max_passes
        self.batch_size = batch_size
        self.history: History = []
        self.stopped_because: str | None = None
        self._last_batch = False  # whether the last batch of the epoch was trained
        self._certified_step = -1  # trainer.global_step of the last certificate
        self._certified_epoch = -1  # trainer.current_epoch of the last certificate
        self._last_epoch = -1  # the last epoch whose end was handled
        self._start = 0.0  # the moment when the fit began
        self._loader: DataLoader | None = None
        self.pacing: Pacing | None = None  # of this run; None where epochs say when passes are made
        self._paced: dict[str, Any] = {}  # the state of an interrupted run's pacing
        self._start_metrics: dict[str, float] = {}  # of the last epoch of the first stage of JointTraining

    @property
    def certificate(self) -> Certificate | None:
        """The last certificate; None before the first one."""
        return self.history[-1].certificate if self.history else None

    @property
    def seconds(self) -> float:
        """Seconds since the fit began, without those of compiling."""
        return clock() - self._start

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            refuse_callbacks(trainer)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.ckpt_path is None:
            self.history, self._certified_step, self._paced = [], -1, {}
            # a second fit continues the trainer's count
            self._certified_epoch = self._last_epoch = trainer.current_epoch - 1
        self.stopped_because = self._loader = self.pacing = None
        if self.every_n_epochs is None:
            most = math.inf if self.max_passes is None else self.max_passes
            rules = {"tolerance": self.tolerance, "max_passes": most, "schedule": self.schedule}
            self.pacing = fit_of(trainer, pl_module).pacing(**rules)
        if self.pacing is not None:
            self.pacing.resume(self._paced, [entry.certificate for entry in self.history])
        self._start = clock() - (self.history[-1].seconds if self.history else 0.0)

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        fit = fit_of(trainer, pl_module)
        if not fit.solves_head:
            return
        self._end_epoch(trainer, pl_module, trainer.current_epoch - 1)
        if not self.history and _validates_early(trainer) and (self.every_n_epochs or _is_monitored(trainer)):
            self.certify(trainer, pl_module)
            self._certified_epoch = trainer.current_epoch - 1
            self._publish(trainer, fit)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        total = trainer.num_training_batches
        self._last_batch = batch_idx + 1 == total
        quarter = 1 if math.isinf(total) else math.ceil(total / 4)
        if self.pacing is None or ((batch_idx + 1) % quarter and batch_idx + 1 != total):
            return
        fit = fit_of(trainer, pl_module)
        if fit.solves_head and self.pacing.due:
            self.certify(trainer, pl_module)
            self._publish(trainer, fit)
            self._stop_if_reached(trainer)

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != TrainerFn.FITTING or trainer.sanity_checking:
            return
        if self._last_batch:
            with torch.inference_mode(False), torch.no_grad():  # tensors made here are trained further
                self._end_epoch(trainer, pl_module, trainer.current_epoch)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics = self._end_epoch(trainer, pl_module, trainer.current_epoch)
        if self.history:
            log(pl_module, metrics)

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.finish(trainer, pl_module)

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.finish(trainer, pl_module)

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.stopped_because = f"interrupted: {type(exception).__name__}" + (f": {exception}" if str(exception) else "")

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._loader = None
        if self.pacing is not None:
            self._paced, self.pacing = self.pacing.state_dict(), None

    def certify(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Certificate:
        """The certificate of the current weights; the last one if no step was made since."""
        if self._certified_step == trainer.global_step and self.history:
            return self.history[-1].certificate
        fit = fit_of(trainer, pl_module)
        if self._loader is None:
            self._loader = exact_pass_loader(fit.training_loader, self.batch_size)
        loader, pacing = self._loader, self.pacing
        certificate = fit.certify(loader) if pacing is None else pacing.certify(lambda: fit.certify(loader))
        self.history.append(Entry(certificate, self.seconds))
        self._certified_step, self._certified_epoch = trainer.global_step, trainer.current_epoch
        return certificate

    def finish(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Certify the final weights and record why the run ended; a second call does nothing."""
        if self.stopped_because is not None:
            return
        fit = fit_of(trainer, pl_module)
        if not fit.solves_head:
            self.stopped_because = "the fit ended while head and features were trained together: no certificate"
            return
        if self._certified_step != trainer.global_step or not self.history:
            self.certify(trainer, pl_module)
            self._certified_epoch = trainer.current_epoch - 1  # trainer.current_epoch already counts the last epoch
            metrics = self._publish(trainer, fit)
            for logger in trainer.loggers:  # the module cannot log after training
                logger.log_metrics(metrics, step=trainer.global_step)
                logger.save()
        self.stopped_because = self._reason(trainer)
        if not self._reached() and (certificate := self.certificate) is not None and trainer.is_global_zero:
            warn_if_far(certificate)

    def _end_epoch(self, trainer: L.Trainer, pl_module: L.LightningModule, epoch: int) -> dict[str, float]:
        """Certify if this is due, stop if that is enough, and publish the figures; a second call does not certify."""
        fit, new = fit_of(trainer, pl_module), epoch > self._last_epoch
        self._last_epoch = max(epoch, self._last_epoch)
        if not fit.solves_head:
            if not _is_monitored(trainer):
                return {}
            if new:
                self._start_metrics = _gap_of_an_empty_dual(trainer, pl_module, fit)
            return self._publish(trainer, fit)
        if new and self._ends_with_a_pass(trainer, epoch, fit):
            self.certify(trainer, pl_module)
            self._certified_epoch = epoch
        if not self.history:
            return {}
        self._stop_if_reached(trainer)
        return self._publish(trainer, fit)

    def _ends_with_a_pass(self, trainer: L.Trainer, epoch: int, fit: Fit) -> bool:
        if self.pacing is not None:
            return not self.history and _is_monitored(trainer)
        spent = self.max_passes is not None and fit.passes >= self.max_passes
        return epoch == 0 or not self.history or (epoch + 1) % (self.every_n_epochs or _EPOCHS) == 0 or spent

    def _stop_if_reached(self, trainer: L.Trainer) -> None:
        if self._certified_step == trainer.global_step and (self._reached() or self._spent()):
            trainer.should_stop = True

    def _publish(self, trainer: L.Trainer, fit: Fit) -> dict[str, float]:
        if not fit.solves_head:
            publish(trainer, self._start_metrics)
            return self._start_metrics
        metrics, certificate = self._figures(trainer, fit), self.certificate
        shown = ["dual", "gap", "passes"]  # a bar of 80 columns has room for three figures
        if isinstance(certificate, FactorwiseCertificate):  # whose module shows the violation
            shown = ["gap", "relaxed_gap", "passes"] if certificate.has_relaxation else ["gap", "passes"]
        if not metrics["exact"]:  # the gap is an upper bound, or of a relaxation
            shown.append("exact")
        publish(trainer, metrics, shown)
        return metrics

    def _figures(self, trainer: L.Trainer, fit: Fit) -> dict[str, float]:
        certificate = self.certificate
        assert certificate is not None
        names = ["primal", "dual", "gap", "oracle_calls", "passes", "exact"]
        if isinstance(certificate, FactorwiseCertificate):
            names += ["relaxed_primal", "relaxed_dual", "relaxed_gap"]
        metrics = {name: float(getattr(certificate, name)) for name in names}
        new = self._certified_step == trainer.global_step
        metrics["gap_age"] = 0.0 if new else float(trainer.current_epoch - self._certified_epoch)
        if not new:
            metrics["passes"] = fit.passes
        if isinstance(certificate, FactorwiseCertificate):
            return metrics
        metrics["gap_estimate"] = certificate.gap  # while a block's gap is unknown
        if not new:
            return metrics | fit.figures(self.pacing)
        if (estimate := (self.pacing or fit.dual).gap_estimate) < math.inf:
            metrics["gap_estimate"] = estimate
        return metrics

    def _reached(self) -> bool:
        certificate = self.certificate
        if isinstance(certificate, FactorwiseCertificate):
            within = is_within(certificate.relaxed_gap, self.tolerance, certificate.relaxed_primal)
            return within and certificate.violation <= self.violation
        return certificate is not None and is_within(certificate.gap, self.tolerance, certificate.primal)

    def _spent(self) -> bool:
        certificate = self.certificate
        return self.max_passes is not None and certificate is not None and certificate.passes >= self.max_passes

    def _reason(self, trainer: L.Trainer) -> str:
        certificate = self.certificate
        assert certificate is not None
        gap = f"certified {certificate.gaps}"
        if isinstance(certificate, FactorwiseCertificate):
            gap = f"violation {certificate.violation:.2g}, {gap}"
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

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "history": [{**dataclasses.asdict(c), "at": seconds} for c, seconds in self.history],
            "certified_step": self._certified_step,
            "certified_epoch": self._certified_epoch,
            "last_epoch": self._last_epoch,
            **(self._paced if self.pacing is None else self.pacing.state_dict()),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        entries = [dict(entry) for entry in state_dict["history"]]
        self.history = [Entry(seconds=entry.pop("at"), certificate=_read(entry)) for entry in entries]
        self._certified_step = state_dict["certified_step"]
        self._certified_epoch = state_dict.get("certified_epoch", state_dict["last_epoch"])
        self._last_epoch = state_dict["last_epoch"]
        self._paced = {name: state_dict[name] for name in PACED if name in state_dict}


def _read(entry: dict[str, Any]) -> Certificate:
    return FactorwiseCertificate(**entry) if "violation" in entry else Certificate(**entry)


def _gap_of_an_empty_dual(trainer: L.Trainer, pl_module: L.LightningModule, fit: Fit) -> dict[str, float]:
    """Figures of a head that is trained together with its features: the dual has not taken a step."""
    calls = fit.dual.oracle_calls
    loader = exact_pass_loader(fit.training_loader)
    try:
        certificate = certify_by_torch(trainer, pl_module, fit.dual, loader, refresh=False)
    finally:
        fit.dual.oracle_calls = calls
    figures = {name: float(getattr(certificate, name)) for name in ("primal", "dual", "gap", "exact")}
    return {**figures, "gap_age": 0.0, "passes": 0.0, "oracle_calls": 0.0, "gap_estimate": certificate.gap}


def _is_monitored(trainer: L.Trainer) -> bool:
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    return any(getattr(callback, "monitor", None) in _MONITORED for callback in callbacks)


def _validates_early(trainer: L.Trainer) -> bool:
    """Whether the first epoch has validation within it, at which callbacks may read the gap."""
    every: float | None = trainer.val_check_batch  # None if validation is timed
    return trainer.enable_validation and (every is None or every < trainer.num_training_batches)
