"""Horses with learned features: a small U-Net below the graph cuts.

The U-Net is trained on pixels by cross-entropy, pooled over superpixels and frozen; the graph cuts on top of it are
trained to a certified duality gap. With --joint, U-Net and graph cuts are trained together before that, on the
structured hinge. The U-Net by itself, and its superpixels without edges, stand beside.

python examples/horses_cnn.py
python examples/horses_cnn.py --joint --rounds 3
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import lightning as L
import torch
from common import count, positive, trainer_flags
from horses_common import Result, choose_lam, finish, fit, flags, read, result, without_edges
from horses_pixels import train_on_pixels
from torch.utils.data import DataLoader

from torchssvm import GapBatchSampler, LinearGraph
from torchssvm.datasets import PixelSegmentation, PrecomputedGraphs, SuperpixelGraphs
from torchssvm.lightning import Alternate, StructuredSVM
from torchssvm.models import RegionGraphs

LAMS = (100.0, 30.0, 10.0, 3.0)
ALTERNATE = Alternate(features=1, head=2)  # epochs of a round of joint training


def train_together(graphs: RegionGraphs, images: SuperpixelGraphs, lam: float, args: argparse.Namespace) -> float:
    """Train the features on the structured hinge, in turn with a head of their own; gives CPU seconds."""
    for part in graphs.modules():  # a batch of a few images says little of means and variances: keep those known
        if isinstance(part, torch.nn.BatchNorm2d):
            part.eval()
    pixels = PixelSegmentation(images)
    together = StructuredSVM(
        LinearGraph(graphs.in_features, graphs.edge_features),
        lam=lam,
        features=graphs,
        features_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=args.features_lr, weight_decay=0.05),
        joint=ALTERNATE,
        bounds={"pairwise": (0.0, None)},
    )
    sampler = GapBatchSampler(num_examples=len(pixels), batch_size=args.batch_size, seed=args.seed)
    loader = DataLoader(pixels, batch_sampler=sampler, collate_fn=pixels.collate)
    start = time.process_time()
    epochs = args.rounds * (ALTERNATE.features + ALTERNATE.head)
    L.Trainer(max_epochs=epochs, **trainer_flags(args)).fit(together, loader)
    return time.process_time() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = flags(__doc__, report="runs/horses_cnn")
    parser.add_argument("--hold-out", type=positive, nargs="+", metavar="LAM", default=LAMS, help="where lam is chosen")
    parser.add_argument("--epochs", type=count, default=60, help="of the U-Net on pixels (default: %(default)s)")
    parser.add_argument("--joint", action="store_true", help="train U-Net and graph cuts together, too")
    parser.add_argument("--rounds", type=count, default=3, help="of joint training (default: %(default)s)")
    parser.add_argument("--features-lr", type=positive, default=1e-4, help="of joint training (default: %(default)g)")
    args = parser.parse_args(arguments)
    L.seed_everything(args.seed)
    try:
        images, test_images = read(args)
    except ValueError as error:
        parser.error(str(error))

    results: dict[str, Result] = {}
    cnn, results["U-Net"] = train_on_pixels(images, test_images, args.epochs, args)
    network = RegionGraphs(cnn.to(args.device))
    seconds = results["U-Net"].cpu_seconds

    def precompute() -> tuple[PrecomputedGraphs, PrecomputedGraphs]:
        train, test = (PrecomputedGraphs(PixelSegmentation(part), network) for part in (images, test_images))
        return train, test

    train, test = precompute()
    lams = (args.lam,) if args.lam is not None else args.hold_out
    alone, test_alone = PrecomputedGraphs(train, without_edges), PrecomputedGraphs(test, without_edges)
    lam, held_out = choose_lam(alone, images, lams, args, "without edges")
    unary = fit(alone, lam, args)
    results["U-Net, superpixels alone"] = result(unary, test_alone, test_images, {"held_out_iou": held_out}, seconds)
    lam, held_out = choose_lam(train, images, lams, args, "with edges")
    cuts = fit(train, lam, args)
    results["U-Net, graph cuts"] = result(cuts, test, test_images, {"held_out_iou": held_out}, seconds)
    if args.joint:
        seconds += train_together(network, images, lam, args)
        train, test = precompute()
        cuts = fit(train, lam, args)
        results["U-Net, graph cuts, joint"] = result(cuts, test, test_images, {"rounds": args.rounds}, seconds)
    task = "horses, graph cuts on a U-Net" + (" (trained jointly)" if args.joint else "")
    finish(args, task, cuts, train, test, test_images, results)


if __name__ == "__main__":
    main()
