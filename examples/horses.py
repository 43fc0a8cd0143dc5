"""Horses and their background: graph cuts on superpixels with the features of Osokin et al. (2016), to a certified gap.

Trains on the first 200 images of the Weizmann horses and tests on the other 68. Lam is chosen by the IoU on the last 40
training images. Beside it stand the same features without edges, and with --cnn a network on pixels without a graph.

python examples/horses.py
python examples/horses.py --lam 10 --unary-lam 3 --cnn 60
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from common import count, positive
from horses_common import Result, choose_lam, finish, fit, flags, read, result, without_edges
from horses_pixels import pixel_result, resized, train_on_pixels

from torchssvm.datasets import PrecomputedGraphs

LAMS = (100.0, 30.0, 10.0, 3.0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = flags(__doc__, report="runs/horses")
    parser.add_argument("--hold-out", type=positive, nargs="+", metavar="LAM", default=LAMS, help="where lam is chosen")
    parser.add_argument("--unary-lam", type=positive, metavar="LAM", help="of the model without edges, if it is known")
    parser.add_argument("--cnn", type=count, metavar="EPOCHS", help="train a network on pixels besides (60 is good)")
    args = parser.parse_args(arguments)
    torch.manual_seed(args.seed)
    try:
        images, test_images = read(args)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))

    results: dict[str, Result] = {}
    if args.cnn is not None:  # with all threads
        classifier, seconds = train_on_pixels(resized(images), args.cnn, args)
        results["U-Net on pixels"] = pixel_result(classifier, test_images, seconds, args.cnn)
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    train, test = PrecomputedGraphs(images), PrecomputedGraphs(test_images)
    alone, test_alone = PrecomputedGraphs(train, without_edges), PrecomputedGraphs(test, without_edges)

    lams = (args.unary_lam,) if args.unary_lam is not None else args.hold_out
    lam, held_out = choose_lam(alone, images, lams, args, "without edges")
    unary = fit(alone, lam, args)
    results["superpixels alone"] = result(unary, test_alone, test_images, {"held_out_iou": held_out})

    lams = (args.lam,) if args.lam is not None else args.hold_out
    lam, held_out = choose_lam(train, images, lams, args, "with edges")
    cuts = fit(train, lam, args)
    results["graph cuts"] = result(cuts, test, test_images, {"held_out_iou": held_out})
    finish(args, "horses, graph cuts", cuts, train, test, test_images, results)


if __name__ == "__main__":
    main()
