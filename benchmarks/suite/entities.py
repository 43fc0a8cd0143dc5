"""Danish named entities: F1 and CPU seconds of training, of the structured SVM and of CRFsuite on the same attributes.

Everything is chosen by F1 on the development sentences: lam and the cost of entities for each loss, c2 and the number
of iterations for CRFsuite. Then the test sentences are scored: three seeds for BCFW (L-BFGS draws nothing), and
intervals from 2000 bootstrap samples of the sentences. All on one thread; compilation, reading and predicting are
outside the clocks, and so is what each side needs to take over the data.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from torchssvm import Chain, SparseLinearChain
from torchssvm.datasets import Columns, NamedEntities
from torchssvm.datasets.files import find
from torchssvm.models import entity_chain

from . import tagging
from .figures import grid
from .measuring import Ask, Limit, Settings, Summary, Table, chosen, median, ratio

TITLE = "Danish named entities: F1 and training time"
COLUMNS = Columns(word=1, tag=2, comment="#")
PAGE = "https://www.universalner.org"
# Whether the loss is divided by the length, whether I-X follows B-X and I-X only, and costs of entities to choose from.
LOSSES: dict[str, tuple[bool, bool, list[float]]] = {
    "divided by the length": (True, True, [1.0]),
    "wrong tags": (False, True, [1.0]),
    "wrong tags, all transitions": (False, False, [1.0]),
    "wrong tags, entities weighted": (False, True, [1.5, 2.0]),
}
OPTIONS: dict[str, Any] = {
    "lam": [0.01, 0.005, 0.003, 0.002, 0.001],  # to choose from; a twentieth where the loss is divided by the length
    "share": 0.03,  # the certified gap, of the primal
    "c2": [1.0, 0.1],  # to choose from, for CRFsuite
    "iterations": [100, 200],
    "max_passes": 100.0,
    "seeds": 3,
}
QUICK = {"lam": [0.005], "share": 0.2, "c2": [0.1], "iterations": [10], "seeds": 1}


def read(split: str) -> tuple[NamedEntities, NamedEntities]:
    """Training sentences, and those of a split on the same attributes."""
    files = [find(f"uner_danish_ddt/{name}.iob2.gz", PAGE) for name in ("train", split)]
    train = NamedEntities.from_file(files[0], columns=COLUMNS)
    return train, NamedEntities.from_file(files[1], train.vocabulary, columns=COLUMNS)


def bcfw(loss: str, weight: float, lam: float, split: str, **limits: Any) -> dict[str, Any]:
    """Train with a loss, and score a split."""
    normalize, constrained, _ = LOSSES[loss]

    def make_head(data: NamedEntities) -> SparseLinearChain:
        if constrained and not normalize:
            return entity_chain(data.vocabulary, weight)
        transitions = data.transitions if constrained else None
        structure = Chain(data.num_states, normalize=normalize, transitions=transitions)
        return SparseLinearChain(data.in_features, data.num_states, structure=structure)

    train, test = read(split)
    points = tagging.bcfw(make_head, train, test, lam / 20.0 if normalize else lam, **limits)
    for point in points[:-1]:
        del point["counts"]
    return {"points": points, "attributes": train.in_features}


def crfsuite(c2: float, iterations: int, split: str) -> dict[str, Any]:
    """Train CRFsuite, and score a split."""
    return tagging.crfsuite(*read(split), c2, iterations)


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """The choice on development sentences, and the scores of test sentences."""
    options = chosen(settings, OPTIONS, QUICK)
    limits = {name: options[name] for name in ("share", "max_passes")}
    results: dict[str, Any] = {"share": options["share"], "losses": {}, "crfsuite": None}
    for loss, (_, _, weights) in LOSSES.items():
        search = []
        for weight in weights:
            for lam in options["lam"]:
                run = ask("bcfw", loss=loss, weight=weight, lam=lam, split="dev", seed=0, every_pass=False, **limits)
                search.append({"weight": weight, "lam": lam, **run["points"][-1]})
        best = max(search, key=lambda one: one["f1"])
        its = {"loss": loss, "weight": best["weight"], "lam": best["lam"], "split": "test", **limits}
        runs = [ask("bcfw", seed=seed, every_pass=True, **its)["points"] for seed in range(options["seeds"])]
        results["losses"][loss] = {"search": search, "best": best, "runs": runs}
    if importlib.util.find_spec("pycrfsuite") is not None:
        pairs = [{"c2": c2, "iterations": count} for c2 in options["c2"] for count in options["iterations"]]
        search = [{**pair, **ask("crfsuite", split="dev", **pair), "asked": pair["iterations"]} for pair in pairs]
        best = max(search, key=lambda one: one["f1"])
        runs = [ask("crfsuite", split="test", c2=best["c2"], iterations=count) for count in options["iterations"]]
        end = runs[options["iterations"].index(best["asked"])]
        default = ask("crfsuite", split="test", c2=1.0, iterations=1000 if not settings.quick else 10)
        results["crfsuite"] = {"search": search, "best": best, "runs": runs, "end": end, "default": default}
    return results


def summarise(results: dict[str, Any]) -> Summary:
    """A line for each loss, and for CRFsuite; the limits are those of the best loss on development sentences."""
    rows: list[list[Any]] = []
    chosen_loss = max(results["losses"], key=lambda loss: results["losses"][loss]["best"]["f1"])
    for loss, one in results["losses"].items():
        ends, best = [points[-1] for points in one["runs"]], one["best"]
        lam = best["lam"] / 20.0 if LOSSES[loss][0] else best["lam"]
        how = f"lam = {lam:g}" + (f", entities {best['weight']:g}" if best["weight"] != 1.0 else "")
        rows.append(_row(f"BCFW, loss: {loss}", how, best["f1"], ends))
    crf, limits = results["crfsuite"], []
    if crf is not None:
        best, end, default = crf["best"], crf["end"], crf["default"]
        rows.append(_row("CRFsuite", f"c2 = {best['c2']:g}, {end['iterations']} iterations", best["f1"], [end]))
        rows.append(_row("CRFsuite as it comes", f"c2 = 1, {default['iterations']} iterations", None, [default]))
        ends = [points[-1] for points in results["losses"][chosen_loss]["runs"]]
        low, high = tagging.f1_interval(_middle(ends)["counts"], end["counts"])
        name = f"F1 above CRFsuite's, {chosen_loss} (95 %: {100 * low:+.1f} to {100 * high:+.1f})"
        seconds = ratio(median(one["cpu_seconds"] for one in ends), end["cpu_seconds"])
        limits = [
            Limit(name, 100 * (_middle(ends)["f1"] - end["f1"]), 0.0, at_least=True),
            Limit("CPU seconds, of CRFsuite's", seconds, 0.2),
        ]
    columns = ["", "chosen on dev", "dev F1", "test F1", "95 %", "precision", "recall", "training, CPU s"]
    title = f"to a certified gap of {100 * results['share']:g} % of the primal"
    notes = [] if crf is not None else ["python-crfsuite is not installed: pip install -e '.[bench]'"]
    return Summary([Table(title, columns, rows)], limits, notes)


def _middle(ends: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of the median F1."""
    return sorted(ends, key=lambda end: float(end["f1"]))[len(ends) // 2]


def _row(side: str, how: str, dev: float | None, ends: list[dict[str, Any]]) -> list[Any]:
    """Of the run in the middle, with its interval; seconds are the median of the seeds."""
    end = _middle(ends)
    low, high = tagging.f1_interval(end["counts"])
    shares = [None if dev is None else f"{100 * dev:.1f}", f"{100 * end['f1']:.1f}"]
    shares += [f"{100 * low:.1f} to {100 * high:.1f}", *(f"{100 * end[name]:.1f}" for name in ("precision", "recall"))]
    return [side, how, *shares, median(one["cpu_seconds"] for one in ends)]


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Test F1 over training seconds."""
    lines = {
        loss: ([p["cpu_seconds"] for p in one["runs"][0]], [100 * p["f1"] for p in one["runs"][0]])
        for loss, one in results["losses"].items()
    }
    if results["crfsuite"] is not None:
        runs = results["crfsuite"]["runs"]
        lines["CRFsuite"] = ([p["cpu_seconds"] for p in runs], [100 * p["f1"] for p in runs])
    charts = {"Danish named entities": lines}
    return [grid(folder / "entities.png", charts, ["CPU seconds of training"], "F1 on the test sentences", log="x")]


MEASURES = {"bcfw": bcfw, "crfsuite": crfsuite}
