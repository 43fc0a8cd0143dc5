"""Figure 3 of [G16] on horses: uniform or gap sampling, Frank-Wolfe or pairwise steps, with or without the cache.

python benchmarks/horses.py --out runs/benchmark_horses

All take the same steps in the same plain loop on the graph cuts of ``HorseSegmentation``, one image after another, from
zero weights to a certified gap. An exact pass follows every ten visits of every image, as in the paper. Gaps are shares
of that of zero weights. Counted are oracle calls, effective passes (oracle calls / n, those of exact passes included)
and CPU seconds on one thread, exact passes included; reading the graphs is outside. Where a run was stopped by
``--max-seconds``, smaller gaps are missing. One file for each run: those that are there already are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from machine import describe_machine
from suite.seeds import Runs, medians, run_missing

from torchssvm import (
    BCFW,
    BlockGap,
    CacheOracle,
    Certificate,
    Corrective,
    DualState,
    FrankWolfe,
    Labelings,
    LinearGraph,
    MaxOracle,
    Pairwise,
    Proportional,
    RunOptions,
    Uniform,
    certify,
    in_order,
    solve,
)
from torchssvm.core.figures import new_figure
from torchssvm.core.files import write_text
from torchssvm.datasets import HorseSegmentation, PrecomputedGraphs

GAPS = (0.1, 0.05, 0.02, 0.01)
EPOCHS = 10  # of visits between exact passes


class Solver(NamedTuple):
    """How images are drawn, which way a step goes, and who answers."""

    order: Callable[[], Any]
    direction: Callable[[], Any]
    oracle: Callable[[], Any]


SOLVERS = {
    f"{order} {direction}{cache}": Solver(orders[order], directions[direction], caches[cache])
    for orders in ({"uniform": Uniform, "gap": Proportional},)
    for directions in ({"FW": FrankWolfe, "pairwise": Pairwise, "corrective": Corrective},)
    for caches in ({"": MaxOracle, " + cache": CacheOracle},)
    for order in orders
    for direction in directions
    for cache in caches
    if order == "gap" or direction != "corrective"
}


class EveryVisits:
    """An exact pass after so many epochs of visits, whoever answered them.

    Args:
        epochs: Visits of every image, on average.
    """

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self._last: int | None = None
        self._now = 0

    def due(self, dual: DualState, tolerance: float) -> bool:
        """Whether as many blocks were moved since the last exact pass."""
        self._now = dual.moved
        self._last = dual.moved if self._last is None else self._last
        return dual.moved - self._last >= self.epochs * dual.num_examples

    def after(self, certificate: Certificate) -> None:
        """Count from here."""
        self._last = self._now


def run(solver: Solver, graphs: PrecomputedGraphs, lam: float, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One training run; its certificates with the CPU seconds at each."""
    head = LinearGraph(graphs.in_features, graphs.edge_features)
    dual = DualState.for_head(head, len(graphs), lam, storage=Labelings(args.capacity))
    optimizer = BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)
    checks: list[dict[str, float]] = []
    start = time.process_time()

    def note(certificate: Certificate) -> None:
        seconds = time.process_time() - start
        checks.append(
            {
                "share": certificate.gap / checks[0]["gap"] if checks else 1.0,
                "gap": certificate.gap,
                "dual": certificate.dual,
                "primal": certificate.primal,
                "passes": certificate.passes,
                "oracle_calls": certificate.oracle_calls,
                "visits": dual.moved / len(graphs),
                "seconds": seconds,
            }
        )
        if seconds > args.max_seconds:
            raise TimeoutError

    note(certify(head, dual, in_order(graphs, batch_size=16)))
    with contextlib.suppress(TimeoutError):
        solve(
            head,
            BlockGap(dual, solver.direction(), oracle=solver.oracle()),
            graphs,
            tolerance=args.gap * checks[0]["gap"],
            optimizer=optimizer,
            on_check=note,
            options=RunOptions(
                batch_size=args.batch_size, order=solver.order(), schedule=EveryVisits(EPOCHS), seed=seed
            ),
        )
    weights = {"edge_weights_at_0": int((head.pairwise == 0).sum()), "edge_weights": len(head.pairwise)}
    return {"checks": checks, "machine": describe_machine(), "memory": dual.storage.nbytes(), **weights}


def draw(results: Runs, title: str, file: Path) -> None:
    """Gaps by passes and by CPU seconds; a line for every seed."""
    figure = new_figure((10, 4))
    figure.suptitle(title)
    left, right = figure.subplots(1, 2, sharey=True)
    for axis, key, label in ((left, "passes", "effective passes"), (right, "seconds", "CPU seconds")):
        for number, (name, runs) in enumerate(results.items()):
            for place, one in enumerate(runs):
                x, y = ([check[what] for check in one["checks"]] for what in (key, "share"))
                style = "--" if name.endswith("cache") else "-"
                axis.plot(x, y, style, color=f"C{number // 2}", lw=1.2, label=None if place else name)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    left.set_ylabel("certified gap, share of the first")
    right.legend(fontsize=7)
    figure.savefig(file, dpi=90)


def main() -> None:
    """Run what is missing, and print the tables."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, required=True, help="folder of the results")
    flags.add_argument("--data", metavar="PATH", help="folder of the images (default: in TORCHSSVM_DATA)")
    flags.add_argument("--num-train", type=int, default=200, help="images to train on (default: %(default)s)")
    flags.add_argument("--lam", type=float, nargs="+", default=[10.0], help="regularisation (default: 10)")
    flags.add_argument("--solvers", nargs="+", choices=sorted(SOLVERS), default=list(SOLVERS), help="which to run")
    flags.add_argument("--seeds", type=int, default=3, help="runs of each (default: %(default)s)")
    flags.add_argument("--gap", type=float, default=GAPS[-1], help="where a run ends (default: %(default)s)")
    flags.add_argument("--max-seconds", type=float, default=120.0, help="or after CPU seconds (default: %(default)g)")
    flags.add_argument("--batch-size", type=int, default=1, help="images of a step (default: %(default)s)")
    flags.add_argument("--capacity", type=int, default=20, help="labelings kept for an image (default: %(default)s)")
    args = flags.parse_args()
    torch.set_num_threads(1)
    graphs = PrecomputedGraphs(HorseSegmentation("train", args.data, num_train=args.num_train))
    args.out.mkdir(parents=True, exist_ok=True)
    for lam in args.lam:
        results = run_missing(
            args.out,
            f"{lam:.6g}",
            args.solvers,
            args.seeds,
            lambda name, seed, lam=lam: run(SOLVERS[name], graphs, lam, seed, args),
            measure="share",
            digits=1,
        )
        gaps = [gap for gap in GAPS if gap >= args.gap]
        text = medians(results, gaps, "oracle_calls", measure="share", digits=1)
        title = f"horses, n = {len(graphs)}, λ = {lam:g}"
        print(f"\n{title}: passes (oracle calls) CPU seconds\n\n{text}\n", flush=True)
        write_text(args.out / f"table {lam:.6g}.md", text + "\n")
        draw(results, title, args.out / f"horses {lam:.6g}.png")


if __name__ == "__main__":
    main()
