"""The bar of one line, under a Trainer."""

import sys

import pytest
import torch

pytest.importorskip("lightning")

from cases.lightning_words import Features, chain, everything, loader, some_words, trainer
from cases.trainer_cases import FakeStream
from torch.utils.data import DataLoader

from torchssvm import LinearChain, LinearMultilabel
from torchssvm.datasets import PaddedDataset
from torchssvm.lightning import DualityGap, FactorwiseSVM, GapBar, JointTraining, StructuredSVM


def fit(monkeypatch, model, *callbacks, terminal=True, batches=loader, **options):
    stream = FakeStream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("torchssvm.solvers.trainer.EVERY", 0.0)
    trainer(*callbacks, enable_progress_bar=True, **options).fit(model, batches(some_words()))
    return stream.getvalue()


@pytest.mark.parametrize("bar_first", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_has_one_line_that_ends_with_its_certificate(monkeypatch, bar_first, compiled):
    gap, bar = DualityGap(0.3, every_n_epochs=2), GapBar()
    text = fit(monkeypatch, chain(compiled=compiled), *((bar, gap) if bar_first else (gap, bar)), max_epochs=50)
    lines = [line for line in text.split("\n") if "\r" in line]
    assert len(lines) == 1
    shown = lines[0].split("\r")
    assert all(len(line) < 80 for line in shown)
    assert any("gap ~" in line for line in shown)
    last = gap.certificate
    assert f"gap {last.gap:.3g} (" in shown[-1]
    assert f"dual {last.dual:.4g}  passes {last.passes:.4g}" in shown[-1]
    for entry in gap.history:
        assert f"gap {entry.certificate.gap:.3g} (" in text


def test_the_bar_changes_no_bit(monkeypatch):
    gaps = []
    for terminal in (True, False):
        model, gap = chain(), DualityGap(1e-9, every_n_epochs=2)
        if terminal:
            fit(monkeypatch, model, gap, GapBar(), max_epochs=4)
        else:
            trainer(gap, max_epochs=4).fit(model, loader(some_words()))
        gaps.append((gap.certificate.gap, [p.detach().clone() for p in model.head.parameters()]))
    assert gaps[0][0] == gaps[1][0]
    assert all(torch.equal(a, b) for a, b in zip(gaps[0][1], gaps[1][1], strict=True))


def test_joint_training_shows_epoch_and_loss_and_then_the_gap(monkeypatch):
    joint = JointTraining(epochs=2, lr=1e-2)
    model = StructuredSVM(LinearChain(12, 26), 0.1, Features(), joint=joint)
    text = fit(monkeypatch, model, DualityGap(0.5), GapBar(), max_epochs=30)
    assert "epoch 1  joint_loss" in text
    assert "gap " in text.rpartition("\r")[2]


def test_factorwise_runs_of_label_sets_show_both_gaps(monkeypatch):
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    data = PaddedDataset(x, torch.nn.functional.one_hot(torch.arange(12) % 4, 4))  # one label each: a loose relaxation
    gap = DualityGap(1e-3, every_n_epochs=5)
    text = fit(
        monkeypatch,
        FactorwiseSVM(LinearMultilabel(3, 4), 0.1),
        gap,
        GapBar(),
        batches=lambda _: DataLoader(data, batch_size=12, collate_fn=data.collate),
        max_epochs=200,
    )
    last = gap.certificate
    assert last.relaxed_gap <= 1e-3 < last.gap
    assert f"gap {last.gap:.3g} (" in text.rpartition("\r")[2]
    assert f"  relaxed gap {last.relaxed_gap:.3g} (" in text.rpartition("\r")[2]
    assert "~" not in text  # GDMM estimates no gap


def test_factorwise_runs_of_chains_show_the_gap_that_ends_them(monkeypatch):
    gap = DualityGap(1e-9, every_n_epochs=2)
    model = FactorwiseSVM(LinearChain(128, 26, boundary=False), 0.1)
    text = fit(monkeypatch, model, gap, GapBar(), batches=everything, max_epochs=3)
    assert f"gap {gap.certificate.relaxed_gap:.3g} (" in text.rpartition("\r")[2]


def test_an_interrupt_and_a_disabled_bar_leave_whole_lines(monkeypatch):
    class Interrupt(GapBar):
        def on_train_epoch_end(self, trainer, pl_module):
            super().on_train_epoch_end(trainer, pl_module)
            if trainer.current_epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(monkeypatch, chain(), DualityGap(1e-9, every_n_epochs=1), Interrupt(), max_epochs=5)
    assert [line for line in sys.stderr.getvalue().split("\n") if "\r" in line][-1].endswith(" s")
    bar = GapBar()
    bar.disable()
    assert "\r" not in fit(monkeypatch, chain(), DualityGap(1e-9, every_n_epochs=1), bar, max_epochs=2)
