"""Held-out accuracy over lambda, and over the certified gap, on letters, entities and horses.

Lambdas are gone through by ``choose_lam``, from the largest, each to 1 % of the primal. For the gap, training at one
lambda stops at smaller and smaller shares of the primal, and the held-out examples are scored there. Lambdas are told
as multiples of 1/n and of what ``guess_lam`` says too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from torchssvm import (
    LinearChain,
    LinearGraph,
    Relative,
    Solver,
    choose_lam,
    evaluate,
    guess_lam,
    in_order,
    make_trainer,
)
from torchssvm.core.batch import apply_head
from torchssvm.datasets import OCR, Columns, HorseSegmentation, NamedEntities, PrecomputedGraphs, chunk_scores
from torchssvm.datasets.files import find
from torchssvm.models import entity_chain
from torchssvm.path import HeldOutPoint
from torchssvm.solvers import EveryPasses

from .measuring import Ask, Settings, Summary, Table, chosen
from .tagging import predict

TITLE = "Choosing lambda and the gap: held-out accuracy"
SCORES = {
    "OCR-small": "letters right, %",
    "OCR-large": "letters right, %",
    "entities": "F1, %",
    "horses": "IoU, %",
}
OPTIONS: dict[str, Any] = {
    "tasks": list(SCORES),
    "multiples": {  # of 1/n
        "OCR-small": [1000, 300, 100, 30, 10, 3, 1, 0.3],
        "OCR-large": [1000, 300, 100, 30, 10, 3, 1],
        "entities": [300, 100, 30, 10, 3, 1, 0.3],
        "horses": [60000, 20000, 6000, 2000, 600],
    },
    "gap_at": {"OCR-small": 30, "OCR-large": 30, "entities": 10, "horses": 6000},
    "shares": [0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001],
    "seeds": 3,
    "seconds": 120.0,  # CPU, of a run to smaller and smaller gaps, and of a grid before its next lambda
}
QUICK = {"tasks": ["OCR-small"], "multiples": {"OCR-small": [100, 30]}, "shares": [0.5, 0.2], "seeds": 1}


def read(task: str) -> tuple[Any, Any, nn.Module, dict[str, Any] | None, Callable[[nn.Module], float]]:
    """Training set, held-out set, head, bounds of the weights, and the score in per cent."""
    train: Any
    held_out: Any
    if task.startswith("OCR"):
        train, held_out = (OCR(split, size=task[4:]) for split in ("train", "test"))  # type: ignore[arg-type]

        def letters(head: nn.Module) -> float:
            return 100.0 * (1.0 - (evaluate(head, head.structure, in_order(held_out)).token_error or 0.0))

        return train, held_out, LinearChain(128, 26), None, letters
    if task == "entities":
        page, columns = "https://www.universalner.org", Columns(word=1, tag=2, comment="#")
        files = [find(f"uner_danish_ddt/{name}.iob2.gz", page) for name in ("train", "dev")]
        train = NamedEntities.from_file(files[0], columns=columns)
        held_out = NamedEntities.from_file(files[1], train.vocabulary, columns=columns)
        true = [held_out.tags(i) for i in range(len(held_out))]

        def f1(head: nn.Module) -> float:
            return 100.0 * chunk_scores(true, predict(head, held_out)).overall.f1

        return train, held_out, entity_chain(train.vocabulary, 1.5), None, f1
    images = [HorseSegmentation(split, num_train=200) for split in ("train", "test")]
    train, held_out = (PrecomputedGraphs(data) for data in images)

    def iou(head: nn.Module) -> float:
        batches = in_order(held_out, batch_size=16)
        labels = [labeling for b in batches for labeling in head.structure.decode(apply_head(head, b)).labels]
        return 100.0 * images[1].scores(labels).iou

    bounds = {"pairwise": (0.0, None)}
    return train, held_out, LinearGraph(train.in_features, train.edge_features), bounds, iou


def guess(task: str) -> float:
    """What ``guess_lam`` says."""
    train, _, head, *_ = read(task)
    return guess_lam(head, train)


def over_lam(task: str, multiples: list[float], seconds: float) -> dict[str, Any]:
    """Scores at every lambda, each trained to 1 % of the primal."""
    train, held_out, head, bounds, score = read(task)
    n = len(train)
    rows: list[dict[str, float]] = []
    start = time.process_time()

    def note(point: HeldOutPoint) -> None:
        now = time.process_time() - start
        rows.append(
            {
                "lam": point.lam,
                "score": point.score,
                "loss": point.held_out.loss,
                "gap": point.certificate.relative_gap,
                "passes": point.passes,
                "cpu_seconds": now,
            }
        )
        if now > seconds:
            raise TimeoutError

    solver = Solver(bounds=bounds)
    with contextlib.suppress(TimeoutError):
        choose_lam(head, train, held_out, [m / n for m in multiples], score=score, on_point=note, solver=solver)
    return {"n": n, "rows": rows}


def over_gap(task: str, lam_n: float, shares: list[float], seed: int, seconds: float) -> list[dict[str, float]]:
    """Scores at one lambda, at smaller and smaller gaps."""
    train, _, head, bounds, score = read(task)
    trainer = make_trainer(head, train, lam_n / len(train), solver=Solver(bounds=bounds, seed=seed))
    start, rows = time.process_time(), []
    for share in shares:
        certificate = trainer.solve(Relative(share), schedule=EveryPasses(1))
        now = time.process_time() - start
        rows.append(
            {"share": share, "gap": certificate.relative_gap, "score": score(head), "passes": certificate.passes}
        )
        rows[-1]["cpu_seconds"] = now
        if now > seconds:
            break
    return rows


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Both, of every task."""
    options = chosen(settings, OPTIONS, QUICK)
    seconds, results = options["seconds"], {}
    for task in options["tasks"]:
        lams = {"guess": ask("guess", task=task)}
        lams |= ask("over_lam", task=task, multiples=options["multiples"][task], seconds=seconds)
        its = {"task": task, "lam_n": options["gap_at"][task], "shares": options["shares"], "seconds": seconds}
        gaps = [ask("over_gap", seed=seed, **its) for seed in range(options["seeds"])]
        results[task] = {**lams, "lam_n": options["gap_at"][task], "gaps": gaps}
    return results


def summarise(results: dict[str, Any]) -> Summary:
    """A row for each lambda, and for each gap."""
    lams, gaps = [], []
    for task, result in results.items():
        best = max(row["score"] for row in result["rows"])
        for row in result["rows"]:
            ratio = row["lam"] / result["guess"]
            figures = [row[name] for name in ("loss", "passes", "cpu_seconds")]
            score = f"{row['score']:.2f}" + (" best" if row["score"] == best else "")
            lams.append([task, row["lam"], row["lam"] * result["n"], ratio, score, *figures])
        for several in zip(*result["gaps"], strict=False):
            scores = ", ".join(f"{row['score']:.2f}" for row in several)
            middle = sorted(several, key=lambda row: float(row["cpu_seconds"]))[len(several) // 2]
            proved = f"{100 * middle['gap']:.2g} %"
            gaps.append([task, f"{100 * middle['share']:g} %", proved, scores, middle["passes"], middle["cpu_seconds"]])
    columns = ["", "lam", "lam n", "lam / guess", "score", "held-out loss", "passes", "CPU seconds so far"]
    title = "Held-out scores over lambda, each to a gap of 1 % of the primal; horses and OCR on test examples"
    of_gap = ["", "gap asked for", "gap proved", "score of each seed", "passes", "CPU seconds"]
    return Summary([Table(title, columns, lams), Table("Held-out scores over the gap, at one lambda", of_gap, gaps)])


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """A chart of each task, over lambda and over the gap."""
    from matplotlib.ticker import NullFormatter

    from torchssvm.solvers.figures import new_figure

    files = []
    for name in ("lam", "gap"):
        rows = -(-len(results) // 2)
        figure = new_figure((7.5, 2.7 * rows))
        for axes, (task, result) in zip(figure.subplots(rows, 2, squeeze=False).flat, results.items(), strict=False):
            axes.set(xscale="log", ylabel=SCORES[task])
            if name == "lam":
                axes.plot(
                    [row["lam"] * result["n"] for row in result["rows"]], [row["score"] for row in result["rows"]], ".-"
                )
                axes.axvline(
                    result["guess"] * result["n"], color="grey", linewidth=0.9, linestyle="--", label="guess_lam"
                )
                axes.set(xlabel="λ n = 1/C", title=f"{task}, n = {result['n']:,}")
                axes.legend(fontsize="small")
            else:
                for seed, run in enumerate(result["gaps"]):
                    points = [100 * row["gap"] for row in run], [row["score"] for row in run]
                    axes.plot(*points, ".-", linewidth=1, label=f"seed {seed}")
                end = result["gaps"][0][-1]["score"]
                axes.set(xlim=(60, 0.09), ylim=(end - 4, end + 2), xlabel="certified gap, % of the primal")
                axes.set_title(f"{task}, λ n = {result['lam_n']:g}")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.grid(alpha=0.25)
        files.append(folder / f"choosing-{name}.png")
        figure.savefig(files[-1], dpi=110, facecolor="white")
    return files


MEASURES = {"guess": guess, "over_lam": over_lam, "over_gap": over_gap}
