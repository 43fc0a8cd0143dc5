"""Poses (LSPET): the time of the max oracle, and what solvers take to certified gaps on 100 images, as in [G16].

The maps are those of a network of ``examples/pose.py``: ``--set network='"runs/pose/network.pt"'``; without one they
are of a network that knows nothing. The images are the first training images, which that network has not seen. Counted
are effective passes and CPU seconds on one thread, those of the last layer of the network included: the maps of all
images would take 600 MB, and are computed anew for every batch. [G16] names 2 s for an oracle call.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import torch

from torchssvm import BCFW, BlockGap, DualState, Labelings, LinearPose, TorchLoop, Weights
from torchssvm.datasets import LSPET, PoseTargets, PrecomputedFeatures
from torchssvm.lightning import StructuredSVM
from torchssvm.models import PoseNetwork, body_bounds, body_nodes, body_pose
from torchssvm.models.pose_network import STRIDE
from torchssvm.solvers import WhenEstimated

from .convergence import RULES, Log, curves, medians
from .measuring import Ask, Settings, Summary, Table, chosen

TITLE = "Poses: the max oracle, and solvers to certified gaps"
PAPER_MS = 2000.0  # an oracle call in [G16] appendix I.4
ROUNDS = 5  # of timing the oracle, the best of which counts
TIMED = 20  # images in a call
GAPS = (0.3, 0.2, 0.1, 0.05)
UNSEEN = 200  # images that the network of the example was not trained on
OPTIONS: dict[str, Any] = {
    "network": None,
    "data": None,
    "images": 100,
    "canvas": 192,
    "widths": [32, 64, 128, 192, 256],
    "types": 13,
    "lam": 1.0,
    "strength": 0.01,
    "gap": GAPS[-1],
    "max_seconds": 300.0,
    "batch_size": 8,
    "seed": 0,
    "solvers": [
        "uniform FW",
        "gap FW",
        "gap FW + cache",
        "gap pairwise",
        "gap pairwise + cache",
        "gap corrective + cache",
    ],
}
QUICK = {"images": 10, "canvas": 32, "widths": [8, 16], "types": 2, "gap": 0.3, "max_seconds": 1.0}


def people(
    network: str | None, data: str | None, images: int, canvas: int, widths: list[int], types: int, seed: int
) -> tuple[PoseNetwork, PrecomputedFeatures]:
    """The network, and what its outputs are linear in for the first training images."""
    if not 1 <= images <= UNSEEN:
        raise ValueError(f"images={images} must lie between 1 and {UNSEEN}")
    train = LSPET("train", canvas=(canvas, canvas), root=data)
    structure = body_pose(body_nodes(train.places(STRIDE)), (canvas // STRIDE,) * 2, types, seed=seed).structure
    torch.manual_seed(seed)
    net = PoseNetwork(structure, tuple(widths))
    if network is not None:
        net.load_state_dict(torch.load(network, weights_only=True))
    targets = PoseTargets(train, lambda joints: structure.labeling(body_nodes(joints)), STRIDE, range(images))
    return net.eval(), PrecomputedFeatures(targets, net.trunk, batch_size=32)


def train(
    solver: str, lam: float, strength: float, gap: float, max_seconds: float, batch_size: int, **images: Any
) -> dict[str, Any]:
    """One run to the gap, or out of time."""
    network, data = people(**images)
    head, rules = LinearPose(network.structure), RULES[solver]
    model = StructuredSVM(head, lam, network.outputs)  # the outputs and the head as one module
    storage = Weights() if solver.endswith(" FW") else Labelings()
    dual = DualState.for_head(head, len(data), lam, storage=storage)
    log, named = Log(dual, max_seconds), dict(head.named_parameters())
    groups = [
        {"params": [named[name]], "lower": low, "upper": high} for name, (low, high) in body_bounds(strength).items()
    ]
    schedule, seed = WhenEstimated(passes=3.0), images["seed"]
    options = {"batch_size": batch_size, "order": rules.order(), "seed": seed}
    with contextlib.suppress(TimeoutError):
        loss = BlockGap(dual, rules.direction(), oracle=rules.oracle())
        loop = TorchLoop(model, loss, data, **options, optimizer=BCFW(groups, dual))
        loop.solve(gap, schedule=schedule, on_check=log)
    return {"checks": log.checks}


def oracle(**images: Any) -> dict[str, Any]:
    """Wall and CPU milliseconds of loss-augmented decoding of an image."""
    network, data = people(**images)
    head = LinearPose(network.structure)
    with torch.no_grad():
        head.unary.fill_(0.05)
        head.types.fill_(0.05)
        head.deformation[..., 1::2] = 0.05
        batch = data.__getitems__(range(min(TIMED, len(data))))
        potentials = head(network.outputs(batch.x))
    seconds = []
    for _ in range(ROUNDS + 1):  # the first compiles
        start = time.perf_counter(), time.process_time()
        head.structure.augmented_argmax(potentials, batch.y)
        seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    wall, cpu = (1e3 * min(one) / len(batch.index) for one in zip(*seconds[1:], strict=True))
    grid = f"{network.structure.height} x {network.structure.width}"
    return {"grid": grid, "ms_per_image": wall, "cpu_ms_per_image": cpu}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """The oracle on one thread and on two, and all solvers."""
    options = chosen(settings, OPTIONS, QUICK)
    solvers = options.pop("solvers")
    images = {name: options[name] for name in ("network", "data", "images", "canvas", "widths", "types", "seed")}
    timed = {str(threads): ask("oracle", threads=threads, **images) for threads in (1, 2)}
    runs = {solver: [ask("train", solver=solver, **options)] for solver in solvers}
    return {**options, "oracle": timed, "runs": runs}


def summarise(results: dict[str, Any]) -> Summary:
    """One table of the oracle, one of the solvers."""
    rows = [
        [int(threads), one["ms_per_image"], one["cpu_ms_per_image"], PAPER_MS / one["ms_per_image"]]
        for threads, one in results["oracle"].items()
    ]
    title = f"Max oracle on a grid of {results['oracle']['1']['grid']}, {results['types']} types an arc"
    gaps = [gap for gap in GAPS if gap >= results["gap"]] or [results["gap"]]
    solvers = f"{results['images']} images, lam = {results['lam']:g}, springs from {results['strength']:g}"
    notes = [] if results["network"] else ["the network was not trained: give network"]
    oracle = Table(title, ["threads", "ms an image", "CPU ms", "2 s over that"], rows)
    return Summary([oracle, medians(solvers, results["runs"], gaps)], notes=notes)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Gaps by passes and by CPU seconds."""
    return [curves(folder / "pose.png", results["runs"])]


MEASURES = {"oracle": oracle, "train": train}
