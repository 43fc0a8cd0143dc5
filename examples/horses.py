"""Horses and their background: graph cuts on superpixels with the features of Osokin et al. (2016), to a certified gap.

Trains on the first 200 images of the Weizmann horses and tests on the other 68.

python examples/horses.py
python examples/horses.py --edges false                # superpixels alone
"""

import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from torchssvm import Graphs, LinearGraph, Solver
from torchssvm.datasets import GapDataModule, HorseSegmentation, PrecomputedGraphs
from torchssvm.datasets.images.horse_drawing import draw_segmentations
from torchssvm.lightning import DualityGap, Report, StructuredSVM

LAM = {
    True: 30.0,
    False: 10.0,
}  # with edges, without: the best IoU on the last 40 training images, of 100, 30, 10 and 3


def main(
    lam: PositiveFloat | None = None,
    edges: bool = True,
    gap: PositiveFloat = 0.003,  # within 0.01 the test IoU still moves by half a point
    max_passes: PositiveFloat = 500.0,
    batch_size: PositiveInt = 4,
    data: str | None = None,
    num_train: PositiveInt = 200,
    workers: NonNegativeInt = 0,
    seed: int = 0,
    report: Path = Path("runs/horses"),
) -> Report:
    """Train graph cuts to a certified gap, and score the foregrounds they find.

    Args:
        lam: Regularisation; by default the value chosen for graph cuts, or for superpixels alone.
        edges: Whether neighbouring superpixels know of each other.
        gap: Stop at this certified gap.
        max_passes: Or after so many passes.
        batch_size: Images of a step.
        data: Folder of the images; by default in TORCHSSVM_DATA.
        num_train: Images to train on, the first.
        workers: Processes that make graphs, once.
        seed: Runs with the same seed are the same.
        report: Folder of report.json and the picture.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    L.seed_everything(seed)
    train, test = (HorseSegmentation(s, data, num_train=num_train, workers=workers) for s in ("train", "test"))

    def alone(x: Graphs) -> Graphs:
        return Graphs(x.nodes, x.edge_features[:, :0], x.edges[:, :0])

    graphs = [PrecomputedGraphs(images, None if edges else alone) for images in (train, test)]
    loaders = GapDataModule.from_datasets(
        graphs[0], test_dataset=graphs[1], batch_size=batch_size, seed=seed, evaluation_size=16
    )
    head = LinearGraph(graphs[0].in_features, graphs[0].edge_features)
    model = StructuredSVM(head, LAM[edges] if lam is None else lam, solver=Solver(bounds={"pairwise": (0.0, None)}))

    def draw(figure: Any, batch: Any, labelings: Any) -> None:
        rows = range(min(6, len(batch.index)))
        draw_segmentations(figure, test, rows, labelings.labels[: len(rows)])

    result = Report(report, "horses, graph cuts" if edges else "horses, superpixels alone", draw)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=math.ceil(max_passes),
        callbacks=[DualityGap(gap, every_n_epochs=5, max_passes=max_passes), result],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, loaders)
    labels = [row for batch in loaders.test_dataloader() for row in model.decode(batch.x, batch.lengths).labels]
    print(f"test images, in pixels: {test.scores(labels)}")
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
