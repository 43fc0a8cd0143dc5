"""An average of the head's weights under a Lightning trainer, with a certificate of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from torchssvm.lightning.duality_gap import DualityGap, _training_loader
from torchssvm.lightning.exact_pass import evaluating, find_bcfw, in_precision, visible
from torchssvm.lightning.loaders import exact_pass_loader
from torchssvm.solvers.averages import Average, WeightedAverage
from torchssvm.solvers.certificate import Certificate


class AveragedWeights(WeightAveraging):
    """Keeps an average of the head's weights during a fit, and of ``sum_i l_i``, for a certificate of the average.

    The average is a :class:`torchssvm.WeightedAverage` ([B13] Algorithm 4) unless another is asked for; see there what
    makes its certificate valid. When the features are trained, the average begins anew.

    Unlike Lightning's own averages, this one changes nothing unasked: checkpoints and exports hold the trained weights,
    validation uses them, and they stay in the head when training ends. ``with callback.applied(module):`` puts the
    average into the head for a while.

    Args:
        swap_at_end: Put the average into the head when training ends. It should not be trained further then.
        validate: Validate with the average.
        average: The class of the average: ``WeightedAverage``, ``SuffixAverage`` or ``UniformAverage``.

    Attributes:
        average: The average itself; None before a fit has begun.
    """

    certifies_its_average = True

    def __init__(
        self, swap_at_end: bool = False, validate: bool = False, average: type[Average] = WeightedAverage
    ) -> None:
        super().__init__(use_buffers=False)
        self.swap_at_end = swap_at_end
        self.validate = validate
        self.average: Average | None = None
        self._make = average
        self._steps = 0  # dual.steps when they were last looked at
        self._validation = ExitStack()  # holds the average in the head
        self._loaded: dict[str, Any] | None = None

    @property
    def count(self) -> int:
        """How many steps have been averaged."""
        return 0 if self.average is None else self.average.count

    @property
    def loss(self) -> float:
        """The average of ``sum_i l_i``."""
        return (self.average.loss if self.average is not None else None) or 0.0

    @property
    def weights(self) -> list[Tensor]:
        """The average, float64, in the order of ``head.parameters()``.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        return self._existing().weights

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Nothing yet: the head's parameters are known when the optimizer has been made."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin the average."""
        dual = find_bcfw(trainer).dual
        self.average, self._steps = self._make(dual.parameters, dual), dual.steps
        if trainer.ckpt_path is None:
            self._loaded = None

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Go on with the average of the interrupted run: the optimizer's state has been loaded now."""
        self.on_train_start(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Go on with the average of the interrupted run."""
        state, self._loaded = self._loaded, None
        if state is not None and self.average is not None:
            self.average.load_state_dict(state)
            self._steps = state["steps"]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Average the weights that the step has led to."""
        average = self._existing()
        assert average.dual is not None
        if average.dual.steps > self._steps:
            self._steps = average.dual.steps
            self._latest_update_step = trainer.global_step
            if self.should_update(step_idx=trainer.global_step - 1):
                average.update()
        elif trainer.global_step > self._latest_update_step:  # another optimizer moved the features
            self._latest_update_step = trainer.global_step
            average.reset()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Average the weights if ``should_update`` counts epochs."""
        if trainer.current_epoch > self._latest_update_epoch and self.should_update(epoch_idx=trainer.current_epoch):
            self._latest_update_epoch = trainer.current_epoch
            self._existing().update()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Swap, if that was asked for; the trained weights are certified before."""
        if self.swap_at_end and self.count:
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, DualityGap):
                    callback.finish(trainer, pl_module)
            self._existing().copy_to_parameters()

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the average for validation, if that was asked for."""
        if self.validate and trainer.training is False and self.count:
            self._validation.enter_context(self.applied(pl_module))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the trained weights back."""
        self._validation.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Put the trained weights back where validation was cut off."""
        self._validation.close()

    @contextmanager
    def applied(self, pl_module: L.LightningModule) -> Iterator[None]:
        """The head holds the average inside the ``with`` block, and its own weights again afterwards.

        Args:
            pl_module: The module of the fit.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        with self._existing().apply():
            yield

    def certify(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Certificate:
        """Primal, dual and gap of the average, by one exact pass; see :meth:`torchssvm.Average.certify`.

        Raises:
            RuntimeError: Nothing has been averaged, or the features have moved.
        """
        average = self._existing()
        loader = exact_pass_loader(_training_loader(trainer, pl_module))
        with evaluating(pl_module):
            return average.certify(
                in_precision(trainer, pl_module), find_bcfw(trainer).dual, visible(trainer, loader, "Certifying")
            )

    def state_dict(self) -> dict[str, Any]:
        """The average and when it was last updated."""
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
        """Leave the trained weights in the checkpoint; the average is in ``state_dict`` of this callback."""

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Nothing; see ``load_state_dict``."""

    def _existing(self) -> Average:
        if self.average is None:
            raise RuntimeError("there is no average yet: no fit has begun")
        return self.average
