"""An average of the head's weights under a Lightning trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from typing_extensions import override

from torchssvm.lightning.fit import certify_by_torch, find_dual, fit_of
from torchssvm.lightning.training_batches import exact_pass_loader
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.running_average import Average, WeightedAverage


class AveragedWeights(Callback):
    """Averages the head's weights during a fit.

    The default is :class:`torchssvm.solvers.WeightedAverage` ([B13] Algorithm 4). The average restarts whenever the
    features are trained.

    Unlike with Lightning's averages, checkpoints, exports and validation use the trained weights by default, and
    these stay in the head when training ends. The head holds the average inside ``with callback.applied(module):``, and
    for good after ``callback.average.copy_to_parameters()``.

    Args:
        validate: Whether validation within a fit uses the average.
        average: The class of the average: ``WeightedAverage``, ``SuffixAverage`` or ``UniformAverage``.

    Attributes:
        average: The average; None before the first fit.

    Example:
        >>> gap, average = DualityGap(), AveragedWeights()
        >>> model = StructuredSVM(LinearMulticlass(4, 3), lam=0.1)
        >>> trainer = L.Trainer(max_epochs=20, callbacks=[gap, average], **quiet)
        >>> trainer.fit(model, loader)
        >>> average.certify(trainer, model).gap >= 0.0
        True
    """

    needs_batches = True
    """A compiled loop takes its batches from the training loader beside this callback."""

    def __init__(self, *, validate: bool = False, average: type[Average] = WeightedAverage) -> None:
        super().__init__()
        self.validate = validate
        self.average: Average | None = None
        self._make = average
        self._steps = 0  # dual.steps at the last call
        self._averaged_step = 0  # trainer.global_step at the last call
        self._averaged_epoch = -1  # the last epoch at whose end the average was updated
        self._validation = ExitStack()  # holds the average in the head
        self._loaded: dict[str, Any] | None = None

    @property
    def count(self) -> int:
        """Number of averaged steps."""
        return 0 if self.average is None else self.average.count

    @property
    def weights(self) -> list[Tensor]:
        """The average, float64, in the order of ``head.parameters()``.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        return self._of_fit().weights

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether to add the weights now, after a step or at the end of an epoch; override it for other moments.

        Args:
            step_idx: Index of the last step, None at the end of an epoch.
            epoch_idx: Index of the last epoch, None after a step.
        """
        return step_idx is not None

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        dual = find_dual(trainer)
        self.average, self._steps = self._make(dual.parameters), dual.steps
        if trainer.ckpt_path is None:
            self._loaded = None

    @override
    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.on_train_start(trainer, pl_module)

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        state, self._loaded = self._loaded, None
        if state is not None and self.average is not None:
            self.average.load_state_dict(state)
            self._steps = find_dual(trainer).steps

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        average, dual = self._of_fit(), find_dual(trainer)
        if dual.steps > self._steps:
            self._steps = dual.steps
            self._averaged_step = trainer.global_step
            if self.should_update(step_idx=trainer.global_step - 1):
                average.update()
        elif trainer.global_step > self._averaged_step:  # another optimizer moved the features
            self._averaged_step = trainer.global_step
            average.reset()

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch > self._averaged_epoch and self.should_update(epoch_idx=trainer.current_epoch):
            self._averaged_epoch = trainer.current_epoch
            self._of_fit().update()

    @override
    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.validate and trainer.training is False and self.count:
            self._validation.enter_context(self.applied(pl_module))

    @override
    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validation.close()

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._validation.close()

    @contextmanager
    def applied(self, pl_module: L.LightningModule) -> Iterator[None]:
        """The head holds the average inside the ``with`` block; RuntimeError if nothing has been averaged."""
        with self._of_fit().apply():
            yield

    def certify(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Certificate:
        """The primal of the average, the dual of the run and their gap, by one exact pass; the run goes on as it was.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        loader = exact_pass_loader(fit_of(trainer, pl_module).training_loader)
        with self._of_fit().apply():
            return certify_by_torch(trainer, pl_module, find_dual(trainer), loader, refresh=False)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "latest_update_step": self._averaged_step,
            "latest_update_epoch": self._averaged_epoch,
            "average": None if self.average is None else self.average.state_dict(),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._averaged_step = state_dict["latest_update_step"]
        self._averaged_epoch = state_dict["latest_update_epoch"]
        self._loaded = state_dict["average"]

    def _of_fit(self) -> Average:
        if self.average is None:
            raise RuntimeError("there is no average before a fit: call trainer.fit first")
        return self.average
