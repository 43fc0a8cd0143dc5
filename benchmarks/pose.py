"""Poses (LSPET): the time of the max oracle, and what solvers take to certified gaps on 100 images, as in [G16].

python benchmarks/pose.py --network runs/pose --out runs/pose_benchmark

The maps are those of the network of ``examples/pose.py``, which is trained first where ``--network`` has none; the 100
images are those that the example trains its head on. Counted are oracle calls and effective passes (oracle calls / n,
exact passes included) and CPU seconds on one thread, those of the last layer of the network included: the maps of all
images would take 600 MB, and are computed anew for every batch. [G16] names 2 s for an oracle call. Writes table.md and
results.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from machine import describe_machine
from suite.measuring import Table

from torchssvm import (
    BCFW,
    BlockGap,
    CacheOracle,
    Certificate,
    Corrective,
    DualState,
    FrankWolfe,
    Labelings,
    LinearPose,
    MaxOracle,
    Pairwise,
    Proportional,
    RunOptions,
    Uniform,
    Weights,
    WhenEstimated,
    solve,
)
from torchssvm.core.files import write_text
from torchssvm.datasets import PrecomputedFeatures
from torchssvm.lightning import StructuredSVM
from torchssvm.models import PoseNetwork, body_bounds

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import pose
from pose_pretraining import pretrained

PAPER_MS = 2000.0  # an oracle call in [G16] appendix I.4
ROUNDS = 5  # of timing the oracle, the best of which counts
TIMED = 20  # images in a call


class Solver(NamedTuple):
    """How images are drawn, which way a step goes, who answers, and how blocks are kept."""

    order: Callable[[], Any]
    direction: Callable[[], Any]
    oracle: Callable[[], Any]
    storage: Callable[[], Any]


SOLVERS = {
    "uniform FW": Solver(Uniform, FrankWolfe, MaxOracle, Weights),
    "gap FW": Solver(Proportional, FrankWolfe, MaxOracle, Weights),
    "gap FW + cache": Solver(Proportional, FrankWolfe, CacheOracle, Labelings),
    "gap pairwise": Solver(Proportional, Pairwise, MaxOracle, Labelings),
    "gap pairwise + cache": Solver(Proportional, Pairwise, CacheOracle, Labelings),
    "gap corrective + cache": Solver(Proportional, Corrective, CacheOracle, Labelings),
}


def train(solver: Solver, network: PoseNetwork, data: PrecomputedFeatures, args: argparse.Namespace) -> dict[str, Any]:
    """One run to the smallest gap or out of time; for every gap the first certificate within it."""
    head = LinearPose(network.structure)
    model = StructuredSVM(head, args.lam, network.outputs)  # the outputs and the head as one module
    dual = DualState.for_head(head, len(data), args.lam, storage=solver.storage())
    loss, checks, start = BlockGap(dual, solver.direction(), oracle=solver.oracle()), [], time.process_time()

    def note(certificate: Certificate) -> None:
        seconds = time.process_time() - start
        own = {name: getattr(certificate, name) for name in ("gap", "primal", "dual", "passes", "oracle_calls")}
        checks.append({**own, "seconds": seconds, "cache_hits": dual.cache_hits})
        if seconds > args.max_seconds:
            raise TimeoutError

    bounds = body_bounds(args.strength)
    named = dict(head.named_parameters())
    groups = [{"params": [named[name]], "lower": low, "upper": high} for name, (low, high) in bounds.items()]
    with contextlib.suppress(TimeoutError):
        solve(
            model,
            loss,
            data,
            tolerance=min(args.gap),
            optimizer=BCFW(groups, dual),
            on_check=note,
            options=RunOptions(
                batch_size=args.batch_size, order=solver.order(), schedule=WhenEstimated(passes=3.0), seed=args.seed
            ),
        )
    reached = {f"{gap:g}": next((c for c in checks if c["gap"] <= gap), None) for gap in args.gap}
    return {"reached": reached, "checks": checks}


def time_oracle(network: PoseNetwork, data: PrecomputedFeatures) -> list[dict[str, Any]]:
    """Wall and CPU milliseconds of loss-augmented decoding of an image, on one thread and on two."""
    head = LinearPose(network.structure)
    with torch.no_grad():
        head.unary.fill_(0.05)
        head.types.fill_(0.05)
        head.deformation[..., 1::2] = 0.05
        rows = torch.arange(min(TIMED, len(data)))
        batch = data.collate(data.__getitems__(rows.tolist()))
        potentials = head(network.outputs(batch.x))
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        seconds = []
        for _ in range(ROUNDS + 1):  # the first compiles
            start = time.perf_counter(), time.process_time()
            head.structure.augmented_argmax(potentials, batch.y)
            seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        wall, cpu = (1e3 * min(one) / len(rows) for one in zip(*seconds[1:], strict=True))
        found.append({"threads": threads, "ms_per_image": wall, "cpu_ms_per_image": cpu})
    torch.set_num_threads(1)
    return found


def tables(found: dict[str, Any]) -> list[Table]:
    """One of the oracle, one of the solvers."""
    grid = " x ".join(map(str, found["grid"]))
    rows = [
        [o["threads"], o["ms_per_image"], o["cpu_ms_per_image"], PAPER_MS / o["ms_per_image"]] for o in found["oracle"]
    ]
    oracle = Table(
        f"Max oracle on a grid of {grid}, {found['types']} types an arc",
        ["threads", "ms an image", "CPU ms", "2 s over that"],
        rows,
    )
    lines: list[list[Any]] = []
    for solver in found["solvers"]:
        cells = [solver["name"]]
        for at in solver["reached"].values():
            cells.append("" if at is None else f"{at['oracle_calls']} ({at['passes']:.0f}), {at['seconds']:.0f} s")
        lines.append([*cells, solver["checks"][-1]["gap"]])
    gaps = [f"gap {gap}: oracle calls (passes), CPU s" for gap in found["solvers"][0]["reached"]]
    title = f"{found['images']} images, lam = {found['lam']:g}, springs from {found['strength']:g}, to a certified gap"
    return [oracle, Table(title, ["solver", *gaps, "gap at the end"], lines)]


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, default=Path("runs/pose_benchmark"), help="folder (default: %(default)s)")
    flags.add_argument("--network", type=Path, default=Path("runs/pose"), help="report of the example (%(default)s)")
    flags.add_argument("--images", type=int, default=100, help="to train on, at most 200 (default: %(default)s)")
    flags.add_argument("--lam", type=float, default=pose.LAM, help="(default: %(default)s)")
    flags.add_argument("--gap", type=float, nargs="+", default=[0.2, 0.1, 0.05], help="certified")
    flags.add_argument("--max-seconds", type=float, default=300.0, help="CPU seconds of a run (default: %(default)s)")
    flags.add_argument("--batch-size", type=int, default=8, help="images of a step (default: %(default)s)")
    flags.add_argument("--solvers", nargs="+", choices=SOLVERS, default=list(SOLVERS), help="which to run")
    args, rest = flags.parse_known_args(arguments)
    own = pose.parse([*rest, "--report", str(args.network)])  # what the network depends on: --canvas, --seed, ...
    args.seed, args.strength, args.gap = own.seed, own.strength, sorted(args.gap, reverse=True)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    people = pose.people(own)
    unseen = pose.NETWORK_IMAGES.start
    if not 1 <= args.images <= unseen:
        flags.error(f"--images must lie between 1 and {unseen}")
    network, _ = pretrained(own, people.head.structure, people.train, pose.NETWORK_IMAGES)
    data = pose.features_of(network, people.targets(people.train, range(args.images)))
    found: dict[str, Any] = {
        "images": len(data),
        "lam": args.lam,
        "grid": [network.structure.height, network.structure.width],
        "types": network.structure.num_types,
        "strength": args.strength,
        "oracle": time_oracle(network, data),
        "solvers": [],
        "machine": describe_machine(),
    }
    for name in args.solvers:
        found["solvers"].append({"name": name, **train(SOLVERS[name], network, data, args)})
        last = found["solvers"][-1]["checks"][-1]
        print(f"{name}: gap {last['gap']:.4f} after {last['passes']:.0f} passes, {last['seconds']:.0f} s", flush=True)
    text = "\n".join(table.markdown() for table in tables(found))
    print(text)
    write_text(args.out / "table.md", text)
    write_text(args.out / "results.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
