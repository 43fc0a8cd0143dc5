"""Fits under a Trainer, of one process or of one of those that torchrun would start."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

from cases.lightning_letters import Features, chain, everything, loader, some_words, trainer
from torchssvm import BCFW, BlockGap, DualState, GapBatchSampler, LinearChain, SoftmaxMargin, Solver
from torchssvm.lightning import (
    AveragedWeights,
    DualityGap,
    FactorwiseSVM,
    JointTraining,
    SpanF1,
    StructuredSVM,
    WritePredictions,
)

EPOCHS = 6
IN_EPOCH, AFTER_EPOCH = "step=13.ckpt", "epoch=2.ckpt"


def make_trainer(*callbacks, **options) -> L.Trainer:
    several = {"strategy": "ddp", "devices": 2} if "RANK" in os.environ else {}
    return trainer(*callbacks, **(several | {"max_epochs": EPOCHS} | options))


def shuffled(words, size: int = 3) -> DataLoader:
    return DataLoader(words, batch_size=size, shuffle=True, collate_fn=words.collate)


def bits(model) -> str:
    weights = [p.detach().flatten().double() for p in (*model.parameters(), *model.buffers())]
    return torch.cat(weights).numpy().tobytes().hex()


def figures(model, gap) -> dict:
    certificate = gap.certificate
    return {
        "own": list(model.dual.own),
        "primal": certificate.primal,
        "dual": certificate.dual,
        "calls": certificate.oracle_calls,
        "rho": model.dual.rho,
        "bits": bits(model),
    }


def fit(model, data, *callbacks, validation=None, ckpt_path=None, **options) -> dict:
    L.seed_everything(1, verbose=False)
    gap = DualityGap(0.001, every_n_epochs=3)
    run = make_trainer(gap, *callbacks, **options)
    run.fit(model, data, validation, ckpt_path=ckpt_path)
    result = figures(model, gap)
    if validation is not None:
        result["val_loss"] = float(run.callback_metrics["val_loss"])
    return result


def in_torch() -> StructuredSVM:
    return chain(compiled=False)


def compiled() -> StructuredSVM:
    return chain(round_visits=4)


def resumed(make, words, folder: Path, name: str, **often) -> tuple[dict, dict]:
    """A run that saves checkpoints, and one that goes on from the checkpoint of this name."""
    averages = [AveragedWeights() for _ in range(2)] if make is in_torch else []
    results = []
    for k, path in enumerate((None, folder / name)):
        callbacks = [ModelCheckpoint(folder, save_top_k=-1, **often), *averages[k : k + 1]]
        results.append(fit(make(), loader(words), *callbacks, ckpt_path=path, enable_checkpointing=True))
    whole, again = results
    for results, average in zip((whole, again), averages, strict=False):
        results["average"] = torch.cat([w.flatten() for w in average.weights]).numpy().tobytes().hex()
    return whole, again


def joint_model(make_features) -> StructuredSVM:
    torch.manual_seed(0)
    training = JointTraining(epochs=3, lr=0.01, loss=SoftmaxMargin)
    return StructuredSVM(
        LinearChain(12, 26), lam=0.1, features=make_features(), joint=training, solver=Solver(round_visits=4)
    )


def with_statistics() -> StructuredSVM:
    """Dropout and batch statistics differ between the processes while features are trained."""
    return joint_model(Features)


def joint(words) -> dict:
    """Linear features and batches of all examples: the first stage is that of one process, up to rounding."""
    model = joint_model(lambda: nn.Linear(128, 12))
    size = len(words) // (2 if "RANK" in os.environ else 1)
    result = fit(model, shuffled(words, size), validation=everything(words))
    weights = torch.cat([w.flatten() for w in (*model._stages.weights, model.features.weight.detach())])
    return {**result, "first": weights.tolist(), "choice": list(model.choice)}


class OwnModule(L.LightningModule):
    def __init__(self, words) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.head, self.words = LinearChain(128, 26), words

    def configure_optimizers(self):
        self.dual = DualState.for_head(self.head, len(self.words), lam=0.1)
        return BCFW(self.head.parameters(), self.dual)

    def train_dataloader(self):
        sampler = GapBatchSampler(self.dual, batch_size=3)
        return DataLoader(self.words, batch_sampler=sampler, collate_fn=self.words.collate)

    def forward(self, x, lengths):
        return self.head(x, lengths)

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = BlockGap(self.dual)(self.head(batch.x, batch.lengths), batch.y, batch.index)
        with self.trainer.strategy.block_backward_sync():
            self.manual_backward(loss)
        optimizer.step()


TAGS = ["O", "B-a", "I-a", "S-b", *[f"{letter}-{kind}" for kind in range(11) for letter in "BI"]]


def span_f1(words) -> dict:
    """What validation logs of a model whose weights differ, each of which should be the same in all processes."""
    model = chain(0.1)
    with torch.no_grad():
        for p in model.head.parameters():
            p.normal_(generator=torch.Generator().manual_seed(0))
    several = DataLoader(words, batch_size=4, collate_fn=words.collate)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using `DistributedSampler`")
        (result,) = make_trainer(SpanF1(TAGS)).validate(model, several, verbose=False)
    return {name: result[name] for name in ("val_f1", "val_loss")}


def refusal(act) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def refusals(words) -> dict[str, str]:
    weighted = DataLoader(
        words, batch_size=3, sampler=WeightedRandomSampler(torch.ones(len(words)), 9), collate_fn=words.collate
    )
    few = torch.utils.data.Subset(words, [0])
    return {
        "sampler": refusal(lambda: make_trainer().fit(in_torch(), weighted)),
        "few": refusal(lambda: make_trainer().fit(in_torch(), DataLoader(few, collate_fn=words.collate, shuffle=True))),
        "compiled": refusal(lambda: make_trainer(max_steps=4).fit(chain(compiled=True), loader(words))),
        "factorwise": refusal(
            lambda: make_trainer().fit(FactorwiseSVM(LinearChain(128, 26), lam=0.1), shuffled(words))
        ),
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("error", message="It is recommended to use `self.log")  # figures are those of all
    words, rank = some_words(), int(os.environ["RANK"])
    result: dict = {}
    often = {"every_n_train_steps": 13, "filename": "{step}"}  # in the middle of the third epoch
    result["torch"], result["torch resumed"] = resumed(in_torch, words, folder, IN_EPOCH, **often)
    often = {"every_n_epochs": 3, "filename": "{epoch}", "save_on_train_epoch_end": True}
    result["compiled"], result["compiled resumed"] = resumed(compiled, words, folder, AFTER_EPOCH, **often)
    result["shuffled"] = fit(in_torch(), shuffled(words), validation=everything(words))
    often = {"every_n_train_steps": 8, "filename": "{step}"}  # in the first stage
    result["statistics"], result["statistics resumed"] = resumed(with_statistics, words, folder, "step=8.ckpt", **often)
    result["joint"] = joint(words)
    result["span f1"] = span_f1(words)
    model = OwnModule(words)
    gap = DualityGap(0.001, every_n_epochs=3)
    make_trainer(gap, use_distributed_sampler=False).fit(model)
    result["plain module"] = figures(model, gap)
    model = in_torch()
    make_trainer(WritePredictions(folder / "predictions.jsonl")).predict(model, everything(words))
    result["refusals"] = refusals(words)
    (folder / f"{rank}.json").write_text(json.dumps(result))
