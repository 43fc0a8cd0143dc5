"""The trainings under a Lightning ``Trainer`` that ``kills.py`` kills."""

from __future__ import annotations

import functools
import logging
import random
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from kill_modes import Mode, Options, Report, words
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import CacheOracle, Corrective, GapBatchSampler, Labelings, LinearChain, Solver
from torchssvm.lightning import (
    AveragedWeights,
    DualityGap,
    FactorwiseSVM,
    JointTraining,
    SafeCheckpointIO,
    StructuredSVM,
)


class _Words(L.LightningDataModule):
    def __init__(self, workers: int, *, gaps: bool, validate: bool) -> None:
        super().__init__()
        self.words, self.workers, self.gaps, self.validate = words(20), workers, gaps, validate

    def train_dataloader(self) -> DataLoader:
        if self.gaps:
            sampler = GapBatchSampler(num_examples=len(self.words), batch_size=3, seed=3, chunk=4)
            batches: dict[str, Any] = {"batch_sampler": sampler}
        else:
            batches = {"batch_size": 3, "shuffle": True}
        return DataLoader(self.words, collate_fn=self.words.collate, num_workers=self.workers, **batches)

    def val_dataloader(self) -> Any:
        return DataLoader(self.words, batch_size=16, collate_fn=self.words.collate) if self.validate else []


class _Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(128, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x.flatten(0, 1)).view(*x.shape[:2], 8)


class _Tell(Callback):
    """Tells of saves that have returned: those of the steps before."""

    def __init__(self, report: Report, folder: Path) -> None:
        self.report, self.folder, self.told = report, folder, -1

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        checkpoints = [c for c in trainer.callbacks if isinstance(c, ModelCheckpoint)]
        for callback in checkpoints:
            if callback._last_global_step_saved > self.told:
                self.told = callback._last_global_step_saved
                self.report("saved", self.told)


def choose(choices: random.Random, **fixed: Any) -> Options:
    """Workers, validation, and whose files: Lightning's, one for each save, or one that is overwritten safely."""
    return {
        "workers": choices.choice([0, 0, 2]),
        "validate": choices.choice([False, True]),
        "safe": choices.choice([False, True]),
        "save_every": choices.choice([2, 3, 3, 7, "epoch", "validation"]),
        **fixed,
    }


def train(options: Options, folder: Path, report: Report, saves: bool) -> dict[str, Any]:
    """A fit, from the last checkpoint in the folder."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    kind = options["kind"]
    if kind == "gdmm":
        model: Any = FactorwiseSVM(LinearChain(128, 26), lam=1e-2, seed=1)
    elif kind == "joint":
        together = JointTraining(epochs=2, lr=1e-2)
        model = StructuredSVM(LinearChain(8, 26), lam=1e-2, features=_Features(), joint=together)
    elif kind == "compiled":
        model = StructuredSVM(LinearChain(128, 26), lam=1e-2, solver=Solver(compiled=True))
    else:
        rules = {"direction": Corrective(), "oracle": CacheOracle(), "storage": Labelings(3)}
        model = StructuredSVM(LinearChain(128, 26), lam=1e-2, solver=Solver(compiled=False, **rules))
    files = sorted(folder.glob("*.ckpt"))
    newest = files[-1] if files else None
    torch.manual_seed(1 if newest is None else 2)  # what is random must come from the checkpoint
    gap = DualityGap(1e-9, every_n_epochs=2)
    callbacks: list[Callback] = [gap]
    if kind != "gdmm":
        callbacks.append(AveragedWeights())
    if saves:
        one = {"filename": "one", "save_top_k": 1, "enable_version_counter": False}
        each = {"filename": "{step:04d}", "save_top_k": -1}
        every = options["save_every"]
        when: dict[str, Any] = {"every_n_train_steps": every}
        if kind == "gdmm" or isinstance(every, str):
            when = {"every_n_epochs": 1, "save_on_train_epoch_end": every != "validation" or not options["validate"]}
        callbacks += [ModelCheckpoint(folder, **when, **(one if options["safe"] else each)), _Tell(report, folder)]
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        callbacks=callbacks,
        plugins=[SafeCheckpointIO()] if options["safe"] else [],
        logger=False,
        enable_checkpointing=saves,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if newest is not None:
        report("loaded", torch.load(newest, weights_only=True, mmap=True)["global_step"])
    else:
        report("loaded", 0)
    data = _Words(options["workers"], gaps=kind != "gdmm", validate=options["validate"])
    trainer.fit(model, datamodule=data, ckpt_path=newest, weights_only=True if newest else None)
    optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers]
    return {
        "optimizers": optimizers,
        "weights": dict(model.state_dict()),
        "averages": [c.state_dict() for c in callbacks if isinstance(c, AveragedWeights)],
        "certificates": [[e.certificate.primal, e.certificate.dual, e.certificate.gap] for e in gap.history],
        "calls": [e.certificate.oracle_calls for e in gap.history],
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
    }


MODES: dict[str, Mode] = {
    f"lightning {kind}": Mode(functools.partial(choose, kind=kind), train)
    for kind in ("compiled", "torch", "joint", "gdmm")
}
