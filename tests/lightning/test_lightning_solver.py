"""The solver of a fit: chosen, given rule by rule, or as one object."""

from __future__ import annotations

import warnings

import pytest

L = pytest.importorskip("lightning")

from cases.constant_column import Rows  # noqa: E402
from cases.lightning_chains import Words, svm, trainer  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from torchssvm import (  # noqa: E402
    CacheOracle,
    Corrective,
    Labelings,
    LinearChain,
    LinearMulticlass,
    MeanParts,
    Pairwise,
    Relative,
    Uniform,
    Weights,
)
from torchssvm.lightning import DualityGap, StructuredSVM  # noqa: E402
from torchssvm.solvers import EveryPasses, choice  # noqa: E402
from torchssvm.steps import BoxQP  # noqa: E402


def fitted(epochs: int = 3, compiled: bool | None = None, **rules):
    model, gap = svm(compiled, **rules), DualityGap(1e-9, every_n_epochs=1)
    trainer(gap, max_epochs=epochs, enable_checkpointing=False).fit(model, Words().by_gaps())
    return model, gap.certificate


def test_nothing_said_is_the_compiled_loop_with_the_cache(capsys, monkeypatch):
    monkeypatch.setattr(choice, "_told", set())
    model, certificate = fitted()
    assert model._run.compiled
    assert isinstance(model.rules.direction, Corrective)
    assert isinstance(model.rules.oracle, CacheOracle)
    assert isinstance(model.dual.storage, Labelings)
    fitted()
    assert capsys.readouterr().err.count("solver: compiled loop, Corrective") == 1
    assert certificate.gap == pytest.approx(certificate.primal - certificate.dual, abs=1e-9)


def test_what_is_not_given_fits_what_is():
    for rules in ({"direction": Pairwise()}, {"storage": MeanParts()}, {"block_steps": BoxQP(2)}):
        model, _ = fitted(**rules)
        assert model._run.compiled == ("block_steps" not in rules)
    model, _ = fitted(storage=Labelings(capacity=7))
    assert isinstance(model.rules.direction, Corrective)  # what is not given fits what is
    assert model.dual.storage.capacity == 7


@pytest.mark.parametrize(
    ("make", "options", "error", "name"),
    [
        (StructuredSVM, {"head": LinearChain(3, 3), "lam": 0.1, "solver": "fast"}, TypeError, "solver"),
        (svm, {"seed": 1}, ValueError, "seed"),
        (svm, {"order": Uniform()}, ValueError, "order"),
        (svm, {"batch_size": 4}, ValueError, "batch_size"),
        (svm, {"schedule": EveryPasses()}, ValueError, "schedule"),
        (svm, {"compiled": 0}, TypeError, "compiled"),
        (svm, {"compiled": True, "storage": Weights()}, ValueError, "storage=Weights"),
    ],
)
def test_solvers_that_do_not_fit_are_refused(make, options, error, name):
    with pytest.raises(error, match=name):
        make(**options)


def test_a_run_goes_on_whatever_memory_is_free(tmp_path, monkeypatch):
    model = svm(None)
    first = trainer(DualityGap(1e-9, every_n_epochs=1), max_epochs=2, enable_checkpointing=False)
    first.fit(model, Words().by_gaps())
    first.save_checkpoint(tmp_path / "run.ckpt")
    monkeypatch.setattr(choice._Fits, "__call__", lambda self, storage: not isinstance(storage, Labelings))
    again = svm(None)
    gap = DualityGap(1e-9, every_n_epochs=1)
    trainer(gap, max_epochs=4, enable_checkpointing=False).fit(
        again, Words().by_gaps(), ckpt_path=tmp_path / "run.ckpt"
    )
    assert isinstance(again.dual.storage, Labelings)
    assert again._run.compiled
    monkeypatch.undo()
    _, certificate = fitted(4)
    assert gap.certificate.gap == certificate.gap


def test_the_end_is_one_per_cent_of_the_primal():
    gap, model = DualityGap(), svm(None)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the run ended")
        trainer(gap, max_epochs=1000, enable_checkpointing=False).fit(model, Words().by_gaps())
    assert gap.tolerance == Relative(0.01)
    assert gap.certificate.relative_gap <= 0.01
    assert "tolerance 1 % of the primal" in gap.stopped_because
    with pytest.warns(UserWarning, match=r"the run ended far from the optimum: the gap, .* % of the primal"):
        trainer(DualityGap(), max_epochs=1, enable_checkpointing=False).fit(svm(False), Words().by_gaps())


@pytest.mark.parametrize("value", [1.0, 60.0])
def test_a_large_constant_column_is_named_before_the_fit(value):
    rows = Rows(value)
    model = StructuredSVM(LinearMulticlass(6, 3), lam=1 / len(rows))
    fitting = L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fitting.fit(model, DataLoader(rows, batch_size=20, collate_fn=rows.collate))
    assert sum("column 5 is about 60" in str(each.message) for each in warned) == (value > 1.0)
