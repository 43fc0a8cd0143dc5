"""What is refused before a fit is set up: settings that contradict exact steps, weights that cannot be trained."""

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
from torch import nn
from torch.nn.parameter import is_lazy

from torchssvm.core.packages import warn

# Lightning's names of precisions that round weights to fewer bits than float32, or rescale gradients.
_INEXACT = ("16-mixed", "16-true", "bf16-true", "transformer-engine", "transformer-engine-float16")

_ABSURD = 1e8  # no trained network has weights as large

_REFUSED = {
    GradientAccumulationScheduler: "accumulates: every batch takes an exact step of its own. Remove it. Use larger "
    "batches instead",
    LearningRateFinder: "searches in vain: the step is exact, so there is no learning rate to find: remove it",
    BatchSizeFinder: "trains on loaders of its own, and a fit has one dual for one loader: remove it, and give the "
    "loader its batch size",
    ModelPruning: "changes the trained weights, which are a function of the dual: remove it, and prune after the fit",
}


def check_trainer(trainer: L.Trainer, *, averages: bool) -> None:
    """Refuse settings that contradict a fit; called from ``configure_callbacks``, the first hook of a run.

    Lightning itself checks clipping and accumulation after that hook, and advises automatic optimisation, which is
    impossible here. ``averages`` says whether ``AveragedWeights`` can average the weights.

    Raises:
        ValueError: The trainer clips or accumulates gradients or rounds weights; a callback accumulates, prunes,
            searches for a learning rate or a batch size, or leaves averaged weights in the module; or the whole module
            was compiled by ``torch.compile``.
    """
    if trainer.state.fn != TrainerFn.FITTING:
        return
    clip = trainer.gradient_clip_val
    if clip is not None and clip > 0:
        raise ValueError(
            f"Trainer(gradient_clip_val={clip}) would change the exact step. Remove gradient_clip_val; "
            "JointTraining(clip=...) clips where network and head are trained together"
        )
    if trainer.accumulate_grad_batches != 1:
        raise ValueError(
            f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}): every batch takes an exact step of "
            "its own. Remove accumulate_grad_batches. Use larger batches instead, or JointTraining(accumulate=...), "
            "which accumulates where network and head are trained together"
        )
    if str(trainer.precision) in _INEXACT:
        raise ValueError(
            f"Trainer(precision='{trainer.precision}') is too coarse: use 'bf16-mixed', '32-true' or '64-true'"
        )
    if getattr(trainer.lightning_module, "_compiler_ctx", None) is not None:
        raise ValueError("torch.compile(model) compiles the exact step too: give features=torch.compile(features)")
    refuse_averages(trainer, possible=averages)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for kind, why in _REFUSED.items():
            if isinstance(callback, kind):
                raise ValueError(f"{type(callback).__name__} {why}")


def refuse_averages(trainer: L.Trainer, *, possible: bool = True) -> None:
    """Refuse callbacks that leave an average in the module: the certificate is for the trained weights.

    ``possible`` says whether ``AveragedWeights`` can average them.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        name = type(callback).__name__
        if not isinstance(callback, StochasticWeightAveraging | WeightAveraging):
            continue
        certifies = getattr(callback, "certifies_its_average", False)  # AveragedWeights and its subclasses
        if certifies and not possible:
            raise ValueError(f"{name} averages the weights of BCFW's steps, and this fit has none: remove it")
        if not certifies:
            way = "use torchssvm.lightning.AveragedWeights(), which certifies its average" if possible else "remove it"
            raise ValueError(f"{name} leaves averaged weights in the place of those that are certified: {way}")


def check_start(features: nn.Module, head: nn.Module) -> None:
    """Raise ValueError if weights that a fit starts from are such as those of memory that was never written to.

    They are those of the features, and of the head, which the fit does not set to zero.
    """
    for part, module in (("features", features), ("head", head)):
        for name, weights in module.named_parameters():
            trained = weights.requires_grad and not is_lazy(weights) and weights.numel()
            if trained and not float(largest := weights.detach().abs().amax()) < _ABSURD:
                raise ValueError(
                    f"{part}.{name} starts at weights up to {float(largest):.3g}: they were read from a damaged file, "
                    "or never initialised (reset_parameters())"
                )


def training_modes(modes: dict[str, bool]) -> dict[str, bool]:
    """Which parts of features that are trained are in training mode meanwhile: all of them, where none came so."""
    if any(modes.values()):
        return modes
    warn(
        "features came in evaluation mode, as from_pretrained leaves a network, and this fit trains it: that is done "
        "in training mode, with dropout and new means of batch norms. To keep parts in evaluation mode, call "
        "features.train(), and then eval() of these parts, before StructuredSVM is made"
    )
    return dict.fromkeys(modes, True)
