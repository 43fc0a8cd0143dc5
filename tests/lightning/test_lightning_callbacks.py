"""What Lightning brings, with a fit by exact steps: it works, or is refused before anything is set up."""

from __future__ import annotations

import functools
import re
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

L = pytest.importorskip("lightning")

from cases.lightning_chains import MODELS, Watch, Words, svm, trainer  # noqa: E402
from lightning.pytorch.callbacks import (  # noqa: E402
    BatchSizeFinder,
    Callback,
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    RichProgressBar,
    StochasticWeightAveraging,
    Timer,
    TQDMProgressBar,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from torchssvm import Batch, LinearChain, LinearSegments, MeanParts, Segments, Solver, certify  # noqa: E402
from torchssvm.lightning import AveragedWeights, DualityGap, SpanF1, StructuredSVM, training_batches  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]

EITHER = pytest.mark.parametrize("compiled", [None, False])


def same(a: L.LightningModule, b: L.LightningModule) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.fixture(autouse=True)
def four_parts(monkeypatch) -> None:
    """The compiled loop has as many batches an epoch as the loader."""
    monkeypatch.setattr(training_batches, "WHOLE", 3)


@functools.cache
def plain(compiled: bool | None = False, epochs: int = 4, from_the_loader: bool = False) -> StructuredSVM:
    """Trained without any callback but the certificates; all tests share it and leave it as it is."""
    model = svm(compiled)
    gap = DualityGap(1e-9, every_n_epochs=2)
    callbacks = [gap, FromTheLoader()] if from_the_loader else [gap]
    trainer(*callbacks, max_epochs=epochs, enable_checkpointing=False).fit(model, Words().by_gaps())
    return model


class FromTheLoader(Callback):
    """Changes nothing but where batches come from."""

    needs_batches = True


@EITHER
@pytest.mark.parametrize(
    "make",
    [
        lambda folder: ModelCheckpoint(folder, every_n_train_steps=3, save_top_k=-1),
        lambda folder: ModelCheckpoint(folder, every_n_epochs=2, save_top_k=1, save_last=True),
        lambda folder: ModelCheckpoint(folder, monitor="val_loss", save_top_k=2, save_last="link"),
        lambda folder: ModelCheckpoint(folder, monitor="gap", every_n_train_steps=2, save_top_k=3),
        lambda folder: ModelCheckpoint(folder, train_time_interval=timedelta(0)),
        lambda folder: EarlyStopping("val_loss", patience=100),
        lambda folder: LearningRateMonitor(logging_interval="step"),
        lambda folder: Timer(timedelta(hours=1)),
        lambda folder: TQDMProgressBar(),
        lambda folder: RichProgressBar(),
        lambda folder: DeviceStatsMonitor(cpu_stats=False),
        lambda folder: AveragedWeights(validate=True),
    ],
)
def test_callbacks_that_watch_change_nothing(make, compiled: bool | None, tmp_path: Path):
    callback, gap, model = make(tmp_path / "saved"), DualityGap(1e-9, every_n_epochs=2), svm(compiled)
    bar = isinstance(callback, TQDMProgressBar | RichProgressBar)
    fitting = trainer(
        callback, gap, max_epochs=4, logger=CSVLogger(tmp_path), enable_progress_bar=bar, default_root_dir=tmp_path
    )
    fitting.fit(model, Words().by_gaps(), Words().everything())
    assert same(model, plain(compiled, 4, isinstance(callback, AveragedWeights)))
    assert certify(model.head, model.dual, Words().everything()).gap == pytest.approx(gap.certificate.gap, abs=1e-6)


@EITHER
def test_every_checkpoint_that_was_saved_goes_on_to_the_same_bits(compiled: bool | None, tmp_path: Path):
    class Kill(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
            if trainer.global_step == 14:
                raise RuntimeError("out of paper")

    saving = [
        ModelCheckpoint(tmp_path / "steps", every_n_train_steps=5, save_top_k=-1),
        ModelCheckpoint(tmp_path / "best", monitor="gap", save_top_k=2),
        ModelCheckpoint(tmp_path / "end", save_on_exception=True),
    ]
    with pytest.raises(RuntimeError, match="out of paper"):
        trainer(*saving, Kill(), DualityGap(1e-9, every_n_epochs=2), max_epochs=4).fit(
            svm(compiled), Words().by_gaps(), Words().everything()
        )
    saved = sorted(tmp_path.rglob("*.ckpt"))
    assert {path.parent.name for path in saved} == {"steps", "best", "end"}
    assert any("step=14" in path.name for path in saved)
    expected = plain(compiled)
    for path in saved:
        model = svm(compiled)
        fitting = trainer(DualityGap(1e-9, every_n_epochs=2), max_epochs=4, enable_checkpointing=False)
        fitting.fit(model, Words().by_gaps(), Words().everything(), ckpt_path=path, weights_only=True)
        assert same(model, expected), path.name


@EITHER
def test_the_last_checkpoint_and_the_best(compiled: bool | None, tmp_path: Path):
    best, last = ModelCheckpoint(tmp_path / "best", monitor="gap"), ModelCheckpoint(tmp_path / "last", save_last=True)
    model = svm(compiled)
    fitting = trainer(best, last, DualityGap(1e-9, every_n_epochs=2), max_epochs=3)
    fitting.fit(model, Words().by_gaps(), Words().everything())
    epoch = int(re.search(r"epoch=(\d+)", best.best_model_path)[1])
    assert same(StructuredSVM.load_from_checkpoint(best.best_model_path), plain(compiled, epoch + 1))
    assert same(StructuredSVM.load_from_checkpoint(last.last_model_path), plain(compiled, 3))
    for path in (best.best_model_path, last.last_model_path, "best"):
        (figures,) = fitting.validate(model, Words().everything(), ckpt_path=path, verbose=False, weights_only=True)
        assert 0.0 <= figures["val_loss"] < 0.5
    assert same(model, plain(compiled, epoch + 1))


@EITHER
def test_time_that_is_over_stops_a_run_with_a_certificate(compiled: bool | None):
    for options in ({"max_time": timedelta(0)}, {}):
        gap = DualityGap(1e-9)
        timer = [] if options else [Timer(timedelta(0), interval="epoch")]
        fitting = trainer(gap, *timer, max_epochs=100, enable_checkpointing=False, **options)
        fitting.fit(svm(compiled), Words().by_gaps())
        assert fitting.current_epoch < 3
        assert gap.stopped_because.startswith("stopped by another callback, certified gap")


class Averages(WeightAveraging):
    """An average of a user."""


class Subclass(StructuredSVM):
    """With a hook of its own."""

    def configure_callbacks(self) -> list[Callback]:
        return [*super().configure_callbacks(), Timer()]


REFUSED_CALLBACKS = {
    "WeightAveraging": WeightAveraging,
    "EMAWeightAveraging": EMAWeightAveraging,
    "Averages": Averages,
    "StochasticWeightAveraging": lambda: StochasticWeightAveraging(1e-2),
    "GradientAccumulationScheduler": lambda: GradientAccumulationScheduler({0: 1, 1: 2}),
    "LearningRateFinder": LearningRateFinder,
    "BatchSizeFinder": BatchSizeFinder,
    "ModelPruning": lambda: ModelPruning("l1_unstructured", parameter_names=["bias"], amount=0.5),
}
REFUSED_OPTIONS = {"gradient_clip_val": 1, "accumulate_grad_batches": 2, "precision": "bf16-true"}


@pytest.mark.parametrize("name", [*REFUSED_CALLBACKS, *REFUSED_OPTIONS])
@pytest.mark.parametrize("model", [*MODELS, "subclass"])
def test_settings_that_contradict_exact_steps_are_refused_before_the_fit(name: str, model: str):
    module = Subclass(LinearChain(3, 3), lam=0.1) if model == "subclass" else MODELS[model]()
    callbacks = [REFUSED_CALLBACKS[name]()] if name in REFUSED_CALLBACKS else []
    options = {name: REFUSED_OPTIONS[name]} if name in REFUSED_OPTIONS else {}
    fitting = trainer(*callbacks, max_epochs=1, enable_checkpointing=False, **options)
    with pytest.raises(ValueError, match=name):
        fitting.fit(module, Words().training())
    assert not fitting.optimizers
    assert not any(p.any() for p in module.parameters())


def test_features_are_compiled_by_torch_and_steps_are_not():
    with pytest.raises(ValueError, match=r"torch\.compile"):
        trainer(enable_checkpointing=False).fit(torch.compile(svm(), backend="eager"), Words().training())
    below = torch.compile(nn.Linear(3, 5), backend="eager")
    gap, model = (
        DualityGap(1e-9),
        StructuredSVM(LinearChain(5, 3), lam=0.1, features=below, solver=Solver(compiled=False)),
    )
    trainer(gap, max_epochs=2, enable_checkpointing=False).fit(model, Words().training())
    assert gap.certificate.drift < 1e-5


@EITHER
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "64-true", "32-true"])
def test_a_precision_is_right_or_refused(precision: str, compiled: bool | None):
    """16-mixed on the CPU is bf16-mixed to Lightning, which says so."""
    torch.manual_seed(0)
    model = StructuredSVM(LinearChain(5, 3), lam=0.1, features=nn.Linear(3, 5), solver=Solver(compiled=compiled))
    gap = DualityGap(1e-9, every_n_epochs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitting = trainer(gap, max_epochs=4, precision=precision, enable_checkpointing=False)
    fitting.fit(model, Words().training())
    expected = torch.float64 if precision == "64-true" else torch.float32
    assert {p.dtype for p in model.head.parameters()} == {expected}
    assert gap.certificate.drift < (1e-12 if precision == "64-true" else 1e-5)
    assert 0.0 < gap.certificate.gap < 0.5


@EITHER
@pytest.mark.parametrize(
    "options",
    [
        {"fast_dev_run": True},
        {"fast_dev_run": 2},
        {"limit_train_batches": 2},
        {"limit_train_batches": 0.5, "limit_val_batches": 0},
        {"overfit_batches": 1},
        {"num_sanity_val_steps": -1},
        {"num_sanity_val_steps": 0, "check_val_every_n_epoch": 2},
        {"val_check_interval": 0.25},
        {"val_check_interval": 3, "check_val_every_n_epoch": None},
        {"max_epochs": -1, "max_steps": 6},
        {"barebones": True},
        {"deterministic": True, "benchmark": False},
        {"detect_anomaly": True},
        {"inference_mode": False},
        {"use_distributed_sampler": False, "log_every_n_steps": 1},
    ],
    ids=repr,
)
def test_odd_ways_to_run_end_with_a_certificate(options, compiled: bool | None, tmp_path: Path):
    gap, stopping, model = DualityGap(1e-9, every_n_epochs=2), EarlyStopping("gap", patience=100), svm(compiled)
    given = {"max_epochs": 3, "default_root_dir": tmp_path} | options
    if "barebones" in options:
        given = {"max_epochs": 3, "barebones": True, "accelerator": "cpu"}
        fitting = L.Trainer(callbacks=[stopping, gap], **given)
    else:
        fitting = trainer(stopping, gap, enable_checkpointing=False, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitting.fit(model, Words().by_gaps(), Words().everything())
    assert gap.stopped_because is not None
    certificate = certify(model.head, model.dual, Words().everything())
    assert certificate.gap == pytest.approx(gap.certificate.gap, abs=1e-6)
    assert certificate.drift < 1e-5
    assert float(fitting.callback_metrics["gap"]) == pytest.approx(gap.certificate.gap)


@pytest.mark.parametrize("name", MODELS)
def test_a_module_and_its_callbacks_serve_two_fits(name: str, tmp_path: Path):
    model, gap, watch = MODELS[name](), DualityGap(1e-9, every_n_epochs=2), Watch()
    results = []
    for _ in range(2):
        watch.seen.clear()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the head's weights were not zero")
            trainer(gap, watch, max_epochs=3, enable_checkpointing=False).fit(
                model, Words().training(), Words().everything()
            )
        results.append(([p.detach().clone() for p in model.parameters()], [dict(seen) for seen in watch.seen]))
        assert len(gap.history) == 3
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert results[0][1] == results[1][1]


@EITHER
def test_a_fit_after_validation_test_and_prediction(compiled: bool | None):
    model, gap = svm(compiled), DualityGap(1e-9, every_n_epochs=2)
    fitting = trainer(gap, max_epochs=4, enable_checkpointing=False)
    fitting.validate(model, Words().everything(), verbose=False)
    fitting.test(model, Words().everything(), verbose=False)
    fitting.predict(model, Words().everything())
    assert not gap.history
    fitting.fit(model, Words().by_gaps(), Words().everything())
    certificate = gap.certificate
    assert same(model, plain(compiled))
    fitting.validate(model, Words().everything(), verbose=False)
    fitting.predict(model, Words().everything())
    assert gap.certificate is certificate
    assert same(model, plain(compiled))


def test_one_trainer_that_fits_again_with_more_epochs_goes_on_or_starts_anew():
    model, gap = svm(storage=MeanParts()), DualityGap(1e-9, every_n_epochs=2)
    fitting = trainer(gap, max_epochs=2, enable_checkpointing=False)
    fitting.fit(model, Words().by_gaps())
    fitting.fit_loop.max_epochs = 4
    with pytest.warns(UserWarning, match="not zero"):
        fitting.fit(model, Words().by_gaps())
    assert certify(model.head, model.dual, Words().everything()).gap == pytest.approx(gap.certificate.gap, abs=1e-6)
    assert [entry.certificate.passes for entry in gap.history] == [2.0, 4.0]  # after epochs 2 and 3 of the trainer


@pytest.mark.parametrize("name", MODELS)
def test_several_loaders_are_validated_beside_certificates(name: str):
    gap, model, loaders = DualityGap(1e-9, every_n_epochs=2), MODELS[name](), [Words().everything(), Words().training()]
    fitting = trainer(gap, max_epochs=2, enable_checkpointing=False)
    fitting.fit(model, Words().training(), loaders)
    losses = [float(fitting.callback_metrics[f"val_loss/dataloader_idx_{i}"]) for i in range(2)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert len(fitting.test(model, loaders, verbose=False)) == len(fitting.predict(model, loaders)) == 2


def test_spans_of_segments_are_those_of_their_labels():
    structure = Segments(3, 4)
    model, tags = StructuredSVM(LinearSegments(3, 3, 4), lam=0.1), torch.tensor([[1, 2, 2, 0], [0, 1, 0, -1]])
    with torch.no_grad():
        model.head.emission.copy_(torch.eye(3))
    x = torch.nn.functional.one_hot(tags.clamp(min=0), 3).float()
    batch = Batch(x, structure.from_frames(tags), torch.arange(2), torch.tensor([4, 3]))
    loader = DataLoader([batch], collate_fn=lambda batches: batches[0])
    (result,) = trainer(SpanF1(["O", "B-X", "I-X"])).validate(model, loader, verbose=False)
    assert result["val_f1"] == 1.0
    with pytest.raises(ValueError, match="labels"):
        trainer(SpanF1(["O", "B-X"])).validate(model, loader, verbose=False)
