"""Dual, exact passes and processes of a fit, for callbacks and modules."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader
from typing_extensions import override

from torchssvm.core.modules import evaluating
from torchssvm.core.ranks import Ranks
from torchssvm.dual.state import DualState
from torchssvm.lightning.figures import figures_of
from torchssvm.lightning.training_batches import check_loader
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.certificate import Certificate, certify
from torchssvm.solvers.evaluation import Evaluation, merge_evaluations
from torchssvm.solvers.trainer import Pacing


def check_strategy(trainer: L.Trainer) -> None:
    """Raise ValueError if several processes do not all hold the whole model."""
    if trainer.world_size > 1 and not isinstance(trainer.strategy, DDPStrategy):
        raise ValueError(
            f"Trainer(strategy={type(trainer.strategy).__name__}) splits the weights, which BCFW changes in "
            "every process: give strategy='ddp'"
        )


def alone(trainer: L.Trainer) -> AbstractContextManager[None]:
    """Inside, DDP averages no gradients: BCFW combines the directions of the processes itself."""
    block: Any = getattr(trainer.strategy, "block_backward_sync", nullcontext)
    return block()


def share_of(size: int) -> float:
    """``B_p P / sum_q B_q``: times the mean loss of B_p examples, DDP averages the gradients of all examples alike."""
    ranks = Ranks.here()
    if not ranks:
        return 1.0
    return size * ranks.size / float(ranks.gather(torch.tensor(float(size), dtype=torch.float64)).sum())


@torch.no_grad()
def same_buffers(module: nn.Module | None) -> None:
    """Give all processes the buffers of the first, such as running means: DDP does so before a step, not after it."""
    ranks = Ranks.here()
    if ranks and module is not None:
        for buffer in module.buffers():
            buffer.copy_(ranks.gather(buffer)[0])


def of_all(evaluation: Evaluation) -> Evaluation:
    """The evaluation of the examples of all processes."""
    ranks = Ranks.here()
    if not ranks:
        return evaluation
    names = ("loss", "token_error", "example_error", "num_examples", "num_tokens")
    figures = [float(getattr(evaluation, name) or 0) for name in names]
    parts = []
    shared = ranks.gather(torch.tensor([*figures, evaluation.exact], dtype=torch.float64))
    for *rates, examples, tokens, exact in shared.tolist():
        numbers = (*rates, int(examples), None if evaluation.num_tokens is None else int(tokens))
        shown: dict[str, Any] = dict(zip(names, numbers, strict=True))
        parts.append(replace(evaluation, exact=bool(exact), losses=None, **shown))
    return merge_evaluations(parts)


class Fit:
    """Dual and exact passes of a user's module that trains by BCFW and whose ``forward`` gives potentials.

    The modules of this package have the same properties and methods.

    Attributes:
        dual: The training problem: n, lam, structure and parameters; with BCFW also the dual.
        solves_head: Whether the head holds weights of the dual; only these are certified.
    """

    solves_head = True

    def __init__(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.dual = find_dual(trainer)
        self._trainer, self._module = trainer, module

    @property
    def passes(self) -> float:
        """Effective passes so far."""
        return self.dual.passes

    @property
    def training_loader(self) -> DataLoader:
        """The training loader; TypeError if training does not take its examples from one DataLoader."""
        return check_loader(self._trainer.train_dataloader)

    def pacing(self, **rules: Any) -> Pacing | None:
        """Says when exact passes are made, by these rules; None where epochs say it."""
        return Pacing(self.dual, value=self.dual.value, **rules)

    def figures(self, pacing: Pacing | None) -> dict[str, float]:
        """Dual, oracle calls and estimate of the gap; :class:`FactorwiseSVM` has none between certificates."""
        return figures_of(self.dual, pacing)

    def certify(self, batches: Iterable[Any]) -> Certificate:
        """An exact pass, from whose weights the next step starts; ``batches`` have every training example once."""
        return certify_by_torch(self._trainer, self._module, self.dual, batches)


def fit_of(trainer: L.Trainer, module: L.LightningModule) -> Fit:
    """The module itself, if it is of this package, else a :class:`Fit` of it. RuntimeError before a fit."""
    fit: Any = module if hasattr(module, "solves_head") else Fit(trainer, module)
    return fit


def find_dual(trainer: L.Trainer) -> DualState:
    """The dual of the trainer's BCFW; RuntimeError if it has none (yet)."""
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, BCFW):
            return optimizer.dual
    raise RuntimeError("the trainer has no BCFW optimizer, so no dual: begin a fit by BCFW first")


def certify_by_torch(
    trainer: L.Trainer, module: L.LightningModule, dual: DualState, batches: Iterable[Any], *, refresh: bool = True
) -> Certificate:
    """Certify the module's weights on its current features, in the trainer's precision."""
    batches = map(trainer.precision_plugin.convert_input, batches)
    with evaluating(module):
        return certify(InPrecision(trainer, module), dual, batches, refresh=refresh)


class InPrecision(nn.Module):
    """The module's forward under the trainer's autocast, which ends before the potentials are used."""

    def __init__(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        super().__init__()
        self.module, self._precision = module, trainer.precision_plugin

    @override
    def forward(self, *args: Any) -> Any:
        with self._precision.forward_context():
            return self.module(*self._precision.convert_input(args))
