"""The regularisation path: weights for every lambda at once, each within epsilon of its optimum, beside grids.

python examples/reg_path.py --epsilon 0.1
python examples/reg_path.py --task letters --size 500 --methods path warm --lam-min 1e-3

Methods: `path` solves each breakpoint to a certified gap, `heuristic` on estimates; `warm` and `cold` solve the lambdas
of a grid one by one to the same certified epsilon, going on from the lambda before or anew.

Prints what each method cost, and writes to a folder, in place of what a run before has left there: results.csv;
path-SEED.pt and heuristic-SEED.pt, which RegularizationPath.load reads; path.png and heuristic.png: gap, norm of the
weights and test error along the path of the first seed, its spot checks in red; cost.png: what each method has spent
when it comes to a lambda, and its test error there.

`kind` in results.csv says what a row is: `solved`, a breakpoint or a point of the grid; `spot`, a lambda drawn at
random, where the certificate is recomputed from a copy of the dual (`gap` is what the path says of it); `served`, a
lambda of the grid with the weights that a path has for it. But for recomputed_gap, `heuristic` has estimates of gaps.

Passes are oracle calls over n, seconds are wall-clock seconds on one thread, both since the method began: of training
and of the exact passes that certify the method's own gaps. Spot checks and test errors are in neither.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import count, folder, positive
from compare.path_picture import draw_costs, draw_path
from compare.tasks import ABOUT, DEFAULT, TASKS, Task
from torch import nn

from torchssvm import DualState, RegularizationPath, RunOptions, certify, grid_search, in_order
from torchssvm.path import Certified, GridPoint, Heuristic, KeepWeights, PathRule, PathRun, WarmStart

COLUMNS = ("task", "method", "seed", "kind", "lam", "passes", "seconds", "gap", "recomputed_gap", "test_error")


class Results:
    """``results.csv``, written row by row.

    Args:
        file: Where.
        task: The rows' task.
    """

    def __init__(self, file: Path, task: Task) -> None:
        self.file, self.task = file, task
        self.rows: list[dict[str, Any]] = []
        with file.open("w", newline="", encoding="utf-8") as opened:
            csv.DictWriter(opened, COLUMNS).writeheader()

    def add(self, method: str, seed: int, kind: str, lam: float, **values: float) -> None:
        """Write a row; what is not given stays empty."""
        row = {"task": self.task.name, "method": method, "seed": seed, "kind": kind, "lam": lam, **values}
        self.rows.append(row)
        with self.file.open("a", newline="", encoding="utf-8") as opened:
            csv.DictWriter(opened, COLUMNS).writerow(row)

    def of(self, method: str, kind: str, seed: int | None = None) -> list[dict[str, Any]]:
        """The rows of a method and a kind."""
        return [
            row for row in self.rows if (row["method"], row["kind"]) == (method, kind) and seed in (None, row["seed"])
        ]


class OutOfTime(Exception):
    """A method has had its seconds."""


def spots(top: float, args: argparse.Namespace, seed: int) -> list[float]:
    """Random lambdas, log-uniform between the largest breakpoint and the smallest lambda asked for."""
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand(args.spots, generator=random, dtype=torch.float64).tolist()
    return sorted((top * (args.lam_min / top) ** share for share in shares), reverse=True)


def recomputed_gap(task: Task, head: nn.Module, dual: DualState, lam: float) -> float:
    """Primal less dual of the same weights at a smaller ``lam``, both by an exact pass over a copy."""
    head, dual = copy.deepcopy((head, dual))
    dual.rescale(lam / dual.lam)
    return certify(head, dual, in_order(task.train), refresh=False).gap


def follow(rule: PathRule) -> Callable[[str, int, Task, argparse.Namespace, Results], None]:
    """A method that follows the path."""

    def method(name: str, seed: int, task: Task, args: argparse.Namespace, results: Results) -> None:
        head = task.make_head()
        run = PathRun(
            head,
            task.train,
            epsilon=args.epsilon,
            lam_min=args.lam_min,
            rule=rule,
            max_passes=args.max_passes,
            options=RunOptions(batch_size=args.batch_size, seed=seed),
        )
        waiting: list[float] | None = None
        try:
            while run.advance():
                path, point = run.path, run.path.points[-1]
                results.add(name, seed, "solved", point.lam, passes=point.passes, seconds=point.seconds, gap=point.gap)
                waiting = spots(point.lam, args, seed) if waiting is None else waiting
                while waiting and waiting[0] >= path.lowest:
                    lam = waiting.pop(0)
                    found = recomputed_gap(task, head, run.dual, lam)
                    results.add(name, seed, "spot", lam, gap=path.gap_estimate(lam), recomputed_gap=found)
                show(name, seed, f"lambda {point.lam:.4g}, {len(path.points)} breakpoints, {point.passes:.0f} passes")
                if point.seconds >= args.max_seconds:
                    break
        finally:
            if results.of(name, "solved", seed):  # as far as it goes, after an interruption too
                run.path.save(args.out / f"{name}-{seed}.pt")
        served = [lam for lam in args.grid if lam >= run.path.lowest]
        for lam, error in run.path.scores(head, lambda: task.error(head), served).items():
            results.add(name, seed, "served", lam, gap=run.path.gap_estimate(lam), test_error=error)

    return method


def search(warm_start: WarmStart | None) -> Callable[[str, int, Task, argparse.Namespace, Results], None]:
    """A method that trains at every lambda of the grid."""

    def method(name: str, seed: int, task: Task, args: argparse.Namespace, results: Results) -> None:
        head = task.make_head()
        passes = seconds = 0.0

        def on_point(point: GridPoint) -> None:
            nonlocal passes, seconds
            passes, seconds = passes + point.passes, seconds + point.seconds
            gap, error = point.certificate.gap, task.error(head)
            results.add(name, seed, "solved", point.lam, passes=passes, seconds=seconds, gap=gap, test_error=error)
            show(name, seed, f"lambda {point.lam:.4g}, {passes:.0f} passes")
            if seconds >= args.max_seconds:
                raise OutOfTime

        with contextlib.suppress(OutOfTime):
            grid_search(
                head,
                task.train,
                args.grid,
                tolerance=args.epsilon,
                warm_start=warm_start,
                max_passes=args.max_passes,
                on_point=on_point,
                options=RunOptions(batch_size=args.batch_size, seed=seed),
            )

    return method


METHODS = {
    "path": follow(Certified()),
    "heuristic": follow(Heuristic()),
    "warm": search(KeepWeights()),
    "cold": search(None),
}


def warm_up(task: Task) -> None:
    """The first breakpoints of a few examples: kernels are compiled here, and not on anybody's time."""
    few = task.first(min(32, len(task.train)))
    run = PathRun(few.make_head(), few.train, epsilon=0.5, lam_min=1e-3)
    for _ in range(3):
        run.advance()


def show(name: str, seed: int, text: str) -> None:
    """A line that moves on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{name} seed {seed}: {text:60}", end="", file=sys.stderr, flush=True)


def table(results: Results, args: argparse.Namespace) -> Iterator[str]:
    """What each method cost: medians over the seeds; gaps are the largest over all."""
    yield f"{'method':10} {'runs':>4} {'lambdas':>8} {'last':>9} {'passes':>8} {'seconds':>8}   gaps"
    for name in METHODS:
        runs = [rows for seed in range(args.seeds) if (rows := results.of(name, "solved", seed))]
        if not runs:
            continue
        passes, seconds = (median(rows[-1][column] for rows in runs) for column in ("passes", "seconds"))
        worst = max(row["gap"] for rows in runs for row in rows)
        note = f"{worst:.4f} at most when solved"
        if checked := results.of(name, "spot"):
            over = sum(row["recomputed_gap"] > args.epsilon for row in checked)
            largest = max(row["recomputed_gap"] for row in checked)
            note += f", {largest:.4f} at most recomputed at {len(checked)} random lambdas ({over} above epsilon)"
        lowest = min(rows[-1]["lam"] for rows in runs)
        found = f"{name:10} {len(runs):4} {median(map(len, runs)):8.0f} {lowest:9.3g} {passes:8.0f} {seconds:8.2f}"
        yield f"{found}   {note}"
    scored = [row for row in results.rows if "test_error" in row]
    if scored:
        best = min(scored, key=lambda row: row["test_error"])
        yield f"smallest test error: {100 * best['test_error']:.2f} %, {best['method']} at lambda {best['lam']:.4g}"


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--task", choices=TASKS, default=DEFAULT, help="; ".join(f"{k}: {v}" for k, v in ABOUT.items()))
    flags.add_argument("--size", type=count, metavar="N", help="train on the first N examples only")
    flags.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="default: all")
    flags.add_argument("--epsilon", type=positive, default=0.1, help="the gap of every lambda (default: %(default)s)")
    flags.add_argument("--lam-min", type=positive, default=1e-3, help="the smallest lambda (default: %(default)s)")
    flags.add_argument("--lam-max", type=positive, default=10.0, help="the largest one of the grid (%(default)g)")
    flags.add_argument("--points", type=count, default=13, help="of the grid (default: %(default)s)")
    flags.add_argument("--spots", type=count, default=10, help="random lambdas checked on a path (%(default)s)")
    flags.add_argument("--seeds", type=count, default=1, help="runs of each method (default: %(default)s)")
    flags.add_argument("--max-passes", type=positive, default=2000.0, help="of a path, or of each lambda of a grid")
    flags.add_argument("--max-seconds", type=positive, default=600.0, help="of each method (default: %(default)g)")
    flags.add_argument("--batch-size", type=count, default=16, help="blocks of a step (default: %(default)s)")
    flags.add_argument("--out", type=folder, default=Path("runs/reg_path"), help="folder (default: %(default)s)")
    return flags


def main() -> None:
    flags = parser()
    args = flags.parse_args()
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    try:
        task = TASKS[args.task]()
        task = task if args.size is None else task.first(args.size)
        if not args.lam_min < args.lam_max:
            raise ValueError(f"--lam-min {args.lam_min:g} must be below --lam-max {args.lam_max:g}")
    except ValueError as error:
        flags.error(str(error))
    ratio = (args.lam_min / args.lam_max) ** (1.0 / max(args.points - 1, 1))
    args.grid = [args.lam_max * ratio**i for i in range(args.points)]
    args.out.mkdir(parents=True, exist_ok=True)
    warm_up(task)
    results = Results(args.out / "results.csv", task)
    interrupted = False
    try:
        for seed in range(args.seeds):
            for name in args.methods:
                METHODS[name](name, seed, task, args, results)
                show(name, seed, "done\n")
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted", file=sys.stderr)
    print("\n".join(table(results, args)))
    if results.rows:
        draw_costs(results.rows, list(METHODS), args.out / "cost.png")
    for name in ("path", "heuristic"):
        if results.of(name, "solved", 0):
            draw_path(RegularizationPath.load(args.out / f"{name}-0.pt"), results.rows, name, args.out / f"{name}.png")
    print(f"written to {args.out}")
    sys.exit(130 if interrupted else 0)


if __name__ == "__main__":
    main()
