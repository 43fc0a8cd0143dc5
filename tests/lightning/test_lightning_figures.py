"""Figures of a fit are where callbacks, progress bars and loggers read them, and nobody else's are lost."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path

import pytest

L = pytest.importorskip("lightning")

from cases.lightning_chains import MODELS, Words, trainer  # noqa: E402
from lightning.pytorch.callbacks import Callback, TQDMProgressBar  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from torchssvm import LinearChain  # noqa: E402
from torchssvm.lightning import DualityGap, StructuredSVM  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


class Bar(TQDMProgressBar):
    """What it shows at the end of every epoch, and in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[dict] = []

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        self.shown.append(self.get_metrics(trainer, pl_module))

    def on_fit_end(self, trainer, pl_module) -> None:
        self.shown.append(self.get_metrics(trainer, pl_module))


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("every", [3, None])
@pytest.mark.parametrize("name", MODELS)
def test_the_last_figures_are_those_of_the_last_certificate(name: str, every: int | None, logged: bool, tmp_path: Path):
    gap, bar = DualityGap(1e-9, every_n_epochs=every), Bar()
    fitting = trainer(
        bar, gap, enable_progress_bar=True, enable_checkpointing=False, logger=logged and CSVLogger(tmp_path)
    )
    fitting.fit(MODELS[name](), Words().training())
    last = gap.certificate
    for figure in ("gap", "primal", "dual", "passes", "oracle_calls"):
        assert float(fitting.callback_metrics[figure]) == pytest.approx(getattr(last, figure), rel=1e-6), figure
    in_bar = {"violation", "gap", "passes"} if name == "factorwise" else {"dual", "gap", "passes"}
    assert set(bar.shown[-1]) - {"v_num"} == in_bar
    for figure in in_bar - {"violation"}:
        assert bar.shown[-1][figure] == pytest.approx(getattr(last, figure), rel=1e-6), figure
    if name != "factorwise":
        duals = [shown["dual"] for shown in bar.shown]
        assert len(duals) == 8
        assert duals == pytest.approx(sorted(duals), rel=1e-6)  # certificates sum in another order
        assert duals[0] < duals[-1]


@pytest.mark.parametrize("compiled", [None, False])
def test_loggers_get_the_figures_of_every_epoch(compiled: bool | None, tmp_path: Path):
    gap = DualityGap(1e-9, every_n_epochs=2)
    logger = CSVLogger(tmp_path)
    fitting = trainer(gap, logger=logger, enable_checkpointing=False, max_epochs=4, log_every_n_steps=1)
    fitting.fit(MODELS["torch" if compiled is False else "compiled"](), Words().by_gaps())
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").open()))
    assert [float(row["gap_age"]) for row in rows if row.get("gap_age")] == [0.0, 0.0, 1.0, 0.0]
    gaps = [float(row["gap"]) for row in rows if row.get("gap")]
    assert gaps[-1] == pytest.approx(gap.certificate.gap, rel=1e-6)
    assert {float(row["epoch"]) for row in rows if row.get("dual")} == {0.0, 1.0, 2.0, 3.0}


class Mine(StructuredSVM):
    """Logs figures of its own."""

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.log("mine", float(self.current_epoch), prog_bar=True)


class Theirs(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        pl_module.log("theirs", float(trainer.global_step), on_step=True, on_epoch=False)


@pytest.mark.parametrize("logger", [False, True])
def test_what_users_log_stays(logger: bool, tmp_path: Path):
    gap, model = DualityGap(1e-9), Mine(LinearChain(3, 3), lam=0.1)
    fitting = trainer(Theirs(), gap, enable_checkpointing=False, max_epochs=3, logger=logger and CSVLogger(tmp_path))
    fitting.fit(model, Words().by_gaps())
    figures = {name: float(value) for name, value in fitting.callback_metrics.items()}
    assert figures["mine"] == 2.0
    assert figures["theirs"] == fitting.global_step
    assert figures["gap"] == pytest.approx(gap.certificate.gap, rel=1e-6)
    assert fitting.progress_bar_metrics["mine"] == 2.0
    assert fitting.logged_metrics["mine"] == 2.0
    assert pickle.loads(pickle.dumps(model)).lam == 0.1
