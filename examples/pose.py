"""Poses of people in sports: a tree of 26 places on a grid above a network, trained to a certified duality gap.

Of the 800 training images of the Leeds Sports Poses, the network is trained on the last 600, by cross-entropy; the head
on the first 100 (as in the paper), of which the network knows no more than of the test images, or on all 800. Prints
detected joints (PDJ) and the mean error on the 200 test images, beside those of the network alone. With --joint EPOCHS,
network and head are first trained together, on the structured hinge.

python examples/pose.py --precision bf16-mixed
python examples/pose.py --network runs/pose/network.pt --size large
"""

import math
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from torch.utils.data import DataLoader, Subset

from torchssvm import CacheOracle, Corrective, LinearPose, Solver
from torchssvm.datasets import LSPET, GapDataModule, PoseTargets, PrecomputedFeatures, RandomViews
from torchssvm.datasets.images.pose_drawing import draw_poses
from torchssvm.lightning import DualityGap, JointTraining, Report, StructuredSVM
from torchssvm.models import JOINTS, PoseNetwork, body_bounds, body_nodes, body_pose
from torchssvm.models.pose_network import STRIDE

ADAMW = partial(torch.optim.AdamW, weight_decay=0.01)


class Pretraining(L.LightningModule):
    """Cross-entropies of places and types, on random views."""

    def __init__(self, network: PoseNetwork) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch, batch_idx):
        """The sum of both losses."""
        images, joints = RandomViews()(batch.x, batch.y)
        return sum(self.network.loss(images, body_nodes(joints / STRIDE - 0.5)))

    def configure_optimizers(self):
        """AdamW, with one rise and fall of the learning rate."""
        optimizer = torch.optim.AdamW(self.parameters(), weight_decay=0.02)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, int(steps), pct_start=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(
    size: Literal["small", "large"] = "small",
    lam: PositiveFloat = 1.0,  # the least mean error on 100 held-out images, of 1 and 0.1
    gap: PositiveFloat = 0.1,
    max_passes: PositiveFloat = 100.0,
    batch_size: PositiveInt = 8,
    types: PositiveInt = 13,
    strength: PositiveFloat = 0.01,
    canvas: PositiveInt = 192,
    widths: list[PositiveInt] = [32, 64, 128, 192, 256],  # noqa: B006, a flag's default
    epochs: PositiveInt = 55,
    network: Path | None = None,
    joint: NonNegativeInt = 0,
    accelerator: str = "cpu",
    precision: Any = "32-true",
    data: str | None = None,
    seed: int = 0,
    report: Path = Path("runs/pose"),
) -> Report:
    """Train a network, and a tree of springs on top of it to a certified gap.

    Args:
        size: The head's images: 100 or 800.
        lam: Regularisation of the head.
        gap: Stop at this certified gap.
        max_passes: Or after so many passes.
        batch_size: Images of a step of the head.
        types: Of an arc.
        strength: Least weight of springs, see torchssvm.models.body_bounds.
        canvas: Pixels of a side of the images.
        widths: Of the network.
        epochs: Of the network.
        network: File of a network that was trained before, with the same types, canvas and widths.
        joint: Epochs of joint training before the network is frozen.
        accelerator: cpu or cuda.
        precision: Of training the network, such as bf16-mixed.
        data: Folder that lspet/ lies in; by default TORCHSSVM_DATA.
        seed: Of everything.
        report: Folder of report.json, network.pt and the picture.
    """
    L.seed_everything(seed)
    train, test = (LSPET(split, canvas=(canvas, canvas), root=data, keep=True) for split in ("train", "test"))
    structure = body_pose(body_nodes(train.places(STRIDE)), (canvas // STRIDE,) * 2, types, seed=seed).structure
    rows, quiet = range(100 if size == "small" else len(train)), {"logger": False, "enable_checkpointing": False}
    targets = [PoseTargets(images, lambda joints: structure.labeling(body_nodes(joints)), STRIDE, which)
               for images, which in ((train, rows), (test, None))]  # fmt: skip
    net = PoseNetwork(structure, tuple(widths))
    if network is not None:
        net.load_state_dict(torch.load(network, weights_only=True))
    else:
        images = Subset(train, range(200, 800))
        loader = DataLoader(images, 16, shuffle=True, collate_fn=train.collate, drop_last=True)
        trainer = L.Trainer(accelerator=accelerator, max_epochs=epochs, precision=precision, **quiet)
        trainer.fit(Pretraining(net), loader)
    solver = Solver(direction=Corrective(), oracle=CacheOracle(), bounds=body_bounds(strength))
    if joint:
        recipe = JointTraining(joint, lr=1e-4, head_lr=1e-2, optimizer=ADAMW)
        model = StructuredSVM(LinearPose(structure), lam, net, joint=recipe, solver=solver)
        trainer = L.Trainer(accelerator=accelerator, max_epochs=joint + 1, precision=precision, **quiet)
        trainer.fit(model, GapDataModule.from_datasets(targets[0], batch_size=batch_size, seed=seed))
    report.mkdir(parents=True, exist_ok=True)
    torch.save(net.cpu().state_dict(), report / "network.pt")

    torch.set_num_threads(1)  # a step of the head is too short to be shared between cores
    frozen = [PrecomputedFeatures(its, net.eval().trunk, batch_size=32) for its in targets]  # the maps are 20 times it
    loaders = GapDataModule.from_datasets(
        frozen[0], test_dataset=frozen[1], batch_size=batch_size, seed=seed, evaluation_size=16
    )
    model = StructuredSVM(LinearPose(structure), lam, net.outputs, solver=solver)
    result = Report(report, "poses, a tree of springs" + (" (network trained jointly)" if joint else ""))
    callbacks = [DualityGap(gap, every_n_epochs=2, max_passes=max_passes, batch_size=16), result]
    trainer = L.Trainer(
        accelerator=accelerator,
        max_epochs=math.ceil(20 * max_passes),  # most visits are answered by the cache
        callbacks=callbacks,
        limit_val_batches=0,
        **quiet,
    )
    trainer.fit(model, loaders)

    poses: dict[str, list[torch.Tensor]] = {"network": [], "structured": []}
    with torch.no_grad():
        for batch in loaders.test_dataloader():
            best = net.outputs.places(batch.x).argmax(2)
            poses["network"].append(torch.stack([best % structure.width, best // structure.width], 2))
            poses["structured"].append(model.decode(batch.x)[:, :, :2])
    joints = {name: test.pixels(torch.cat(places)[:, : len(JOINTS)], STRIDE) for name, places in poses.items()}
    for name, pixels in joints.items():
        print(f"{name:12} {test.scores(pixels)}")
    figure = result.report.figure(
        lambda figure: draw_poses(figure, test, range(6), {n: j[:6] for n, j in joints.items()})
    )
    figure.savefig(report / "convergence.png", dpi=120)
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
