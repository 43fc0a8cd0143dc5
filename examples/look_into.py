"""The weights of a chain of letters by name: which ink speaks for a letter, and which letter follows which.

Prints the largest weights, and draws the weights of neighbours and of one letter. The words come with the
package.

python examples/look_into.py
"""

from pathlib import Path
from string import ascii_lowercase

import numpy as np
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat
from matplotlib.figure import Figure

from torchssvm.datasets import OCR
from torchssvm.estimators import ChainSVC


def ink(image: np.ndarray) -> list[str]:
    """The features of a letter: the places of its ink, in 16 rows and 8 columns."""
    return [f"row {place // 8} column {place % 8}" for place in image.nonzero()[0]]


def main(C: PositiveFloat = 0.05, letter: str = "q", report: Path = Path("runs/look_into")) -> ChainSVC:
    """Train on the words of the small split, print the tables, and draw them.

    Args:
        C: The weight of the loss.
        letter: Whose features are drawn.
        report: Folder of the picture.
    """
    words = OCR(split="train", size="small")
    X = [[ink(image) for image in word.x.numpy()] for word in words]
    y = [[ascii_lowercase[k] for k in word.y] for word in words]
    reader = ChainSVC(C=C, random_state=0).fit(X, y)
    print(reader.top_features(10, letter))
    print(reader.top_transitions(10))

    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    largest = abs(reader.transitions_).max()
    image = left.imshow(reader.transitions_, cmap="RdBu_r", vmin=-largest, vmax=largest)
    left.set_xticks(range(len(reader.classes_)), reader.classes_)
    left.set_yticks(range(len(reader.classes_)), reader.classes_)
    left.set_xlabel("letter")
    left.set_ylabel("letter before")
    figure.colorbar(image, ax=left)
    names, _, weights = zip(*reversed(reader.top_features(12, letter)), strict=True)
    right.barh(names, weights)
    right.set_title(f"weights for the letter {letter}")
    report.mkdir(parents=True, exist_ok=True)
    figure.savefig(report / "weights.png", dpi=80)
    return reader


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
