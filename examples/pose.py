"""Poses of people in sports: a tree of 26 places on a grid above a network, trained to a certified duality gap.

Of the 800 training images of the Leeds Sports Poses, the network is trained on the last 600, by cross-entropy, and kept
in the report's folder; the head on the first 100 (as in the paper), of which the network knows no more than of the test
images, or on all 800. Prints detected joints (PDJ) and the mean error on the 200 test images, beside those of the
network alone. With --joint, network and head are then trained together, on the structured hinge; a copy of the
network goes on with cross-entropy on the same images, steps and rate, so that the two can be compared.

python examples/pose.py --precision bf16-mixed
python examples/pose.py --hold-out 1 0.1
python examples/pose.py --joint
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import lightning as L
import torch
from common import DIRECTIONS, ORDERS, count, device, positive, rules, run_flags, trainer_flags
from pose_pretraining import pretrained, trained_longer
from torch import Tensor
from torch.utils.data import DataLoader

from torchssvm import GapBatchSampler, LinearPose, RunReport, certify, evaluate
from torchssvm.core.batch import to_device
from torchssvm.core.files import whole_file
from torchssvm.datasets import LSPET, PoseScores, PoseTargets, PrecomputedFeatures
from torchssvm.datasets.images.pose_drawing import draw_poses
from torchssvm.lightning import Alternate, DualityGap, StructuredSVM
from torchssvm.models import JOINTS, PoseNetwork, body_bounds, body_nodes, body_pose
from torchssvm.models.pose_network import STRIDE
from torchssvm.solvers.report import Entry

LAM = 1.0  # the least mean error on 100 held-out images, of 1 and 0.1
STRENGTH = 0.01  # see torchssvm.models.body_bounds
HEAD_IMAGES = {"small": 100, "large": 800}  # the first of the training images
NETWORK_IMAGES = range(200, 800)
HELD_OUT = range(100, 200)  # seen by neither the network nor the head that chooses lam
SHOWN = 6  # images of the picture
ALTERNATE = Alternate(features=2, head=1)  # epochs of a round of joint training
JOINT_RATE = 1e-4


class People(NamedTuple):
    """Images, with labelings as targets.

    Attributes:
        train: The training images.
        test: The test images.
        head: A head with weights 0, made for the poses of the training images.
    """

    train: LSPET
    test: LSPET
    head: LinearPose

    def targets(self, images: LSPET, rows: range | None = None) -> PoseTargets:
        """Some of the images."""
        return PoseTargets(images, self.label, STRIDE, rows)

    def label(self, joints: Tensor) -> Tensor:
        """Joints on the grid -> labelings."""
        return self.head.structure.labeling(body_nodes(joints))


class Run(NamedTuple):
    """A head that was trained to a certified gap."""

    model: StructuredSVM
    history: list[Entry]
    stopped_because: str


def flags() -> argparse.ArgumentParser:
    """The flags of a run."""
    its = run_flags(__doc__, report="runs/pose")
    its.add_argument("--accelerator", dest="device", type=device, default=argparse.SUPPRESS, help="same as --device")
    its.add_argument("--size", choices=HEAD_IMAGES, default="small", help="head's images: 100 (default) or 800")
    its.add_argument("--batch-size", type=count, default=8, help="images of a step (default: %(default)s)")
    its.add_argument("--direction", choices=DIRECTIONS, default="corrective", help="of a step (default: %(default)s)")
    its.add_argument("--no-cache", dest="cache", action="store_false", help="decode at every visit")
    its.add_argument("--order", choices=ORDERS, default="gap", help="of the images (default: by their gaps)")
    its.add_argument("--types", type=count, default=13, help="of an arc (default: %(default)s)")
    its.add_argument(
        "--strength", type=positive, default=STRENGTH, help="least weight of springs (default: %(default)s)"
    )
    its.add_argument("--canvas", type=count, default=192, help="pixels of a side of the images (default: %(default)s)")
    its.add_argument("--pretraining", type=count, default=55, metavar="EPOCHS", help="(default: %(default)s)")
    its.add_argument("--widths", type=count, nargs="+", default=[32, 64, 128, 192, 256], help="of the network")
    its.add_argument("--precision", default="32-true", help="of training it: 32-true (default), bf16-mixed")
    its.add_argument("--joint", action="store_true", help="then train network and head together, and the head again")
    its.add_argument("--rounds", type=count, default=1, help="of joint training (default: %(default)s)")
    its.add_argument("--data", metavar="PATH", help="folder that lspet/ lies in (default: TORCHSSVM_DATA)")
    its.add_argument(
        "--hold-out",
        type=positive,
        nargs="+",
        metavar="LAM",
        help="choose lam among these by the mean error on 100 images that neither the network nor the head has seen",
    )
    its.set_defaults(gap=0.1, max_passes=100.0)
    return its


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags' values."""
    its = flags()
    args = its.parse_args(arguments)
    if args.lam is not None and args.hold_out is not None:
        its.error("--lam and --hold-out exclude each other: the latter chooses lam")
    if args.canvas % STRIDE or args.canvas < STRIDE * 2 ** len(args.widths[1:]):
        its.error(f"--canvas {args.canvas} must be a multiple of {STRIDE}, and large enough for --widths")
    return args


def people(args: argparse.Namespace) -> People:
    """The images, and the head's structure by the poses of all training images, as in the paper."""
    canvas = (args.canvas, args.canvas)
    train, test = (LSPET(split, canvas=canvas, root=args.data, keep=True) for split in ("train", "test"))
    grid = (args.canvas // STRIDE, args.canvas // STRIDE)
    return People(train, test, body_pose(body_nodes(train.places(STRIDE)), grid, args.types, seed=args.seed))


def by_gap(dataset: Any, args: argparse.Namespace) -> DataLoader:
    """Batches by the gaps; the sampler learns of the dual when the fit begins."""
    sampler = GapBatchSampler(
        num_examples=len(dataset), batch_size=args.batch_size, order=ORDERS[args.order](), seed=args.seed
    )
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate)


def in_order(dataset: Any) -> DataLoader:
    """Every image once."""
    return DataLoader(dataset, batch_size=16, collate_fn=dataset.collate)


def features_of(network: PoseNetwork, targets: PoseTargets) -> PrecomputedFeatures:
    """What the outputs of the frozen network are linear in; their maps are twenty times as large."""
    return PrecomputedFeatures(targets, network.trunk, batch_size=32)


def train_head(args: argparse.Namespace, its: People, network: PoseNetwork, lam: float, data: Any) -> Run:
    """A head on the frozen network, to the certified gap."""
    direction, oracle, storage = rules(args)
    head = LinearPose(its.head.structure)
    model = StructuredSVM(
        head,
        lam,
        network.outputs,
        direction=direction,
        oracle=oracle,
        storage=storage,
        bounds=body_bounds(args.strength),
    )
    gap = DualityGap(args.gap, every_n_epochs=2, max_passes=args.max_passes, batch_size=16)
    trainer = L.Trainer(max_epochs=math.ceil(20 * args.max_passes), callbacks=[gap], **trainer_flags(args))
    start = time.perf_counter()
    with contextlib.suppress(SystemExit):  # what Lightning makes of Ctrl-C
        trainer.fit(model, by_gap(data, args))
    if not gap.history or gap.history[-1].certificate.oracle_calls != model.dual.oracle_calls:  # interrupted
        certificate = certify(model, model.dual, in_order(data))
        gap.history.append(Entry(certificate, time.perf_counter() - start))
    model.to(args.device)
    return Run(model, gap.history, gap.stopped_because or "")


def slowly(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.AdamW:
    """For a network that was trained before."""
    return torch.optim.AdamW(parameters, lr=JOINT_RATE, weight_decay=0.01)


def train_jointly(args: argparse.Namespace, its: People, network: PoseNetwork, lam: float, rows: range) -> float:
    """Network and head in turn, for some rounds; the network goes on from where it is. Returns the seconds."""
    direction, oracle, storage = rules(args)
    head = LinearPose(its.head.structure)
    L.seed_everything(args.seed)
    network.train()
    together = StructuredSVM(
        head,
        lam,
        network,
        features_optimizer=slowly,
        joint=ALTERNATE,
        direction=direction,
        oracle=oracle,
        storage=storage,
        bounds=body_bounds(args.strength),
    )
    epochs = args.rounds * (ALTERNATE.features + ALTERNATE.head)
    start = time.perf_counter()
    trainer = L.Trainer(max_epochs=epochs, precision=args.precision, **trainer_flags(args))
    trainer.fit(together, by_gap(its.targets(its.train, rows), args))
    network.to(args.device).eval()
    return time.perf_counter() - start


@torch.no_grad()
def decoded(model: StructuredSVM, data: PrecomputedFeatures) -> Tensor:
    """The joints that the structured model finds, in pixels of the canvas."""
    at = next(model.parameters()).device
    labelings = [model.decode(to_device(batch.x, at)).cpu() for batch in in_order(data)]
    return pixels(torch.cat(labelings)[:, : len(JOINTS), :2])


@torch.no_grad()
def alone(network: PoseNetwork, data: PrecomputedFeatures) -> Tensor:
    """The joints that the network finds, each where its own map is the largest, in pixels of the canvas."""
    at, width = next(network.parameters()).device, network.structure.width
    best = [network.outputs.places(to_device(batch.x, at)).argmax(2).cpu() for batch in in_order(data)]
    place = torch.cat(best)[:, : len(JOINTS)]
    return pixels(torch.stack([place % width, place // width], 2))


def pixels(places: Tensor) -> Tensor:
    """The middles of places in pixels of the canvas."""
    return STRIDE * (places.to(torch.float32) + 0.5)


def choose_lam(args: argparse.Namespace, its: People, network: PoseNetwork) -> tuple[float, dict[str, float]]:
    """The lam with the least mean error on images that neither network nor head has seen, and the error of each."""
    rows = range(HEAD_IMAGES["small"])
    data, held_out = (features_of(network, its.targets(its.train, part)) for part in (rows, HELD_OUT))
    joints, scales = its.train.joints[list(HELD_OUT)], its.train.scales[list(HELD_OUT), None]
    found = {}
    for lam in args.hold_out:
        run = train_head(args, its, network, lam, data)
        found[lam] = float(((decoded(run.model, held_out) - joints).norm(dim=2) / scales).mean())
        print(f"lam {lam:g}: mean error {found[lam]:.2f} on {len(held_out)} held-out images, {run.history[-1][0]}")
    return min(found, key=found.__getitem__), {f"{lam:g}": round(error, 4) for lam, error in found.items()}


def table(scores: dict[str, PoseScores], images: int) -> str:
    """Scores under each other."""
    lines = [f"{f'{images} test images':32} PDJ 0.1  PDJ 0.2  mean error  median"]
    for name, s in scores.items():
        shares = f"{100 * s.detected_10:6.1f}%  {100 * s.detected_20:6.1f}%"
        lines.append(f"{name:32} {shares}  {s.mean_error:7.2f} px  {s.median_error:5.2f} px")
    return "\n".join(lines)


def main() -> None:
    args = parse()
    L.seed_everything(args.seed)
    its = people(args)
    network, seconds = pretrained(args, its.head.structure, its.train, NETWORK_IMAGES)
    torch.set_num_threads(1)  # a step of the head is too short to be shared between cores
    lam, held_out = choose_lam(args, its, network) if args.hold_out else (args.lam or LAM, None)
    rows = range(HEAD_IMAGES[args.size])
    data, test = (features_of(network, t) for t in (its.targets(its.train, rows), its.targets(its.test)))
    run = train_head(args, its, network, lam, data)
    found = {"network": alone(network, test), "structured": decoded(run.model, test)}
    extra: dict[str, Any] = {"network_seconds": seconds}
    if held_out is not None:
        extra["held_out_error"] = held_out
    if args.joint:
        certificates = {"frozen": run.history[-1].certificate}
        start = time.perf_counter()
        longer = trained_longer(args, network, its.train, rows, args.rounds * ALTERNATE.features, slowly)
        extra["longer_seconds"] = time.perf_counter() - start
        extra["joint_seconds"] = train_jointly(args, its, network, lam, rows)
        with whole_file(args.report / "network-joint.pt") as file:
            torch.save(network.state_dict(), file)
        for name, trained in {"longer": longer, "joint": network}.items():
            data, test = (features_of(trained, t) for t in (its.targets(its.train, rows), its.targets(its.test)))
            run = train_head(args, its, trained, lam, data)
            found |= {f"{name} network": alone(trained, test), f"{name} structured": decoded(run.model, test)}
            certificates[name] = run.history[-1].certificate
        print(f"\nnetwork by cross-entropy:              {certificates['frozen']}")
        print(f"by cross-entropy, as long as jointly:  {certificates['longer']}")
        print(f"trained jointly:                       {certificates['joint']}")
        extra |= {
            f"{which}_{name}": getattr(certificates[which], name)
            for which in ("frozen", "longer")
            for name in ("primal", "dual", "gap")
        }
    finish(args, its, run, data, test, found, extra)


def finish(
    args: argparse.Namespace,
    its: People,
    run: Run,
    data: PrecomputedFeatures,
    test: PrecomputedFeatures,
    found: dict[str, Tensor],
    extra: dict[str, Any],
) -> None:
    """Print tables; write report.json and the picture."""
    model, dual = run.model, run.model.dual
    scores = {name: its.test.scores(joints) for name, joints in found.items()}
    report = RunReport.from_history(
        "poses, a tree of springs" + (" (trained jointly)" if args.joint else ""),
        run.history,
        num_weights=sum(p.numel() for p in model.head.parameters()),
        stopped_because=run.stopped_because,
        train=evaluate(model, dual.structure, in_order(data), args.device),
        test=evaluate(model, dual.structure, in_order(test), args.device),
        seed=args.seed,
        device=args.device,
        extra={
            **{
                name: getattr(args, name)
                for name in ("size", "batch_size", "direction", "cache", "order", "types", "strength")
            },
            "cache_hits": dual.cache_hits,
            **extra,
            **{
                f"{name}_{figure}".replace(" ", "_"): value
                for name, s in scores.items()
                for figure, value in s._asdict().items()
            },
            "relative_reduction": 1.0 - scores["structured"].mean_error / scores["network"].mean_error,
        },
    )
    print(f"\n{report}\n\n{table(scores, len(test))}\nwritten to {args.report}")
    shown = range(0, len(its.test), max(1, len(its.test) // SHOWN))[:SHOWN]
    poses = {name: found[name][list(shown)] for name in ("network", [*found][-1])}
    with whole_file(args.report / "head.pt") as file:
        torch.save(model.head.state_dict(), file)
    report.write(args.report, draw_examples=lambda figure: draw_poses(figure, its.test, shown, poses))


if __name__ == "__main__":
    main()
