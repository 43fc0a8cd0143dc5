"""Fixed features under a Trainer: kept once, and visited by the compiled loop wherever that is possible."""

from __future__ import annotations

import pytest
import torch
from cases.lightning_letters import Features, chain, everything, loader, some_words, trainer
from cases.problem_data import with_solver
from torch.utils.data import DataLoader

from torchssvm import (
    CompiledBCFW,
    DualState,
    FrankWolfe,
    GapBatchSampler,
    LinearChain,
    LinearMulticlass,
    MeanParts,
    SlackRescaling,
    Solver,
    Weights,
    certify,
)
from torchssvm.core.batch import Batch
from torchssvm.datasets.padded import PaddedDataset
from torchssvm.lightning import DualityGap, StructuredSVM, training_batches
from torchssvm.lightning.training_batches import EpochPart
from torchssvm.steps import ShortStep

L = pytest.importorskip("lightning")


@pytest.fixture(scope="module")
def words() -> PaddedDataset:
    return some_words()


@pytest.fixture
def visits(monkeypatch):
    """How many examples the compiled loop visited."""
    seen: list[int] = []
    visit = CompiledBCFW._visit

    def spy(self, *args, **options):
        seen.append(visit(self, *args, **options))
        return seen[-1]

    monkeypatch.setattr(CompiledBCFW, "_visit", spy)
    return seen


def one_by_one(words) -> DataLoader:
    return DataLoader(words, batch_size=1, collate_fn=words.collate)


def test_batches_of_one_give_the_weights_of_the_torch_loop(words, visits):
    models = [chain(compiled=compiled, storage=MeanParts()) for compiled in (None, False)]
    for model in models:
        gap = DualityGap(1e-9, every_n_epochs=2)
        trainer(gap, max_epochs=4).fit(model, one_by_one(words))
        assert gap.certificate.drift < 1e-5
    assert visits == [1] * 4 * len(words)
    compiled, plain = (model.dual for model in models)
    assert (compiled.steps, compiled.oracle_calls, compiled.visits) == (plain.steps, plain.oracle_calls, plain.visits)
    for here, there in zip(compiled.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-4)
    assert models[0].trainer.global_step == models[1].trainer.global_step == 4 * len(words)


def test_frozen_features_are_computed_once(words, visits):
    torch.manual_seed(0)
    features = Features()
    calls = []
    features.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    model = StructuredSVM(features=features, head=LinearChain(12, 26), lam=0.1)
    trainer(DualityGap(1e-9, every_n_epochs=1), max_epochs=3).fit(model, loader(words))
    assert len(words) < sum(calls) <= 16 + len(words)  # a few say how much memory all of them take
    assert sum(visits) == 3 * len(words)
    certificate = certify(model, model.dual, everything(words))
    assert certificate.drift < 1e-5


OBSTACLES = {
    "compiled": {"compiled": False},
    "bounds": {"bounds": {"transition": (0.0, None)}},
    "line_search": {"line_search": ShortStep()},
    "storage": {"storage": Weights()},
    "structure": {"structure": SlackRescaling(LinearChain(128, 26).structure)},
    "head": {"head": LinearChain(128, 26, positions=15)},
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_the_torch_loop_does_what_is_not_compiled(name, words, visits):
    options = {"head": LinearChain(128, 26), "lam": 0.1} | OBSTACLES[name]
    model = StructuredSVM(**with_solver(**options))
    trainer(max_epochs=2).fit(model, loader(words))
    assert not visits
    assert model.dual.steps > 0
    if name != "compiled":
        with pytest.raises(ValueError, match=f"compiled=True.*{name}"):
            StructuredSVM(**with_solver(compiled=True, **options))


def test_features_that_would_not_fit_are_computed_again_and_again(words, visits, monkeypatch):
    monkeypatch.setattr("torchssvm.solvers.choice.available_memory", lambda device: 10)
    model = chain()
    trainer(max_epochs=1).fit(model, loader(words))
    assert not visits
    assert model.dual.moved == len(words)
    with pytest.raises(MemoryError, match=r"the features of 30 examples .* use compiled=False"):
        trainer(max_epochs=1).fit(chain(compiled=True), loader(words))


def test_an_epoch_is_a_few_batches_without_data(words, visits, monkeypatch):
    """The steps of ``CompiledBCFW.solve``, with the order and the seed of the loader's sampler."""
    monkeypatch.setattr(training_batches, "WHOLE", 1000)
    n = 4001
    random = torch.Generator().manual_seed(0)
    data = PaddedDataset(torch.randn(n, 3, generator=random), torch.randint(3, (n,), generator=random))
    seen = []

    class Watch(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.append(batch)

    sampler = GapBatchSampler(num_examples=n, batch_size=16, seed=7)
    model = StructuredSVM(LinearMulticlass(3, 3), lam=0.01, solver=Solver(FrankWolfe(), storage=MeanParts()))
    gap = DualityGap(1e-9, every_n_epochs=2)
    training = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
    trainer(Watch(), gap, max_epochs=2).fit(model, training)
    assert seen == [EpochPart(1000), EpochPart(1000), EpochPart(1000), EpochPart(1001)] * 2
    assert sum(visits[:4]) == n

    head = LinearMulticlass(3, 3)
    alone = CompiledBCFW(
        head, DualState.for_head(head, n, 0.01), DataLoader(data, batch_size=500, collate_fn=data.collate), seed=7
    )
    for epoch in range(2):
        for part in seen[4 * epoch : 4 * epoch + 4]:
            alone.step(part.visits)
        alone.certify()
    assert all(torch.equal(a, b) for a, b in zip(model.head.parameters(), head.parameters(), strict=True))


@pytest.mark.parametrize(
    "options",
    [{"max_steps": 5}, {"limit_train_batches": 0.5}, {"val_check_interval": 0.5}, {"overfit_batches": 2}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.filterwarnings("ignore:You requested to overfit")
def test_who_counts_batches_gets_those_of_the_loader(options, words, visits):
    kinds = set()

    class Watch(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            kinds.add(type(batch))

    trainer(Watch(), **({"max_epochs": 1} | options)).fit(chain(), loader(words), everything(words))
    assert kinds == {Batch}
    assert set(visits) == {3}


def test_an_index_in_the_batch_is_refused(words):
    """It names other examples than those that the dataset has in its place."""

    def collate(items):
        batch = words.collate(items)
        return batch.replace(index=torch.arange(len(batch.index)))

    training = DataLoader(words, batch_size=10, collate_fn=collate)  # in their order, so the loader's batches are used
    with pytest.raises((RuntimeError, ValueError), match="index"):
        trainer(max_epochs=3).fit(chain(), training)


def test_a_run_in_the_middle_of_an_epoch_goes_on_with_the_same_draws(words, tmp_path, monkeypatch):
    class Save(L.Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 2:
                trainer.save_checkpoint(tmp_path / "run.ckpt")

    monkeypatch.setattr(training_batches, "WHOLE", 8)
    for save, options in (("parts", {"compiled": False}), ("loader", {"compiled": None})):
        before = {"compiled": None} if save == "parts" else {"compiled": False}
        trainer(Save(), max_epochs=1).fit(chain(**before), loader(words))
        if save == "parts":
            with pytest.raises(ValueError, match="compiled=None"):
                trainer(max_epochs=2).fit(chain(**options), loader(words), ckpt_path=tmp_path / "run.ckpt")
        else:  # it goes on with the batches of the loader
            model = chain(**options)
            trainer(max_epochs=2).fit(model, loader(words), ckpt_path=tmp_path / "run.ckpt")
            assert model.dual.moved == 2 * len(words)
