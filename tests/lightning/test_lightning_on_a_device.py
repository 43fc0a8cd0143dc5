"""Fits under ``Trainer(accelerator="gpu")``: the figures of the CPU, resumed runs, and heads that train on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

L = pytest.importorskip("lightning")

from cases.lightning_letters import trainer  # noqa: E402
from cases.problem_data import with_solver  # noqa: E402

from torchssvm import LinearChain, LinearMulticlass  # noqa: E402
from torchssvm.datasets import PaddedDataset  # noqa: E402
from torchssvm.lightning import AveragedWeights, DualityGap, JointTraining, StructuredSVM  # noqa: E402
from torchssvm.steps import CommonStep  # noqa: E402

pytestmark = pytest.mark.cuda


class Places(L.Callback):
    """Where features, head and batches were at the end of every training batch."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        batch_at = batch.y.device.type if hasattr(batch, "y") else "none"
        self.seen.append((pl_module.features.weight.device.type, pl_module.head.weight.device.type, batch_at))


def points(number=9):
    x = torch.randn(number, 4, generator=torch.Generator().manual_seed(0))
    return PaddedDataset(x, x[:, :3].argmax(1))


def fit(accelerator, callbacks, *, epochs=3, ckpt_path=None, data=None, **options):
    torch.manual_seed(0)
    data = points() if data is None else data
    model = StructuredSVM(LinearMulticlass(5, 3), 0.3, features=torch.nn.Linear(4, 5), **with_solver(**options))
    loaders = [DataLoader(data, batch_size=5, shuffle=shuffle, collate_fn=data.collate) for shuffle in (True, False)]
    run = trainer(*callbacks, max_epochs=epochs, accelerator=accelerator, devices=1)
    run.fit(model, *loaders, ckpt_path=ckpt_path)
    return model, run


LOOPS = {"torch loop": {"compiled": False, "block_steps": CommonStep()}, "compiled loop": {}}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_fit_has_the_figures_of_the_cpu(cuda, loop):
    figures = []
    for accelerator in ("cpu", "gpu"):
        gap, average = DualityGap(0.0, every_n_epochs=1), AveragedWeights(validate=True)
        model, run = fit(accelerator, [gap, average, places := Places()], epochs=2, **LOOPS[loop])
        certificates = gap.certificate, average.certify(run, model)
        figures.append([getattr(c, name) for c in certificates for name in ("primal", "dual", "passes")])
        figures[-1] += [float(run.callback_metrics["val_loss"])]
    assert figures[1] == pytest.approx(figures[0], rel=1e-4)
    assert set(places.seen) == {("cuda", "cpu" if loop == "compiled loop" else "cuda", "cuda")}
    assert model.decode(points().x).shape == (9,)  # the module is on the CPU again


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_a_fit_goes_on_from_a_checkpoint_to_the_same_bits(cuda, tmp_path, loop):
    file = tmp_path / "run.ckpt"
    rules = LOOPS[loop]
    _, run = fit("gpu", [DualityGap(0.0, every_n_epochs=1)], epochs=1, **rules)
    run.save_checkpoint(file)
    other, _ = fit("gpu", [gap := DualityGap(0.0, every_n_epochs=1)], epochs=2, ckpt_path=file, **rules)
    whole, _ = fit("gpu", [expected := DualityGap(0.0, every_n_epochs=1)], epochs=2, **rules)
    assert all(map(torch.equal, other.head.parameters(), whole.head.parameters()))
    assert gap.certificate.gap == expected.certificate.gap


def test_joint_training_then_solves_the_head_on_the_cpu(cuda):
    results = []
    for accelerator in ("cpu", "gpu"):
        gap = DualityGap(0.0, every_n_epochs=1)
        fit(accelerator, [gap, places := Places()], joint=JointTraining(epochs=1))
        results.append((gap.certificate.primal, gap.certificate.dual))
    assert results[1] == pytest.approx(results[0], rel=1e-3)
    assert places.seen == [("cuda", "cuda", "cuda")] * 2 + [("cuda", "cpu", "none")] * 4


def test_sequences_without_lengths_are_those_of_the_compiled_loop():
    """Batches of the loader have no lengths here, and the potentials of chains always have some."""
    x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    data = PaddedDataset(x, (x[..., 0] > 0).long())
    model = StructuredSVM(LinearChain(2, 2), lam=0.3)
    trainer(max_epochs=2, max_steps=3).fit(model, DataLoader(data, batch_size=2, collate_fn=data.collate))
    assert model.dual.steps == 6
