"""Uniform or gap sampling, Frank-Wolfe or pairwise steps, with or without the cache, as in [G16]; and more.

python benchmarks/directions.py --out runs/directions [--size large] [--lam 0.001 ...] [--seeds 3]

All run on the same compiled loop, one word after another, from zero weights to a certified gap. Counted are effective
passes (oracle calls / n, those of exact passes included), sampling passes (without them) and CPU seconds on one thread,
exact passes included; compilation is outside. Where a run was stopped by ``--max-seconds``, smaller gaps are missing.
One file for each run: those that are there already are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from machine import describe_machine
from suite.seeds import medians, run_missing
from torch.utils.data import DataLoader

from torchssvm import (
    CacheOracle,
    Certificate,
    CompiledBCFW,
    Corrective,
    DualState,
    FrankWolfe,
    Labelings,
    LinearChain,
    MaxOracle,
    Pairwise,
    Permutation,
    Proportional,
    Uniform,
)
from torchssvm.core.files import write_text
from torchssvm.datasets import OCR
from torchssvm.solvers.trainer import run_until

GAPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


class Solver(NamedTuple):
    """How blocks are drawn, which way a step goes, and who answers."""

    order: Callable[[], Any]
    direction: Callable[[], Any]
    oracle: Callable[[], Any]
    steps: Callable[[CompiledBCFW], Iterator[int]] | None = None


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
            visited, own = gain(CacheOracle(factor=0.0, floor=0.0))
            yield visited
            if own < rate:
                break


SOLVERS = {
    f"{order} {direction}{cache}": Solver(orders[order], directions[direction], caches[cache])
    for orders in ({"uniform": Uniform, "gap": Proportional},)
    for directions in ({"FW": FrankWolfe, "pairwise": Pairwise},)
    for caches in ({"": MaxOracle, " + cache": CacheOracle},)
    for order in orders
    for direction in directions
    for cache in caches
} | {
    "gap corrective": Solver(Proportional, Corrective, MaxOracle),
    "gap corrective + cache": Solver(Proportional, Corrective, CacheOracle),
    "multi-plane pairwise": Solver(Permutation, Pairwise, MaxOracle, multi_plane),
    "multi-plane corrective": Solver(Permutation, Corrective, MaxOracle, multi_plane),
}


def run(solver: Solver, words: OCR, lam: float, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One training run; its certificates with the CPU seconds at each."""
    batches = list(DataLoader(words, batch_size=512, collate_fn=words.collate))

    def make() -> CompiledBCFW:
        head = LinearChain(128, 26).to(torch.float64 if args.double else torch.float32)
        dual = DualState.for_head(head, len(words), lam, storage=Labelings(args.capacity))
        rules = {"direction": solver.direction(), "oracle": solver.oracle(), "order": solver.order()}
        return CompiledBCFW(head, dual, batches, seed=seed, **rules)

    warm = make()
    for _ in range(2):  # compiles everything
        warm.step(len(words))
        warm.certify()

    loop, checks = make(), []
    start = time.process_time()

    def note(certificate: Certificate) -> None:
        seconds = time.process_time() - start
        checks.append(
            {
                "gap": certificate.gap,
                "dual": certificate.dual,
                "primal": certificate.primal,
                "passes": certificate.passes,
                "oracle_calls": loop.dual.oracle_calls,
                "sampling_passes": certificate.passes - len(checks) - 1,
                "visits": loop.dual.moved / len(words),
                "seconds": seconds,
            }
        )
        if seconds > args.max_seconds:
            raise TimeoutError

    with contextlib.suppress(TimeoutError):
        if solver.steps is None:
            loop.solve(args.gap, max_passes=args.max_passes, on_check=note)
        else:
            limits = {"tolerance": args.gap, "max_passes": args.max_passes}
            run_until(solver.steps(loop), loop.dual, loop.certify, on_check=note, **limits)
    return {"checks": checks, "machine": describe_machine(), "memory": loop.dual.storage.nbytes()}


def main() -> None:
    """Run what is missing, and print the tables."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, required=True, help="folder of the results")
    flags.add_argument("--size", choices=("small", "large"), default="small", help="training words: 6251 or 626")
    flags.add_argument("--lam", type=float, nargs="+", default=[0.01, 0.001, 1 / 626], help="regularisation")
    flags.add_argument("--solvers", nargs="+", choices=sorted(SOLVERS), default=list(SOLVERS), help="which to run")
    flags.add_argument("--seeds", type=int, default=3, help="runs of each")
    flags.add_argument("--gap", type=float, default=GAPS[-1], help="where a run ends")
    flags.add_argument("--max-passes", type=float, default=5000.0, help="or after so many passes")
    flags.add_argument("--max-seconds", type=float, default=20.0, help="or CPU seconds")
    flags.add_argument("--capacity", type=int, default=20, help="labelings kept for a word")
    flags.add_argument("--double", action="store_true", help="float64 weights")
    args = flags.parse_args()
    torch.set_num_threads(1)
    words = OCR("train", args.size)
    args.out.mkdir(parents=True, exist_ok=True)
    for lam in args.lam:
        task = f"{args.size} {lam:.6g}"
        results = run_missing(
            args.out,
            task,
            args.solvers,
            args.seeds,
            lambda name, seed, lam=lam: run(SOLVERS[name], words, lam, seed, args),
        )
        text = medians(results, [gap for gap in GAPS if gap >= args.gap], "sampling_passes")
        print(f"\nOCR-{args.size}, lam = {lam:g}: passes (sampling passes) CPU seconds\n\n{text}\n", flush=True)
        write_text(args.out / f"{task}.md", text + "\n")


if __name__ == "__main__":
    main()
