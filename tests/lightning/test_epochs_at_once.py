"""Epochs that nothing follows are made by the steps of ``solve``, several in one call of Lightning's hooks."""

from __future__ import annotations

import math

import pytest
import torch

L = pytest.importorskip("lightning")

from cases.short_words import N, Words, trainer  # noqa: E402
from lightning.pytorch.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint, OnExceptionCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from torchssvm import LinearChain, Relative, Solver, StructuredHinge, make_trainer  # noqa: E402
from torchssvm.lightning import DualityGap, GapBar, JointTraining, StructuredSVM  # noqa: E402
from torchssvm.lightning.compiled_epochs import EpochsAtOnce  # noqa: E402
from torchssvm.solvers import EveryPasses  # noqa: E402

LAM = 0.001  # takes some two hundred epochs, with a few calls of the oracle


def model(kind: type = StructuredSVM) -> StructuredSVM:
    return kind(LinearChain(3, 3), lam=LAM)


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """Visits of the dual after each call for several epochs."""
    seen: list[int] = []
    visit = EpochsAtOnce.visit

    def spy(self, *args) -> None:
        visit(self, *args)
        seen.append(self._loop.dual.moved)

    monkeypatch.setattr(EpochsAtOnce, "visit", spy)
    return seen


def figures(certificate) -> tuple[float, ...]:
    return certificate.primal, certificate.dual, certificate.gap, certificate.oracle_calls


@pytest.mark.parametrize("passes", [None, 3.0])
def test_a_run_is_that_of_solve(passes: float | None, calls):
    schedule = None if passes is None else EveryPasses(passes)
    head, found = LinearChain(3, 3), []
    alone = make_trainer(head, Words(), LAM, solver=Solver(seed=3, schedule=schedule), progress=False)
    alone.solve(0.002, on_check=found.append, progress=False)
    gap, fitted = DualityGap(0.002, schedule=schedule), model()
    fitting = trainer(gap, GapBar(), max_epochs=-1, enable_checkpointing=False, enable_progress_bar=True)
    fitting.fit(fitted, Words().by_gaps())
    assert [figures(entry.certificate) for entry in gap.history] == [figures(certificate) for certificate in found]
    assert all(torch.equal(a, b) for a, b in zip(fitted.head.parameters(), head.parameters(), strict=True))
    assert fitting.current_epoch == math.ceil(fitted.dual.moved / N) > 2 * len(calls)


class Each(StructuredSVM):
    """A hook of its own."""

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()


class Quiet(Callback):
    """No hook for epochs."""

    def on_train_end(self, trainer, pl_module) -> None:
        pass


FOLLOWED = {
    "logger": lambda folder: ([], {"logger": CSVLogger(folder)}),
    "checkpoints": lambda folder: ([ModelCheckpoint(folder)], {}),
    "early stopping": lambda folder: ([EarlyStopping("gap", patience=100)], {}),
    "a function": lambda folder: ([LambdaCallback(on_train_batch_end=lambda *args: None)], {}),
    "certificates by epochs": lambda folder: ([], {"every": 3}),
    "a subclass": lambda folder: ([], {"kind": Each}),
}


@pytest.mark.parametrize("name", [None, *FOLLOWED])
def test_who_follows_epochs_gets_each(name: str | None, calls, tmp_path):
    callbacks, options = ([Quiet()], {}) if name is None else FOLLOWED[name](tmp_path)
    fitted = model(options.pop("kind", StructuredSVM))
    gap = DualityGap(1e-9, every_n_epochs=options.pop("every", None))
    fitting = trainer(gap, *callbacks, **{"max_epochs": 45, "enable_checkpointing": name == "checkpoints", **options})
    fitting.fit(fitted, Words().by_gaps())
    assert bool(calls) == (name is None)
    assert fitting.current_epoch == 45
    assert fitted.dual.moved == 45 * N  # an epoch is n visits, whoever follows it


@pytest.mark.parametrize("every", [1, 4])
def test_validation_is_made_at_its_epochs(every: int, calls):
    at = []

    class Validated(Callback):
        def on_validation_end(self, trainer, pl_module) -> None:
            if not trainer.sanity_checking:
                at.append((trainer.current_epoch + 1, pl_module.dual.moved // N))

    fitting = trainer(
        DualityGap(1e-9), Validated(), max_epochs=11, check_val_every_n_epoch=every, enable_checkpointing=False
    )
    fitting.fit(model(), Words().by_gaps(), Words().everything())
    assert at == [(epoch, epoch) for epoch in range(every, 12, every)]
    assert bool(calls) == (every > 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("followed", [(False, False), (False, True), (True, False)])
def test_a_run_goes_on_whoever_followed_its_epochs(followed: tuple[bool, bool], tmp_path):
    def fit(epochs: int, watch: bool, **options) -> tuple[StructuredSVM, DualityGap]:
        gap, fitted = DualityGap(1e-9), model()
        more = [LambdaCallback(on_train_batch_end=lambda *args: None)] if watch else []
        fitting = trainer(gap, *more, max_epochs=epochs, enable_checkpointing=False)
        fitting.fit(fitted, Words().by_gaps(), **options)
        fitting.save_checkpoint(tmp_path / "run.ckpt")
        assert (fitting.current_epoch, fitted.dual.moved) == (epochs, epochs * N)
        return fitted, gap

    _, first = fit(7, followed[0])
    (tmp_path / "run.ckpt").rename(tmp_path / "first.ckpt")
    again = [fit(60, followed[1], ckpt_path=tmp_path / "first.ckpt", weights_only=True) for _ in range(2)]
    assert figures(again[0][1].certificate) == figures(again[1][1].certificate)
    assert again[0][1].history[: len(first.history)] == first.history


def test_the_head_is_solved_at_once_after_joint_training(calls):
    torch.manual_seed(0)
    joint = StructuredSVM(
        LinearChain(5, 3), lam=0.1, features=torch.nn.Linear(3, 5), joint=JointTraining(epochs=2, loss=StructuredHinge)
    )
    gap = DualityGap(Relative(0.1))
    fitting = trainer(gap, max_epochs=400, enable_checkpointing=False)
    fitting.fit(joint, Words().by_gaps())
    assert gap.certificate.relative_gap <= 0.1
    assert fitting.current_epoch == 2 + math.ceil(joint.dual.moved / N)
    assert calls[-1] == joint.dual.moved > N


class Killed(Exception):
    pass


class SaveAtValidation(Callback):
    """Saves in the last hook of an epoch, which Lightning has not counted yet."""

    def __init__(self, path) -> None:
        self.path = path

    def on_validation_end(self, trainer, pl_module) -> None:
        if not trainer.sanity_checking and not self.path.exists():
            trainer.save_checkpoint(self.path)


@pytest.mark.slow
@pytest.mark.parametrize("visits", [None, 1, 2, 5])
def test_a_run_that_was_cut_off_ends_with_the_same_bits(visits: int | None, tmp_path):
    """After so many visits, wherever these are in a call for several epochs; or saved by a validation."""
    loader, path = Words().everything(), tmp_path / "end.ckpt"

    def fit(stop: int | None = None, resume=None) -> StructuredSVM:
        fitted, gap = model(), DualityGap(1e-9)
        visit, made = fitted._visit, []

        def until(number) -> None:
            if len(made) == stop:
                raise Killed
            made.append(number)
            visit(number)

        fitted._visit = until
        save = SaveAtValidation(path) if visits is None else OnExceptionCheckpoint(tmp_path, "end")
        options = {"max_epochs": 40, "check_val_every_n_epoch": 10, "num_sanity_val_steps": 0}
        fitting = trainer(gap, save, enable_checkpointing=True, **options)
        fitting.fit(fitted, Words().by_gaps(), loader, ckpt_path=resume)
        return fitted

    whole = fit()
    if visits is not None:
        with pytest.raises(Killed):
            fit(visits)
    again = fit(resume=path)
    assert again.dual.moved == whole.dual.moved
    assert all(torch.equal(a, b) for a, b in zip(again.head.parameters(), whole.head.parameters(), strict=True))


def test_min_epochs_is_the_number_of_epochs_of_a_run_that_is_done_before():
    fitting = trainer(DualityGap(0.5), max_epochs=100, min_epochs=50, enable_checkpointing=False)
    fitting.fit(model(), Words().by_gaps())
    assert fitting.current_epoch == 50
