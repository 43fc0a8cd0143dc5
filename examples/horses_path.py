"""The regularisation path of graph cuts on horses: weights for every lam, and the test IoU along them.

Follows Algorithm 7 of Osokin et al. (2016) with weights of edges that are at least 0: at every lam down to --lam-min
the gap is at most --epsilon, proved by an exact pass at each breakpoint. Writes path.pt, which RegularizationPath.load
reads, report.json, and path.png: gap, norm of the weights and test IoU against lam.

python examples/horses_path.py --epsilon 0.1 --lam-min 1
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from common import ORDERS, positive, rules
from horses_common import flags, labelings, read

from torchssvm import BCFW, BlockGap, DualState, LinearGraph, Recipe, RunOptions
from torchssvm.core.files import write_text
from torchssvm.datasets import PrecomputedGraphs
from torchssvm.path import Certified, PathRun, plot
from torchssvm.solvers.report import versions

SCORED = 25  # lams whose weights are tested


def main(arguments: Sequence[str] | None = None) -> None:
    parser = flags(__doc__, report="runs/horses_path", one_lam=False)
    parser.add_argument("--epsilon", type=positive, default=0.1, help="the gap of every lam (default: %(default)s)")
    parser.add_argument("--lam-min", type=positive, default=1.0, help="the smallest lam (default: %(default)s)")
    parser.add_argument("--kappa", type=positive, default=0.9, help="share of epsilon to train to (%(default)s)")
    args = parser.parse_args(arguments)
    if args.kappa >= 1.0:
        parser.error(f"--kappa {args.kappa:g} must be less than 1")
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    try:
        images, test_images = read(args)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    train, test = PrecomputedGraphs(images), PrecomputedGraphs(test_images)
    head = LinearGraph(train.in_features, train.edge_features).to(args.device)
    direction, oracle, storage = rules(args)
    run = PathRun(
        head,
        train,
        epsilon=args.epsilon,
        lam_min=args.lam_min,
        rule=Certified(args.kappa),
        max_passes=args.max_passes,
        recipe=Recipe(
            make_dual=lambda lam: DualState.for_head(head, len(train), lam, storage=storage),
            make_loss=lambda dual: BlockGap(dual, direction, oracle=oracle),
            make_optimizer=lambda dual: BCFW(
                [{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual
            ),
        ),
        options=RunOptions(batch_size=args.batch_size, order=ORDERS[args.order](), seed=args.seed),
    )
    rows: list[dict[str, Any]] = []
    start = time.process_time()
    while run.advance():
        point = run.path.points[-1]
        rows.append(
            {
                "lam": point.lam,
                "gap": point.gap,
                "passes": point.passes,
                "oracle_calls": run.dual.oracle_calls,
                "seconds": point.seconds,
                "cpu_seconds": time.process_time() - start,
                "edge_weights_above_0": int((head.pairwise > 0).sum()),
            }
        )
        print(f"\rlam {point.lam:.5g}, {len(rows)} breakpoints, {point.passes:.0f} passes ", end="", file=sys.stderr)
    path = run.path
    path.save(args.report / "path.pt")

    def iou() -> float:
        return test_images.scores(labelings(head, test)).iou

    top, ratio = rows[0]["lam"], max(path.lowest, args.lam_min) / rows[0]["lam"]
    scores = path.scores(head, iou, [top * ratio ** (k / (SCORED - 1)) for k in range(SCORED)])
    reach = "complete" if path.complete else f"down to lam {path.lowest:.4g}"
    last, best = rows[-1], max(scores, key=scores.__getitem__)
    print(
        f"\nhorses, n = {len(train)}: {len(rows)} breakpoints from lam {rows[0]['lam']:.4g} {reach}, "
        f"each lam within a gap of {path.epsilon:g}\n"
        f"{last['oracle_calls']} oracle calls, {last['passes']:.1f} passes, {last['seconds']:.1f} seconds, "
        f"{last['cpu_seconds']:.1f} CPU seconds\n"
        f"best test IoU {scores[best]:.4f} at lam {best:.4g}, of {SCORED} lams\n"
        f"written to {args.report}"
    )
    names = ("epsilon", "kappa", "lam_min", "direction", "cache", "order", "batch_size", "seed", "num_train", "device")
    report = {name: getattr(args, name) for name in names} | {
        "n": len(train),
        "complete": path.complete,
        "lowest": path.lowest,
        "breakpoints": rows,
        "test_iou": [{"lam": lam, "iou": score} for lam, score in scores.items()],
        "versions": versions(),
    }
    write_text(args.report / "report.json", json.dumps(report, indent=2) + "\n")
    plot(path, scores=scores, score_name="test IoU").savefig(args.report / "path.png", dpi=90)


if __name__ == "__main__":
    main()
