"""Label sets: scores and training time, beside a classifier chain and every label alone by LinearSVC of scikit-learn.

All sides get the same scaled features, and choose lam or C by micro F1 on the same third of the training examples, lam
among those whose training reaches the gap; then everything is trained again. The Hamming loss counts labels, as micro
F1 does, so that is what is compared; exact matches are what a chain is made for. GDMM trains to a gap or a number of
passes, and BCFW goes on from its point. Reading, scaling and predicting are outside the clocks. MultilabelSVC at its
defaults, with C="choose", without pairs and with thresholds gets the features as they are, and scales, guesses or
chooses inside its clock. Beside it stand a chain at its defaults, C = 1, of columns that are scaled outside of its
clock, and every label alone with the threshold that scikit-learn chooses. Any other file is named by its path: run.py
label_sets --set 'data=["FILE.arff"]'; a third of it is tested on.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm import GDMM, Batch, BlockGap, LinearMultilabel, TorchLoop, in_order
from torchssvm.datasets import ByDensity, Multilabel, SparseRows, Unscaled, multilabel_scores
from torchssvm.datasets.files import find
from torchssvm.datasets.multilabel.dataset import NAMES, PAGE
from torchssvm.solvers.gdmm import Penalty

from .measuring import Ask, Clock, Limit, Settings, Summary, Table, chosen

TITLE = "Label sets: test scores and training time"
HELD_OUT = 1 / 3
SCORES = ("micro_f1", "exact_match", "hamming_loss", "macro_f1")
THEIRS = {"classifier chain of LinearSVC": True, "LinearSVC, every label alone": False}
PLAIN = "classifier chain of LinearSVC(), scaled columns"
ESTIMATORS: dict[str, dict[str, Any]] = {
    "MultilabelSVC()": {},
    'MultilabelSVC(C="choose")': {"C": "choose"},
    "MultilabelSVC(interactions=False)": {"interactions": False},
    'MultilabelSVC(threshold="f1")': {"threshold": "f1"},
    'MultilabelSVC(threshold="f1-by-label")': {"threshold": "f1-by-label"},
}
TUNED = "LinearSVC() with TunedThresholdClassifierCV, scaled columns"
SLOWER = 10.0  # the defaults may take so many times the CPU seconds of the plain chain
WORSE = 0.005  # C="choose" may be so much worse than the guess
LIKE_YEAST = "like yeast"
OPTIONS: dict[str, Any] = {
    "data": ["scene", "medical", LIKE_YEAST],  # or "emotions" and so on, where multilabel/NAME has it, or "FILE.arff"
    "lam": [0.03, 0.01, 0.003, 0.001, 0.0003],  # to choose from
    "C": [0.3, 1.0, 3.0, 10.0, 30.0, 100.0],  # likewise
    "gap": 0.002,
    "max_passes": 200,  # of GDMM, and of BCFW after it
    "seed": 0,
}
QUICK = {"data": [LIKE_YEAST], "lam": [0.03], "C": [1.0], "gap": 0.1, "max_passes": 20}


def like_yeast(seed: int, n: int = 2417, features: int = 103, labels: int = 14) -> tuple[Tensor, Tensor]:
    """Examples of yeast's shape, ``[n, F]`` and ``[n, K]``: dense features, and labels whose neighbours come together.

    Features and labels depend on the same twelve factors; neighbouring labels share noise.
    """
    random = np.random.default_rng(seed)
    factors = random.normal(size=(n, 12))
    x = factors @ random.normal(size=(12, features)) / 12**0.5 + random.normal(size=(n, features))
    noise = random.normal(size=(n, labels + 1))
    scores = factors @ random.normal(size=(12, labels)) / 12**0.5 + 0.8 * (noise[:, 1:] + noise[:, :-1])
    y = scores + 0.8 * random.normal(size=labels) > 0.6
    return torch.from_numpy(x).float(), torch.from_numpy(y).long()


def read(data: str, seed: int, held_out: bool, scaled: bool = True) -> list[Tensor]:
    """Features and labels to train on, then those to score, scaled by the first where they are to be."""
    if data == LIKE_YEAST:
        x, y = like_yeast(seed)
        parts = [(SparseRows.of_dense(x[rows]), y[rows]) for rows in (slice(0, 1500), slice(1500, None))]
    elif data.endswith(".arff"):
        whole = Multilabel.from_mulan(data)
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
        last = round(HELD_OUT * len(whole))
        parts = [(whole.features.take(o), whole.labels.dense().long()[o]) for o in (order[last:], order[:last])]
    else:
        sets = [named(data, split) for split in ("train", "test")]
        parts = [(one.features, one.labels.dense().long()) for one in sets]
    if held_out:
        (rows, y), _ = parts
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        last = round(HELD_OUT * len(rows))
        parts = [(rows.take(chosen), y[chosen]) for chosen in (order[last:], order[:last])]
    scaling = ByDensity().fit(parts[0][0]) if scaled else Unscaled()
    return [tensor for rows, y in parts for tensor in (scaling.apply(rows).dense(), y)]


def named(data: str, split: str) -> Multilabel:
    """A dataset by its name, of Mulan's files."""
    if data in NAMES:
        return Multilabel(data, split)  # type: ignore[arg-type]
    folder = f"multilabel/{data}/{data}"
    return Multilabel.from_mulan(find(f"{folder}-{split}.arff", PAGE), find(f"{folder}.xml", PAGE))


class Examples:
    """Features and labels as a dataset: ``[n, F]`` and ``[n, K]``."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        index = torch.tensor(rows)
        return Batch(self.x[index], self.y[index], index)

    def __getitem__(self, i: int) -> Batch:
        return self.__getitems__([i])

    @staticmethod
    def collate(batch: Batch) -> Batch:
        """What ``__getitems__`` made."""
        return batch


def train(
    x: Tensor,
    y: Tensor,
    lam: float,
    gap: float,
    max_passes: int,
    seed: int,
    cost: float = 1.0,
    rho: float | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """GDMM, and BCFW where it is not there; ``rho`` is in costs of a label, None is chosen.

    ``cost`` is that of all wrong labels together, and lam is divided by it.
    """
    examples = Examples(x, y)
    head = LinearMultilabel(x.shape[1], y.shape[1])
    if cost != 1.0:
        weights = torch.full((y.shape[1],), cost / y.shape[1], dtype=torch.float64)
        head = LinearMultilabel(
            x.shape[1], y.shape[1], structure=type(head.structure)(y.shape[1], weights=weights, normalize=False)
        )
    penalty = None if rho is None else Penalty(rho * float(head.structure.costs.mean()))
    optim = GDMM(head, in_order(examples), num_examples=len(x), lam=lam / cost, penalty=penalty, seed=seed)
    clock = Clock()
    results = optim.solve(gap * cost, max_passes=max_passes)
    result = {"passes": results.passes, "gdmm_gap": results.relaxed_gap / cost, "rho": optim.rho, "more_passes": 0.0}
    result["gdmm_cpu_seconds"] = clock.stop()["cpu_seconds"]
    clock.go()
    result["gap"], result["of"] = result["gdmm_gap"], "the relaxation"
    if results.relaxed_gap > gap * cost:
        dual = optim.dual_state(in_order(examples))
        before, loop = dual.passes, TorchLoop(head, BlockGap(dual), examples, seed=seed)
        last = loop.solve(gap * cost, max_passes=before + max_passes)
        result |= {"gap": last.gap / cost, "of": "the problem", "more_passes": last.passes - before}
    return head, {**result, **clock.stop()}


@torch.no_grad()
def predicted(head: nn.Module, x: Tensor) -> Tensor:
    """Label sets, ``[n, K]``."""
    return head.structure.decode(head(x))


def scored(true: Tensor, results: Tensor) -> dict[str, float]:
    """All scores."""
    scores = multilabel_scores(true, results)
    return {name: getattr(scores, name) for name in SCORES}


def ours(data: str, lam: list[float], gap: float, max_passes: int, seed: int) -> dict[str, Any]:
    """Choose lam, train, score; then the same with losses that are not divided by the number of labels."""
    x, y, other_x, other_y = read(data, seed, held_out=True)
    train(x[:32], y[:32], 1.0, 0.1, 10, seed)  # compiles
    search = []
    for trial in lam:
        head, run = train(x, y, trial, gap, max_passes, seed)
        search.append({"lam": trial, **run, **scored(other_y, predicted(head, other_x))})
    solved = [point for point in search if point["gap"] <= gap]  # elsewhere the score is not that of lam
    best = max(solved or search, key=lambda point: point["micro_f1"] if solved else -point["gap"])["lam"]
    x, y, other_x, other_y = read(data, seed, held_out=False)
    head, run = train(x, y, best, gap, max_passes, seed)
    results = predicted(head, other_x)
    size = y.shape[1]
    plain, _ = train(x, y, best, gap, max_passes, seed, cost=float(size))
    same = float((predicted(plain, other_x) == results).double().mean())
    _, fixed = train(x, y, best, gap, max_passes, seed, rho=0.1)
    chosen_scores = scored(other_y, results)
    unnormalised = scored(other_y, predicted(plain, other_x))
    return {
        "search": search, "lam": best, **run, **chosen_scores, "same": same, "unnormalised": unnormalised,
        "gdmm_gap_at_rho_0.1": fixed["gdmm_gap"],
    }  # fmt: skip


def column_scaled(parts: list[Tensor]) -> list[Tensor]:
    """As users of LinearSVC scale columns: equal variances, or largest numbers where most are zero."""
    from sklearn.preprocessing import MaxAbsScaler, StandardScaler

    x, y, other_x, other_y = parts
    scaler = (StandardScaler() if x.count_nonzero() > 0.5 * x.numel() else MaxAbsScaler()).fit(x.numpy())
    scaled = (torch.from_numpy(scaler.transform(each.numpy())) for each in (x, other_x))
    return [next(scaled), y, next(scaled), other_y]


def theirs(data: str, chain: bool, C: list[float], seed: int, columns: bool = False) -> dict[str, Any]:
    """Choose C where there are several, train, score; ``columns`` are scaled in place of rows."""
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.multioutput import ClassifierChain
    from sklearn.svm import LinearSVC

    class SVC(LinearSVC):
        """One that takes a label that no training example has, or all have."""

        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            self.constant_ = y[0] if (y == y[0]).all() else None
            if self.constant_ is None:
                return super().fit(X, y, sample_weight)
            self.classes_ = np.array([0, 1])
            return self

        def predict(self, X: Any) -> Any:
            return super().predict(X) if self.constant_ is None else np.full(len(X), self.constant_)

        def decision_function(self, X: Any) -> Any:
            known = self.constant_ is None
            return super().decision_function(X) if known else np.full(len(X), 2.0 * self.constant_ - 1.0)

    def fitted(parts: list[Tensor], trial: float) -> dict[str, Any]:
        x, y, other_x, other_y = (part.numpy() for part in parts)
        one = SVC(C=trial, max_iter=10_000, random_state=seed)
        model = ClassifierChain(one) if chain else OneVsRestClassifier(one)
        clock = Clock()
        model.fit(x, y)
        seconds = clock.stop()
        results = torch.from_numpy(np.asarray(model.predict(other_x)) > 0.5).long()
        return {"C": trial, **seconds, **scored(torch.from_numpy(other_y), results)}

    if columns:
        return fitted(column_scaled(read(data, seed, held_out=False, scaled=False)), *C)
    held_out = read(data, seed, held_out=True)
    search = [fitted(held_out, trial) for trial in C]
    best = max(search, key=lambda point: point["micro_f1"])["C"]
    return {"search": search, **fitted(read(data, seed, held_out=False), best)}


def tuned(data: str, seed: int) -> dict[str, Any]:
    """Every label alone, its threshold by F1 in three folds where it is on and off so often; scaled columns."""
    from sklearn.model_selection import TunedThresholdClassifierCV
    from sklearn.svm import LinearSVC

    x, y, other_x, other_y = (part.numpy() for part in column_scaled(read(data, seed, held_out=False, scaled=False)))
    results, clock = np.zeros_like(other_y), Clock()
    for k, labels in enumerate(y.T):
        one: Any = LinearSVC(max_iter=10_000, random_state=seed)
        if (rarer := min(labels.sum(), (1 - labels).sum())) >= 3:
            one = TunedThresholdClassifierCV(one, scoring="f1", cv=3, random_state=seed)
        results[:, k] = one.fit(x, labels).predict(other_x) if rarer else labels[0]
    return {"C": 1.0, **clock.stop(), **scored(torch.from_numpy(other_y), torch.from_numpy(results))}


def estimator(data: str, seed: int, **arguments: Any) -> dict[str, Any]:
    """``MultilabelSVC`` with these arguments, all else at its defaults."""
    from torchssvm.estimators import MultilabelSVC

    x, y, other_x, other_y = read(data, seed, held_out=False, scaled=False)
    warm = np.random.default_rng(0).normal(size=(64, x.shape[1])).astype(np.float32)
    for sets in (np.eye(3, dtype=int)[np.arange(64) % 3], warm[:, :3] > 0):  # compiles, with pairs and without
        MultilabelSVC(max_passes=10).fit(warm, sets.astype(int))
    MultilabelSVC(max_passes=10, **arguments).fit(x[:64].numpy(), y[:64].numpy())
    clock = Clock()
    model = MultilabelSVC(**arguments, random_state=seed).fit(x.numpy(), y.numpy())
    seconds, certificate = clock.stop(), model.certificate_
    results = torch.from_numpy(model.predict(other_x.numpy()))
    return {"lam": model.lam_, "relative_gap": certificate.relative_gap, **seconds, **scored(other_y, results)}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Every dataset, side by side."""
    options = chosen(settings, OPTIONS, QUICK)
    limits = {name: options[name] for name in ("gap", "max_passes", "seed")}
    there = importlib.util.find_spec("sklearn") is not None
    results = {}
    for data in options["data"]:
        runs = {"ours": ask("ours", data=data, lam=options["lam"], **limits)}
        for side, chain in THEIRS.items() if there else ():
            runs[side] = ask("theirs", data=data, chain=chain, C=options["C"], seed=options["seed"])
        if there:
            runs[PLAIN] = ask("theirs", data=data, chain=True, C=[1.0], seed=options["seed"], columns=True)
        for side, arguments in ESTIMATORS.items() if there else ():
            runs[side] = ask("estimator", data=data, seed=options["seed"], **arguments)
        if there:
            runs[TUNED] = ask("tuned", data=data, seed=options["seed"])
        results[data] = runs
    return {"gap": options["gap"], "found": results}


def summarise(results: dict[str, Any]) -> Summary:
    """A line for each side of each dataset; the limits are micro F1 at least the chain's."""
    rows: list[list[Any]] = []
    stops: list[list[Any]] = []
    limits, notes = [], []
    for data, runs in results["found"].items():
        for side, run in runs.items():
            strength = f"lam = {run['lam']:.2g}" if "lam" in run else f"C = {run['C']:g}"
            searched = sum(point["cpu_seconds"] for point in run.get("search", ()))
            name = "structured SVM" if side == "ours" else side
            rows.append([data, name, strength, *(f"{run[s]:.4f}" for s in SCORES), run["cpu_seconds"], searched])
        mine = runs["ours"]
        stops.append(
            [data, mine["gdmm_gap_at_rho_0.1"], mine["gdmm_gap"], mine["passes"], mine["gdmm_cpu_seconds"],
             mine["gap"], mine["of"], mine["more_passes"], mine["cpu_seconds"]]
        )  # fmt: skip
        notes.append(
            f"{data}: with a loss that is not divided by the number of labels, and lam / K, "
            f"{mine['same']:.2%} of the decisions are the same; micro F1 {mine['unnormalised']['micro_f1']:.4f}"
        )
        rival = next(iter(THEIRS))
        least = runs[rival]["micro_f1"] if rival in runs else 0.0
        if rival in runs:
            limits.append(Limit(f"micro F1 on {data}", mine["micro_f1"], least, at_least=True))
            default, second, plain = (runs[side] for side in (*list(ESTIMATORS)[:2], PLAIN))
            for name, value, other in (
                ("the defaults", default["micro_f1"], plain["micro_f1"]),
                ('C="choose"', second["micro_f1"], default["micro_f1"] - WORSE),
            ):
                limits.append(Limit(f"micro F1 of {name} on {data}", value, other, at_least=True))
            spent = SLOWER * plain["cpu_seconds"]
            limits.append(Limit(f"CPU seconds of the defaults on {data}", default["cpu_seconds"], spent))
    columns = ["", "", "", "micro F1", "exact match", "Hamming loss", "macro F1", "training, CPU s", "search, CPU s"]
    title = "test scores; lam (where the gap is reached) and C by micro F1 on a third of the training examples"
    gaps = ["", "GDMM's gap with rho = 0.1", "with rho chosen", "passes", "CPU s"]
    gaps += ["gap at the end", "of", "passes of BCFW", "CPU s in all"]
    if not limits:
        notes.append("scikit-learn is not installed: pip install 'torchssvm[data]'")
    tables = [Table(title, columns, rows), Table(f"Gaps; {results['gap']:g} was asked for", gaps, stops)]
    return Summary(tables, limits, notes)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """No picture."""
    return []


MEASURES = {"ours": ours, "theirs": theirs, "estimator": estimator, "tuned": tuned}
