"""The regularisation path of graph cuts on horses: weights for every lam, and the test IoU along them.

Follows Algorithm 7 of Osokin et al. (2016) with weights of edges that are at least 0: at every lam down to --lam_min
the gap is at most --epsilon, proved by an exact pass at each breakpoint. Writes path.pt, which RegularizationPath.load
reads, and path.png: gap, norm of the weights and test IoU against lam.

python examples/horses_path.py --epsilon 0.1 --lam_min 1
"""

from pathlib import Path

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from torchssvm import LinearGraph, Solver, in_order, regularization_path
from torchssvm.datasets import HorseSegmentation, PrecomputedGraphs
from torchssvm.path import PathRun, RegularizationPath, plot

SCORED = 25  # lams whose weights are tested


def main(
    epsilon: PositiveFloat = 0.1,
    lam_min: PositiveFloat = 1.0,
    max_passes: PositiveFloat = 500.0,
    batch_size: PositiveInt = 4,
    data: str | None = None,
    num_train: PositiveInt = 200,
    workers: NonNegativeInt = 0,
    seed: int = 0,
    report: Path = Path("runs/horses_path"),
) -> RegularizationPath:
    """Follow the path, and score the weights of some lams along it.

    Args:
        epsilon: The gap of every lam.
        lam_min: The smallest lam.
        max_passes: Stop after so many passes.
        batch_size: Images of a step.
        data: Folder of the images; by default in TORCHSSVM_DATA.
        num_train: Images to train on, the first.
        workers: Processes that make graphs, once.
        seed: Runs with the same seed are the same.
        report: Folder of the path and its picture.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    images, test_images = (HorseSegmentation(s, data, num_train=num_train, workers=workers) for s in ("train", "test"))
    train, test = PrecomputedGraphs(images), PrecomputedGraphs(test_images)
    head = LinearGraph(train.in_features, train.edge_features)

    def show(run: PathRun) -> None:
        point = run.path.points[-1]
        print(f"lam {point.lam:.5g}: gap {point.gap:.4f}, {point.passes:.0f} passes, {point.seconds:.0f} s", flush=True)

    path = regularization_path(
        head,
        train,
        epsilon=epsilon,
        lam_min=lam_min,
        max_passes=max_passes,
        solver=Solver(bounds={"pairwise": (0.0, None)}, batch_size=batch_size, seed=seed),
        on_breakpoint=show,
    )
    report.mkdir(parents=True, exist_ok=True)
    path.save(report / "path.pt")

    def iou() -> float:
        batches = in_order(test, batch_size=16)
        labels = [row for b in batches for row in head.structure.decode(head(b.x)).labels]
        return test_images.scores(labels).iou

    top, ratio = path.points[0].lam, max(path.lowest, lam_min) / path.points[0].lam
    scores = path.scores(head, iou, [top * ratio ** (k / (SCORED - 1)) for k in range(SCORED)])
    best = max(scores, key=scores.__getitem__)
    print(f"{len(path.points)} breakpoints; best test IoU {scores[best]:.4f} at lam {best:.4g}, of {SCORED} lams")
    plot(path, scores=scores, score_name="test IoU").savefig(report / "path.png", dpi=90)
    return path


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
