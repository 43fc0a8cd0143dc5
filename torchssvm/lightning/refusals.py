"""Checks of the trainer before a fit: settings that contradict exact steps."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.trainer.states import TrainerFn

from torchssvm.core.packages import warn

# Lightning's names of precisions that round weights to fewer bits than float32, or rescale gradients.
_INEXACT = ("16-mixed", "16-true", "bf16-true", "transformer-engine", "transformer-engine-float16")

_AVERAGE = "leaves averaged weights in the place of those that are certified: use torchssvm.lightning.AveragedWeights()"
_REFUSED = {
    GradientAccumulationScheduler: "accumulates, and every batch takes an exact step: use larger batches instead",
    LearningRateFinder: "has nothing to do: the step is exact, without a learning rate",
    BatchSizeFinder: "makes other loaders, and a dual is of one loader: give the loader its batch size",
    ModelPruning: "changes the trained weights, which are a function of the dual: prune after the fit",
    StochasticWeightAveraging: _AVERAGE,
    WeightAveraging: _AVERAGE,
}


def check_trainer(trainer: L.Trainer) -> None:
    """Refuse settings that contradict exact steps; called from ``configure_callbacks``, the first hook of a run.

    Lightning itself checks clipping and accumulation after that hook, and advises automatic optimisation, which is
    impossible here.

    Raises:
        ValueError: The trainer clips or accumulates gradients or rounds weights; a callback accumulates, prunes,
            searches for a learning rate or a batch size, or leaves averaged weights in the module; or the whole module
            was compiled by ``torch.compile``.
    """
    if trainer.state.fn != TrainerFn.FITTING:
        return
    clip, batches, precision = trainer.gradient_clip_val, trainer.accumulate_grad_batches, str(trainer.precision)
    compiled = "training_step" in vars(trainer.lightning_module)  # Lightning's way with a module that torch compiled
    for refused, message in (
        (clip, f"gradient_clip_val={clip} changes the exact step: use JointTraining(clip=...)"),
        (batches != 1, f"accumulate_grad_batches={batches}: use larger batches, or JointTraining(accumulate=...)"),
        (precision in _INEXACT, f"precision={precision!r} is too coarse: use 'bf16-mixed', '32-true' or '64-true'"),
        (compiled, "torch.compile(model) compiles the exact step too: give features=torch.compile(features)"),
    ):
        if refused:
            raise ValueError(message)
    refuse_callbacks(trainer)


def refuse_callbacks(trainer: L.Trainer) -> None:
    """Refuse callbacks that contradict exact steps or certificates."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for kind, why in _REFUSED.items():
            if isinstance(callback, kind):
                raise ValueError(f"{type(callback).__name__} {why}")


def training_modes(modes: dict[str, bool]) -> dict[str, bool]:
    """The modes of the parts of trained features: those that they came in, or training mode if none came so."""
    if any(modes.values()):
        return modes
    warn(
        "features came in evaluation mode, and are trained in training mode. To keep parts in evaluation mode, call "
        "features.train(), then eval() of these parts, before StructuredSVM is made"
    )
    return dict.fromkeys(modes, True)
