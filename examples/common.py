"""What the OCR examples share: their flags, a progress line, and the report at the end."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import (
    Away,
    CacheOracle,
    Corrective,
    DualState,
    FrankWolfe,
    Hybrid,
    Labelings,
    LargestGap,
    MaxOracle,
    MeanParts,
    Pairwise,
    Permutation,
    Proportional,
    RunReport,
    Uniform,
    certify,
    evaluate,
)
from torchssvm.core.batch import apply_head, to_device
from torchssvm.datasets import OCR, PaddedDataset
from torchssvm.datasets.ocr.drawing import draw_words
from torchssvm.dual import Storage
from torchssvm.solvers.report import Entry
from torchssvm.steps.cache import OracleRule
from torchssvm.steps.direction import DirectionRule

WORDS = {"small": 626, "large": 6251}  # of the training split
BATCH_SIZE = {"small": 32, "large": 64}  # the quickest to a small gap on a CPU
DIRECTIONS = {"fw": FrankWolfe, "pairwise": Pairwise, "away": Away, "hybrid": Hybrid, "corrective": Corrective}
ORDERS = {"gap": Proportional, "largest": LargestGap, "uniform": Uniform, "permutation": Permutation}


def parser(description: str, report: str) -> argparse.ArgumentParser:
    """The flags of all OCR examples; arguments as in :func:`run_flags`."""
    flags = run_flags(description, report)
    flags.add_argument("--size", choices=sorted(WORDS), default="small", help="training words: 6251 or 626 (default)")
    flags.add_argument("--batch-size", type=count, help="words of a step (default: 32, or 64 with --size large)")
    return flags


def run_flags(description: str, report: str, *, one_lam: bool = True) -> argparse.ArgumentParser:
    """The flags of every run to a certified gap.

    Args:
        description: The script's docstring.
        report: Where the report goes if nothing else is said.
        one_lam: Whether the run is at one lam, to one gap.
    """
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if one_lam:
        flags.add_argument("--lam", type=positive, help="regularisation (default: 1/n)")
        flags.add_argument("--gap", type=positive, default=0.1, help="stop at this certified gap (%(default)s)")
    flags.add_argument("--max-passes", type=positive, default=5000.0, help="or after so many passes (%(default)g)")
    flags.add_argument("--seed", type=seed, default=0, help="runs with the same seed are the same (default: 0)")
    flags.add_argument("--device", type=device, default="cpu", help="cpu (default), cuda, cuda:1, ...")
    flags.add_argument("--report", type=folder, default=report, metavar="PATH", help="folder (default: %(default)s)")
    return flags


def add_rules(flags: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The flags of how a step is made and which words it takes."""
    flags.add_argument("--direction", choices=DIRECTIONS, default="fw", help="of a step (default: fw, Frank-Wolfe)")
    flags.add_argument("--cache", action="store_true", help="go to labelings found before where they promise enough")
    flags.add_argument(
        "--order", choices=ORDERS, default="gap", help="of the examples (default: gap, in proportion to the gaps)"
    )
    return flags


def rules(args: argparse.Namespace) -> tuple[DirectionRule, OracleRule, Storage]:
    """Direction, oracle rule, and the storage of the dual that goes with them."""
    direction, oracle = DIRECTIONS[args.direction](), CacheOracle() if args.cache else MaxOracle()
    return direction, oracle, Labelings() if direction.needs_labelings or oracle.needs_labelings else MeanParts()


def parse(flags: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags' values, with the defaults that depend on the size."""
    args = flags.parse_args(arguments)
    args.lam = 1.0 / WORDS[args.size] if args.lam is None else args.lam
    args.batch_size = args.batch_size or BATCH_SIZE[args.size]
    return args


def trainer_flags(args: argparse.Namespace) -> dict[str, Any]:
    """What every ``Trainer`` of the examples is told: where to run, and to leave no files behind."""
    name, _, number = args.device.partition(":")
    return {
        "accelerator": name,
        "devices": [int(number)] if number else 1,
        "limit_val_batches": 0,  # the test words wait until the end
        "logger": False,
        "enable_checkpointing": False,
    }


def in_order(dataset: PaddedDataset) -> DataLoader:
    """Every example once, in large batches."""
    return DataLoader(dataset, batch_size=512, collate_fn=dataset.collate)


def show_progress(dual: DualState, gap: float, args: argparse.Namespace) -> None:
    """A bar on one line, which moves with the logarithm of the certified gap."""
    share = math.log(max(gap, args.gap)) / math.log(min(args.gap, 0.999))  # the gap is 1 at the start
    share = min(max(share, dual.passes / args.max_passes, 0.0), 1.0)
    bar = "#" * round(20 * share)
    text = f"pass {dual.passes:6.0f}  dual {dual.value():.5f}  gap {gap:.5f} (wanted: {args.gap:g})"
    print(f"\r[{bar:<20}] {text}", end="", file=sys.stderr, flush=True)


def finish(
    args: argparse.Namespace,
    task: str,
    head: nn.Module,
    dual: DualState,
    history: list[Entry],
    stopped_because: str,
    start: float,
    train: PaddedDataset,
    test: PaddedDataset,
) -> RunReport:
    """Print a table; write report.json and the picture.

    Args:
        args: The flags' values.
        task: What was trained.
        head: The trained head.
        dual: Its dual state.
        history: The certificates; after an interruption, the weights as they stand get one more.
        stopped_because: A sentence.
        start: ``time.perf_counter()`` when the training began.
        train: What the head was trained on.
        test: What it is tested on.
    """
    at = next(head.parameters()).device
    if not history or history[-1].certificate.oracle_calls != dual.oracle_calls:
        certificate = certify(head, dual, in_order(train))
        history.append(Entry(certificate, time.perf_counter() - start))
    on_train = evaluate(head, dual.structure, in_order(train), at)
    on_test = evaluate(head, dual.structure, in_order(test), at)
    report = RunReport.from_history(
        task,
        history,
        num_weights=sum(p.numel() for p in head.parameters()),
        stopped_because=stopped_because,
        train=on_train,
        test=on_test,
        seed=args.seed,
        device=args.device,
        extra={
            "size": args.size,
            "batch_size": args.batch_size,
            **{name: value for name, value in vars(args).items() if name in ("direction", "cache", "order")},
            "cache_hits": dual.cache_hits,
            "letter_error": on_test.token_error,
            "word_error": on_test.example_error,  # the share of words with a wrong letter
        },
    )
    print(f"\n{report}\nwritten to {args.report}")

    shown = range(0, len(test), len(test) // 6)
    words = to_device(test.__getitems__(shown), at)
    with torch.no_grad():
        found = dual.structure.argmax(apply_head(head, words)).labeling
    images = OCR("test", args.size).__getitems__(shown)
    report.write(args.report, draw_examples=lambda figure: draw_words(figure, images, found.cpu()))
    return report


def positive(text: str) -> float:
    value = float(text)
    if not (value > 0.0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"must be positive and finite, not {text}")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"must lie between 0 and 2^32 - 1, not {text}")
    return value


def device(text: str) -> str:
    name, _, number = text.partition(":")
    if name not in ("cpu", "cuda") or (number and not number.isdigit()) or text == "cpu:":
        raise argparse.ArgumentTypeError(f"must be cpu, cuda or cuda:NUMBER, not {text}")
    if name == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise argparse.ArgumentTypeError(f"this machine has {torch.cuda.device_count()} CUDA devices, so no {text}")
    return text


def folder(text: str) -> Path:
    path = Path(text)
    if any(part.exists() and not part.is_dir() for part in (path, *path.parents)):
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be made: {error.strerror}") from error
    return path
