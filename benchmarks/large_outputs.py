"""Outputs too many to decode often: what GDMM takes for chains of thousands of states and for sets of labels.

python benchmarks/large_outputs.py --out runs/large_outputs

Synthetic chains with the same number of tokens for every K; each measurement is a process of its own, on one thread.
Compilation and reading are outside the clocks. A pass of BCFW, and of its max oracle alone, loss-augmented Viterbi, is
that of its first steps on a sample of the chains, scaled to all tokens. Writes table.md, results.json and
large_outputs.png.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from machine import describe_machine
from suite.figures import grid
from suite.large_outputs import RULES, mean_pass
from suite.measuring import Ask, Kept, Limit, Table, asker

from torchssvm.core.files import write_text

LAM = 0.01


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        states: K.
        chains: n.
        passes: Of GDMM.
        brute: Configurations that brute force may look at, which says how many chains it gets.
        decoded: Additions of the max oracle on the sample that BCFW visits.
        bcfw: Chains of a step of BCFW, and sweeps of its box QP.
        rules: K, n and passes of the comparison of rules.
        label_sets: Passes over bibtex, of GDMM and of BCFW; None is not measured.
    """

    states: tuple[int, ...] = (100, 1000, 3000)
    chains: int = 1000
    passes: int = 50
    brute: float = 6e9
    decoded: float = 3e9
    bcfw: tuple[tuple[int, int], ...] = ((1, 0), (8, 5), (8, 0), (24, 0))
    rules: tuple[int, int, int] = (1000, 100, 20)
    label_sets: tuple[int, int] | None = (40, 3)


QUICK = Sizes((8, 20), 20, 3, 1e6, 1e5, ((8, 5), (4, 0)), (8, 10, 3), None)
BRUTE_PASSES = 5
LAM_SETS, RHO_SETS = 0.01, 0.1


def measure(ask: Ask, sizes: Sizes) -> dict[str, Any]:
    """Everything, one process after another."""
    found: dict[str, Any] = {"chains": {}, "bcfw": {}, "oracles": {}, "rules": {}}
    common = {"lam": LAM}
    for states in sizes.states:
        sample = max(int(sizes.decoded / (15 * states**2)), 5)
        same = {"states": states, "chains": sizes.chains, **common}
        found["chains"][states] = ask("gdmm", passes=sizes.passes, **same)
        found["bcfw"][states] = [
            ask("bcfw", sample=sample, batch=batch, sweeps=sweeps, **same) for batch, sweeps in sizes.bcfw
        ]
        few = min(max(int(sizes.brute / (15 * states**2 * BRUTE_PASSES)), 3), sizes.chains)
        found["oracles"][states] = {
            oracle: ask("gdmm", states=states, chains=few, passes=BRUTE_PASSES, oracle=oracle, **common)
            for oracle in ("sorted", "brute force")
        }
    states, chains, passes = sizes.rules
    for rule in RULES:
        found["rules"][rule] = ask("gdmm", states=states, chains=chains, passes=passes, rule=rule, **common)
    if sizes.label_sets is not None:
        ours, bcfw = sizes.label_sets
        found["label_sets"] = {
            "GDMM": ask("label_sets", lam=LAM_SETS, passes=ours, rho=RHO_SETS),
            "BCFW": ask("label_sets_bcfw", lam=LAM_SETS, passes=bcfw),
        }
    return found


def ratio(found: dict[str, Any], states: int) -> float:
    """Seconds of the fastest pass of BCFW over those of GDMM's."""
    return min(one["pass_cpu_seconds"] for one in found["bcfw"][states]) / mean_pass(found["chains"][states])


def tables(found: dict[str, Any], sizes: Sizes) -> list[Table]:
    """What was found, for people."""
    head = [
        *("K", "entries visited a query", "of K² entries", "GDMM, CPU s a pass", "last pass"),
        *("fastest BCFW over it", f"gap after {sizes.passes} passes", "violation", "peak, MiB", "above the start, MiB"),
        *("active dual, bytes a token", "mean parts would be, bytes a token"),
    ]
    rows = [
        [
            *(states, one["visited"][-1], f"{100 * one['visited'][-1] / states**2:.3f} %", mean_pass(one)),
            *(one["pass_cpu_seconds"][-1], ratio(found, states), one["gap"], one["violation"]),
            *(one["peak_mib"], one["above_base_mib"], one["dual_bytes_per_token"], one["block_bytes_per_token"]),
        ]
        for states, one in found["chains"].items()
    ]
    tokens = next(iter(found["chains"].values()))["tokens"]
    made = [Table(f"Synthetic chains, about {tokens:,} tokens, lam = {LAM:g}", head, rows)]
    rows = [
        [
            *(states, one["batch"], one["sweeps"], one["chains"], one["pass_cpu_seconds"]),
            *(one["oracle_pass_cpu_seconds"], one["pass_cpu_seconds"] / mean_pass(found["chains"][states])),
            one["kept_bytes_per_token"],
        ]
        for states, several in found["bcfw"].items()
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
        for states, one in found["oracles"].items()
    ]
    head = ["K", "tokens", "visited, sorted", "visited, brute force", "CPU us a token, sorted", "brute force"]
    made.append(Table(f"Factorwise oracles: a pass, the mean of passes 2 to {BRUTE_PASSES}", head, rows))
    states, chains, passes = sizes.rules
    rows = [
        [rule, sum(one["pass_cpu_seconds"][1:]), one["primal"], one["gap"], one["violation"]]
        for rule, one in found["rules"].items()
    ]
    head = ["rule", "CPU s, without the first pass", "primal", "gap", "violation"]
    made.append(Table(f"Rules: K = {states}, {chains} chains, {passes} passes", head, rows))
    if "label_sets" in found:
        rows = [
            [side, len(one["points"]), one["points"][-1][0], one["points"][-1][1]]
            + [one["reached"][at][when] for at in ("0.983", "0.984") for when in ("first", "for_good")]
            for side, one in found["label_sets"].items()
        ]
        head = ["", "passes", "CPU s", "test accuracy", "0.983 first", "for good", "0.984 first", "for good"]
        nothing = found["label_sets"]["GDMM"]["nothing"]
        title = (
            f"bibtex, lam = {LAM_SETS:g}: CPU seconds to a test accuracy ({nothing:.4f} is that of no labels at all)"
        )
        made.append(Table(title, head, rows))
    return made


def draw(found: dict[str, Any], file: Path) -> None:
    """Entries visited and seconds, pass by pass."""
    passes = {name: list(range(1, len(one["visited"]) + 1)) for name, one in found["chains"].items()}
    charts = {
        "entries visited a query": {f"K = {k}": (passes[k], one["visited"]) for k, one in found["chains"].items()},
        "CPU seconds of a pass": {
            f"K = {k}": (passes[k][1:], one["pass_cpu_seconds"][1:]) for k, one in found["chains"].items()
        },
    }
    grid(file, charts, ["pass of GDMM"] * 2, "", log="y")


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, default=Path("runs/large_outputs"), help="folder (default: %(default)s)")
    flags.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    flags.add_argument("--resume", action="store_true", help="go on after a run that was cut off")
    args = flags.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    sizes = QUICK if args.quick else Sizes()
    kept = Kept(args.out / "large_outputs.jsonl", args.resume)
    found = measure(asker("large_outputs", log=lambda line: print(line, flush=True), kept=kept), sizes)
    text = "\n".join(table.markdown() for table in tables(found, sizes))
    if not args.quick:
        largest = max(found["chains"])
        times = ratio(found, largest)
        text += (
            f"\n- {Limit(f'K = {largest}, the fastest pass of BCFW over one of GDMM', times, 50.0, at_least=True)}\n"
        )
    print(f"\n{text}", flush=True)
    write_text(args.out / "table.md", text)
    content = {"quick": args.quick, "machine": describe_machine(), "found": found}
    write_text(args.out / "results.json", json.dumps(content, indent=1) + "\n")
    draw(found, args.out / "large_outputs.png")


if __name__ == "__main__":
    main()
