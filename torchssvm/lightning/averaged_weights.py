"""An average of the head's weights under a Lightning trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from torchssvm.core.gradients import evaluating
from torchssvm.lightning.loaders import exact_pass_loader, find_dual, fit_of, in_precision, visible
from torchssvm.solvers.certificate import Certificate, certify
from torchssvm.solvers.running_average import Average, WeightedAverage


class AveragedWeights(WeightAveraging):
    """Averages the head's weights during a fit.

    The default is :class:`torchssvm.solvers.WeightedAverage` ([B13] Algorithm 4). The average restarts whenever the
    features are trained.

    Unlike with Lightning's own averages, checkpoints, exports and validation use the trained weights by default, and
    these stay in the head when training ends. The head holds the average inside ``with callback.applied(module):``, and
    for good after ``callback.average.copy_to_parameters()``.

    Args:
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

    certifies_its_average = True

    needs_batches = True
    """A compiled loop takes its batches from the training loader beside this callback."""

    def __init__(self, *, validate: bool = False, average: type[Average] = WeightedAverage) -> None:
        super().__init__(use_buffers=False)
        self.validate = validate
        self.average: Average | None = None
        self._make = average
        self._steps = 0  # dual.steps at the last call
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
        return self._existing().weights

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Do nothing: the optimizer, which knows the parameters to average, does not exist yet."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the average."""
        dual = find_dual(trainer)
        self.average, self._steps = self._make(dual.parameters), dual.steps
        if trainer.ckpt_path is None:
            self._loaded = None

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the average of the interrupted run: the optimizer's state is loaded by now."""
        self.on_train_start(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the average of the interrupted run."""
        state, self._loaded = self._loaded, None
        if state is not None and self.average is not None:
            self.average.load_state_dict(state)
            self._steps = find_dual(trainer).steps

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the weights after the step to the average."""
        average, dual = self._existing(), find_dual(trainer)
        if dual.steps > self._steps:
            self._steps = dual.steps
            self._latest_update_step = trainer.global_step
            if self.should_update(step_idx=trainer.global_step - 1):
                average.update()
        elif trainer.global_step > self._latest_update_step:  # another optimizer moved the features
            self._latest_update_step = trainer.global_step
            average.reset()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add the weights to the average if ``should_update`` counts epochs."""
        if trainer.current_epoch > self._latest_update_epoch and self.should_update(epoch_idx=trainer.current_epoch):
            self._latest_update_epoch = trainer.current_epoch
            self._existing().update()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the trained weights in the head."""

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the average into the head for validation, if ``validate``."""
        if self.validate and trainer.training is False and self.count:
            self._validation.enter_context(self.applied(pl_module))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the trained weights back."""
        self._validation.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Put the trained weights back if validation was interrupted."""
        self._validation.close()

    @contextmanager
    def applied(self, pl_module: L.LightningModule) -> Iterator[None]:
        """The head holds the average inside the ``with`` block, and its own weights again afterwards.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        with self._existing().apply():
            yield

    def certify(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Certificate:
        """The primal of the average, the dual of the run and their gap, by one exact pass; the run goes on as it was.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        loader = exact_pass_loader(fit_of(trainer, pl_module).training_loader)
        with evaluating(pl_module), self._existing().apply():
            return certify(
                in_precision(trainer, pl_module),
                find_dual(trainer),
                visible(trainer, loader, "Certifying"),
                refresh=False,
            )

    def state_dict(self) -> dict[str, Any]:
        """The average, and the step and epoch of its last update."""
        return {
            "latest_update_step": self._latest_update_step,
            "latest_update_epoch": self._latest_update_epoch,
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the average until the fit begins."""
        self._latest_update_step = state_dict["latest_update_step"]
        self._latest_update_epoch = state_dict["latest_update_epoch"]
        self._loaded = state_dict["average"]

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the trained weights in the checkpoint; the average is in this callback's ``state_dict``."""

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Do nothing: ``load_state_dict`` keeps the average."""

    def _existing(self) -> Average:
        if self.average is None:
            raise RuntimeError("there is no average yet: no fit has begun")
        return self.average
