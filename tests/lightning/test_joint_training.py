"""The recipe of joint training under a Trainer: its two stages, what certifies, what is kept, and resumption."""

from __future__ import annotations

import functools
import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

L = pytest.importorskip("lightning")

from cases.lightning_letters import WORDS, Features, everything, loader, some_words, trainer  # noqa: E402
from cases.problem_data import with_solver  # noqa: E402
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint  # noqa: E402

from torchssvm import (  # noqa: E402
    Chain,
    Corrective,
    HiddenStates,
    LinearChain,
    Matching,
    SoftmaxMargin,
    StructuredHinge,
    certify,
)
from torchssvm.datasets import OCR, PaddedDataset  # noqa: E402
from torchssvm.lightning import (  # noqa: E402
    DualityGap,
    JointTraining,
    StructuredSVM,
)
from torchssvm.solvers import primal  # noqa: E402


@pytest.fixture(scope="module")
def words() -> PaddedDataset:
    return some_words()


def others() -> DataLoader:
    """Words that are not trained on."""
    ocr = OCR()
    rows = slice(100, 140)
    return everything(PaddedDataset(ocr.x[rows], ocr.y[rows], ocr.lengths[rows]))


def together(joint: JointTraining | None = None, lam: float = 0.01, **options) -> StructuredSVM:
    torch.manual_seed(0)
    joint = joint or JointTraining(epochs=2, lr=1e-2)
    return StructuredSVM(LinearChain(12, 26), lam, Features(), joint=joint, **with_solver(**options))


class Watch(Callback):
    """Weights, rates, losses and modes along the way."""

    def __init__(self) -> None:
        self.rates, self.losses, self.calls, self.modes, self.at_ends = [], [], [], [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.modes.append(pl_module.features.training)
        self.calls.append(pl_module.dual.oracle_calls)
        if not pl_module.solves_head:
            self.rates.append(pl_module.optimizers()[1].param_groups[0]["lr"])
            self.losses.append(float(trainer.callback_metrics["joint_loss"]))

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.at_ends.append({name: value.clone() for name, value in pl_module.state_dict().items()})


def test_both_stages_of_one_fit(words):
    watch, gap = Watch(), DualityGap(0.05)
    model = together()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fitting = trainer(watch, gap, max_epochs=200)
    fitting.fit(model, loader(words), others())
    batches = math.ceil(WORDS / 3)
    expected = [1e-2 * (1 - k / (2 * batches)) for k in range(2 * batches)]
    assert watch.rates == pytest.approx(expected)
    assert watch.losses[-1] < watch.losses[0]
    assert watch.modes[: 2 * batches] == [True] * 2 * batches
    assert not any(watch.modes[2 * batches :])
    assert watch.calls[: 2 * batches] == [0] * 2 * batches  # nothing decoded, nothing certified
    first, *_, last = watch.at_ends[1:]
    for name, value in first.items():
        moved = not torch.equal(before[name], value)
        assert moved or "num_batches" in name
        assert torch.equal(value, last[name]) == name.startswith("features")  # frozen at the end of the first stage
    assert gap.history[0].certificate.passes > 0
    assert gap.certificate.gap <= 0.05
    assert "<= tolerance" in gap.stopped_because
    assert model.choice is not None
    assert model.choice.kept in ("joint", "solved")
    # the compiled loop made the steps, with corrective directions and the cache
    assert isinstance(model.rules.direction, Corrective)
    assert model.dual.cache_hits > 0
    solved = StructuredSVM(LinearChain(12, 26), 0.01, model.features)
    solved.load_state_dict(last)
    certificate = certify(solved, model.dual, everything(words), refresh=False)
    assert certificate.gap == pytest.approx(gap.certificate.gap, rel=1e-4)


@pytest.mark.slow
def test_the_better_of_both_heads_is_kept(words):
    """One head is trained for long and the other one hardly at all, both ways round."""

    class Keep(Callback):
        def on_train_end(self, trainer, pl_module) -> None:
            self.solved = [p.detach().clone() for p in pl_module.head.parameters()]

    def losses(model, weights) -> float:
        with torch.no_grad():
            for p, value in zip(model.head.parameters(), weights, strict=True):
                p.copy_(value)
        total = 0.0
        for batch in others():
            total += float(model.structure.loss(model.decode(batch.x, batch.lengths), batch.y).sum())
        return total / 40

    for joint, epochs, kept in (
        (JointTraining(epochs=12, lr=2e-2), 13, "joint"),
        (JointTraining(epochs=1, lr=1e-9), 40, "solved"),
    ):
        keep = Keep()
        model = together(joint, lam=1.0 if kept == "joint" else 0.01)
        fitting = trainer(keep, max_epochs=epochs)
        fitting.fit(model, loader(words), others())
        stored = [p.detach().clone() for p in model.head.parameters()]
        choice, other = model.choice, model._stages.weights
        assert choice.kept == kept
        expected = other if kept == "joint" else keep.solved
        assert all(torch.equal(a, b) for a, b in zip(stored, expected, strict=True))
        assert losses(model, keep.solved) == pytest.approx(choice.solved_loss, abs=1e-9)
        assert losses(model, other) == pytest.approx(choice.joint_loss, abs=1e-9)
        assert f"the {kept} head is kept" in str(choice)


def test_without_validation_data_the_solved_head_is_kept(words):
    for options in ({}, {"limit_val_batches": 0}):
        model = together(JointTraining(epochs=1))
        fitting = trainer(max_epochs=2, **options)
        fitting.fit(model, loader(words), others() if options else None)
        assert model.choice is None
        assert model.dual.value() > 0.0
        certificate = certify(model, model.dual, everything(words))
        assert certificate.gap >= 0.0
        assert certificate.drift < 1e-4


def test_the_first_stage_is_the_plain_loop(words):
    """Softmax-margin, lam/2 |w|^2 and Adam with a falling rate, on batches of a permutation."""
    joint = JointTraining(epochs=2, lr=1e-2)
    network, head = nn.Linear(128, 12), LinearChain(12, 26)
    features, expected = nn.Sequential(network), nn.ModuleList([nn.Linear(128, 12), LinearChain(12, 26)])
    expected[0].load_state_dict(network.state_dict())
    model = StructuredSVM(head, 0.1, features, joint=joint)
    seen = []

    class See(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
            if trainer.current_epoch < 2:
                seen.append(batch)

        def on_train_epoch_end(self, trainer, pl_module) -> None:
            if trainer.current_epoch == 1:
                self.weights = [p.detach().clone() for p in pl_module.parameters()]

    see = See()
    trainer(see, max_epochs=3).fit(model, loader(words))
    assert sorted(torch.cat([b.index for b in seen[: len(seen) // 2]]).tolist()) == list(range(WORDS))
    loss, adam = SoftmaxMargin(Chain(26)), torch.optim.Adam(expected.parameters(), lr=1e-2)
    for step, batch in enumerate(seen):
        for group in adam.param_groups:
            group["lr"] = 1e-2 * (1 - step / len(seen))
        adam.zero_grad()
        value = loss(expected[1](expected[0](batch.x), batch.lengths), batch.y)
        (value + 0.05 * sum(p.square().sum() for p in expected[1].parameters())).backward()
        adam.step()
    mine = {name: p for name, p in zip(dict(model.named_parameters()), see.weights, strict=True)}
    for name, p in [*expected[1].named_parameters(prefix="head"), *expected[0].named_parameters(prefix="features.0")]:
        torch.testing.assert_close(mine[name], p, rtol=1e-4, atol=1e-6)


def test_losses_and_optimizers_of_the_first_stage(words):
    assert isinstance(JointTraining().make_loss(Chain(3)), SoftmaxMargin)
    assert isinstance(JointTraining().make_loss(Matching()), StructuredHinge)
    cold = JointTraining(loss=functools.partial(SoftmaxMargin, temperature=0.1))
    assert cold.make_loss(Chain(3)).temperature == 0.1
    decay = functools.partial(torch.optim.AdamW, weight_decay=0.5)
    for head_lr, expected in ((None, 0.25), (2.5, 2.5)):
        joint = JointTraining(optimizer=decay, lr=0.25, head_lr=head_lr)
        made = joint.make_optimizer(nn.Linear(2, 2), LinearChain(2, 3))
        assert [(group["weight_decay"], group["lr"]) for group in made.param_groups] == [(0.5, 0.25), (0.0, expected)]
    model = together(JointTraining(epochs=1, lr=1e-2, loss=StructuredHinge, optimizer=torch.optim.SGD))
    trainer(max_epochs=2).fit(model, loader(words))
    assert isinstance(model._stages._loss, StructuredHinge)


def test_bounds_hold_in_both_stages(words):
    class Inside(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            assert bool((pl_module.head.transition >= 0.01).all())

    model = together(bounds={"transition": (0.01, None)})
    gap = DualityGap(1e-9, every_n_epochs=1)
    trainer(Inside(), gap, max_epochs=4).fit(model, loader(words))
    assert not model._run.compiled  # because of the bounds
    assert gap.certificate.drift < 1e-4


class Packed(nn.Module):
    """Features of a recurrent network, which needs the lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 12, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("compiled", [None, False])
def test_features_that_take_lengths(words, compiled):
    torch.manual_seed(0)
    for joint in (JointTraining(epochs=1), None):
        gap, rules = DualityGap(1e-9), with_solver(compiled=compiled)
        model = StructuredSVM(LinearChain(12, 26), 0.01, Packed(), joint=joint, **rules)
        fitting = trainer(gap, max_epochs=3)
        fitting.fit(model, loader(words), others())
        assert gap.certificate.gap >= 0.0 < gap.certificate.dual
        (batch,) = fitting.predict(model, DataLoader(words, batch_size=WORDS, collate_fn=words.collate))
        alone = [model.decode(x[None], torch.tensor([len(x)]))[0] for x, _, _ in words]
        assert all(torch.equal(row[: len(one)], one) for row, one in zip(batch, alone, strict=True))


def test_callbacks_that_monitor_the_gap(words, tmp_path):
    """In the first stage they read the gap to an empty dual, whose value is 0."""

    class Read(Callback):
        def __init__(self) -> None:
            self.gaps, self.primals = [], []

        def on_validation_end(self, trainer, pl_module) -> None:
            if not pl_module.solves_head and not trainer.sanity_checking:
                self.gaps.append(float(trainer.callback_metrics["gap"]))
                batches = everything(words)
                result = primal(pl_module, pl_module.structure, batches, 0.01, parameters=pl_module.head.parameters())
                self.primals.append(result.value)

    read, gap = Read(), DualityGap(1e-9, every_n_epochs=1)
    save = ModelCheckpoint(tmp_path, monitor="gap", filename="{epoch}", save_top_k=1)
    stop = EarlyStopping("gap", patience=20)
    model = together()
    fitting = trainer(read, gap, save, stop, max_epochs=12, enable_checkpointing=True)
    fitting.fit(model, loader(words), others())
    assert read.gaps == pytest.approx(read.primals, rel=1e-5)
    assert len(read.gaps) == 2
    assert len(gap.history) == 10
    best = min(entry.certificate.gap for entry in gap.history)
    assert float(save.best_model_score) == pytest.approx(min(best, *read.gaps))


def test_refusals(words):
    with pytest.raises(ValueError, match="features=None"):
        StructuredSVM(LinearChain(128, 26), 0.1, joint=JointTraining())
    with pytest.raises(ValueError, match="max_epochs"):
        trainer(max_epochs=2).fit(together(), loader(words))
    unknown = PaddedDataset(words.x, words.y.masked_fill(words.y == 0, -100), words.lengths)
    with pytest.raises(ValueError, match="latent"):
        trainer(max_epochs=9).fit(together(structure=HiddenStates(Chain(26))), loader(unknown))


def fit(folder, resume=None, **options):
    model = together(JointTraining(epochs=2, lr=1e-2), **options)
    torch.manual_seed(1 if resume is None else 2)
    gap = DualityGap(1e-9, every_n_epochs=2)
    saves = [
        ModelCheckpoint(folder, filename="{step:03d}", save_top_k=-1, every_n_train_steps=6),
        ModelCheckpoint(folder, filename="end-{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True),
    ]
    fitting = trainer(gap, *saves, max_epochs=5, enable_checkpointing=True)
    fitting.fit(
        model, loader(some_words()), others(), ckpt_path=resume, weights_only=True if resume is not None else None
    )
    history = [(e.certificate.primal, e.certificate.dual, e.certificate.oracle_calls) for e in gap.history]
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "dual": model.dual.state_dict(),
        "history": history,
        "choice": model.choice,
        "epoch": fitting.current_epoch,
        "step": fitting.global_step,
        "joint": model._stages.weights,
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("compiled", [None, False])
def test_resuming_within_each_stage_and_between_them(compiled, tmp_path):
    from cases.problems import assert_same

    alone = fit(tmp_path / "alone", compiled=compiled)
    assert alone["history"]
    for name in ("step=006", "step=018", "end-epoch=0", "end-epoch=1", "end-epoch=3"):
        result = fit(tmp_path / name, resume=tmp_path / "alone" / f"{name}.ckpt", compiled=compiled)
        assert_same(result, alone, name)


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_checkpoints_that_do_not_fit(words, tmp_path):
    fitting = trainer(max_epochs=1)
    fitting.fit(StructuredSVM(LinearChain(12, 26), 0.01, Features()), loader(words))
    fitting.save_checkpoint(tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match="JointTraining"):
        trainer(max_epochs=3).fit(together(), loader(words), ckpt_path=tmp_path / "other.ckpt")
    fitting = trainer(max_epochs=3)
    fitting.fit(together(), loader(words))
    fitting.save_checkpoint(tmp_path / "joint.ckpt")
    model = StructuredSVM.load_from_checkpoint(tmp_path / "joint.ckpt", features=Features())
    assert bool(model.head.emission.any())


class Dropping(Features):
    """Features that note their mode while they are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.norm, self.seen = nn.Dropout(0.5), nn.BatchNorm1d(2), set()

    def forward(self, x):
        if torch.is_grad_enabled():
            self.seen.add((self.training, self.dropout.training, self.norm.training))
        return super().forward(x)


@pytest.mark.parametrize("parts", [False, True])
def test_features_that_came_in_evaluation_mode_are_trained_in_training_mode(words, parts):
    """Parts of features in training mode stay as they are, without a word."""
    features = Dropping().eval()
    if parts:
        features.train()
        features.norm.eval()
    model = StructuredSVM(LinearChain(12, 26), 0.01, features, joint=JointTraining(epochs=1, lr=1e-2))
    with warnings.catch_warnings(record=True) as results:
        warnings.simplefilter("always")
        trainer(max_epochs=2).fit(model, loader(words))
    assert features.seen == {(True, True, not parts)}
    assert sum("came in evaluation mode" in str(one.message) for one in results) == (not parts)


def plain(joint, batches, epochs=2):
    """The head and network of a fit without dropout and without batch norms, at the end of its first stage."""
    torch.manual_seed(0)
    words = some_words()
    network = nn.Linear(128, 12)
    model = StructuredSVM(LinearChain(12, 26), 0.01, network, joint=joint)
    loader = DataLoader(words, batch_sampler=batches, collate_fn=words.collate)
    watch = Watch()
    trainer(watch, max_epochs=epochs + 1).fit(model, loader)
    return [p.detach() for p in (*network.parameters(), *model._stages.weights)], watch.rates


def test_steps_of_several_batches_of_like_length():
    """A step of two batches is that of both together; the last one of an epoch has what is left."""
    order = some_words().lengths.argsort().tolist()  # a sampler of batches by length
    sgd = functools.partial(JointTraining, epochs=2, lr=0.1, optimizer=torch.optim.SGD)
    for whole, size, count in (([order[:6], order[6:12]], 3, 2), ([order[:9]], 3, 4)):
        used = sum(map(len, whole))
        expected, _ = plain(sgd(), whole)
        result, rates = plain(sgd(accumulate=count), [order[i : i + size] for i in range(0, used, size)])
        assert len(rates) == 2 * used // size
        for one, other in zip(expected, result, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_clipped_steps_and_a_warm_up():
    order = list(range(9))
    batches = [order[i : i + 3] for i in range(0, 9, 3)]
    sgd = functools.partial(JointTraining, epochs=2, lr=0.5, optimizer=torch.optim.SGD)
    start, _ = plain(sgd(clip=1e-9), batches)
    result, rates = plain(sgd(clip=1e-3, warmup=0.5), batches)
    assert rates == pytest.approx([0.5 / 3, 1.0 / 3, 0.5, 0.5, 1.0 / 3, 0.5 / 3])
    path = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(start, result, strict=True)))
    assert 0.0 < path <= 1e-3 * sum(rates) * 1.01
