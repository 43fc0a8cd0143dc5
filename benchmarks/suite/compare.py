"""OCR: all ways to train a chain, to a certified gap: the rules of BCFW as in [G16], and the baselines.

The rules run on the same compiled loop, one word after another, from zero weights. Counted are effective passes (oracle
calls / n, those of exact passes included) and CPU seconds on one thread, exact passes included; compilation is outside.
Cutting planes and exponentiated gradient tell primal and dual themselves; the subgradient method has no dual but 0.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from baselines import CuttingPlane, ExponentiatedGradient, NSlack, OneSlack, Subgradient

from torchssvm import CacheOracle, CompiledBCFW, DualState, Labelings, LinearChain, Permutation, StructuredHinge
from torchssvm.datasets import OCR
from torchssvm.solvers import WeightedAverage, primal
from torchssvm.solvers.trainer import run_until
from torchssvm.steps import MaxOracle

from .convergence import RULES, Log, Rules, curves, medians
from .descent import shuffled, test_error
from .measuring import Ask, Settings, Summary, Table, chosen, in_turn
from .training import ocr_problem

TITLE = "OCR: rules of BCFW and baselines, to certified gaps"
GAPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
BATCH_SIZE = 64
MULTI_PLANE = {f"multi-plane {name.split()[1]}": RULES[name] for name in ("gap pairwise", "gap corrective")}
BASELINES = ("one-slack", "n-slack", "exponentiated gradient", "subgradient", "subgradient, weighted average")
OPTIONS: dict[str, Any] = {
    "size": "small",
    "lam": [0.01, 0.001, 1 / 626],
    "solvers": [*RULES, *MULTI_PLANE, *BASELINES],
    "seeds": 3,
    "gap": GAPS[-1],
    "max_passes": 5000.0,
    "max_seconds": 20.0,
    "capacity": 20,
    "double": False,
}
QUICK = {"lam": [0.01], "seeds": 1, "gap": 0.3, "max_seconds": 1.0}


def multi_plane(loop: CompiledBCFW) -> Iterator[int]:
    """A pass that calls the oracle, then passes over cached labelings as long as they gain as much in a second."""
    dual, n = loop.dual, loop.dual.num_examples

    def gain(oracle: MaxOracle | CacheOracle) -> tuple[int, float]:
        loop.oracle, value, start = oracle, dual.value(), time.process_time()
        visited = loop.step(n)
        return visited, (dual.value() - value) / (time.process_time() - start)

    while True:
        visited, rate = gain(MaxOracle())
        yield visited
        while True:
            visited, cached = gain(CacheOracle(factor=0.0, floor=0.0))
            yield visited
            if cached < rate:
                break


def blocks(
    solver: str, size: str, lam: float, seed: int, gap: float, max_passes: float, max_seconds: float, **more: Any
) -> dict[str, Any]:
    """One run of the compiled loop; ``capacity`` labelings are kept of a word, ``double`` is float64 weights."""
    words = OCR("train", size)
    data = ocr_problem(words)
    rules = RULES[solver] if solver in RULES else Rules(Permutation, MULTI_PLANE[solver].direction, MaxOracle)

    def make() -> CompiledBCFW:
        head = LinearChain(128, 26).to(torch.float64 if more["double"] else torch.float32)
        dual = DualState.for_head(head, len(words), lam, storage=Labelings(more["capacity"]))
        options = {"direction": rules.direction(), "oracle": rules.oracle(), "order": rules.order()}
        return CompiledBCFW(head, dual, data.batches, seed=seed, **options)

    warm = make()
    for _ in range(2):  # compiles everything
        warm.step(len(words))
        warm.certify()
    loop = make()
    log = Log(loop.dual, max_seconds)
    with contextlib.suppress(TimeoutError):
        if solver in RULES:
            loop.solve(gap, max_passes=max_passes, on_check=log)
        else:
            limits = {"tolerance": gap, "max_passes": max_passes}
            run_until(multi_plane(loop), loop.dual, loop.certify, on_check=log, **limits)
    return {"checks": log.checks, "memory": loop.dual.storage.nbytes(), "test_error": test_error(loop.head, size)}


def cutting_plane(head: LinearChain, words: OCR, lam: float, seed: int, slack: Callable[[], Any]) -> Iterator[Any]:
    """An iteration after the other."""
    batches = ocr_problem(words).batches
    method = CuttingPlane(head, batches, num_examples=len(words), lam=lam, slack=slack())
    while True:
        certificate = method.step()
        yield certificate.primal, certificate.dual, certificate.oracle_calls


def exponentiated(head: LinearChain, words: OCR, lam: float, seed: int) -> Iterator[Any]:
    """Five epochs and an exact pass, again and again."""
    method = ExponentiatedGradient(head, ocr_problem(words).batches, num_examples=len(words), lam=lam)
    while True:
        for index in shuffled(len(words), BATCH_SIZE, 5, seed := seed + 1):
            method.visit(words.__getitems__(index))
        certificate = method.certify()
        yield certificate.primal, certificate.dual, certificate.oracle_calls


def subgradient(head: LinearChain, words: OCR, lam: float, seed: int, average: bool) -> Iterator[Any]:
    """Pegasos; after every epoch the primal of the last iterate, or of the weighted average."""
    data, loss, steps = ocr_problem(words), StructuredHinge(head.structure), Subgradient(head.parameters(), lam)
    mean, calls = WeightedAverage(head.parameters()) if average else None, 0
    while True:
        for index in shuffled(len(words), BATCH_SIZE, 1, seed := seed + 1):
            batch = words.__getitems__(index)
            steps.zero_grad()
            loss(head(batch.x, batch.lengths), batch.y).backward()
            steps.step()
            if mean is not None:
                mean.update()
            calls += len(index)
        with mean.apply() if mean is not None else contextlib.nullcontext():
            yield primal(head, head.structure, data.batches, lam).value, 0.0, calls


METHODS: dict[str, Callable[..., Iterator[Any]]] = {
    "one-slack": lambda *problem: cutting_plane(*problem, OneSlack),
    "n-slack": lambda *problem: cutting_plane(*problem, NSlack),
    "exponentiated gradient": exponentiated,
    "subgradient": lambda *problem: subgradient(*problem, False),
    "subgradient, weighted average": lambda *problem: subgradient(*problem, True),
}


def baseline(
    solver: str, size: str, lam: float, seed: int, gap: float, max_passes: float, max_seconds: float, **_: Any
) -> dict[str, Any]:
    """One run of another method; the clock includes its checks."""
    words, head = OCR("train", size), LinearChain(128, 26)
    log = Log(SimpleNamespace(moved=0, num_examples=len(words)), max_seconds)  # type: ignore[arg-type]
    with contextlib.suppress(TimeoutError):
        for value, dual, calls in METHODS[solver](head, words, lam, seed):
            figures = {"gap": value - dual, "primal": value, "dual": dual, "oracle_calls": calls}
            log(SimpleNamespace(**figures, passes=calls / len(words)))  # type: ignore[arg-type]
            if value - dual <= gap or calls >= max_passes * len(words):
                break
    return {"checks": log.checks, "test_error": test_error(head, size)}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """All solvers under all seeds, in turn."""
    options = chosen(settings, OPTIONS, QUICK)
    lams, solvers, seeds = (options.pop(name) for name in ("lam", "solvers", "seeds"))

    def one(lam: float, solver: str, seed: int) -> dict[str, Any]:
        measure = "baseline" if solver in BASELINES else "blocks"
        return ask(measure, solver=solver, seed=seed, lam=lam, **options)

    runs = {f"{lam:g}": in_turn(solvers, seeds, lambda name, seed, lam=lam: one(lam, name, seed)) for lam in lams}
    return {**options, "runs": runs}


def summarise(results: dict[str, Any]) -> Summary:
    """A table of passes and seconds for each lam, and one of test errors."""
    gaps = [gap for gap in GAPS if gap >= results["gap"]] or [results["gap"]]
    tables = [medians(f"OCR-{results['size']}, lam = {lam}", runs, gaps) for lam, runs in results["runs"].items()]
    for lam, runs in results["runs"].items():
        rows = [[name, 100 * several[0]["test_error"]] for name, several in runs.items()]
        tables.append(Table(f"lam = {lam}: wrong letters of the test words", ["solver", "%"], rows))
    return Summary(tables)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Gaps, a figure for each lam."""
    return [curves(folder / f"compare {lam}.png", runs) for lam, runs in results["runs"].items()]


MEASURES = {"blocks": blocks, "baseline": baseline}
