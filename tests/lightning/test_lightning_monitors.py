"""Callbacks that monitor the gap: it is there from the first epoch on, and is that of the weights it stands beside."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

L = pytest.importorskip("lightning")

from cases.lightning_chains import MODELS, Watch, Words, svm, trainer  # noqa: E402
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint  # noqa: E402

from torchssvm import LinearChain, certify  # noqa: E402
from torchssvm.lightning import DualityGap, FactorwiseSVM, training_batches  # noqa: E402

NAMES = ("gap", "gap_age", "primal", "dual", "passes", "oracle_calls", "exact")

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")


def exact_gap(checkpoint: str, module: L.LightningModule) -> float:
    """The gap of the weights and the duals in a checkpoint of an epoch's end, by a pass of its own."""
    again = type(module)(LinearChain(3, 3), lam=0.1)
    results: list[float] = []

    class Certify(Callback):
        def on_train_start(self, trainer, pl_module) -> None:
            if isinstance(pl_module, FactorwiseSVM):
                results.append(pl_module.gdmm.certify().gap)
            else:
                results.append(certify(pl_module.head, pl_module.dual, Words().everything(), refresh=False).gap)
            trainer.should_stop = True

    fitting = trainer(Certify(), max_epochs=100, enable_checkpointing=False)
    fitting.fit(again, Words().training(), ckpt_path=checkpoint, weights_only=True)
    return results[0]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("validated", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_of_the_smallest_gap_is_of_that_gap(name: str, validated: bool, first: bool, tmp_path: Path):
    gap, watch = DualityGap(1e-9, every_n_epochs=3), Watch()
    saving = ModelCheckpoint(dirpath=tmp_path, monitor="gap", save_top_k=1, filename="{epoch}-{gap:.6f}-{gap_age:.0f}")
    model, words = MODELS[name](), Words()
    callbacks = [gap, watch, saving] if first else [saving, watch, gap]
    trainer(*callbacks).fit(model, words.training(), words.everything() if validated else None)
    # That at the end is after the last checkpoint.
    passes = zip((0, 2, 5), (entry.certificate for entry in gap.history[:3]), strict=True)
    epoch, best = min(passes, key=lambda one: one[1].gap)
    assert float(saving.best_model_score) == pytest.approx(best.gap, rel=1e-5)
    assert Path(saving.best_model_path).name == f"epoch={epoch}-gap={best.gap:.6f}-gap_age=0.ckpt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert exact_gap(saving.best_model_path, model) == pytest.approx(best.gap, rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_every_epoch_has_the_gap_of_the_last_pass_and_its_age(name: str):
    gap, watch = DualityGap(1e-9, every_n_epochs=3), Watch()
    fitting = trainer(gap, watch, enable_checkpointing=False)
    fitting.fit(MODELS[name](), Words().training())
    assert all(math.isfinite(value) for seen in watch.seen for value in seen.values())
    assert [seen["gap_age"] for seen in watch.seen] == [0, 1, 0, 1, 2, 0, 1]
    certificates = [gap.history[i].certificate for i in (0, 0, 1, 1, 1, 2, 2)]
    for column in ("gap", "primal", "exact"):
        expected = [float(getattr(certificate, column)) for certificate in certificates]
        assert [seen[column] for seen in watch.seen] == pytest.approx(expected)
    duals = [seen["dual"] for seen in watch.seen]
    for epoch, certificate in ((0, certificates[0]), (2, certificates[2]), (5, certificates[5])):
        assert duals[epoch] == pytest.approx(certificate.dual, rel=1e-5)
        assert watch.seen[epoch]["passes"] == pytest.approx(certificate.passes)
    if name != "factorwise":
        assert duals == sorted(duals)
        assert duals[3] > certificates[3].dual  # as it stands
        assert watch.seen[0]["gap_estimate"] == pytest.approx(certificates[0].gap, rel=1e-4)
        assert "gap_estimate" in watch.seen[1]
    last = {name: float(value) for name, value in fitting.callback_metrics.items()}
    assert last["gap"] == pytest.approx(gap.certificate.gap)
    assert last["gap_age"] == 0.0
    assert set(NAMES) <= set(last)


@pytest.mark.parametrize("interval", [1.0, 0.25])
@pytest.mark.parametrize("monitor", ["gap", "primal", "gap_estimate"])
@pytest.mark.parametrize("first", [True, False])
def test_early_stopping_in_strict_mode(first: bool, monitor: str, interval: float):
    stopping = EarlyStopping(monitor, strict=True, patience=100, stopping_threshold=0.7)
    gap = DualityGap(1e-9, every_n_epochs=5)
    callbacks = [gap, stopping] if first else [stopping, gap]
    fitting = trainer(*callbacks, max_epochs=60, val_check_interval=interval, enable_checkpointing=False)
    fitting.fit(svm(), Words().by_gaps(), Words().everything())
    assert 0 < fitting.current_epoch < 60
    assert float(fitting.callback_metrics[monitor]) < 0.7
    assert "Stopping threshold reached" in stopping.stopping_reason_message
    assert gap.stopped_because.startswith("stopped by another callback")


def test_gap_estimates_can_be_monitored_without_certificates(tmp_path: Path):
    stopping = EarlyStopping("gap_estimate", patience=100, stopping_threshold=0.3)
    saving = ModelCheckpoint(dirpath=tmp_path, monitor="gap_estimate")
    fitting = trainer(stopping, saving, max_epochs=60)
    fitting.fit(svm(), Words().training(), Words().everything())
    assert 0 < fitting.current_epoch < 60
    assert float(saving.best_model_score) < 0.3


def test_passes_beside_validation_leave_nothing_that_cannot_be_trained():
    gap, watch = DualityGap(1e-9, every_n_epochs=4), Watch()
    model = svm()
    fitting = trainer(gap, watch, max_epochs=2, val_check_interval=0.5, enable_checkpointing=False)
    fitting.fit(model, Words().training(), Words().everything())
    assert len(gap.history) == 3  # before the first step, after the first epoch, and at the end of the run
    assert [seen["gap_age"] for seen in watch.seen] == [0.0, 1.0]
    tensors = [*model.parameters(), *model.dual.unclipped, model.dual.gap_estimates, model.dual.loss]
    assert not any(tensor.is_inference() for tensor in tensors)
    assert gap.certificate.drift < 1e-5


@pytest.fixture(autouse=True)
def four_parts(monkeypatch) -> None:
    """The compiled loop has as many batches an epoch as the loader."""
    monkeypatch.setattr(training_batches, "WHOLE", 3)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.parametrize("name", MODELS)
def test_a_run_that_stopped_for_want_of_patience_goes_on_to_the_same_bits(name: str, tmp_path: Path):
    """From the checkpoint of an epoch with an old gap, where validation comes before the end of the epoch."""

    def run(epochs: int, path: Path | None = None) -> tuple[L.LightningModule, Watch, EarlyStopping, DualityGap]:
        gap, watch, stopping = DualityGap(1e-9, every_n_epochs=3), Watch(), EarlyStopping("gap", 100.0, patience=6)
        saving = ModelCheckpoint(tmp_path, "{epoch}", monitor="primal", save_top_k=-1, enable_version_counter=False)
        model = MODELS[name]()
        words = Words()
        training = DataLoader(words, batch_size=3, collate_fn=words.collate)
        fitting = trainer(saving, stopping, watch, gap, max_epochs=epochs)
        fitting.fit(model, training, words.everything(), ckpt_path=path, weights_only=None if path is None else True)
        return model, watch, stopping, gap

    model, watch, stopping, gap = run(20)
    assert len(watch.seen) == 7  # no gap is smaller by 100 than the first one
    assert gap.stopped_because.startswith("stopped by another callback")
    for epoch in (0, 3, 5):
        again = run(20, tmp_path / f"epoch={epoch}.ckpt")
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again[0].parameters(), strict=True))
        assert [{name: seen[name] for name in NAMES} for seen in watch.seen[epoch + 1 :]] == [
            {name: seen[name] for name in NAMES} for seen in again[1].seen[-(6 - epoch) :]
        ]
        assert again[2].stopping_reason_message == stopping.stopping_reason_message
        assert again[3].certificate.gap == gap.certificate.gap
