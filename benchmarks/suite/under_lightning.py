"""The same run to a certified gap: by ``CompiledBCFW.solve`` with corrective steps and a cache, which
``StructuredSVM`` chooses under a Lightning Trainer.

CPU seconds from the datasets in memory to the certificate, in processes that have trained a little before, so that
nothing is compiled. Lightning shows its progress bar.
"""

from __future__ import annotations

import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from torchssvm import CacheOracle, CompiledBCFW, Corrective, DualState, Labelings, in_order
from torchssvm.datasets import OCR, CoNLL2000
from torchssvm.models import chunking_chain, ocr_chain
from torchssvm.steps.sampler import GapBatchSampler

from .measuring import Ask, Limit, Settings, Summary, Table, chosen, in_turn

TITLE = "Under a Lightning Trainer"
SECONDS, PASSES = {"OCR-small": 1.8}, 1.1  # of short epochs, Lightning's loop takes a good part
USUAL_SECONDS = 1.3
OPTIONS: dict[str, Any] = {  # lam and gap
    "problems": {"OCR-small": [0.03, 0.003], "OCR-large": [0.001, 0.05], "CoNLL-2000": [0.02, 0.005]}
}
QUICK = {"problems": {"OCR-small": [0.01, 0.3]}}


def read(problem: str) -> tuple[Any, Any]:
    """The training set, and what makes a head."""
    if problem == "CoNLL-2000":
        data = CoNLL2000("train", min_count=3)
        return data, lambda: chunking_chain(data.in_features, data.num_states, normalize=True)
    return OCR("train", size="large" if problem == "OCR-large" else "small"), ocr_chain


def alone(problem: str, lam: float, gap: float) -> dict[str, float]:
    """By ``CompiledBCFW.solve``."""
    data, make = read(problem)

    def train(data: Any, gap: float) -> Any:
        head = make()
        dual = DualState.for_head(head, len(data), lam, storage=Labelings())
        return CompiledBCFW(head, dual, in_order(data), direction=Corrective(), oracle=CacheOracle()).solve(gap)

    train(_few(data), 0.5)
    start = time.process_time()
    certificate = train(data, gap)
    return {"seconds": time.process_time() - start, "passes": certificate.passes, "gap": certificate.gap}


def trained(problem: str, lam: float, gap: float) -> dict[str, float]:
    """By a Trainer."""
    import lightning as L

    from torchssvm.lightning import DualityGap, StructuredSVM

    warnings.simplefilter("ignore")
    data, make = read(problem)

    def train(data: Any, gap: float) -> Any:
        model, end = StructuredSVM(make(), lam=lam), DualityGap(gap)
        sampler = GapBatchSampler(num_examples=len(data), batch_size=32)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=10**6,
            callbacks=[end],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(model, DataLoader(data, batch_sampler=sampler, collate_fn=data.collate))
        return end.certificate

    train(_few(data), 0.5)
    start = time.process_time()
    certificate = train(data, gap)
    return {"seconds": time.process_time() - start, "passes": certificate.passes, "gap": certificate.gap}


def _few(data: Any) -> Any:
    few = Subset(data, range(50))
    few.collate = data.collate  # type: ignore[attr-defined]
    return few


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Both in turn, for each problem."""
    options = chosen(settings, OPTIONS, QUICK)
    torch.set_num_threads(1)
    return {
        problem: in_turn(
            ("alone", "trained"),
            settings.repeats,
            lambda how, _, p=problem, o=figures: ask(how, problem=p, lam=o[0], gap=o[1]),
        )
        for problem, figures in options["problems"].items()
    }


def summarise(results: dict[str, Any]) -> Summary:
    """Medians, and their ratios."""
    rows: list[list[Any]] = []
    limits: list[Limit] = []
    for problem, runs in results.items():
        middle = {
            how: {name: statistics.median(run[name] for run in several) for name in several[0]}
            for how, several in runs.items()
        }
        result, light = middle["alone"], middle["trained"]
        rows += [
            [problem, title, one["seconds"], one["passes"], one["gap"]]
            for title, one in (("CompiledBCFW.solve", result), ("StructuredSVM, Trainer", light))
        ]
        limits += [
            Limit(
                f"{problem}: CPU seconds under Lightning over those of solve",
                light["seconds"] / result["seconds"],
                SECONDS.get(problem, USUAL_SECONDS),
            ),
            Limit(f"{problem}: passes under Lightning over those of solve", light["passes"] / result["passes"], PASSES),
        ]
    return Summary([Table("To a certified gap", ["", "by", "CPU seconds", "passes", "gap"], rows)], limits)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"alone": alone, "trained": trained}
