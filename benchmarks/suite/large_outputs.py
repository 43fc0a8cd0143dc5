"""Outputs too many to decode often: what GDMM takes for chains of thousands of states and for sets of labels.

Synthetic chains with the same number of tokens for every K; each measurement is a separate process, on one thread.
Compilation and reading are outside the clocks. A pass of BCFW, and of its max oracle alone, loss-augmented Viterbi, is
that of its first steps on a sample of the chains, scaled to all tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .figures import grid
from .large_outputs_measures import MEASURES as MEASURES
from .large_outputs_measures import RULES, mean_pass
from .measuring import Ask, Limit, Settings, Summary, Table, chosen

TITLE = "Outputs too many to decode: GDMM on chains and sets of labels"
LAM = 0.01


OPTIONS: dict[str, Any] = {
    "states": [100, 1000, 3000],  # K
    "chains": 1000,
    "passes": 50,  # of GDMM
    "brute": 6e9,  # configurations that brute force may look at, which says how many chains it gets
    "decoded": 3e9,  # additions of the max oracle on the sample that BCFW visits
    "bcfw": [[1, 0], [8, 5], [8, 0], [24, 0]],  # chains of a step of BCFW, and sweeps of its box QP
    "rules": [1000, 100, 20],  # K, n and passes of the comparison of rules
    "label_sets": [40, 3],  # passes over bibtex, of GDMM and of BCFW; null is not measured
}
QUICK = {
    **{"states": [8, 20], "chains": 20, "passes": 3, "brute": 1e6, "decoded": 1e5, "bcfw": [[8, 5], [4, 0]]},
    **{"rules": [8, 10, 3], "label_sets": None},
}
BRUTE_PASSES = 5
LAM_SETS, RHO_SETS = 0.01, 0.1


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Everything, one process after another."""
    options = chosen(settings, OPTIONS, QUICK)
    results: dict[str, Any] = {"options": options, "chains": {}, "bcfw": {}, "oracles": {}, "rules": {}}
    common = {"lam": LAM}
    for states in options["states"]:
        sample = max(int(options["decoded"] / (15 * states**2)), 5)
        same, name = {"states": states, "chains": options["chains"], **common}, str(states)
        results["chains"][name] = ask("gdmm", passes=options["passes"], **same)
        results["bcfw"][name] = [
            ask("bcfw", sample=sample, batch=batch, sweeps=sweeps, **same) for batch, sweeps in options["bcfw"]
        ]
        few = min(max(int(options["brute"] / (15 * states**2 * BRUTE_PASSES)), 3), options["chains"])
        results["oracles"][name] = {
            oracle: ask("gdmm", states=states, chains=few, passes=BRUTE_PASSES, oracle=oracle, **common)
            for oracle in ("sorted", "brute force")
        }
    states, chains, passes = options["rules"]
    for rule in RULES:
        results["rules"][rule] = ask("gdmm", states=states, chains=chains, passes=passes, rule=rule, **common)
    if options["label_sets"] is not None:
        ours, bcfw = options["label_sets"]
        results["label_sets"] = {
            "GDMM": ask("label_sets", lam=LAM_SETS, passes=ours, rho=RHO_SETS),
            "BCFW": ask("label_sets_bcfw", lam=LAM_SETS, passes=bcfw),
            "BCFW, every label alone": ask("label_sets_bcfw", lam=LAM_SETS, passes=ours, interactions=False),
        }
    return results


def ratio(results: dict[str, Any], states: str) -> float:
    """Seconds of the fastest pass of BCFW over those of GDMM's."""
    return min(one["pass_cpu_seconds"] for one in results["bcfw"][states]) / mean_pass(results["chains"][states])


def summarise(results: dict[str, Any]) -> Summary:
    """The results, for people."""
    options = results["options"]
    head = [
        *("K", "entries visited a query", "of K² entries", "GDMM, CPU s a pass", "last pass"),
        *(
            "fastest BCFW over it",
            f"gap after {options['passes']} passes",
            "violation",
            "peak, MiB",
            "above the start, MiB",
        ),
        *("active dual, bytes a token", "mean parts would be, bytes a token"),
    ]
    rows = [
        [
            *(states, one["visited"][-1], f"{100 * one['visited'][-1] / int(states) ** 2:.3f} %", mean_pass(one)),
            *(one["pass_cpu_seconds"][-1], ratio(results, states), one["gap"], one["violation"]),
            *(one["peak_mib"], one["above_base_mib"], one["dual_bytes_per_token"], one["block_bytes_per_token"]),
        ]
        for states, one in results["chains"].items()
    ]
    tokens = next(iter(results["chains"].values()))["tokens"]
    made = [Table(f"Synthetic chains, about {tokens:,} tokens, lam = {LAM:g}", head, rows)]
    rows = [
        [
            *(states, one["batch"], one["sweeps"], one["chains"], one["pass_cpu_seconds"]),
            *(one["oracle_pass_cpu_seconds"], one["pass_cpu_seconds"] / mean_pass(results["chains"][states])),
            one["kept_bytes_per_token"],
        ]
        for states, several in results["bcfw"].items()
        for one in several
    ]
    head = [
        *("K", "chains of a step", "sweeps of the box QP", "chains visited", "BCFW, CPU s a pass"),
        *("its Viterbi, CPU s a pass", "over GDMM", "labelings, bytes a token"),
    ]
    made.append(Table("The first steps of BCFW on the same chains", head, rows))
    rows = [
        [
            *(states, one["sorted"]["tokens"], one["sorted"]["visited"][-1], one["brute force"]["visited"][-1]),
            *(1e6 * mean_pass(one[oracle]) / one[oracle]["tokens"] for oracle in ("sorted", "brute force")),
        ]
        for states, one in results["oracles"].items()
    ]
    head = ["K", "tokens", "visited, sorted", "visited, brute force", "CPU us a token, sorted", "brute force"]
    made.append(Table(f"Factorwise oracles: a pass, the mean of passes 2 to {BRUTE_PASSES}", head, rows))
    states, chains, passes = options["rules"]
    rows = [
        [rule, sum(one["pass_cpu_seconds"][1:]), one["primal"], one["gap"], one["violation"]]
        for rule, one in results["rules"].items()
    ]
    head = ["rule", "CPU s, without the first pass", "primal", "gap", "violation"]
    made.append(Table(f"Rules: K = {states}, {chains} chains, {passes} passes", head, rows))
    if "label_sets" in results:
        rows = [
            [side, len(one["points"]), one["points"][-1][0], one["points"][-1][1]]
            + [one["reached"][at][when] for at in ("0.983", "0.984") for when in ("first", "for_good")]
            for side, one in results["label_sets"].items()
        ]
        head = ["", "passes", "CPU s", "test accuracy", "0.983 first", "for good", "0.984 first", "for good"]
        nothing = results["label_sets"]["GDMM"]["nothing"]
        title = (
            f"bibtex, lam = {LAM_SETS:g}: CPU seconds to a test accuracy ({nothing:.4f} is that of no labels at all)"
        )
        made.append(Table(title, head, rows))
    largest = max(results["chains"], key=int)
    name = f"K = {largest}, the fastest pass of BCFW over one of GDMM"
    return Summary(made, [Limit(name, ratio(results, largest), 50.0, at_least=True)])


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Entries visited and seconds, pass by pass."""
    passes = {name: list(range(1, len(one["visited"]) + 1)) for name, one in results["chains"].items()}
    charts = {
        "entries visited a query": {f"K = {k}": (passes[k], one["visited"]) for k, one in results["chains"].items()},
        "CPU seconds of a pass": {
            f"K = {k}": (passes[k][1:], one["pass_cpu_seconds"][1:]) for k, one in results["chains"].items()
        },
    }
    return [grid(folder / "large_outputs.png", charts, ["pass of GDMM"] * 2, "", log="y")]
