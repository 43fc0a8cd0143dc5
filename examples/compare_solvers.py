"""Solvers side by side: suboptimality, duality gap and test error against effective passes and against seconds.

python examples/compare_solvers.py --solvers eight --lam 0.01 0.001 --seeds 5 --max-passes 100
python examples/compare_solvers.py --task ocr-large --solvers gap-fw compiled-gap-fw one-slack adam
python examples/compare_solvers.py --list

Writes results.csv (one row for each solver, task, lambda, seed and check), comparison.png (medians over the seeds, with
bands from the smallest to the largest) and prints how the runs ended. Rows are written as they come: after an
interruption the same command goes on, and another one with the same --out adds its solvers to those there.

Effective passes are the oracle calls of the solver divided by n. Seconds are wall-clock seconds on one thread, from the
making of the head and the dual to the check: drawing, fetching, steps, and the exact passes that a solver makes for
itself (one in ten passes with gap sampling or a cache), which count as passes too. Checks are neither in the passes nor
in the seconds, they work on a copy and change nothing. Data are loaded, and kernels compiled on a few examples, before.

Torch loops take steps of --batch-size blocks or examples, compiled ones go block after block, as the papers do;
batch-fw and the cutting planes take all examples at once.

The gap of a run is its primal less the best dual that it has found itself; a method without a dual (subgradient, adam)
knows of 0 only. Suboptimality is the primal less the best dual of all runs of the same task and lambda: an upper bound
of the true one, so curves end in the gap of the best run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from common import count, folder, positive
from compare.picture import draw
from compare.race import Limits, Row, race, warm_up
from compare.results import Results, table
from compare.runs import Settings
from compare.solvers import GROUPS, SOLVERS, Solver, choose
from compare.tasks import ABOUT, DEFAULT, TASKS, Task

from torchssvm.solvers.report import versions


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--task", choices=TASKS, default=DEFAULT, help="default: %(default)s; see --list")
    flags.add_argument("--size", type=count, metavar="N", help="train on the first N examples only")
    flags.add_argument("--solvers", nargs="+", default=["eight"], metavar="NAME", help="or groups; default: eight")
    flags.add_argument("--lam", type=positive, nargs="+", help="one or more; default: 1/n")
    flags.add_argument("--seeds", type=count, default=5, help="runs of each solver (default: %(default)s)")
    flags.add_argument("--gap", type=positive, default=1e-3, help="a run ends at this gap (default: %(default)s)")
    flags.add_argument("--max-passes", type=positive, default=100.0, help="or after so many (default: %(default)g)")
    flags.add_argument("--max-seconds", type=positive, default=60.0, help="of training (default: %(default)g)")
    flags.add_argument("--checks", type=count, default=8, help="per tenfold of passes (default: %(default)s)")
    flags.add_argument("--batch-size", type=count, default=16, help="blocks of a step (default: %(default)s)")
    flags.add_argument("--learning-rate", type=positive, default=1e-3, help="of adam (default: %(default)s)")
    flags.add_argument("--out", type=folder, default=Path("runs/compare"), help="folder (default: %(default)s)")
    flags.add_argument("--list", action="store_true", help="print tasks, solvers and groups, and do nothing else")
    return flags


def describe() -> str:
    """Tasks, solvers and groups, one a line."""
    return "\n".join(
        [
            *("tasks:", *(f"  {name:31} {ABOUT[name]}" for name in TASKS)),
            *("solvers:", *(f"  {name:31} {solver.about}" for name, solver in SOLVERS.items())),
            *("groups:", *(f"  {name:31} {' '.join(members)}" for name, members in GROUPS.items() if name != "all")),
            f"  {'all':31} every solver",
        ]
    )


def compare(
    task: Task, solvers: dict[str, Solver], lams: list[float], args: argparse.Namespace, results: Results
) -> int:
    """Run what is missing in ``results``; returns the number of runs that failed.

    Seeds come first, then solvers: after an interruption all solvers have been seen equally often.
    """
    limits = Limits(args.gap, args.max_passes, args.max_seconds, args.checks)
    warm: set[str] = set()
    failed = 0
    for lam in lams:
        for seed in range(args.seeds):
            settings = Settings(lam, args.batch_size, args.learning_rate, seed)
            for name, solver in solvers.items():
                if results.has((task.name, lam, name, seed)):
                    continue
                try:
                    if name not in warm:
                        warm_up(name, solver.start, task, settings)
                        warm.add(name)
                    for row in race(name, solver.start, task, settings, limits):
                        results.add(row)
                        show(row)
                except (MemoryError, ImportError, RuntimeError) as error:
                    failed += 1
                    print(f"\n{name}, lambda {lam:.6g}, seed {seed} FAILED: {error}", file=sys.stderr, flush=True)
    return failed


def show(row: Row) -> None:
    """One line a run; on a terminal it moves while the run lasts."""
    if not row.stopped and not sys.stderr.isatty():
        return
    text = (
        f"{row.task} lambda {row.lam:.6g} seed {row.seed} {row.solver:31} pass {row.passes:7.1f} {row.seconds:7.2f} s  "
        f"primal {row.primal:.5f}  gap {row.gap:.2e}  error {100 * row.test_error:.2f} %"
    )
    start = "\r" if sys.stderr.isatty() else ""
    print(f"{start}{text}  {row.stopped}", end="\n" if row.stopped else "", file=sys.stderr, flush=True)


def main() -> None:
    flags = parser()
    args = flags.parse_args()
    if args.list:
        print(describe())
        return
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    try:
        task = TASKS[args.task]()
        task = task if args.size is None else task.first(args.size)
        solvers = choose(args.solvers, task)
        names = ("gap", "max_passes", "max_seconds", "checks", "batch_size", "learning_rate", "size")
        results = Results(args.out, {**{name: getattr(args, name) for name in names}, "versions": versions()})
    except ValueError as error:
        flags.error(str(error))
    failed, interrupted = 0, False
    try:
        failed = compare(task, solvers, args.lam or [1.0 / len(task.train)], args, results)
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
    rows = results.finish()
    if rows:
        print(table(rows))
        draw(rows, args.out / "comparison.png")
        print(f"written to {args.out}")
    if failed:
        print(f"{failed} runs failed", file=sys.stderr)
    sys.exit(130 if interrupted else 1 if failed else 0)


if __name__ == "__main__":
    main()
