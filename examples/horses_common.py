"""What the examples on horses share: training a head to a certified gap, choosing lam, and the report."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from common import ORDERS, add_rules, count, rules, run_flags, show_progress
from torch import Tensor
from torch.utils.data import Subset

from torchssvm import (
    BCFW,
    BlockGap,
    Certificate,
    DualState,
    Graphs,
    LinearGraph,
    RunOptions,
    RunReport,
    certify,
    evaluate,
    in_order,
    solve,
)
from torchssvm.core.batch import apply_head, to_device
from torchssvm.core.figures import new_figure
from torchssvm.datasets import (
    GraphSettings,
    HorseSegmentation,
    PrecomputedGraphs,
    SegmentationScores,
    SuperpixelGraphs,
    segmentation_scores,
)
from torchssvm.datasets.images.horse_drawing import draw_foregrounds
from torchssvm.solvers.report import Entry

PICTURE = "foregrounds.png"
SHOWN = 6  # test images of it


class Fit(NamedTuple):
    """A head that was trained.

    Attributes:
        head: It holds its weights.
        dual: Its dual state.
        history: The certificates, that of zero weights first.
        stopped_because: A sentence.
        cpu_seconds: Of this process.
    """

    head: LinearGraph
    dual: DualState
    history: list[Entry]
    stopped_because: str
    cpu_seconds: float

    @property
    def share(self) -> float:
        """The certified gap, as a share of the gap at zero weights."""
        return self.history[-1].certificate.gap / self.history[0].certificate.gap


def flags(description: str | None, report: str, *, one_lam: bool = True) -> argparse.ArgumentParser:
    """The flags of a run; without ``one_lam``, of one that needs no images held out to choose lam either."""
    parser = add_rules(run_flags(description or "", report=report, one_lam=one_lam))
    parser.add_argument("--batch-size", type=count, default=4, help="images of a step (default: %(default)s)")
    parser.add_argument("--data", metavar="PATH", help="folder of the images (default: in TORCHSSVM_DATA)")
    parser.add_argument("--num-train", type=count, default=200, help="images to train on, the first (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes that make graphs, once (default: none)")
    parser.set_defaults(max_passes=500.0)
    if one_lam:
        parser.add_argument(
            "--held-out",
            type=count,
            default=40,
            help="of these, the last, to choose lam, at a gap of 0.03 (%(default)s)",
        )
        parser.set_defaults(gap=0.003)  # within 0.01 the test IoU still moves by half a point
    else:
        parser.set_defaults(held_out=0)
    return parser


def read(
    args: argparse.Namespace, settings: GraphSettings | None = None, balanced: bool = True
) -> tuple[HorseSegmentation, HorseSegmentation]:
    """The images to train on and to test on.

    Raises:
        ValueError: A flag is out of range, or an image cannot be used.
    """
    if args.held_out >= args.num_train:
        raise ValueError(f"--held-out {args.held_out} must be less than --num-train {args.num_train}")
    train, test = (
        HorseSegmentation(
            split,  # type: ignore[arg-type]
            args.data,
            num_train=args.num_train,
            settings=settings,
            balanced=balanced,
            workers=args.workers,
        )
        for split in ("train", "test")
    )
    return train, test


def without_edges(x: Graphs) -> Graphs:
    """The same nodes, alone."""
    return Graphs(x.nodes, x.edge_features[:, :0], x.edges[:, :0])


def fit(graphs: PrecomputedGraphs | Subset, lam: float, args: argparse.Namespace, gap: float | None = None) -> Fit:
    """Train a head until its gap is ``gap`` (None is ``args.gap``) times that of zero weights, by certificates."""
    share = args.gap if gap is None else gap
    own = graphs.dataset if isinstance(graphs, Subset) else graphs
    head = LinearGraph(own.in_features, own.edge_features).to(args.device)
    direction, oracle, storage = rules(args)
    dual = DualState.for_head(head, num_examples=len(graphs), lam=lam, storage=storage)
    optimizer = BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)
    history: list[Entry] = []
    start, cpu = time.perf_counter(), time.process_time()

    def note(certificate: Certificate) -> None:
        history.append(Entry(certificate, time.perf_counter() - start))
        show_progress(dual, certificate.gap / history[0].certificate.gap, args)

    def exact_pass() -> Certificate:
        batches = in_order(graphs, batch_size=16, collate_fn=own.collate)
        return certify(head, dual, (to_device(batch, args.device) for batch in batches))

    note(exact_pass())
    wanted = share * history[0].certificate.gap
    try:
        last = solve(
            head,
            BlockGap(dual, direction, oracle=oracle),
            graphs,
            tolerance=wanted,
            max_passes=args.max_passes,
            optimizer=optimizer,
            on_check=note,
            options=RunOptions(
                batch_size=args.batch_size, order=ORDERS[args.order](), seed=args.seed, collate_fn=own.collate
            ),
        )
        reached = last.gap <= wanted
        why = f"certified gap {last.gap:.6g} {'<=' if reached else '>'} {wanted:.6g}, {share:g} of that of zero weights"
        why += "" if reached else f", after {args.max_passes:g} passes"
    except KeyboardInterrupt:
        note(exact_pass())
        why = "interrupted: KeyboardInterrupt"
    return Fit(head, dual, history, why, time.process_time() - cpu)


@torch.no_grad()
def labelings(head: LinearGraph, graphs: PrecomputedGraphs | Subset) -> list[Tensor]:
    """The labels of the superpixels of every image."""
    collate = (graphs.dataset if isinstance(graphs, Subset) else graphs).collate
    at = head.unary.device
    batches = (to_device(batch, at) for batch in in_order(graphs, batch_size=1, collate_fn=collate))
    return [head.structure.argmax(apply_head(head, batch)).labeling.labels[0].cpu() for batch in batches]


def choose_lam(
    graphs: PrecomputedGraphs, images: SuperpixelGraphs, lams: Sequence[float], args: argparse.Namespace, name: str
) -> tuple[float, dict[str, float]]:
    """The lam with the best IoU on the last ``args.held_out`` training images, trained on the others."""
    if len(lams) == 1:
        return lams[0], {}
    first, last = range(len(graphs) - args.held_out), range(len(graphs) - args.held_out, len(graphs))
    found = {}
    for lam in lams:
        fitted = fit(Subset(graphs, first), lam, args, gap=3 * args.gap)
        guesses = labelings(fitted.head, Subset(graphs, last))
        foregrounds = [guess[images.regions(i)] == 1 for guess, i in zip(guesses, last, strict=True)]
        found[lam] = segmentation_scores(foregrounds, [images.mask(i) for i in last]).iou
        print(f"\n{name}, lam {lam:g}: IoU {found[lam]:.4f} on {len(last)} held-out images, {fitted.stopped_because}")
    return max(found, key=found.__getitem__), {f"{lam:g}": round(iou, 6) for lam, iou in found.items()}


class Result(NamedTuple):
    """What a model does on the test images.

    Attributes:
        scores: In pixels.
        foregrounds: bool ``[H, W]`` for every image.
        cpu_seconds: Of its training.
        more: Entries of the report.
    """

    scores: SegmentationScores
    foregrounds: list[Tensor]
    cpu_seconds: float
    more: dict[str, Any]


def result(
    fitted: Fit, graphs: PrecomputedGraphs, images: SuperpixelGraphs, more: dict[str, Any], seconds: float = 0.0
) -> Result:
    """Decode the test images; ``seconds`` went into the features."""
    found = labelings(fitted.head, graphs)
    last = fitted.history[-1].certificate
    own = {"lam": last.lam, "gap": last.gap, "share_of_initial_gap": fitted.share, "oracle_calls": last.oracle_calls}
    return Result(images.scores(found), images.foreground(found), seconds + fitted.cpu_seconds, own | more)


def table(results: dict[str, Result]) -> str:
    """All models on the test images."""
    lines = [f"{'':38}  test IoU  mean IoU  balanced accuracy  CPU seconds"]
    for name, found in results.items():
        scores = f"{found.scores.iou:8.4f}  {found.scores.mean_iou:8.4f}  {found.scores.balanced_accuracy:17.4f}"
        lines.append(f"{name:38}  {scores}  {found.cpu_seconds:11.1f}")
    return "\n".join(lines)


def finish(
    args: argparse.Namespace,
    task: str,
    fitted: Fit,
    train: PrecomputedGraphs,
    test: PrecomputedGraphs,
    images: HorseSegmentation,
    results: dict[str, Result],
) -> None:
    """Print the tables; write report.json, the picture of the convergence, and that of some test images."""
    structure, at = fitted.dual.structure, args.device
    report = RunReport.from_history(
        task,
        fitted.history,
        num_weights=sum(p.numel() for p in fitted.head.parameters()),
        stopped_because=fitted.stopped_because,
        train=evaluate(fitted.head, structure, in_order(train, batch_size=16), at),
        test=evaluate(fitted.head, structure, in_order(test, batch_size=16), at),
        seed=args.seed,
        device=args.device,
        extra={
            "initial_gap": fitted.history[0].certificate.gap,
            "batch_size": args.batch_size,
            **{name: getattr(args, name) for name in ("direction", "cache", "order", "num_train")},
            "cache_hits": fitted.dual.cache_hits,
            "edge_weights_above_0": int((fitted.head.pairwise > 0).sum()),
            "test_images": {
                name: found.scores._asdict() | {"cpu_seconds": found.cpu_seconds} | found.more
                for name, found in results.items()
            },
        },
    )
    lines = [line for line in str(report).splitlines() if not line.startswith("test images ")]
    print("\n" + "\n".join(lines) + f"\n\n{table(results)}\nwritten to {args.report}")
    rows = list(range(0, len(images), max(1, len(images) // SHOWN)))[:SHOWN]
    found = {name: [one.foregrounds[row] for row in rows] for name, one in results.items()}
    report.write(args.report)
    figure = new_figure((2.0 * len(rows), 1.5 * (1 + len(found))))
    draw_foregrounds(figure, images, rows, found)
    figure.savefig(args.report / PICTURE, dpi=80)
