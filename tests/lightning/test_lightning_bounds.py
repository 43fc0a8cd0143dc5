"""Bounds under a Lightning Trainer."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("lightning")

from cases.items import with_solver
from cases.lightning_words import everything, loader, trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from torchssvm import BCFW, BlockGap, DualState, LinearChain, MeanParts, certify
from torchssvm.datasets import OCR, PaddedDataset
from torchssvm.lightning import AveragedWeights, DualityGap, StructuredSVM

WORDS = 12
BOUNDS = {"transition": (0.0, None), "emission": (-0.02, 0.02)}

pytestmark = [
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]


@pytest.fixture(scope="module")
def words() -> PaddedDataset:
    ocr = OCR()
    return PaddedDataset(ocr.x[:WORDS], ocr.y[:WORDS], ocr.lengths[:WORDS])


def svm(**options) -> StructuredSVM:
    return StructuredSVM(LinearChain(128, 26), lam=0.1, **with_solver(**{"bounds": BOUNDS} | options))


def test_the_trainer_does_what_the_plain_loop_does(words):
    gap = DualityGap(1e-9, every_n_epochs=2)
    model = svm(storage=MeanParts())
    trainer(gap, max_epochs=4).fit(model, loader(words))
    assert (model.head.transition >= 0).all()
    assert model.head.emission.min() == torch.tensor(-0.02)
    assert model.head.emission.max() == torch.tensor(0.02)

    head = LinearChain(128, 26)
    dual = DualState.for_head(head, WORDS, 0.1)
    groups = [{"params": [p for p in head.parameters() if p is not head.transition and p is not head.emission]}]
    groups += [{"params": [getattr(head, name)], "lower": low, "upper": high} for name, (low, high) in BOUNDS.items()]
    optim, loss = BCFW(groups, dual), BlockGap(dual)
    batches = loader(words)
    batches.batch_sampler.bind(dual)
    for epoch in range(4):
        for batch in batches:
            optim.zero_grad()
            loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
            optim.step()
        if epoch % 2 or not epoch:
            found = certify(head, dual, everything(words))
    assert found.primal == pytest.approx(gap.certificate.primal, abs=1e-7)
    assert found.dual == pytest.approx(gap.certificate.dual, abs=1e-7)
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), model.head.parameters(), strict=True))
    assert 0.0 < found.gap < 1.0


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(words, tmp_path):
    whole = svm()
    trainer(DualityGap(1e-9, every_n_epochs=1), max_epochs=4).fit(whole, loader(words))
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=True, every_n_epochs=1, save_on_train_epoch_end=True)
    quit = trainer(DualityGap(1e-9, every_n_epochs=1), saving, max_epochs=2, enable_checkpointing=True)
    quit.fit(svm(), loader(words))
    resumed, last = svm(), tmp_path / "last.ckpt"
    fitting = trainer(DualityGap(1e-9, every_n_epochs=1), max_epochs=4)
    fitting.fit(resumed, loader(words), ckpt_path=last, weights_only=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(whole.dual.unclipped, resumed.dual.unclipped, strict=True))

    with pytest.raises(ValueError, match="parameter groups"):
        trainer(max_epochs=4).fit(svm(bounds=None), loader(words), ckpt_path=last)
    with pytest.raises(ValueError, match="other bounds"):
        trainer(max_epochs=4).fit(svm(bounds=BOUNDS | {"transition": (0.0, 1.0)}), loader(words), ckpt_path=last)
    loaded = StructuredSVM.load_from_checkpoint(last, head=LinearChain(128, 26), weights_only=True)
    assert loaded.solver.bounds == BOUNDS
    assert (loaded.head.transition >= 0).all()


@pytest.mark.slow
def test_the_average_is_certified_within_its_bounds(words):
    average, model = AveragedWeights(), svm(storage=MeanParts())
    fitting = trainer(average, max_epochs=12)
    fitting.fit(model, loader(words))
    lower = torch.tensor(-0.02).double()
    assert average.weights[0].min() >= lower
    assert average.weights[1].min() >= 0.0
    found = average.certify(fitting, model)
    best = DualityGap(1e-3, every_n_epochs=20)
    trainer(best, max_epochs=100).fit(svm(), loader(words))
    assert found.gap > 0.0
    assert found.dual <= best.certificate.primal
    assert found.primal >= best.certificate.dual
    with average.applied(model):
        assert certify(model, model.dual, everything(words), refresh=False).primal == pytest.approx(found.primal)


@pytest.mark.parametrize(
    ("bounds", "error", "words"),
    [
        ({"pairs": (0.0, None)}, ValueError, "bounds['pairs']"),
        ({"transition": 0.0}, ValueError, "bounds['transition']"),
        ({"transition": ("0", None)}, TypeError, "lower"),
    ],
)
def test_bounds_that_make_no_sense(bounds, error, words):
    with pytest.raises(error, match=re.escape(words)):
        svm(bounds=bounds)


def test_bounds_in_a_configuration_file(tmp_path):
    """As the command line reads them."""
    jsonargparse = pytest.importorskip("jsonargparse")
    parser = jsonargparse.ArgumentParser()
    parser.add_class_arguments(StructuredSVM, "model")
    (tmp_path / "svm.yaml").write_text(
        "head: {class_path: torchssvm.LinearChain, init_args: {in_features: 4, num_states: 2}}\n"
        "lam: 0.1\n"
        "solver:\n"
        "  bounds: {transition: [0.0, null]}\n"
        "  line_search: {class_path: torchssvm.steps.ShortStep}\n"
    )
    make = getattr(parser, "instantiate", None) or parser.instantiate_classes  # the name of older versions
    model = make(parser.parse_args([f"--model={tmp_path / 'svm.yaml'}"])).model
    assert model.solver.bounds == {"transition": (0.0, None)}
    assert repr(model.rules.line_search) == "ShortStep()"
