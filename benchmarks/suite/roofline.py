"""OCR: the work of a step and of an exact pass, what the machine could do at most, and how close the loops come.

Ceilings and loops are measured in the same process, on one thread. The least time is that of the sparse formulas at
those ceilings, with perfect vectors, no waiting and no calls: nothing gets there, and a factor of a few is good.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from torchssvm.datasets import OCR

from .ceilings import Ceilings, measure_ceilings
from .measuring import Ask, Clock, Settings, Summary, Table, best_of, in_turn
from .training import TorchLoop, compiled_loop, ocr_problem
from .work import FORMULAS, Shape, exact_pass, step

TITLE = "Roofline: how far from what the machine can do"


def ocr_shape(size: str) -> Shape:
    """The sums of the training set that work depends on; bias and boundaries are features."""
    words = OCR("train", size)
    assert words.lengths is not None
    tokens, n = int(words.lengths.sum()), len(words)
    nonzeros = int((words.x != 0).sum()) + tokens + 2 * n
    return Shape(n, tokens, int((words.lengths**2).sum()), nonzeros, 131, 26)


def roofline(size: str, lam: float, passes: int, quick: bool, seed: int) -> dict[str, Any]:
    """Seconds of a step of the compiled loop and of the torch loop, and of their exact passes; and the ceilings."""
    words = OCR("train", size)
    data = ocr_problem(words)
    loop = compiled_loop(data, "FW", lam, seed)
    torch_loop = TorchLoop(words, data, lam, seed)
    n = len(words)
    loop.step(n)  # compiles
    loop.certify()
    torch_loop.epoch()
    torch_loop.certify()
    before = measure_ceilings(quick)
    clock = Clock()
    loop.step(passes * n)
    compiled_step = clock.stop()["seconds"] / (passes * n)
    clock = Clock()
    torch_loop.epoch()
    torch_step = clock.stop()["seconds"] / n
    least = 0.1 if quick else 1.0
    results = {
        "compiled step": compiled_step,
        "torch loop step": torch_step,
        "compiled exact pass": best_of(loop.certify, least),
        "torch exact pass": best_of(torch_loop.certify, least),
    }
    after = measure_ceilings(quick)  # the machine may have changed its pace meanwhile: the higher counts
    return {
        "seconds": results,
        "multiply_add": max(before.multiply_add, after.multiply_add),
        "max_plus": max(before.max_plus, after.max_plus),
        "triad": {level: max(before.triad[level], after.triad[level]) for level in before.triad},
        "shape": ocr_shape(size)._asdict(),
    }


MEASURES = {"roofline": roofline}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """The same again and again."""
    options: dict[str, Any] = (
        {"size": "small", "lam": 0.01, "passes": 2} if settings.quick else {"size": "large", "lam": 0.001, "passes": 5}
    )
    runs = in_turn(
        ["all"], settings.repeats, lambda _, repeat: ask("roofline", seed=repeat, quick=settings.quick, **options)
    )
    return {"runs": runs["all"], "problem": options}


def summarise(results: dict[str, Any]) -> Summary:
    """Ceilings, work, and measured times over the least times."""
    runs = results["runs"]
    triad = {level: statistics.median(run["triad"][level] for run in runs) for level in runs[0]["triad"]}
    peak, max_plus = (statistics.median(run[name] for run in runs) for name in ("multiply_add", "max_plus"))
    ceilings = Ceilings(peak, max_plus, triad)
    speeds: list[list[Any]] = [["multiply-add", peak / 1e9, "GFLOP/s"], ["add and maximum", max_plus / 1e9, "GFLOP/s"]]
    speeds += [[f"triad, {level}", speed / 1e9, "GB/s"] for level, speed in triad.items()]
    shape = Shape(**runs[0]["shape"])
    n = shape.examples
    rows, floors = [], {}
    for name, work, unit in (("step", step, n), ("exact pass", exact_pass, 1)):
        for kind, its in (("sparse", shape), ("dense", shape.dense)):
            each = work(its).times(1.0 / unit)
            floor = ceilings.seconds(*each, level="memory")
            floors[name, kind] = floor
            rows.append([f"{name}, {kind}", each.multiply_add, each.max_plus, each.traffic, 1e6 * floor])
    close = []
    for name in runs[0]["seconds"]:
        seconds = statistics.median(run["seconds"][name] for run in runs)
        floor = floors["exact pass" if "pass" in name else "step", "sparse"]
        close.append([name, 1e6 * seconds, 1e6 * floor, seconds / floor])
    title = f"OCR-{results['problem']['size']}"
    return Summary(
        [
            Table("Ceilings of one thread", ["", "speed", "unit"], speeds),
            Table(
                f"{title}: work by formula",
                ["", "multiply-add, FLOP", "max-plus, FLOP", "bytes", "least time, us"],
                rows,
            ),
            Table(f"{title}: how close, one thread", ["", "measured, us", "least time, us", "ratio"], close),
        ],
        notes=[f"{name}: {formula}" for name, formula in FORMULAS.items()],
    )


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing: the table says it."""
    return []
