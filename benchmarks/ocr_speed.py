"""Seconds of the plain torch loop to a certified gap on OCR-large, against the Numba yardstick.

python benchmarks/ocr_speed.py --repeats 3 --json runs/ocr_speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 6.0
REFERENCE = Path(__file__).with_name("ocr_reference.py")


def train(size: str, lam: float, gap: float, batch_size: int, seed: int) -> dict[str, float]:
    """Time the loop of the README, exact passes included: every tenth pass, or every fourth near the end."""
    import torch
    from torch.utils.data import DataLoader

    from torchssvm import BCFW, BlockGap, DualState, GapBatchSampler, LinearChain, certify
    from torchssvm.datasets import OCR

    torch.set_num_threads(1)
    words = OCR("train", size)

    def run(max_passes: float) -> dict[str, float]:
        start, cpu = time.perf_counter(), time.process_time()
        head = LinearChain(in_features=128, num_states=26)
        dual = DualState.for_head(head, num_examples=len(words), lam=lam)
        loss = BlockGap(dual)
        optimizer = BCFW(head.parameters(), dual)
        sampler = GapBatchSampler(dual, batch_size=batch_size, seed=seed)
        loader = DataLoader(words, batch_sampler=sampler, collate_fn=words.collate)
        everything = DataLoader(words, batch_size=512, collate_fn=words.collate)
        found = None
        while True:
            near = found is not None and found.gap <= 1.5 * gap
            for _ in range(3 if near else 9 if max_passes > 1 else 1):
                for batch in loader:
                    optimizer.zero_grad()
                    loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
                    optimizer.step()
            found = certify(head, dual, everything)
            if found.gap <= gap or dual.passes >= max_passes:
                break
        return {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu,
            "passes": found.passes,
            "primal": found.primal,
            "dual": found.dual,
            "gap": found.gap,
        }

    run(max_passes=1)  # kernels are compiled outside the clock, as the yardstick's are
    return run(max_passes=2000)


def measure(arguments: list[str]) -> dict[str, float]:
    """The JSON line that a fresh Python process prints, on one thread."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **threads}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure both in turn and print the ratio."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--size", choices=("small", "large"), default="large")
    flags.add_argument("--lam", type=float, default=1e-3)
    flags.add_argument("--gap", type=float, default=0.05)
    flags.add_argument("--batch-size", type=int, default=64)
    flags.add_argument("--repeats", type=int, default=3)
    flags.add_argument("--json", type=Path, help="write the figures here")
    flags.add_argument("--seed", type=int, default=1, help="of the first run; the others follow")
    flags.add_argument("--loop", action="store_true", help="run the loop once, here, and print its JSON line")
    args = flags.parse_args()
    if args.repeats < 1:
        flags.error(f"--repeats must be at least 1, not {args.repeats}")
    if args.loop:
        print(json.dumps(train(args.size, args.lam, args.gap, args.batch_size, args.seed)))
        return

    problem = ["--size", args.size, "--lam", str(args.lam)]
    batch_size = ["--batch-size", str(args.batch_size)]
    runs: dict[str, list[dict[str, float]]] = {"yardstick": [], "torchssvm": []}
    print(f"{'':10}  {'seed':>4}  {'seconds':>8}  {'CPU s':>8}  {'passes':>6}  {'primal':>8}  {'dual':>8}  {'gap':>7}")
    for seed in range(args.seed, args.seed + args.repeats):
        commands = {
            "yardstick": [str(REFERENCE), *problem, "--gaps", str(args.gap), "--seed", str(seed)],
            "torchssvm": [__file__, "--loop", *problem, "--gap", str(args.gap), "--seed", str(seed), *batch_size],
        }
        for name, command in commands.items():
            run = measure(command)
            runs[name].append({"seed": seed, **run})
            clocks = f"{run['seconds']:8.2f}  {run['cpu_seconds']:8.2f}"
            figures = f"{clocks}  {run['passes']:6.0f}  {run['primal']:8.5f}  {run['dual']:8.5f}"
            print(f"{name:10}  {seed:4}  {figures}  {run['gap']:7.5f}", flush=True)
    medians, cpu_medians = (
        {name: statistics.median(run[clock] for run in several) for name, several in runs.items()}
        for clock in ("seconds", "cpu_seconds")
    )
    ratio = medians["torchssvm"] / medians["yardstick"]
    cpu_ratio = cpu_medians["torchssvm"] / cpu_medians["yardstick"]
    print(f"\nmedian seconds: yardstick {medians['yardstick']:.2f}, torchssvm {medians['torchssvm']:.2f}")
    print(f"of the CPU:     yardstick {cpu_medians['yardstick']:.2f}, torchssvm {cpu_medians['torchssvm']:.2f}", end="")
    print(f" (ratio {cpu_ratio:.2f}: what other work on the machine disturbs less)")
    print(f"ratio {ratio:.2f}, limit {LIMIT:g}: {'met' if ratio <= LIMIT else 'missed'}")

    from machine import describe_machine

    machine = {**describe_machine(), "threads": 1}  # of the processes measured
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    if args.json is not None:
        content = {
            "problem": {name: getattr(args, name) for name in ("size", "lam", "gap", "batch_size")},
            "runs": runs,
            "median_seconds": medians,
            "ratio": ratio,
            "median_cpu_seconds": cpu_medians,
            "cpu_ratio": cpu_ratio,
            "limit": LIMIT,
            "machine": machine,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
