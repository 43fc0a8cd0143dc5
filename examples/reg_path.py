"""The regularisation path: weights for every lambda at once, each within epsilon of its optimum.

python examples/reg_path.py --epsilon 0.1

Writes path.pt, which RegularizationPath.load reads, and path.png: gap, norm of the weights and letter error on the test
words along the path. Beside grids, with and without warm start: python benchmarks/run.py path
"""

from pathlib import Path
from typing import Literal

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm import Solver, evaluate, in_order, regularization_path
from torchssvm.datasets import OCR
from torchssvm.models import ocr_chain
from torchssvm.path import PathRun, RegularizationPath, plot

SCORED = 20  # lambdas whose weights are tested


def main(
    size: Literal["small", "large"] = "small",
    epsilon: PositiveFloat = 0.1,
    lam_min: PositiveFloat = 1e-3,
    max_passes: PositiveFloat = 2000.0,
    batch_size: PositiveInt = 16,
    seed: int = 0,
    report: Path = Path("runs/reg_path"),
) -> RegularizationPath:
    """Follow the path of the chain on handwritten words.

    Args:
        size: Training words: 626 or 6251.
        epsilon: The gap of every lambda.
        lam_min: The smallest lambda.
        max_passes: Stop after so many passes.
        batch_size: Words of a step.
        seed: Runs with the same seed are the same.
        report: Folder of the path and its picture.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    train, test, head = OCR("train", size), OCR("test", size), ocr_chain()

    def show(run: PathRun) -> None:
        point = run.path.points[-1]
        print(f"lambda {point.lam:.4g}: gap {point.gap:.4f}, {point.passes:.0f} passes", flush=True)

    path = regularization_path(
        head,
        train,
        epsilon=epsilon,
        lam_min=lam_min,
        max_passes=max_passes,
        solver=Solver(batch_size=batch_size, seed=seed),
        on_breakpoint=show,
    )
    report.mkdir(parents=True, exist_ok=True)
    path.save(report / "path.pt")

    def error() -> float:
        return evaluate(head, head.structure, in_order(test)).token_error

    top, ratio = path.points[0].lam, max(path.lowest, lam_min) / path.points[0].lam
    scores = path.scores(head, error, [top * ratio ** (k / (SCORED - 1)) for k in range(SCORED)])
    best = min(scores, key=scores.__getitem__)
    print(f"{len(path.points)} breakpoints; smallest letter error {scores[best]:.4f}, at lambda {best:.4g}")
    plot(path, scores=scores, score_name="letter error").savefig(report / "path.png", dpi=90)
    return path


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
