"""The regularisation path of OCR-small against grids of 31 lambdas, as in [Osokin et al. 2016], section 5.2.

Paths and warm grids also run with corrective steps over cached labelings. Gaps of a path are recomputed at lambdas
drawn at random, from a copy of the dual and with the clock stopped.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from baselines import GridPoint, grid_search

from torchssvm import (
    CacheOracle,
    Corrective,
    FrankWolfe,
    LinearChain,
    Solver,
    certify,
    in_order,
    regularization_path,
)
from torchssvm.datasets import OCR
from torchssvm.path import Certified, Heuristic, PathRun

from .figures import grid
from .measuring import Ask, Clock, Settings, Summary, Table, chosen

TITLE = "OCR-small: the regularisation path against grids"
WAYS = ("path", "path-cache", "heuristic", "warm", "warm-cache", "cold")
OPTIONS: dict[str, Any] = {
    "ways": list(WAYS),
    "epsilon": 0.1,
    "powers": 15,  # the grid goes from 2^15 to 2^-15
    "batch_size": 16,
    "max_passes": 5000.0,  # of a path, and of each lambda of a grid
    "verify": 50,  # random lambdas at which gaps are computed again
    "seed": 0,
}
QUICK = {"ways": ["path", "warm-cache"], "epsilon": 0.5, "powers": 2, "verify": 3, "max_passes": 30.0}


def rules(way: str, batch_size: int, seed: int) -> Solver:
    """The torch loop. With the cache: corrective steps over active sets. Without: plain Frank-Wolfe steps."""
    choice = (
        {"direction": Corrective(), "oracle": CacheOracle()} if way.endswith("-cache") else {"direction": FrankWolfe()}
    )
    return Solver(**choice, compiled=False, batch_size=batch_size, seed=seed)


def follow(
    way: str, epsilon: float, powers: int, batch_size: int, max_passes: float, verify: int, seed: int
) -> dict[str, Any]:
    """One path."""
    words, head = OCR("train", "small"), LinearChain(in_features=128, num_states=26)
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand(verify, generator=random, dtype=torch.float64).tolist()
    rows: list[dict[str, float]] = []
    verified: list[dict[str, float]] = []
    waiting: list[float] = []

    def on_breakpoint(run: PathRun) -> None:
        now, path = clock.stop(), run.path
        point = path.points[-1]
        if not rows:  # log-uniform, from the largest breakpoint to the end of the grid
            waiting.extend(sorted((point.lam * (2.0**-powers / point.lam) ** s for s in shares), reverse=True))
        rows.append({"lam": point.lam, "passes": point.passes, "gap": point.gap, **now})
        while waiting and waiting[0] >= path.lowest:
            lam = waiting.pop(0)
            own_head, own_dual = copy.deepcopy((head, run.dual))
            own_dual.rescale(lam / own_dual.lam)
            gap = certify(own_head, own_dual, in_order(words), refresh=False).gap
            verified.append({"lam": lam, "recomputed_gap": gap, "gap_by_the_path": path.gap_estimate(lam)})
        clock.go()

    clock = Clock()
    path = regularization_path(
        head,
        words,
        epsilon=epsilon,
        lam_min=2.0**-powers,
        rule=Heuristic() if way == "heuristic" else Certified(),
        max_passes=max_passes,
        solver=rules(way, batch_size, seed),
        on_breakpoint=on_breakpoint,
    )
    return {"rows": rows, "complete": path.complete, "lowest": path.lowest, "verified": verified}


def search(way: str, epsilon: float, powers: int, batch_size: int, max_passes: float, seed: int, **_: Any) -> Any:
    """One grid."""
    words, head = OCR("train", "small"), LinearChain(in_features=128, num_states=26)
    rows: list[dict[str, float]] = []

    def on_point(point: GridPoint) -> None:
        passes = point.passes + (rows[-1]["passes"] if rows else 0.0)
        rows.append({"lam": point.lam, "passes": passes, "gap": point.certificate.gap, **clock.stop()})
        clock.go()

    clock = Clock()
    grid_search(
        head,
        words,
        [2.0**power for power in range(powers, -powers - 1, -1)],
        tolerance=epsilon,
        warm_start=way != "cold",
        max_passes=max_passes,
        solver=rules(way, batch_size, seed),
        on_point=on_point,
    )
    return {"rows": rows}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """All ways."""
    options = chosen(settings, OPTIONS, QUICK)
    ways = options.pop("ways")
    runs = {way: ask("search" if way[:4] in ("warm", "cold") else "follow", way=way, **options) for way in ways}
    return {**options, "runs": runs}


def summarise(results: dict[str, Any]) -> Summary:
    """What each way cost, and how large gaps were."""
    rows = []
    for way, result in results["runs"].items():
        last, gaps = result["rows"][-1], [row["gap"] for row in result["rows"]]
        checked = [row["recomputed_gap"] for row in result.get("verified", ())]
        reach = "complete" if result.get("complete") else f"down to {result.get('lowest', last['lam']):.3g}"
        largest = f"{max(gaps):.4f}" + (f", {max(checked):.4f} recomputed at {len(checked)}" if checked else "")
        above = sum(gap > results["epsilon"] for gap in [*gaps, *checked])
        rows.append([way, len(gaps), reach, last["passes"], last["seconds"], last["cpu_seconds"], largest, above])
    columns = ["", "lambdas solved", "reach", "passes", "seconds", "CPU s", "largest gap", "above epsilon"]
    return Summary([Table(f"OCR-small, epsilon = {results['epsilon']:g}", columns, rows)])


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """What each way has spent when it comes to a lambda."""
    charts = {
        chart: {
            way: ([1 / row["lam"] for row in result["rows"]], [row[key] for row in result["rows"]])
            for way, result in results["runs"].items()
        }
        for chart, key in (("passes", "passes"), ("CPU seconds", "cpu_seconds"))
    }
    return [grid(folder / "path.png", charts, ["1 / λ"] * 2, "")]


MEASURES = {"follow": follow, "search": search}
