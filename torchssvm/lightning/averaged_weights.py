"""The weighted average of the head's weights, with a certificate of its own."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from torchssvm.certificate import Certificate
from torchssvm.dual import DualState
from torchssvm.dual.state import squared_norm
from torchssvm.lightning.duality_gap import DualityGap, _training_loader
from torchssvm.lightning.exact_pass import certify_run, find_bcfw
from torchssvm.lightning.loaders import exact_pass_loader


class AveragedWeights(WeightAveraging):
    """Keeps ``w_avg <- k/(k+2) w_avg + 2/(k+2) w`` after step k ([B13] section 3), and l_avg alike.

    The dual's blocks averaged with the same weights would give these weights and ``sum_i l_i = l_avg``, hence the dual
    value ``l_avg - lam/2 |w_avg|^2`` and a certificate, without keeping the blocks. Averages are float64; they are
    rounded to the weights' dtype where the head takes them. When the features are trained, the average begins anew.
    Where weights have bounds, it is v that is averaged, and the averaged weights are ``clip(v_avg)``, those of the
    averaged blocks.

    Unlike Lightning's own averages, this one changes nothing unasked: checkpoints and exports hold the trained weights,
    validation uses them, and they stay in the head when training ends. ``with average.applied(module):`` puts the
    average into the head for a while.

    Args:
        swap_at_end: Put the average into the head when training ends. It should not be trained further then.
        validate: Validate with the average.
    """

    def __init__(self, swap_at_end: bool = False, validate: bool = False) -> None:
        super().__init__(use_buffers=False, avg_fn=_average)
        self.swap_at_end = swap_at_end
        self.validate = validate
        self.loss = 0.0
        """l_avg, the average of ``sum_i l_i``."""
        self._dual: DualState | None = None
        self._steps = 0  # dual.steps at the last update
        self._trained: list[Tensor] | None = None  # the trained weights while the head holds the average
        self._loaded: dict[str, Any] | None = None

    @property
    def count(self) -> int:
        """How many steps have been averaged."""
        return 0 if self._average_model is None else int(self._average_model.n_averaged)

    @property
    def weights(self) -> list[Tensor]:
        """The average, float64, in the order of ``head.parameters()``.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        if self._average_model is None or not self.count:
            raise RuntimeError("there is no average yet: no step has been taken since training began")
        assert self._dual is not None
        return self._dual.box.clip(self._means)

    @property
    def _means(self) -> list[Tensor]:
        """The average of v, which is w where there are no bounds."""
        assert self._average_model is not None
        return [p.detach() for p in self._average_model.module.parameters()]

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Nothing yet: the head's parameters are known when the optimizer has been made."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin the average, or go on with that of the interrupted run."""
        self._dual = find_bcfw(trainer).dual
        self._begin()
        state, self._loaded = self._loaded, None
        if state is not None and trainer.ckpt_path is not None:
            assert self._average_model is not None
            with torch.no_grad():
                for mean, value in zip(self._average_model.module.parameters(), state["weights"], strict=True):
                    mean.copy_(value)
                self._average_model.n_averaged.fill_(state["count"])
            self.loss, self._steps = state["loss"], state["steps"]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the weights that the step has led to."""
        assert self._dual is not None
        if self._dual.steps > self._steps:
            self._steps = self._dual.steps
            self._latest_update_step = trainer.global_step
            if self.should_update(step_idx=trainer.global_step - 1):
                self._update()
        elif trainer.global_step > self._latest_update_step:  # another optimizer moved the features
            self._latest_update_step = trainer.global_step
            self._begin()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add the weights if ``should_update`` counts epochs."""
        if trainer.current_epoch > self._latest_update_epoch and self.should_update(epoch_idx=trainer.current_epoch):
            self._latest_update_epoch = trainer.current_epoch
            self._update()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Swap, if that was asked for; the trained weights are certified before."""
        if self.swap_at_end and self.count:
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, DualityGap):
                    callback.finish(trainer, pl_module)
            self._put()

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take the average for validation, if that was asked for."""
        if self.validate and trainer.training is False and self.count and self._dual is not None:
            self._trained = self._put()

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the trained weights back."""
        if self._trained is not None:
            self._restore(self._trained)
            self._trained = None

    @contextmanager
    def applied(self, pl_module: L.LightningModule) -> Iterator[None]:
        """The head holds the average inside the ``with`` block, and its own weights again afterwards.

        Args:
            pl_module: The module of the fit.

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        held = self._put()
        try:
            yield
        finally:
            self._restore(held)

    def certify(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Certificate:
        """Primal, dual and gap of the average, by one exact pass; training goes on as if it had not been.

        The oracle calls are counted; gap estimates, weights and blocks stay as they are. The dual value is that of the
        averaged blocks up to the rounding of the trained weights (see ``drift`` of the certificates of these).

        Raises:
            RuntimeError: Nothing has been averaged.
        """
        assert self._dual is not None or not self.count
        means = self.weights
        dual = find_bcfw(trainer).dual
        estimates, recomputed = dual.gap_estimates.clone(), dual.recomputed
        loader = exact_pass_loader(_training_loader(trainer, pl_module))
        try:
            with self.applied(pl_module), warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", message="the weights differ from those of the dual"
                )  # they are meant to
                found = certify_run(trainer, pl_module, loader, refresh=False)
        finally:
            dual.gap_estimates, dual.recomputed = estimates, recomputed
        value = dual.objective(self.loss, self._means)
        rounding = squared_norm(m - m.to(p.dtype).to(m.dtype) for m, p in zip(means, dual.parameters, strict=True))
        length = squared_norm(means)
        return dataclasses.replace(
            found,
            dual=value,
            gap=found.primal - value,
            drift=(rounding / length) ** 0.5 if length else rounding**0.5,
        )

    def state_dict(self) -> dict[str, Any]:
        """The averages and what they hold."""
        state: dict[str, Any] = {"latest_update_step": self._latest_update_step}
        if self._average_model is not None:
            state |= {
                "latest_update_epoch": self._latest_update_epoch,
                "weights": [p.detach().clone() for p in self._average_model.module.parameters()],
                "count": self.count,
                "loss": self.loss,
                "steps": self._steps,
            }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the averages until the fit begins."""
        self._latest_update_step = state_dict["latest_update_step"]
        if "weights" in state_dict:
            self._latest_update_epoch = state_dict["latest_update_epoch"]
            self._loaded = state_dict

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Leave the trained weights in the checkpoint; the average is in ``state_dict`` of this callback."""

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Nothing; see ``load_state_dict``."""

    def _begin(self) -> None:
        assert self._dual is not None
        self._average_model = AveragedModel(nn.ParameterList(self._dual.unclipped), avg_fn=_average).double()
        self.loss, self._steps = 0.0, self._dual.steps

    def _update(self) -> None:
        assert self._dual is not None
        assert self._average_model is not None
        self.loss = _average(self.loss, float(self._dual.loss.sum()), self.count)
        self._average_model.update_parameters(nn.ParameterList(self._dual.unclipped))

    @torch.no_grad()
    def _put(self) -> list[Tensor]:
        """Average into the head; what the head held."""
        means = self.weights
        assert self._dual is not None
        held = [p.detach().clone() for p in self._dual.parameters]
        self._restore(means)
        return held

    @torch.no_grad()
    def _restore(self, values: list[Tensor]) -> None:
        assert self._dual is not None
        for parameter, value in zip(self._dual.parameters, values, strict=True):
            parameter.copy_(value)


def _average(mean: Any, value: Any, count: Any) -> Any:
    """``k/(k+2) mean + 2/(k+2) value`` with k = ``count`` values averaged before."""
    k = int(count)
    value = value.to(mean.dtype) if isinstance(value, Tensor) else value
    return value if k == 0 else mean * (k / (k + 2)) + value * (2 / (k + 2))
