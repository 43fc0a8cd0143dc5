"""Classes: CPU seconds to a certified gap of 0.1 %, beside LIBLINEAR's Crammer-Singer at the same objective.

Digits are those of scikit-learn. The others are drawn: topics and hashed words from Zipf's law, a share of them by
topic, and dense rows of the shape of covertype. LIBLINEAR runs at the largest tolerance of a few whose
objective is within 0.1 % of ours. Neither side has an intercept; drawing and compiling are outside of the clocks.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .measuring import Ask, Limit, Settings, Summary, Table, chosen

TITLE = "Classes: CPU seconds beside LIBLINEAR's Crammer-Singer"
LIMIT, COMPILING = 1.2, 5.0
OPTIONS: dict[str, Any] = {"data": ["digits", "topics", "hashed", "dense"], "tol": 0.001, "share": 1.0}
QUICK = {"share": 0.02}


def digits(share: float) -> tuple[Any, np.ndarray]:
    """1,347 of scikit-learn's digits, 64 pixels each."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(x))[: max(int(1347 * share), 50)]
    return np.ascontiguousarray(x[rows] / 16.0), y[rows].astype(np.int64)


def words(n: int, features: int, mean: int, share: float, classes: int = 20) -> tuple[Any, np.ndarray]:
    """Normalised tf-idf of documents of ``mean`` words, of which ``share`` are drawn by the ranks of the topic."""
    from scipy import sparse

    random = np.random.default_rng(0)
    y = random.integers(classes, size=n)
    counts = random.poisson(mean, size=n) + 5
    document = np.repeat(np.arange(n), counts)
    ends = np.cumsum(1.0 / np.arange(1, features + 1))
    rank = np.searchsorted(ends / ends[-1], random.random(len(document))).clip(max=features - 1)
    names = np.stack([random.permutation(features) for _ in range(classes + 1)])
    topic = np.where(random.random(len(document)) < share, y[document], classes)
    x = sparse.csr_matrix((np.ones(len(document)), (document, names[topic, rank])), shape=(n, features))
    x.sum_duplicates()
    rare = np.log(n / (1.0 + np.bincount(x.indices, minlength=features))) + 1.0
    x.data = np.log1p(x.data) * rare[x.indices]
    rows = np.repeat(np.arange(n), np.diff(x.indptr))
    x.data /= np.sqrt(np.bincount(rows, x.data**2, minlength=n))[rows]
    return x, y


def dense(n: int) -> tuple[Any, np.ndarray]:
    """Ten numbers, and one of 4 and one of 40 marks, that depend on seven classes of unequal size."""
    random = np.random.default_rng(0)
    y = random.choice(7, size=n, p=[0.365, 0.488, 0.062, 0.005, 0.016, 0.03, 0.034])
    numbers = 0.45 * random.normal(size=(7, 10))[y] + random.normal(size=(n, 10))
    wild, soil = np.zeros((n, 4)), np.zeros((n, 40))
    wild[np.arange(n), (y + random.integers(0, 4, n)) * (random.random(n) < 0.5) % 4] = 1.0
    soil[np.arange(n), (6 * y + random.poisson(9, n)) % 40] = 1.0
    return np.hstack([numbers, wild, soil]), y.astype(np.int64)


DATA: dict[str, Callable[[float], tuple[Any, np.ndarray]]] = {
    "digits": digits,
    "topics": lambda share: words(int(4500 * share), 20_000, 90, 0.15),
    "hashed": lambda share: words(int(200_000 * share), 1 << 18, 40, 0.25),
    "dense": lambda share: dense(int(50_000 * share)),
}


def objective(x: Any, y: np.ndarray, weights: np.ndarray) -> float:
    """``1/(2 n) |w|^2`` and the mean hinge: C is 1."""
    scores, rows = x @ weights.T, np.arange(len(y))
    hinges = scores - scores[rows, y][:, None] + 1.0
    hinges[rows, y] = 0.0
    return float((weights**2).sum() / (2 * len(y)) + hinges.max(1).mean())


def both(data: str, tol: float, share: float, repeats: int) -> dict[str, Any]:
    """Medians of ours and theirs, which take turns."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    from torchssvm.estimators import MultinomialSVC

    x, y = DATA[data](share)
    y = np.unique(y, return_inverse=True)[1]  # a small share lacks classes

    def fit(model: Any) -> tuple[float, Any]:
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x, y)
        return time.process_time() - start, model

    def ours() -> tuple[float, Any]:
        return fit(MultinomialSVC(fit_intercept=False, tol=tol, random_state=0))

    def theirs(level: float) -> tuple[float, Any]:
        options = {"multi_class": "crammer_singer", "fit_intercept": False, "max_iter": 100_000, "random_state": 0}
        return fit(LinearSVC(tol=level, **options))

    _, model = ours()  # compiles
    results: dict[str, Any] = {"primal": model.certificate_.primal, "gap": model.certificate_.relative_gap}
    for level in (1.0, 0.3, 0.1, 0.03, 0.01, 0.008, 0.006, 0.003, 0.001, 1e-4):
        primal = objective(x, y, theirs(level)[1].coef_)
        if primal <= 1.001 * results["primal"]:
            break
    runs = [(ours()[0], theirs(level)[0]) for _ in range(repeats)]
    mine, other = (statistics.median(seconds) for seconds in zip(*runs, strict=True))
    return {**results, "ours": mine, "theirs": other, "level": level, "their_primal": primal}


def compiling() -> float:
    """CPU seconds of a first fit in a new process without compiled kernels, Numba's import included."""
    import os
    import subprocess
    import sys

    code = (
        "import time, torchssvm.estimators as e; from sklearn.datasets import load_digits as d; "
        "start = time.process_time(); e.MultinomialSVC().fit(*d(return_X_y=True)); print(time.process_time() - start)"
    )
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "NUMBA_CACHE_DIR": empty}
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=environment
        )
    return float(done.stdout)


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Each data set in a separate process, and the first fit."""
    options = chosen(settings, OPTIONS, QUICK)
    its = {"tol": options["tol"], "share": options["share"], "repeats": settings.repeats}
    results = {data: ask("both", data=data, **its) for data in options["data"]}
    return {"data": results, "compiling": ask("compiling")}


def summarise(results: dict[str, Any]) -> Summary:
    """Seconds side by side."""
    rows, limits = [], []
    for data, one in results["data"].items():
        ratio = one["ours"] / one["theirs"]
        rows.append(
            [data, one["ours"], one["primal"], one["gap"], one["theirs"], one["their_primal"], one["level"], ratio]
        )
        limits.append(Limit(f"{data}: CPU seconds over LIBLINEAR's", ratio, LIMIT))
    columns = [
        "data",
        "ours, CPU s",
        "objective",
        "relative gap",
        "LIBLINEAR, CPU s",
        "its objective",
        "its tol",
        "ratio",
    ]
    limits.append(Limit("a first fit", results["compiling"], COMPILING, " CPU s"))
    return Summary([Table("To 0.1 % of the objective, C = 1", columns, rows)], limits)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"both": both, "compiling": compiling}
