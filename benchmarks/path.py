"""The regularisation path of OCR-small against grids of 31 lambdas, as in [Osokin et al. 2016], section 5.2.

python benchmarks/path.py --out runs/path

Paths and warm grids also run with corrective steps over cached labelings. Each part is written to its own file and not
run again if that is there; ``--only`` runs some of them.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from torch import nn

from torchssvm import (
    BlockGap,
    CacheOracle,
    Corrective,
    DualState,
    Labelings,
    LinearChain,
    Recipe,
    RunOptions,
    certify,
    evaluate,
    in_order,
)
from torchssvm.core.files import write_text
from torchssvm.datasets import OCR
from torchssvm.path import (
    Certified,
    GridPoint,
    Heuristic,
    KeepWeights,
    PathRun,
    RegularizationPath,
    grid_search,
    plot,
    regularization_path,
)

GRID = [2.0**power for power in range(15, -16, -1)]
PARTS = ("path", "path-cache", "heuristic", "warm", "warm-cache", "cold")


def recipe(part: str, head: nn.Module, words: OCR) -> Recipe:
    """With the cache: corrective steps over active sets. Without: plain Frank-Wolfe steps."""
    if not part.endswith("-cache"):
        return Recipe()
    return Recipe(
        make_dual=lambda lam: DualState.for_head(head, len(words), lam, storage=Labelings()),
        make_loss=lambda dual: BlockGap(dual, Corrective(), oracle=CacheOracle()),
    )


class Clock:
    """Wall and CPU seconds, less those of what is measured on the side."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Seconds so far."""
        return {"seconds": time.perf_counter() - self._wall, "cpu_seconds": time.process_time() - self._cpu}

    def skip(self, since: dict[str, float]) -> None:
        """Do not count what passed since that reading."""
        now = self.read()
        self._wall += now["seconds"] - since["seconds"]
        self._cpu += now["cpu_seconds"] - since["cpu_seconds"]


class Verify:
    """Exact passes at lambdas drawn beforehand, with the dual of the breakpoint that serves them."""

    def __init__(self, words: OCR, count: int, seed: int) -> None:
        self.words, self.count = words, count
        self.random = torch.Generator().manual_seed(seed)
        self.waiting: list[float] | None = None
        self.found: list[dict[str, float]] = []

    def __call__(self, head: nn.Module, dual: DualState, path: RegularizationPath) -> None:
        """The lambdas from the last breakpoint down to where it serves."""
        if self.waiting is None:  # log-uniform, from the largest breakpoint to the end of the grid
            top = path.points[0].lam
            shares = torch.rand(self.count, generator=self.random, dtype=torch.float64).tolist()
            self.waiting = [top * (GRID[-1] / top) ** share for share in shares]
        here = [lam for lam in self.waiting if lam >= path.lowest]
        self.waiting = [lam for lam in self.waiting if lam < path.lowest]
        for lam in here:
            own_head, own_dual = copy.deepcopy((head, dual))
            own_dual.rescale(lam / own_dual.lam)
            gap = certify(own_head, own_dual, in_order(self.words), refresh=False).gap
            self.found.append({"lam": lam, "recomputed_gap": gap, "gap_by_the_path": path.gap_estimate(lam)})


def follow(part: str, words: OCR, args: argparse.Namespace) -> dict[str, Any]:
    """One path; the dual is verified on the way, with the clock stopped."""
    head = LinearChain(in_features=128, num_states=26)
    clock, verify, rows = Clock(), Verify(words, args.verify, args.seed), []

    def on_breakpoint(run: PathRun) -> None:
        now, path = clock.read(), run.path
        point = path.points[-1]
        rows.append({"lam": point.lam, "down_to": path.lowest, "passes": point.passes, "gap": point.gap, **now})
        verify(head, run.dual, path)
        if len(rows) % 50 == 0:
            print(f"{part}: {len(rows)} breakpoints, lambda {point.lam:.4g}, {point.passes:.0f} passes", flush=True)
        clock.skip(now)

    path = regularization_path(
        head,
        words,
        epsilon=args.epsilon,
        lam_min=GRID[-1],
        rule=Heuristic() if part == "heuristic" else Certified(),
        max_passes=args.max_passes,
        on_breakpoint=on_breakpoint,
        recipe=recipe(part, head, words),
        options=RunOptions(batch_size=args.batch_size, seed=args.seed),
    )
    path.save(args.out / f"{part}.pt")
    return {"rows": rows, "complete": path.complete, "lowest": path.lowest, "verified": verify.found}


def search(part: str, words: OCR, args: argparse.Namespace) -> dict[str, Any]:
    """One grid."""
    head = LinearChain(in_features=128, num_states=26)
    clock, rows = Clock(), []
    passes = 0.0

    def on_point(point: GridPoint) -> None:
        nonlocal passes
        passes += point.passes
        rows.append({"lam": point.lam, "passes": passes, "gap": point.certificate.gap, **clock.read()})
        print(
            f"{part}: lambda {point.lam:.4g}, gap {point.certificate.gap:.4f}, {passes:.0f} passes so far", flush=True
        )

    grid_search(
        head,
        words,
        GRID,
        tolerance=args.epsilon,
        warm_start=None if part == "cold" else KeepWeights(),
        max_passes=args.max_passes,
        on_point=on_point,
        recipe=recipe(part, head, words),
        options=RunOptions(batch_size=args.batch_size, seed=args.seed),
    )
    return {"rows": rows}


def draw(
    results: dict[str, Any], path: RegularizationPath, errors: dict[float, float], args: argparse.Namespace
) -> None:
    """The path with its verified gaps and test errors, and the passes that each method took to each lambda."""
    from matplotlib.figure import Figure

    figure = plot(path, scores=errors, score_name="letter error, test")
    verified = results["path"]["verified"]
    figure.axes[0].plot(
        [row["lam"] for row in verified], [row["recomputed_gap"] for row in verified], "r.", markersize=4
    )
    figure.savefig(args.out / "path.png", dpi=150)
    race = Figure(figsize=(7, 4), layout="constrained")
    axes = race.subplots(1, 2)
    for ax, name in zip(axes, ("passes", "cpu_seconds"), strict=True):
        for part, result in results.items():
            rows = result["rows"]
            ax.plot([row["lam"] for row in rows], [row[name] for row in rows], label=part, linewidth=1)
        ax.set(xscale="log", yscale="log", xlabel="λ", ylabel=name.replace("_", " "))
        ax.invert_xaxis()
    axes[0].legend()
    race.savefig(args.out / "race.png", dpi=150)


def main() -> None:
    """Run what is missing, and print the table."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, default=Path("runs/path"))
    flags.add_argument("--epsilon", type=float, default=0.1)
    flags.add_argument("--batch-size", type=int, default=16)
    flags.add_argument("--max-passes", type=float, default=5000, help="of a path, and of each lambda of a grid")
    flags.add_argument("--verify", type=int, default=50, help="random lambdas at which gaps are computed again")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = flags.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    words = OCR("train", "small")
    settings = {
        "epsilon": args.epsilon,
        "batch_size": args.batch_size,
        "max_passes": args.max_passes,
        "seed": args.seed,
    }

    # kernels are compiled outside the clock
    grid_search(LinearChain(in_features=128, num_states=26), words, [1.0], tolerance=args.epsilon, max_passes=1)
    results: dict[str, Any] = {}
    for part in PARTS:
        file = args.out / f"{part}.json"
        if file.exists():
            results[part] = json.loads(file.read_text(encoding="utf-8"))
            if results[part]["settings"] != settings:
                flags.error(f"{file} is of other settings, {results[part]['settings']}: choose another --out")
        elif part in args.only:
            found = (search if part.startswith(("warm", "cold")) else follow)(part, words, args)
            results[part] = {"settings": settings, "machine": describe_machine(), **found}
            write_text(file, json.dumps(results[part], indent=1) + "\n")

    print(f"\n{'':10} {'lambdas':>8} {'passes':>8} {'seconds':>8} {'CPU s':>8}   largest gap")
    for part, result in results.items():
        rows = result["rows"]
        last, gaps = rows[-1], [row["gap"] for row in rows]
        note = f"{max(gaps):.4f} when solved"
        if "verified" in result:
            verified = result["verified"]
            worst = max(row["recomputed_gap"] for row in verified)
            reach = "complete" if result["complete"] else f"down to {result['lowest']:.3g}"
            note = f"{worst:.4f} recomputed at {len(verified)} random lambdas; {reach} from {last['lam']:.4g}"
        missed = sum(gap > args.epsilon for gap in gaps)
        note += f"; {missed} above epsilon" if missed else ""
        print(
            f"{part:10} {len(rows):8} {last['passes']:8.0f} {last['seconds']:8.1f} {last['cpu_seconds']:8.1f}   {note}"
        )

    if set(results) == set(PARTS):
        path = RegularizationPath.load(args.out / "path.pt")
        head, test = LinearChain(in_features=128, num_states=26), OCR("test", "small")
        lams = sorted(
            {*path.breakpoints[:: max(1, len(path.points) // 25)].tolist(), path.points[-1].lam}, reverse=True
        )
        errors = path.scores(head, lambda: letter_error(head, test), lams)
        draw(results, path, errors, args)
        best = min(errors, key=lambda lam: errors[lam])
        print(f"smallest letter error on the test words: {errors[best]:.4f}, at lambda {best:.4g}")


def letter_error(head: LinearChain, words: OCR) -> float:
    """Share of wrong letters."""
    error = evaluate(head, head.structure, in_order(words)).token_error
    assert error is not None
    return error


if __name__ == "__main__":
    main()
