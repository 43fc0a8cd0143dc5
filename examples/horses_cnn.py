"""Horses with learned features: a small U-Net below the graph cuts.

The U-Net is trained on pixels by cross-entropy, pooled over superpixels, smaller ones than in horses.py, and frozen;
the graph cuts on top of it are trained to a certified duality gap. With --joint, U-Net and graph cuts are trained
together after that, on the structured hinge, and the graph cuts anew. The U-Net by itself, and its superpixels
without edges, stand beside. The loss is the share of the pixels that are wrong. Lam is chosen with a U-Net that has
not seen the images held out.

python examples/horses_cnn.py
python examples/horses_cnn.py --lam 100 --joint
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import lightning as L
import torch
from common import ORDERS, count, positive, rules, trainer_flags
from horses_common import Result, choose_lam, finish, fit, flags, read, result, without_edges
from horses_pixels import pixel_result, resized, train_on_pixels
from torch.utils.data import DataLoader, Subset

from torchssvm import GapBatchSampler, LinearGraph
from torchssvm.datasets import GraphSettings, PixelSegmentation, PrecomputedGraphs, SuperpixelGraphs
from torchssvm.lightning import Alternate, StructuredSVM
from torchssvm.models import PixelFeatures, RegionGraphs

LAMS = (1000.0, 300.0, 100.0, 30.0)
ALTERNATE = Alternate(features=1, head=4)  # epochs of a round of joint training


def settings(segments: int) -> GraphSettings:
    """Superpixels that keep to the edges in the image; of features as few as there can be, since none is used."""
    return GraphSettings(segments, compactness=10.0, gradient_words=1, colour_words=1, grid=1, stride=8, samples=1000)


def precomputed(images: SuperpixelGraphs, pixels: PixelFeatures) -> tuple[PrecomputedGraphs, PrecomputedGraphs]:
    """Graphs with features of the network, and the same without edges."""
    graphs = PrecomputedGraphs(PixelSegmentation(images), RegionGraphs(pixels))
    return graphs, PrecomputedGraphs(graphs, without_edges)


def train_together(pixels: PixelFeatures, images: SuperpixelGraphs, lam: float, args: argparse.Namespace) -> float:
    """Train the features on the structured hinge, in turn with a head of their own; gives CPU seconds."""
    for part in pixels.modules():  # a batch of a few images says little of means and variances: keep those known
        if isinstance(part, torch.nn.BatchNorm2d):
            part.eval()
    graphs, examples = RegionGraphs(pixels), PixelSegmentation(images)
    direction, oracle, storage = rules(args)
    together = StructuredSVM(
        LinearGraph(graphs.in_features, graphs.edge_features),
        lam=lam,
        features=graphs,
        features_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=args.features_lr, weight_decay=0.05),
        joint=ALTERNATE,
        bounds={"pairwise": (0.0, None)},
        direction=direction,
        oracle=oracle,
        storage=storage,
    )
    order = ORDERS[args.order]()
    sampler = GapBatchSampler(num_examples=len(examples), batch_size=args.batch_size, order=order, seed=args.seed)
    loader = DataLoader(examples, batch_sampler=sampler, collate_fn=examples.collate)
    start = time.process_time()
    epochs = args.rounds * (ALTERNATE.features + ALTERNATE.head)
    L.Trainer(max_epochs=epochs, **trainer_flags(args)).fit(together, loader)
    return time.process_time() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = flags(__doc__, report="runs/horses_cnn")
    parser.add_argument("--hold-out", type=positive, nargs="+", metavar="LAM", default=LAMS, help="where lam is chosen")
    parser.add_argument("--segments", type=count, default=1000, help="superpixels to aim at (default: %(default)s)")
    parser.add_argument("--epochs", type=count, default=60, help="of the U-Net on pixels (default: %(default)s)")
    parser.add_argument("--joint", action="store_true", help="train U-Net and graph cuts together, too")
    parser.add_argument("--rounds", type=count, default=4, help="of joint training (default: %(default)s)")
    parser.add_argument("--features-lr", type=positive, default=1e-4, help="of joint training (default: %(default)g)")
    args = parser.parse_args(arguments)
    L.seed_everything(args.seed)
    try:
        images, test_images = read(args, settings(args.segments), balanced=False)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    small = resized(images)

    lam = alone_lam = args.lam
    held_out: dict[str, dict[str, float]] = {"alone": {}, "cuts": {}}
    if lam is None:
        others, _ = train_on_pixels(Subset(small, range(len(images) - args.held_out)), args.epochs, args)
        graphs, alone = precomputed(images, others.features)
        alone_lam, held_out["alone"] = choose_lam(alone, images, args.hold_out, args, "without edges")
        lam, held_out["cuts"] = choose_lam(graphs, images, args.hold_out, args, "with edges")

    results: dict[str, Result] = {}
    classifier, seconds = train_on_pixels(small, args.epochs, args)
    results["U-Net on pixels"] = pixel_result(classifier, test_images, seconds, args.epochs)
    pixels = classifier.features
    (train, alone), (test, test_alone) = precomputed(images, pixels), precomputed(test_images, pixels)
    unary, cuts = fit(alone, alone_lam, args), fit(train, lam, args)
    more = {name: {"held_out_iou": found} for name, found in held_out.items()}
    results["superpixels alone"] = result(unary, test_alone, test_images, more["alone"], seconds)
    results["graph cuts"] = result(cuts, test, test_images, more["cuts"], seconds)
    if args.joint:
        seconds += train_together(pixels, images, lam, args)
        (train, _), (test, _) = precomputed(images, pixels), precomputed(test_images, pixels)
        cuts = fit(train, lam, args)
        results["graph cuts, joint"] = result(cuts, test, test_images, {"rounds": args.rounds}, seconds)
    task = "horses, graph cuts on a U-Net" + (" (trained jointly)" if args.joint else "")
    finish(args, task, cuts, train, test, test_images, results)


if __name__ == "__main__":
    main()
