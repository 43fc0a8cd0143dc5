"""GDMM under a Trainer: visits by batches, stops on gap and violation, resumes to the same bits, reports."""

import copy
import json
import signal
from pathlib import Path

import lightning as L
import pytest
import torch
from cases.lightning_chains import Words
from cases.lightning_chains import trainer as quiet
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import GDMM, LinearChain, LinearMultilabel, Relative
from torchssvm.datasets import PaddedDataset
from torchssvm.lightning import DualityGap, FactorwiseSVM, Report
from torchssvm.solvers.gdmm import FactorwiseCertificate


def loader(data: Words, **options: object) -> DataLoader:
    return DataLoader(data, batch_size=5, collate_fn=data.collate, **options)  # type: ignore[arg-type]


def trainer(epochs: int, *callbacks: L.Callback) -> L.Trainer:
    return quiet(*callbacks, max_epochs=epochs, enable_checkpointing=False)


def weights(module: FactorwiseSVM) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.head.parameters()])


@pytest.mark.slow
def test_stops_on_gap_and_violation_and_reports(tmp_path: Path) -> None:
    data = Words()
    gap = DualityGap(tolerance=0.02, every_n_epochs=10, violation=0.005)
    module = FactorwiseSVM(LinearChain(3, 3), lam=0.1)
    report = Report(tmp_path / "report")
    trainer(2000, gap, report).fit(module, loader(data), loader(data))
    certificate = gap.certificate
    assert isinstance(certificate, FactorwiseCertificate)
    assert certificate.gap <= 0.02
    assert certificate.violation <= 0.005
    assert certificate.passes < 2000
    assert gap.stopped_because is not None
    assert "violation" in gap.stopped_because
    written = json.loads((tmp_path / "report" / "report.json").read_text())
    assert written["gap"] == pytest.approx(certificate.gap)
    assert written["n"] == len(data)


def test_stops_at_a_share_of_the_primal() -> None:
    data, gap = Words(), DualityGap(tolerance=Relative(0.1), every_n_epochs=10, violation=0.05)
    trainer(2000, gap).fit(FactorwiseSVM(LinearChain(3, 3), lam=0.1), loader(data))
    certificate = gap.certificate
    assert isinstance(certificate, FactorwiseCertificate)
    assert certificate.relaxed_gap <= 0.1 * certificate.relaxed_primal
    assert certificate.passes < 2000
    assert "<= tolerance 10 % of the primal" in str(gap.stopped_because)


def test_label_sets_stop_on_the_gap_of_the_relaxation_and_show_both(tmp_path: Path) -> None:
    random, shown = torch.Generator().manual_seed(3), {}
    x = torch.randn(12, 3, generator=random)
    scores = x @ torch.randn(3, 5, generator=random) + 0.7 * torch.randn(12, 5, generator=random)
    data = PaddedDataset(x, nn.functional.one_hot(scores.argmax(1), 5))  # they exclude each other: the bound is loose
    gap = DualityGap(tolerance=0.003, every_n_epochs=5, violation=0.02)
    report = Report(tmp_path / "report")

    class Bar(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            shown.update(trainer.logged_metrics)

    fit = trainer(500, gap, Bar(), report)
    fit.fit(FactorwiseSVM(LinearMultilabel(3, 5), lam=0.1), loader(data))
    last = gap.certificate
    assert isinstance(last, FactorwiseCertificate)
    assert last.has_relaxation
    assert last.relaxed_gap <= 0.003 < last.gap
    assert last.violation <= 0.02
    assert last.exact
    bar = fit.progress_bar_metrics
    assert bar["gap"] == pytest.approx(last.gap, rel=1e-6)
    assert bar["relaxed_gap"] == pytest.approx(last.relaxed_gap, rel=1e-6)
    for name in ("gap", "dual", "relaxed_primal", "relaxed_dual", "relaxed_gap"):
        assert float(fit.callback_metrics[name]) == pytest.approx(getattr(last, name), rel=1e-6)
    assert shown["relaxed_gap"] == pytest.approx(last.relaxed_gap, rel=1e-6)
    again = DualityGap()
    again.load_state_dict(copy.deepcopy(gap.state_dict()))
    assert [entry.certificate for entry in again.history] == [entry.certificate for entry in gap.history]


def test_batches_in_order_are_the_plain_loop() -> None:
    data = Words()
    module = FactorwiseSVM(LinearChain(3, 3), lam=0.1)
    trainer(4).fit(module, loader(data))
    head = LinearChain(3, 3)
    plain = GDMM(head, loader(data), num_examples=len(data), lam=0.1)
    for _ in range(4):
        plain.visit(torch.arange(len(data)))
        plain.step()  # nothing is left to visit
    assert plain.passes == module.gdmm.passes == 4
    assert torch.equal(weights(module), torch.cat([p.detach().flatten() for p in head.parameters()]))


def test_resumes_to_the_same_bits(tmp_path: Path) -> None:
    data = Words()
    modules = [FactorwiseSVM(LinearChain(3, 3), lam=0.1) for _ in range(3)]
    trainer(7).fit(modules[0], loader(data))
    first = trainer(3)
    first.fit(modules[1], loader(data))
    first.save_checkpoint(tmp_path / "third.ckpt", weights_only=False)
    trainer(7).fit(modules[2], loader(data), ckpt_path=tmp_path / "third.ckpt", weights_only=True)
    assert modules[2].gdmm.passes == 7
    assert torch.equal(weights(modules[0]), weights(modules[2]))
    assert modules[0].gdmm.certify().gap == modules[2].gdmm.certify().gap


def test_leftover_examples_are_visited_at_the_end_of_a_pass() -> None:
    data = Words()
    module = FactorwiseSVM(LinearChain(3, 3), lam=0.1)
    trainer(2).fit(module, loader(data, drop_last=True))
    assert module.gdmm.passes == 2
    every = module.gdmm.problem.duals.variables.mass  # type: ignore[attr-defined]
    assert float((every != 1.0).sum()) > 0
    assert module.gdmm.certify().gap > 0.0


def test_features_below_are_frozen_and_decode(tmp_path: Path) -> None:
    data = Words()
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Tanh())
    before = features[0].weight.detach().clone()
    module = FactorwiseSVM(LinearChain(5, 3), lam=0.01, features=features)
    fit = trainer(30)
    fit.fit(module, loader(data))
    assert torch.equal(features[0].weight, before)
    assert features[0].weight.requires_grad
    labels = module.decode(data.x, torch.full((len(data),), 4))
    assert float((labels == data.y).double().mean()) > 0.9
    figures = fit.validate(module, loader(data), verbose=False)[0]
    assert figures["val_token_error"] < 0.1
    fit.save_checkpoint(tmp_path / "features.ckpt")
    again = FactorwiseSVM(LinearChain(5, 3), lam=0.01, features=nn.Sequential(nn.Linear(3, 5), nn.Dropout(), nn.Tanh()))
    trainer(31).fit(again, loader(data), ckpt_path=tmp_path / "features.ckpt")
    assert again.gdmm.passes == 31
    assert again.gdmm.certify().drift < 1e-4


@pytest.mark.parametrize("cut_off", [ArithmeticError, KeyboardInterrupt])
def test_features_below_are_as_they_were_after_a_fit_that_is_cut_off(cut_off: type[BaseException]) -> None:
    features, seen = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4)), []
    features[0].bias.requires_grad_(False)
    before = [p.requires_grad for p in features.parameters()]
    kept = copy.deepcopy(features.state_dict())

    class Cut(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: object) -> None:
            seen.append(any(p.grad is not None for p in features.parameters()))
            raise cut_off

    module = FactorwiseSVM(LinearChain(4, 3), lam=0.1, features=features)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((ArithmeticError, SystemExit)):  # Lightning exits after Ctrl-C
            trainer(1, Cut()).fit(module, loader(Words()))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert seen == [False]
    assert [p.requires_grad for p in features.parameters()] == before
    assert all(torch.equal(value, kept[name]) for name, value in features.state_dict().items())
    trainer(1).fit(module, loader(Words()))
    assert [p.requires_grad for p in features.parameters()] == before
