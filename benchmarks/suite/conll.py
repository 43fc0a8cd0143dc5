"""Text chunking (CoNLL-2000): test F1 and training time, of the structured SVM and of CRFsuite on the same attributes.

lam is chosen for each loss by chunk F1 on the last tenth of the training sentences; then everything is trained again.
CRFsuite (L-BFGS, c2 = 1, its default) is trained from the start for each number of iterations. All on one thread;
compilation, reading and predicting are outside the clocks, and so is what each side needs to take over the data.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from torchssvm import SparseLinearChain
from torchssvm.datasets import ChunkingDataset, CoNLL2000
from torchssvm.models import chunking_chain

from . import tagging
from .figures import grid
from .measuring import Ask, Limit, Settings, Summary, Table, chosen

TITLE = "CoNLL-2000: chunk F1 and training time"
HELD_OUT = 0.1
LOSSES = {"wrong tags": False, "divided by the length": True}  # whether it is normalised
SCALE = 20.0  # lam of the loss that counts wrong tags is that many times smaller, for sentences of some 24 tokens
OPTIONS: dict[str, Any] = {
    "min_count": [3, 1],  # of an attribute
    "lam": [0.005, 0.002, 0.001, 0.0005],  # to choose from; times SCALE where the loss is divided by the length
    "share": 0.03,  # the certified gap, of the primal
    "iterations": [20, 40, 80],  # of CRFsuite
    "max_passes": 100.0,
    "seed": 0,
}
QUICK = {"min_count": [3], "lam": [0.005], "share": 0.3, "iterations": [5]}
GOAL = 93.6


def read(min_count: int) -> tuple[ChunkingDataset, ChunkingDataset]:
    """Training and test sentences, on the same attributes."""
    train = CoNLL2000("train", min_count=min_count)
    return train, CoNLL2000("test", vocabulary=train.vocabulary)


def bcfw(min_count: int, loss: str, lam: float, held_out: bool, **limits: Any) -> dict[str, Any]:
    """Train with a loss; score the test sentences after every pass, or some that are held out at the end."""

    def make_head(data: ChunkingDataset) -> SparseLinearChain:
        return chunking_chain(data.in_features, data.num_states, normalize=LOSSES[loss])

    train, test = read(min_count)
    data, scored_on = train.hold_out(HELD_OUT) if held_out else (train, test)
    points = tagging.bcfw(make_head, data, scored_on, lam, every_pass=not held_out, **limits)
    for point in points:
        del point["counts"]
    return {"attributes": train.in_features, "points": points}


def crfsuite(min_count: int, iterations: int) -> dict[str, Any]:
    """CRFsuite, from the start, with the attributes that the vocabulary has."""
    results = tagging.crfsuite(*read(min_count), 1.0, iterations)
    del results["counts"]
    return results


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Everything on each set of attributes."""
    options = chosen(settings, OPTIONS, QUICK)
    limits = {name: options[name] for name in ("share", "max_passes", "seed")}
    results = []
    for least in options["min_count"]:
        one: dict[str, Any] = {"losses": {}, "CRFsuite": []}
        for loss, normalize in LOSSES.items():
            search = []
            for number in options["lam"]:
                lam = number * SCALE if normalize else number
                run = ask("bcfw", min_count=least, loss=loss, lam=lam, held_out=True, **limits)
                search.append({"lam": lam, **run["points"][-1]})
            lam = max(search, key=lambda point: point["f1"])["lam"]
            run = ask("bcfw", min_count=least, loss=loss, lam=lam, held_out=False, **limits)
            one["losses"][loss] = {"search": search, "lam": lam, "points": run["points"]}
            one["attributes"] = run["attributes"]
        if importlib.util.find_spec("pycrfsuite") is not None:
            one["CRFsuite"] = [ask("crfsuite", min_count=least, iterations=i) for i in options["iterations"]]
        results.append(one)
    return {"share": options["share"], "found": results}


def summarise(results: dict[str, Any]) -> Summary:
    """A line for each loss, and for CRFsuite one for each number of iterations."""
    tables, limits = [], []
    for one in results["found"]:
        rows: list[list[Any]] = []
        for loss, run in one["losses"].items():
            end, searched = run["points"][-1], sum(point["cpu_seconds"] for point in run["search"])
            held_out = max(point["f1"] for point in run["search"])
            how = f"λ = {run['lam']:g} of {len(run['search'])}, chosen in {searched:.0f} s; {end['passes']:.0f} passes"
            rows.append([f"BCFW, loss: {loss}", how, f"{100 * held_out:.2f}", *_shares(end)])
            if loss == "wrong tags":
                limits.append(Limit(f"test F1, {one['attributes']:,} attributes", 100 * end["f1"], GOAL, at_least=True))
        for point in one["CRFsuite"]:
            rows.append(["CRFsuite", f"{point['iterations']} iterations", None, *_shares(point)])
        title = (
            f"{one['attributes']:,} attributes; BCFW to a certified gap of {100 * results['share']:g} % of the primal"
        )
        columns = ["", "", "held-out F1", "test F1", "precision", "recall", "token error", "training, CPU s"]
        tables.append(Table(title, columns, rows))
    there = all(one["CRFsuite"] for one in results["found"])
    return Summary(tables, limits, [] if there else ["python-crfsuite is not installed: pip install -e '.[bench]'"])


def _shares(point: dict[str, Any]) -> list[Any]:
    shares = [f"{100 * point[name]:.2f}" for name in ("f1", "precision", "recall")]
    return [*shares, f"{100 * point['token_error']:.2f} %", point["cpu_seconds"]]


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Test F1 over training seconds."""
    charts = {}
    for one in results["found"]:
        sides = {f"loss: {loss}": run["points"] for loss, run in one["losses"].items()} | {"CRFsuite": one["CRFsuite"]}
        charts[f"{one['attributes']:,} attributes"] = {
            side: ([p["cpu_seconds"] for p in points], [100 * p["f1"] for p in points])
            for side, points in sides.items()
            if points
        }
    xlabels = ["CPU seconds of training"] * len(charts)
    return [grid(folder / "conll.png", charts, xlabels, "chunk F1 on the test sentences", log="x")]


MEASURES = {"bcfw": bcfw, "crfsuite": crfsuite}
