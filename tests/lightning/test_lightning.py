"""Training under a Lightning Trainer: what stops it, what it logs, what it leaves alone and what it refuses."""

from __future__ import annotations

import copy
import csv
import math
from pathlib import Path

import pytest
import torch
from cases.lightning_letters import WORDS, Features, chain, everything, loader, some_words, trainer
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader, IterableDataset, Subset

from torchssvm import BCFW, Batch, BlockGap, DualState, GapBatchSampler, LinearChain, MeanParts, certify
from torchssvm.datasets import PaddedDataset
from torchssvm.lightning import AveragedWeights, DualityGap, Report, StructuredSVM
from torchssvm.solvers import SuffixAverage, primal

L = pytest.importorskip("lightning")


@pytest.fixture(scope="module")
def words() -> PaddedDataset:
    return some_words()


def test_a_run_stops_at_the_tolerance_and_says_so(words):
    gap = DualityGap(0.1, every_n_epochs=2)
    model, fitting = chain(), trainer(gap, max_epochs=500)
    fitting.fit(model, loader(words))
    last = gap.history[-1].certificate
    assert last.gap <= 0.1 < gap.history[-2].certificate.gap
    assert fitting.current_epoch == 2 * (len(gap.history) - 1) < 500  # one more after the first epoch
    assert gap.stopped_because == f"certified gap {last.gap:.6g} <= tolerance 0.1"
    assert [entry.seconds for entry in gap.history] == sorted(entry.seconds for entry in gap.history)
    again = certify(model, model.dual, everything(words))
    assert again.gap == pytest.approx(last.gap, rel=1e-6)
    assert last.oracle_calls == model.dual.oracle_calls - WORDS


def test_the_last_epoch_is_certified_once(words):
    gap = DualityGap(1e-9, every_n_epochs=2)
    trainer(gap, max_epochs=3).fit(chain(), loader(words))
    assert len(gap.history) == 3
    assert gap.stopped_because.startswith("max_epochs=3 reached, certified gap 0.")
    gap = DualityGap(1e-9, every_n_epochs=2)
    trainer(gap, max_epochs=4).fit(chain(), loader(words))
    assert len(gap.history) == 3


def test_a_small_gap_estimate_stops_nothing(words):
    class Lie(Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            pl_module.dual.gap_estimates.zero_()

    gap = DualityGap(0.01, every_n_epochs=1)
    trainer(Lie(), gap, max_epochs=2).fit(chain(lam=0.001), loader(words))
    assert len(gap.history) == 2
    assert gap.certificate.gap > 0.01


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of paper")])
def test_an_interrupted_run_says_so(error, words, tmp_path):
    class Raise(Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                raise error

    gap = DualityGap(1e-9, every_n_epochs=1)
    with pytest.raises((RuntimeError, KeyboardInterrupt, SystemExit)):
        trainer(gap, Raise(), Report(tmp_path), max_epochs=9).fit(chain(), loader(words))
    assert gap.stopped_because.startswith(f"interrupted: {type(error).__name__}")
    assert (tmp_path / "report.json").exists() == isinstance(error, KeyboardInterrupt)


@pytest.mark.parametrize("arguments", [{"tolerance": -1.0}, {"tolerance": math.nan}, {"every_n_epochs": 0}])
def test_duality_gap_refuses_nonsense(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        DualityGap(**arguments)


@pytest.mark.parametrize("how", ["gap sampler", "shuffled", "workers"])
def test_loaders(how, words):
    data = {
        "gap sampler": lambda: loader(words),
        "shuffled": lambda: DataLoader(words, batch_size=4, shuffle=True, collate_fn=words.collate),
        "workers": lambda: loader(words, workers=2, persistent_workers=True),
    }[how]()
    gap = DualityGap(1e-9, every_n_epochs=3)
    model, fitting = chain(), trainer(gap, max_epochs=3)
    fitting.fit(model, data)
    assert fitting.train_dataloader.loader is data
    assert gap.certificate.gap < 0.6
    assert model.dual.moved == 3 * WORDS


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("make", "options", "error", "name"),
    [
        (lambda words: DataLoader(Subset(words, []), 4, collate_fn=words.collate), {}, ValueError, "Subset"),
        (lambda words: DataLoader(Stream(), 4), {}, ValueError, "Stream"),
        (lambda words: [loader(words), loader(words)], {}, TypeError, "list"),
        (loader, {"reload_dataloaders_every_n_epochs": 1}, ValueError, "reload_dataloaders_every_n_epochs"),
        (lambda words: DataLoader(words, 4, collate_fn=list), {}, TypeError, "Batch"),
    ],
    ids=["empty", "stream", "list", "reload", "no batch"],
)
def test_loaders_that_cannot_work(make, options, error, name, words):
    with pytest.raises(error, match=name):
        trainer(max_epochs=1, **options).fit(chain(), make(words))


def test_validation_test_and_prediction(words):
    model = chain()
    fitting = trainer(max_epochs=2)
    fitting.fit(model, loader(words), everything(words))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = copy.deepcopy(model.dual.state_dict())
    (validated,) = fitting.validate(model, everything(words), verbose=False)
    (tested,) = fitting.test(model, everything(words), verbose=False)
    labelings = fitting.predict(model, everything(words))
    wrong = tokens = 0
    losses, spoilt = [], []
    for labeling, batch in zip(labelings, everything(words), strict=True):
        assert torch.equal(labeling, model.decode(batch.x, batch.lengths))
        real = batch.y >= 0
        assert bool((labeling[~real] == -1).all())
        errors = ((labeling != batch.y) & real).sum(1)
        wrong, tokens = wrong + int(errors.sum()), tokens + int(real.sum())
        losses += model.structure.loss(labeling, batch.y).tolist()
        spoilt += (errors > 0).tolist()
    assert len(losses) == WORDS
    for stage, metrics in (("val", validated), ("test", tested)):
        assert metrics[f"{stage}_loss"] == pytest.approx(sum(losses) / WORDS, abs=1e-6)
        assert metrics[f"{stage}_token_error"] == pytest.approx(wrong / tokens, abs=1e-6)
        assert metrics[f"{stage}_example_error"] == pytest.approx(sum(spoilt) / WORDS, abs=1e-6)
    assert 0 < wrong / tokens < 0.5
    assert not model.dual.mailbox.waiting
    assert torch.equal(state["gap_estimates"], model.dual.gap_estimates)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_checkpoint_that_was_validated_does_not_make_the_next_fit_a_resumed_one(words, tmp_path):
    fitting = trainer(max_epochs=1)
    model = chain()
    fitting.fit(model, loader(words))
    fitting.save_checkpoint(tmp_path / "model.ckpt")
    fresh, other = chain(), chain()
    trainer().validate(fresh, everything(words), ckpt_path=tmp_path / "model.ckpt", weights_only=True, verbose=False)
    with pytest.warns(UserWarning, match="not zero"):
        trainer(max_epochs=1).fit(fresh, loader(words))
    trainer(max_epochs=1).fit(other, loader(words))
    assert torch.equal(fresh.head.emission, other.head.emission)


def read_csv(folder: Path) -> dict[str, list[float]]:
    with next(folder.rglob("metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


def test_logs_hold_a_finite_gap(words, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "tb")]
    gap = DualityGap(1e-9, every_n_epochs=2)
    fitting = trainer(gap, LearningRateMonitor(), logger=loggers, max_epochs=5, log_every_n_steps=1)
    fitting.fit(chain(storage=MeanParts()), loader(words), everything(words))
    logged = read_csv(tmp_path / "csv")
    assert len(gap.history) == 4  # after epochs 0, 1 and 3, and at the end
    certificates = [gap.history[i].certificate for i in (0, 1, 1, 2, 2, 3)]
    gaps = [certificate.gap for certificate in certificates]
    assert logged["gap"] == pytest.approx(gaps)
    assert logged["gap_age"] == [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert logged["primal"] == pytest.approx([certificate.primal for certificate in certificates])
    assert logged["passes"] == pytest.approx([2.0, 4.0, 5.0, 7.0, 8.0, 9.0])
    for name in ("dual", "gap_estimate", "oracle_calls", "val_loss", "val_token_error"):
        assert logged[name], name
        assert all(map(math.isfinite, logged[name])), name
    rates = logged["lr-BCFW"]
    assert max(rates) > 0.0
    events = EventAccumulator(str(next((tmp_path / "tb").rglob("events.*")).parent))
    events.Reload()
    assert [event.value for event in events.Scalars("gap")] == pytest.approx(gaps)
    assert max(event.value for event in events.Scalars("lr-BCFW")) > 0.0


def test_frozen_features_do_not_change_by_a_bit(words):
    torch.manual_seed(0)
    features = Features()
    before = copy.deepcopy(features.state_dict())
    model = StructuredSVM(features=features, head=LinearChain(12, 26), lam=0.1)
    seen = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            pl_module.train()
            features.train()  # whoever does this
            seen.append(any(p.grad is not None for p in features.parameters()))

        def on_train_batch_end(self, trainer, pl_module, *args):
            seen.append(features.training or any(p.grad is not None for p in features.parameters()))

    gap = DualityGap(1e-9, every_n_epochs=2)
    trainer(Watch(), gap, max_epochs=2).fit(model, loader(words), everything(words))
    assert len(seen) == 4
    assert not any(seen)
    assert all(torch.equal(value, before[name]) for name, value in features.state_dict().items())
    assert all(p.requires_grad for p in features.parameters())
    assert model.train() is model
    assert not any(part.training for part in features.modules())
    assert model.head.training
    assert gap.certificate.drift < 1e-5


def test_copies_do_not_hold_the_dual(words):
    sizes = []

    class Copy(Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            copied = copy.deepcopy(pl_module)
            memo: dict = {}
            copy.deepcopy(pl_module, memo)
            stored = [
                value for value in memo.values() if isinstance(value, DualState | BCFW | GapBatchSampler | DataLoader)
            ]
            sizes.append(len(stored))
            assert copied.head is not pl_module.head
            with pytest.raises(RuntimeError):
                _ = copied.dual

    trainer(Copy(), max_epochs=1).fit(chain(), loader(words))
    assert sizes == [0]


def test_averaged_weights_have_a_valid_certificate_and_change_nothing(words):
    class FromTheLoader(Callback):
        needs_batches = True

    plain, model, average = chain(), chain(), AveragedWeights()
    trainer(FromTheLoader(), DualityGap(1e-9, every_n_epochs=2), max_epochs=4).fit(plain, loader(words))
    fitting = trainer(FromTheLoader(), average, DualityGap(1e-9, every_n_epochs=2), max_epochs=4)
    fitting.fit(model, loader(words), everything(words))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert average.count == 40
    state = copy.deepcopy(model.dual.state_dict())
    certificate = average.certify(fitting, model)
    after = model.dual.state_dict()
    assert after.pop("oracle_calls") == state.pop("oracle_calls") + WORDS
    assert all(torch.equal(after[name], state[name]) for name in ("loss", "gap_estimates"))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    exact = DualityGap(0.05, every_n_epochs=10)
    trainer(exact, max_epochs=2000).fit(chain(), loader(words))
    assert certificate.gap > 0.0
    assert certificate.dual <= exact.certificate.primal
    assert certificate.primal >= exact.certificate.dual
    with average.applied(model):
        value = primal(model, model.structure, everything(words), 0.1, parameters=model.head.parameters()).value
    assert certificate.primal == pytest.approx(value, rel=1e-5)


def test_averaged_weights_are_validated_only_if_asked(words):
    class Watch(Callback):
        def on_validation_batch_start(self, trainer, pl_module, *args):
            self.validated = pl_module.head.emission.detach().clone()

    for asked in (False, True):
        average, watch = AveragedWeights(validate=asked), Watch()
        model = chain()
        trainer(average, watch, max_epochs=1, num_sanity_val_steps=0).fit(model, loader(words), everything(words))
        assert torch.equal(watch.validated, model.head.emission) != asked
        assert torch.equal(watch.validated, average.weights[0].float()) == asked


def test_other_averages(words):
    callback, model = AveragedWeights(average=SuffixAverage), chain()
    trainer(callback, max_epochs=2).fit(model, loader(words))
    weights = SuffixAverage.following(model.dual)
    assert isinstance(callback.average, SuffixAverage)
    weights.load_state_dict(callback.average.state_dict())
    assert weights.count == callback.count == 20
    with weights.apply():
        stored = [p.detach().clone() for p in model.head.parameters()]
    with callback.applied(model):
        assert all(torch.equal(a, b) for a, b in zip(stored, model.head.parameters(), strict=True))


class Users(L.LightningModule):
    """Automatic optimisation with BlockGap and BCFW as they are."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.head = LinearChain(128, 26)
        self.n = n
        self.losses: list[BlockGap] = []

    def forward(self, x, lengths=None):
        return self.head(x, lengths)

    def training_step(self, batch: Batch, batch_idx: int):
        return self.losses[0](self(batch.x, batch.lengths), batch.y, batch.index)

    def configure_optimizers(self):
        dual = DualState.for_head(self.head, self.n, 0.1)
        self.losses = [BlockGap(dual)]
        return BCFW(self.head.parameters(), dual)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_automatic_optimisation(accumulate, words):
    gap = DualityGap(0.2, every_n_epochs=5)
    model, fitting = Users(len(words)), trainer(gap, max_epochs=200, accumulate_grad_batches=accumulate)
    fitting.fit(model, shuffled(words))
    assert gap.certificate.gap <= 0.2
    assert gap.certificate.drift < 1e-5
    dual = fitting.optimizers[0].dual
    assert dual.steps == fitting.global_step == fitting.current_epoch * 10 // accumulate


def shuffled(words) -> DataLoader:
    return DataLoader(words, batch_size=3, shuffle=True, collate_fn=words.collate)
