"""Decisions: the regret of predicted costs, beside a perturbed loss, PyEPO's SPO+ and least squares.

The data are PyEPO's synthetic shortest paths and knapsacks, made anew from their formulas (Tang and Khalil 2024): five
features, costs of a polynomial of a degree, multiplied by uniform noise. Ours chooses lambda on a quarter of the
training examples; PyEPO's SPO+ is trained by Adam, learning rate and epochs chosen on the same quarter, and decides by
the same solver, wrapped as its optModel. Regrets are of 1,000 other examples, normalised.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchssvm import Decisions, PerturbedFenchelYoung
from torchssvm.core.batch import tree_map
from torchssvm.estimators import PredictThenOptimize
from torchssvm.structures.decisions import DecisionOracle, Knapsack, ShortestPath

from .measuring import Ask, Clock, Limit, Settings, Summary, Table, chosen, median

TITLE = "Decisions: test regret, beside PyEPO's SPO+ and least squares"
GRID = (5, 5)
TEST = 1000
HELD_OUT = 0.25
SIDES = {
    "zero": "SPO+, certified",
    "least-squares": "the same, anchored",
    "perturbed": "perturbed, by Adam",
    "pyepo": "PyEPO's SPO+",
}
OPTIONS: dict[str, Any] = {
    "kinds": ["path", "knapsack"],
    "degrees": [1, 2, 4, 6, 8],
    "n": [100, 1000],
    "noise": 0.5,
    "items": 32,
    "seeds": 5,
    "rates": [0.1, 0.03, 0.01],  # of PyEPO, to choose from
    "visits": 20_000,  # of examples by PyEPO, for each rate
    "max_passes": 1000,  # of ours
}
QUICK = {"kinds": ["path"], "degrees": [4], "n": [40], "seeds": 1, "rates": [0.1], "visits": 100, "max_passes": 20}


def draw_costs(random: Any, n: int, costs: int, degree: int, features: int = 5) -> tuple[Any, Any]:
    """Features ``[n, F]`` and costs ``[n, D]`` before noise: ``((B x / sqrt F + 3)^degree + 1) / 3.5^degree``."""
    B = random.binomial(1, 0.5, (costs, features))
    x = random.normal(0, 1, (n, features))
    return x, ((x @ B.T / features**0.5 + 3) ** degree + 1) / 3.5**degree


def make(kind: str, n: int, degree: int, noise: float, items: int, seed: int) -> tuple[DecisionOracle, Any, Any]:
    """The solver, features and true costs of ``n`` examples; weights of knapsacks are whole hundredths."""
    random = np.random.RandomState(seed)
    if kind == "path":
        program: DecisionOracle = ShortestPath.grid(*GRID)
        x, costs = draw_costs(random, n, program.num_costs, degree)
        return program, x, costs * random.uniform(1 - noise, 1 + noise, costs.shape)
    weights = random.choice(range(300, 800), size=items)
    x, values = draw_costs(random, n, items, degree)
    program = Knapsack(weights, capacity=int(weights.sum() // 2))
    return program, x, np.ceil(5 * values * random.uniform(1 - noise, 1 + noise, values.shape))


class Counted(DecisionOracle):
    """A solver that counts the problems that it solves."""

    def __init__(self, program: DecisionOracle) -> None:
        self.program, self.calls = program, 0
        self.num_costs, self.maximize, self.quick = program.num_costs, program.maximize, program.quick

    def solve(self, costs: Any, given: Any = None, start: Any = None) -> Any:
        """As the solver, counted."""
        self.calls += len(costs)
        return self.program.solve(costs, given, start)


def ours(anchor: str, n: int, max_passes: int, seed: int, **problem: Any) -> dict[str, Any]:
    """Choose lambda and train; then train at this lambda alone, for its seconds."""
    import warnings

    program, x, costs = make(n=n + TEST, seed=seed, **problem)
    options = {"anchor": anchor, "held_out": HELD_OUT, "max_passes": max_passes, "random_state": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the gap is in the table
        PredictThenOptimize(program, 1.0, **{**options, "max_passes": 1}).fit(x[:8], costs[:8])  # compiles
        counted, clock = Counted(program), Clock()
        model = PredictThenOptimize(counted, **options).fit(x[:n], costs[:n])
        seconds, calls = clock.stop()["cpu_seconds"], counted.calls
        clock = Clock()
        PredictThenOptimize(program, model.lam_, **options).fit(x[:n], costs[:n])
    return {
        "regret": model.regret(x[n:], costs[n:]), "cpu_seconds": seconds, "one_run": clock.stop()["cpu_seconds"],
        "calls": calls / n, "gap": model.certificate_.relative_gap, "lam": model.lam_,
    }  # fmt: skip


def regret(structure: Decisions, predicted: Any, costs: Any) -> float:
    """Normalised, as PyEPO's."""
    target = structure.target(costs)
    results = structure.decode(torch.as_tensor(predicted, dtype=torch.float64))
    best = (target.y * target.cost).sum(1).abs().sum()
    return float(structure.regret(results, target).sum() / best)


def least_squares(n: int, seed: int, **problem: Any) -> dict[str, Any]:
    """Predict by least squares, then decide."""
    program, x, costs = make(n=n + TEST, seed=seed, **problem)
    clock = Clock()
    x = np.c_[x, np.ones(len(x))]
    weights = np.linalg.lstsq(x[:n], costs[:n], rcond=None)[0]
    seconds = clock.stop()["cpu_seconds"]
    return {"regret": regret(Decisions(program), x[n:] @ weights, costs[n:]), "cpu_seconds": seconds}


def pyepo(n: int, rates: list[float], visits: int, seed: int, **problem: Any) -> dict[str, Any]:
    """PyEPO's SPO+ by Adam."""
    import pyepo as package
    from pyepo.model.opt import optModel

    program, x, costs = make(n=n + TEST, seed=seed, **problem)
    counted = Counted(program)

    class Model(optModel):
        modelSense = package.EPO.MAXIMIZE if program.maximize else package.EPO.MINIMIZE

        def _getModel(self) -> Any:
            return None, list(range(program.num_costs))

        def setObj(self, c: Any) -> None:
            self.costs = np.asarray(c, np.float64)[None]

        def solve(self) -> Any:
            y = counted.solve(self.costs)[0][0].astype(np.float64)
            return y, float(y @ self.costs[0])

    spo_plus = package.func.SPOPlus(Model())

    def loss(predicted: Any, target: Any) -> Any:
        best = (target.y * target.cost).sum(1, keepdim=True).float()
        return spo_plus(predicted, target.cost.float(), target.y.float(), best)

    return by_adam(loss, counted, x, costs, n, rates, visits, seed)


def perturbed(n: int, rates: list[float], visits: int, seed: int, **problem: Any) -> dict[str, Any]:
    """The perturbed Fenchel-Young loss by Adam, with PyEPO's sigma and number of samples."""
    program, x, costs = make(n=n + TEST, seed=seed, **problem)
    counted = Counted(program)
    return by_adam(PerturbedFenchelYoung(Decisions(counted)), counted, x, costs, n, rates, visits, seed)


def by_adam(
    loss: Callable[[Any, Any], Any], counted: Counted, x: Any, costs: Any, n: int, rates: list[float], visits: int,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Choose learning rate and epochs of a loss of (predicted costs, target) on held-out examples; train on all."""
    structure, clock = Decisions(counted.program), Clock()
    x, costs = torch.tensor(x, dtype=torch.float32), torch.tensor(costs, dtype=torch.float32)
    order = torch.from_numpy(np.random.RandomState(seed).permutation(n))
    held_out, train = order[: round(HELD_OUT * n)], order[round(HELD_OUT * n) :]

    def run(rows: Any, rate: float, epochs: int) -> list[tuple[float, int, Any]]:
        torch.manual_seed(seed)
        predictor = torch.nn.Linear(x.shape[1], counted.num_costs)
        adam, target = torch.optim.Adam(predictor.parameters(), rate), structure.target(costs[rows])
        points, every = [], max(epochs // 10, 1)
        for epoch in range(1, epochs + 1):
            for batch in torch.randperm(len(rows)).split(32):
                adam.zero_grad()
                loss(predictor(x[rows[batch]]), tree_map(lambda t, batch=batch: t[batch], target)).backward()
                adam.step()
            if epoch % every == 0:
                with torch.no_grad():
                    value = regret(structure, predictor(x[held_out]), costs[held_out])
                points.append((value, epoch, copy.deepcopy(predictor)))
        return points

    epochs = max(visits // n, 1)
    search = [(value, rate, epoch) for rate in rates for value, epoch, _ in run(train, rate, epochs)]
    _, rate, epoch = min(search)
    predictor = run(torch.arange(n), rate, epoch)[-1][2]
    seconds = clock.stop()["cpu_seconds"]
    with torch.no_grad():
        value = regret(structure, predictor(x[n:]), costs[n:])
    return {"regret": value, "cpu_seconds": seconds, "calls": counted.calls / n, "rate": rate, "epochs": epoch}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Every row, all sides, seed by seed."""
    options = chosen(settings, OPTIONS, QUICK)
    there = importlib.util.find_spec("pyepo") is not None
    rows = []
    for kind in options["kinds"]:
        for n in options["n"]:
            for degree in options["degrees"]:
                problem = {"kind": kind, "degree": degree, "noise": options["noise"], "items": options["items"], "n": n}
                runs: dict[str, list[Any]] = {name: [] for name in (*SIDES, "two_stages")}
                for seed in range(options["seeds"]):
                    runs["two_stages"].append(ask("least_squares", seed=seed, **problem))
                    for anchor in ("zero", "least-squares"):
                        limit = options["max_passes"]
                        runs[anchor].append(ask("ours", anchor=anchor, max_passes=limit, seed=seed, **problem))
                    tuning = {"rates": options["rates"], "visits": options["visits"]}
                    runs["perturbed"].append(ask("perturbed", seed=seed, **tuning, **problem))
                    if there:
                        runs["pyepo"].append(ask("pyepo", seed=seed, **tuning, **problem))
                rows.append({"kind": kind, "n": n, "degree": degree, "runs": runs})
    return {"rows": rows, "there": there}


def middle(runs: list[Any], name: str) -> float | None:
    """The median over the seeds."""
    return median(run[name] for run in runs) if runs else None


def summarise(results: dict[str, Any]) -> Summary:
    """Regrets with their spreads, costs of training, and on how many rows ours is at most PyEPO's."""
    regrets, costs, better, safe = [], [], {"path": 0, "knapsack": 0}, 0
    worst = max(
        run["gap"] for row in results["rows"] for side in ("zero", "least-squares") for run in row["runs"][side]
    )
    for row in results["rows"]:
        runs, name = row["runs"], f"{row['kind']}, n = {row['n']}, degree {row['degree']}"
        cells = []
        for side in (*SIDES, "two_stages"):
            values = [run["regret"] for run in runs[side]]
            middle_of = (
                f"{np.median(values):.4f} ({min(values):.4f} to {max(values):.4f})" if values else "not installed"
            )
            cells.append(middle_of)
        regrets.append([name, *cells])
        result = runs["zero"], runs["least-squares"]
        costs.append(
            [name, *(middle(each, "cpu_seconds") for each in result),
             *(median(run["cpu_seconds"] / run["one_run"] for run in each) for each in result),
             middle(runs["perturbed"], "cpu_seconds"), middle(runs["pyepo"], "cpu_seconds"),
             *(middle(each, "calls") for each in (*result, runs["pyepo"])),
             *(100 * max(run["gap"] for run in each) for each in result)]
        )  # fmt: skip
        regret_of = middle(runs["zero"], "regret") or 0.0  # the default; the anchor is not chosen by test regrets
        better[row["kind"]] += bool(runs["pyepo"]) and regret_of <= (middle(runs["pyepo"], "regret") or 0.0)
        excess = [a["regret"] - b["regret"] for a, b in zip(result[1], runs["two_stages"], strict=True)]
        safe += bool(np.mean(excess) <= 2 * np.std(excess) / len(excess) ** 0.5)
    sizes = {kind: sum(row["kind"] == kind for row in results["rows"]) for kind in better}
    there = results["there"]
    limits = [
        Limit("largest gap of all runs", 100 * worst, 1.0, " %"),
        Limit("rows where the anchor is not worse than least squares", safe, len(results["rows"]), at_least=True),
    ]
    for kind, least in (("path", 0.8), ("knapsack", 0.75)):
        if sizes[kind]:
            share = better[kind] / sizes[kind] if there else None
            limits.append(Limit(f"share of {kind} rows at most PyEPO's", share, least, at_least=True))
    names = [*SIDES.values(), "least squares"]
    columns = [
        "",
        "s",
        "s, anchored",
        "runs",
        "runs, anchored",
        "s, perturbed",
        "s, PyEPO",
        "solves",
        "anchored",
        "PyEPO",
    ]
    tables = [
        Table("Normalised test regret: median of the seeds (least to most)", ["", *names], regrets),
        Table(
            "CPU seconds, choosing included; in runs at the chosen lambda; solves an example; largest gap, %",
            [*columns, "gap", "gap, anchored"],
            costs,
        ),
    ]
    return Summary(tables, limits, [] if there else ["PyEPO is not installed: pip install pyepo"])


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """No picture."""
    return []


MEASURES = {"ours": ours, "least_squares": least_squares, "perturbed": perturbed, "pyepo": pyepo}
