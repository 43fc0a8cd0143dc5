"""The little files of the examples, as the reference's page on datasets lists them."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

SENTENCES = """\
Anna NNP B-NP
sees VBZ B-VP
the DT B-NP
river NN I-NP

Dogs NNS B-NP
sleep VBP B-VP
"""
TREEBANK = """\
1	Dogs	dog	NOUN	_	_	2	_	_	_
2	see	see	VERB	_	_	0	_	_	_
3	cats	cat	NOUN	_	_	2	_	_	_
"""


def make(folder: Path) -> None:
    (folder / "train.txt").write_text(SENTENCES)
    (folder / "treebank.conllu").write_text(TREEBANK)
    if find_spec("PIL"):
        horses(folder / "horses")


def horses(folder: Path) -> None:
    """Three pictures of a brown square on green, and its place."""
    from PIL import Image

    for kind in ("rgb", "figure_ground"):
        (folder / kind).mkdir(parents=True)
    for number in range(3):
        mask = np.zeros((40, 56), np.uint8)
        mask[10:30, 8 + 6 * number : 36 + 6 * number] = 255
        image = np.where(mask[:, :, None] > 0, [150, 90, 40], [60, 140, 70]) + np.arange(56)[None, :, None] % 5
        Image.fromarray(image.astype(np.uint8)).save(folder / "rgb" / f"{number}.png")
        Image.fromarray(mask).save(folder / "figure_ground" / f"{number}.png")
