"""Several processes against one: passes, rounds, bytes and seconds to a certified gap, and a model of many ranks.

Measured are 1, 2 and 4 processes on this machine (gloo, one thread each), and one process on two threads. The same
rounds of up to 256 ranks run as threads of one process, with memory in place of messages: their passes, rounds,
messages, bytes and CPU seconds are counted. Modelled are the seconds of so many machines: the CPU seconds of a rank,
and in every collective a latency for each other rank, one after another, and the bytes.
"""

from __future__ import annotations

import functools
import math
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.ranks import Ranks
from torchssvm.distributed.exchange import Exchange, Figures

from .figures import lines
from .measuring import (
    Ask,
    Limit,
    Settings,
    Summary,
    Table,
    best_of,
    chosen,
    in_turn,
    interpolate,
    median,
    number,
    ratio,
)
from .ranked_problems import TASKS
from .ranks import Counted, in_processes, in_threads

TITLE = "Several processes, and a model of many"
# Of a message: seconds, and bytes a second.
NETWORKS = {"one machine": (5e-6, 4e9), "10 Gbit/s": (25e-6, 1.25e9)}
# For each problem lam, the gap to reach, and n where it can be chosen.
PROBLEMS: dict[str, dict[str, Any]] = {
    "OCR-small": {"lam": 0.01, "gap": 0.1},
    "CoNLL-2000": {"lam": 0.02, "gap": 0.01},
    "cuts": {"lam": 300.0, "gap": 0.02, "n": 64},
    "large cuts": {"lam": 1200.0, "gap": 0.02, "n": 32},
    "poses": {"lam": 1.0, "gap": 0.1, "n": 32},
}
# Processes, threads of each, visits of a process in a round; null chooses the visits by the times of the first rounds.
SIDES: dict[str, list[list[int | None]]] = {
    "OCR-small": [[1, 1, 1], [2, 1, 16], [2, 1, None], [4, 1, 16]],
    "CoNLL-2000": [[1, 1, 1], [2, 1, 16], [2, 1, None], [4, 1, 16]],
    "cuts": [[1, 1, 1], [1, 1, 4], [1, 2, 4], [2, 1, 1], [2, 1, 2], [4, 1, 1]],
    "large cuts": [[1, 1, 1], [1, 2, 2], [2, 1, 1]],
    "poses": [[1, 1, 1], [1, 2, 4], [2, 1, 1]],
}
OPTIONS: dict[str, Any] = {
    "problems": PROBLEMS,
    "sides": SIDES,
    "simulated": {
        "OCR-small": [[1, 1], [4, 1], [16, 1], [64, 1], [256, 1], [16, 16]],
        "CoNLL-2000": [[1, 1], [4, 16], [16, 16]],
        "cuts": [[1, 1], [4, 1], [16, 1], [64, 1]],
        "poses": [[1, 1], [4, 1], [16, 1]],
    },
    "simulated_n": {"cuts": 128, "poses": 32},
    "max_passes": 500.0,
    "exact": "large",
    "numbers": [4082, 1_656_908],
}
QUICK = {
    "problems": {
        "OCR-small": {"lam": 0.1, "gap": 0.3},
        "cuts": {"lam": 300.0, "gap": 0.5, "n": 6},
        "poses": {"lam": 1.0, "gap": 0.5, "n": 4},
    },
    "sides": {"OCR-small": [[1, 1, 1], [2, 1, 16]], "cuts": [[1, 1, 1], [2, 1, 1]], "poses": [[1, 1, 1]]},
    "simulated": {"OCR-small": [[1, 1], [8, 1]], "cuts": [[1, 1], [4, 1]]},
    "simulated_n": {},
    "max_passes": 20.0,
    "exact": "small",
    "numbers": [4082],
}


@functools.lru_cache
def _read(problem: str, n: int | None) -> Any:
    return TASKS[problem].read(n)


def solve(
    problem: str, visits: int | None, lam: float, gap: float, max_passes: float, seed: int, n: int | None = None
) -> dict[str, Any]:
    """One rank's part of a run to the gap; what is compiled has run before the clock starts."""
    data, make = _read(problem, n), TASKS[problem].loop
    warm = make(data, lam, visits, seed)
    warm.step()
    warm.certify()
    loop = make(data, lam, visits, seed)
    counted = Counted.into(loop)
    cpu = time.process_time if threading.current_thread() is threading.main_thread() else time.thread_time
    loop.dual.ranks.run_on_all(lambda: None)  # all begin together
    start, checks = (time.perf_counter(), cpu()), list[dict[str, float]]()

    def log(certificate: Any) -> None:
        now = {"seconds": time.perf_counter() - start[0], "cpu_seconds": cpu() - start[1]}
        names = ("gap", "primal", "dual", "oracle_calls", "passes")
        checks.append({**now, **{name: getattr(certificate, name) for name in names}})

    loop.solve(gap, max_passes=max_passes, on_check=log, progress=False)
    rho = [] if counted is None else counted.rho
    rounds: dict[str, Any] = {"rounds": len(rho), "rho": statistics.fmean(rho) if rho else None}
    sent = 0 if counted is None else counted.sent
    size = loop._rounds.visits if getattr(loop, "_rounds", None) is not None else visits  # type: ignore[union-attr]
    return {"checks": checks, "visits": size, "bytes": sent, "numbers": _numbers(loop.dual.parameters), **rounds}


def _numbers(parameters: Any) -> int:
    return sum(p.numel() for p in parameters)


def together(processes: int, gap: float, **options: Any) -> dict[str, Any]:
    """A run of several processes."""
    return _whole(in_processes(processes, solve, gap=gap, **options), gap)


def simulated(processes: int, gap: float, **options: Any) -> dict[str, Any]:
    """A run of ranks that are threads."""
    results, room = in_threads(processes, solve, gap=gap, **options)
    return {**_whole(results, gap), "collectives": room.collectives, "all_bytes": room.sent}


def _whole(results: list[dict[str, Any]], gap: float) -> dict[str, Any]:
    """Figures of all ranks: seconds of the first, CPU seconds and calls of all, bytes of the one that sends most."""
    first = results[0]["checks"]
    for one in results[1:]:
        if [check["gap"] for check in one["checks"]] != [check["gap"] for check in first]:
            raise AssertionError("the ranks have other certificates")
    at = {name: interpolate(first, gap, clock=name) for name in ("passes", "seconds")}
    cpu = [interpolate(one["checks"], gap, clock="cpu_seconds") for one in results]
    last = first[-1]
    return {
        **{name: results[0][name] for name in ("rounds", "rho", "visits", "numbers")},
        **at,
        "cpu_seconds": None if None in cpu else math.fsum(c for c in cpu if c is not None),
        "bytes": max(one["bytes"] for one in results),
        "end": last,
    }


def exact(processes: int, size: str, lam: float, quick: bool) -> dict[str, float]:
    """Wall seconds of an exact pass over OCR, by the compiled loops of several processes, and their CPU seconds."""
    results = in_processes(processes, _exact, size=size, lam=lam, calls=3 if quick else 20)
    return {"seconds": max(wall for wall, _ in results), "cpu_seconds": math.fsum(cpu for _, cpu in results)}


def _exact(size: str, lam: float, calls: int) -> tuple[float, float]:
    loop = TASKS[f"OCR-{size}"].loop(_read(f"OCR-{size}", None), lam, 16, 0)
    loop.step()
    loop.certify()
    start = time.process_time()
    return best_of(loop.certify, 0.0, calls), (time.process_time() - start) / calls


def exchange(processes: int, numbers: int) -> dict[str, float]:
    """Seconds of a round of dense directions, without the visits."""
    return {"seconds": max(in_processes(processes, _exchange, numbers=numbers))}


def _exchange(numbers: int) -> float:
    ranks = Ranks.here()
    direction = torch.rand(numbers, generator=torch.Generator().manual_seed(ranks.rank))

    def make() -> tuple[list[Tensor], Figures]:
        return [direction], Figures(1.0, 1.0, 0.0, 0.0, 0.0, 1, 0, 1)

    rounds = Exchange(ranks, [direction])
    return best_of(lambda: rounds(make, 1.0), 0.0, 20)


MEASURES = {"together": together, "simulated": simulated, "exact": exact, "exchange": exchange}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """All sides of a problem in turn, then exact passes and exchanges; the simulated ranks once, as they count."""
    options = chosen(settings, OPTIONS, QUICK)
    problems, limit = options["problems"], options["max_passes"]
    runs = {}
    for problem, sides in options["sides"].items():
        named = {_name(*side): side for side in sides}

        def run(name: str, repeat: int, problem: str = problem, named: Any = named) -> dict[str, Any]:
            processes, threads, visits = named[name]
            known = {**problems[problem], "max_passes": limit, "seed": repeat}
            return ask("together", threads=threads, processes=processes, problem=problem, visits=visits, **known)

        runs[problem] = in_turn(list(named), settings.repeats, run)
    passes = in_turn(
        ["1", "2"],
        settings.repeats,
        lambda p, _: ask("exact", processes=int(p), size=options["exact"], lam=0.01, quick=settings.quick),
    )
    rounds = {
        str(numbers): {str(p): ask("exchange", processes=p, numbers=numbers) for p in (2, 4)}
        for numbers in options["numbers"]
    }
    models: dict[str, dict[str, Any]] = {}
    for problem, sides in options["simulated"].items():
        known = {**problems[problem], "max_passes": limit, "seed": 0}
        if problem in options["simulated_n"]:
            known["n"] = options["simulated_n"][problem]
        models[problem] = {
            f"{p} x {visits}": ask("simulated", processes=p, problem=problem, visits=visits, **known)
            for p, visits in sides
        }
    return {**options, "runs": runs, "exact_passes": passes, "exchanges": rounds, "models": models}


def _name(processes: int, threads: int, visits: int | None) -> str:
    size = "chosen" if visits is None else f"{visits}"
    return f"{processes} x {size}" + (f", {threads} threads" if threads > 1 else "")


def summarise(results: dict[str, Any]) -> Summary:
    """What was measured, what was modelled, and the limits."""
    measured, models = [], []
    for problem, runs in results["runs"].items():
        measured.append(_measured(problem, results["problems"][problem], runs))
    for problem, runs in results["models"].items():
        models.append(_model(problem, results["problems"][problem], runs))
    exact = [[_median(results["exact_passes"][p], name) for name in ("seconds", "cpu_seconds")] for p in ("1", "2")]
    rows: list[list[Any]] = [
        [f"exact pass over OCR-{results['exact']}, {p}", 1e3 * wall, 1e3 * cpu]
        for p, (wall, cpu) in zip(("1 process", "2 processes"), exact, strict=True)
    ]
    for numbers, sides in results["exchanges"].items():
        rows += [
            [f"round of {int(numbers):,} numbers, {p} processes", 1e3 * s["seconds"], None] for p, s in sides.items()
        ]
    tables = [*measured, Table("Milliseconds on this machine", ["", "ms", "CPU ms"], rows), *models]
    return Summary(tables, _limits(results["runs"], ratio(exact[1][0], exact[0][0])))


def _median(runs: list[dict[str, Any]], name: str) -> Any:
    return median(run[name] for run in runs)


def _limits(runs: dict[str, Any], exact: float | None) -> list[Limit]:
    """The best of one process against the best of two; a figure that is missing is not measured."""

    def least(problem: str, start: str, name: str) -> float | None:
        sides = {side: several for side, several in runs.get(problem, {}).items() if side.startswith(start)}
        values = [_median(several, name) for side, several in sides.items() if "threads" not in side]
        return min((value for value in values if value is not None), default=None)

    cuts = [
        Limit(f"{name}: seconds of 2 processes over those of 1", ratio(*(least(name, p, "seconds") for p in "21")), 0.6)
        for name in ("cuts", "large cuts")
    ]
    return [
        *cuts,
        Limit(
            "CoNLL-2000: passes of 2 processes over those of 1",
            ratio(least("CoNLL-2000", "2", "passes"), least("CoNLL-2000", "1", "passes")),
            1.5,
        ),
        Limit("exact pass: seconds of 2 processes over those of 1", exact, 0.65),
    ]


def _measured(problem: str, known: dict[str, Any], runs: dict[str, Any]) -> Table:
    rows = []
    for name, several in runs.items():
        last = several[0]
        kilobytes = last["bytes"] / last["rounds"] / 1e3 if last["rounds"] else None
        figures = [_median(several, one) for one in ("passes", "seconds", "cpu_seconds", "rho")]
        bracket = f"{last['end']['dual']:.4f} to {last['end']['primal']:.4f}"
        rows.append([name, *figures, last["visits"], last["rounds"] or None, kilobytes, bracket])
    columns = ["processes x visits", "passes", "seconds", "CPU seconds", "rho"]
    columns += ["visits of a round", "rounds", "kB sent a round", "optimum"]
    return Table(f"{problem}, lam = {known['lam']:g}, to gap {known['gap']:g}: measured", columns, rows)


def seconds(run: dict[str, Any], processes: int, latency: float, rate: float) -> float | None:
    """The modelled time of a run to the gap."""
    if run["passes"] is None:
        return None
    part = run["passes"] / run["end"]["passes"]  # of the run, until it came to the gap
    sending = run["collectives"] * (processes - 1) * latency + run["all_bytes"] / rate
    return run["cpu_seconds"] / processes + part * sending


def _model(problem: str, known: dict[str, Any], runs: dict[str, Any]) -> Table:
    alone = runs["1 x 1"]
    rows = []
    for name, run in runs.items():
        processes = int(name.split()[0])
        networks = ((0.0, math.inf), *NETWORKS.values())
        ups = [ratio(seconds(alone, 1, *network), seconds(run, processes, *network)) for network in networks]
        sent = run["all_bytes"] / run["rounds"] / 1e3 if run["rounds"] else None
        rows.append([name, run["passes"], run["rho"], run["rounds"] or None, sent, *ups])
    columns = ["ranks x visits", "passes", "rho", "rounds", "kB sent a round", "times as fast, no network", *NETWORKS]
    end = alone["end"]
    title = f"{problem}, n = {end['oracle_calls'] / end['passes']:.0f}, to gap {known['gap']:g}"
    each = ratio(alone["cpu_seconds"], alone["passes"] and alone["passes"] * end["oracle_calls"] / end["passes"])
    return Table(f"{title}: simulated ranks, {number(each and 1e3 * each)} ms a call", columns, rows)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """How many times as fast, over the ranks, on the slower network, with rounds of one visit."""
    curves = {}
    for problem, runs in results["models"].items():
        rows = _model(problem, results["problems"][problem], runs).rows
        known = [(int(row[0].split()[0]), row[-1]) for row in rows if row[-1] is not None and row[0].endswith(" 1")]
        curves[problem] = ([p for p, _ in known], [up for _, up in known])
    return [
        lines(folder / "distributed.png", curves, "ranks", f"times as fast as one ({[*NETWORKS][-1]})", levels=[1.0])
    ]
