"""A run that was killed and resumed ends as the run that was left alone, to the bit."""

from __future__ import annotations

import multiprocessing
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

L = pytest.importorskip("lightning")

from cases.problem_data import with_solver  # noqa: E402
from cases.problems import assert_same  # noqa: E402
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402

from torchssvm import (  # noqa: E402
    CacheOracle,
    Corrective,
    FrankWolfe,
    GapBatchSampler,
    Labelings,
    LinearChain,
    Pairwise,
    Permutation,
)
from torchssvm.datasets import OCR, PaddedDataset  # noqa: E402
from torchssvm.lightning import AveragedWeights, DualityGap, JointTraining, StructuredSVM  # noqa: E402
from torchssvm.steps import Away, Hybrid, MaxOracle  # noqa: E402

WORDS, BATCH = 30, 3

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
]


class Words(L.LightningDataModule):
    def __init__(self, workers: int = 0, validate: bool = False, order=None, shuffle: bool = False) -> None:
        super().__init__()
        ocr = OCR()
        self.words = PaddedDataset(ocr.x[:WORDS], ocr.y[:WORDS], ocr.lengths[:WORDS])
        self.workers, self.validate, self.order, self.shuffle = workers, validate, order, shuffle

    def train_dataloader(self):
        if self.shuffle:
            return DataLoader(self.words, batch_size=BATCH, shuffle=True, collate_fn=self.words.collate)
        sampler = GapBatchSampler(num_examples=WORDS, batch_size=BATCH, order=self.order, seed=3, chunk=4)
        options = {"num_workers": self.workers, "prefetch_factor": 2 if self.workers else None}
        return DataLoader(self.words, batch_sampler=sampler, collate_fn=self.words.collate, **options)

    def val_dataloader(self):
        if not self.validate:
            return []
        return DataLoader(self.words, batch_size=16, collate_fn=self.words.collate)


class SaveAt(Callback):
    """Saves by itself at the end of every epoch, from wherever it stands among the callbacks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        trainer.save_checkpoint(self.folder / f"own-{trainer.current_epoch}.ckpt")


class Slow(Callback):
    """Leaves time to be killed."""

    def on_train_batch_end(self, *args) -> None:
        time.sleep(0.02)


class Everything(Callback):
    """Keeps what must be equal in the end."""

    def on_train_end(self, trainer, pl_module) -> None:
        self.state = snapshot(trainer, pl_module)


def snapshot(trainer, model) -> dict:
    gap = next(c for c in trainer.callbacks if isinstance(c, DualityGap))
    gap.finish(trainer, model)
    certificates = [entry.certificate for entry in gap.history]
    history = [[c.primal, c.dual, c.gap, c.drift, c.oracle_calls] for c in certificates]
    averages = [c.state_dict() for c in trainer.callbacks if isinstance(c, AveragedWeights)]
    return {
        "dual": model.dual.state_dict(),
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "history": history,
        "averages": averages,
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "stopped": gap.stopped_because,
    }


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(128, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))

    def forward(self, x):
        return self.network(x.flatten(0, 1)).view(*x.shape[:2], 8)


def run(
    folder: Path,
    *,
    resume: Path | None = None,
    epochs: int = 3,
    joint: bool = False,
    own_first: bool | None = None,
    slow: bool = False,
    every: int = 2,
    trainer: dict | None = None,
    checkpoint: dict | None = None,
    rules: dict | None = None,
    **data,
) -> dict:
    torch.manual_seed(0)
    options = with_solver(**(rules or {}))
    if joint:
        options |= {"features": Features(), "joint": JointTraining(epochs=1, lr=1e-2)}
    model = StructuredSVM(LinearChain(8 if joint else 128, 26), lam=1e-2, **options)
    torch.manual_seed(1 if resume is None else 2)  # whatever is random must come from the checkpoint
    everything = Everything()
    callbacks = [DualityGap(1e-9, every_n_epochs=every), AveragedWeights(), everything]
    if slow:
        callbacks.append(Slow())
    if own_first is not None:
        callbacks.insert(0 if own_first else len(callbacks), SaveAt(folder))
    if checkpoint is not None:
        callbacks.append(ModelCheckpoint(folder, save_top_k=-1, filename="{step:03d}", **checkpoint))
    fitting = L.Trainer(
        **({"max_epochs": epochs} | (trainer or {})),
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=checkpoint is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    fitting.fit(model, datamodule=Words(**data), ckpt_path=resume, weights_only=True if resume else None)
    return getattr(everything, "state", None) or snapshot(fitting, model)  # None: nothing was left to train


def at_steps(number: int, **case) -> dict:
    return {"checkpoint": {"every_n_train_steps": number}, **case}


AT_ENDS = {"checkpoint": {"every_n_epochs": 1}}
AFTER_VALIDATION = {"checkpoint": {"every_n_epochs": 1, "save_on_train_epoch_end": False}, "validate": True}
TWO_WORKERS = {"workers": 2, "epochs": 2, "every": 1}
CASES = {
    "every third step": at_steps(3),
    "every fifth step, the last of an epoch among them": at_steps(5),
    "the last step of an epoch, then validation": at_steps(5, validate=True),
    "two workers": at_steps(5, **TWO_WORKERS),
    "ends of epochs": AT_ENDS,
    "ends of epochs, two workers": AT_ENDS | TWO_WORKERS,
    "ends of epochs, after validation": AFTER_VALIDATION,
    "after validation, two workers": AFTER_VALIDATION | TWO_WORKERS,
    "validation within epochs": at_steps(4, validate=True, trainer={"val_check_interval": 4}),
    "saved before the certificate": {"own_first": True},
    "saved after the certificate": {"own_first": False},
    "part of an epoch": at_steps(3, trainer={"limit_train_batches": 6}),
    "a permutation": at_steps(3, order=Permutation()),
    "a plain loader that shuffles, ends of epochs": AT_ENDS | {"shuffle": True},
    "a limit of steps": {
        "checkpoint": {"every_n_train_steps": 5, "save_last": True},
        "trainer": {"max_steps": 27, "max_epochs": -1},
        "validate": True,
    },
    "features that are trained, two workers": at_steps(10, joint=True, workers=2, validate=True, every=3),
    "features that are trained": at_steps(5, joint=True, epochs=4, every=3),
    "features that are trained, validation": at_steps(5, joint=True, validate=True, every=3),
}
REPEATED = ("ends of epochs, two workers", "after validation, two workers")


@pytest.mark.parametrize(
    "case",
    [  # workers with one other thing are among the fast ones
        pytest.param(case, id=name, marks=[pytest.mark.slow] if name in REPEATED else [])
        for name, case in CASES.items()
    ],
)
def test_a_resumed_run_ends_as_the_run_left_alone(case, tmp_path):
    alone = run(tmp_path / "alone", **case)
    assert len(alone["history"]) > 1
    checkpoints = sorted((tmp_path / "alone").glob("*.ckpt"))
    assert len(checkpoints) > 1
    for number in sorted({0, len(checkpoints) // 3, 2 * len(checkpoints) // 3, len(checkpoints) - 1}):
        checkpoint = checkpoints[number]
        assert_same(run(tmp_path / str(number), resume=checkpoint, **case), alone, checkpoint.name)


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_resumed_run_may_be_resumed(workers, joint, validate, tmp_path):
    """From the last batch of an epoch, and again from the last batch of a later one, which the resumed run saved."""
    case = at_steps(10, joint=joint, validate=validate, every=3)
    alone = run(tmp_path / "0", **case)
    for step in (10, 20, 30):
        last = tmp_path / str(step // 10 - 1) / f"step={step:03d}.ckpt"
        assert_same(run(tmp_path / str(step // 10), resume=last, workers=workers, **case), alone, last.name)


@pytest.mark.parametrize("oracle", [MaxOracle(), CacheOracle()], ids=repr)
@pytest.mark.parametrize("direction", [FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()], ids=repr)
def test_every_direction_resumes_with_its_labelings(direction, oracle, tmp_path):
    """Of three labelings a word, so that some have had to leave; with averages, exact passes and draws by the gaps."""
    rules = {"direction": direction, "oracle": oracle, "storage": Labelings(3)}
    case = at_steps(16, rules=rules, epochs=4)
    alone = run(tmp_path / "alone", **case)
    state = alone["dual"]["storage"]
    assert bool(state["mixed"].any())
    assert (alone["dual"]["cache_hits"] > 0) == oracle.needs_labelings
    assert alone["averages"][0]["average"]["count"] == 40
    checkpoints = sorted((tmp_path / "alone").glob("*.ckpt"))
    assert len(checkpoints) == 2
    for checkpoint in checkpoints:
        assert_same(run(tmp_path / "again", resume=checkpoint, **case), alone, checkpoint.name)


@pytest.mark.slow
def test_labelings_of_trained_features_resume_with_workers(tmp_path):
    rules = {"direction": Corrective(), "oracle": CacheOracle(), "storage": Labelings(3)}
    case = at_steps(15, rules=rules, joint=True, workers=2, every=3)
    alone = run(tmp_path / "alone", **case)
    assert alone["dual"]["storage"]["sets"]["gram"] is not None
    (first, *_) = sorted((tmp_path / "alone").glob("*.ckpt"))
    assert_same(run(tmp_path / "again", resume=first, **case), alone, first.name)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_ends_as_the_run_left_alone(workers, tmp_path):
    case = at_steps(3, workers=workers)
    process = multiprocessing.get_context("fork").Process(
        target=run, args=(tmp_path / "killed",), kwargs={"slow": True, **case}
    )
    process.start()
    deadline = time.monotonic() + 60
    while not list((tmp_path / "killed").glob("*.ckpt")):
        assert process.is_alive(), "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    wait = float(torch.empty(()).uniform_(0, 0.4, generator=torch.Generator().manual_seed(time.time_ns() % 2**31)))
    time.sleep(wait)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    last = max((tmp_path / "killed").glob("*.ckpt"))
    assert last.name < "step=030.ckpt", "the run was over before it was killed"
    assert_same(
        run(tmp_path / "resumed", resume=last, **case), run(tmp_path / "alone", **case), f"{last.name} after {wait} s"
    )


def test_a_checkpoint_holds_tensors_and_numbers_only_and_no_duals_among_the_weights(tmp_path):
    run(tmp_path, checkpoint={"every_n_train_steps": 5}, epochs=2, joint=True)
    content = torch.load(tmp_path / "step=005.ckpt", weights_only=True)
    assert {name.partition(".")[0] for name in content["state_dict"]} == {"head", "features"}
    assert content["torchssvm"]["num_examples"] == WORDS
    assert content["torchssvm"]["sampler"]["used"] == 5
    assert content["torchssvm"]["in_epoch"]
    assert content["optimizer_states"][0]["dual"]["num_examples"] == WORDS
    assert torch.load(tmp_path / "step=010.ckpt", weights_only=True)["torchssvm"]["sampler"]["epoch"] == 1


def test_a_run_that_had_reached_the_tolerance_does_not_go_on(tmp_path):
    def fit(resume=None):
        model = StructuredSVM(LinearChain(128, 26), lam=1.0)
        gap = DualityGap(0.05, every_n_epochs=1)
        trainer = L.Trainer(
            max_epochs=50,
            accelerator="cpu",
            callbacks=[gap, ModelCheckpoint(tmp_path, save_last=True)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, datamodule=Words(), ckpt_path=resume)
        return trainer.global_step, gap

    steps, gap = fit()
    assert "<= tolerance 0.05" in gap.stopped_because
    again, resumed = fit(tmp_path / "last.ckpt")
    assert again == steps
    assert resumed.stopped_because == gap.stopped_because
    assert resumed.history == gap.history
