"""The little files of the examples, as the reference's page on datasets lists them."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SENTENCES = """\
Anna NNP B-NP
sees VBZ B-VP
the DT B-NP
river NN I-NP

Dogs NNS B-NP
sleep VBP B-VP
"""
TREEBANK = """\
1	Dogs	dog	NOUN	_	_	2	nsubj	_	_
2	see	see	VERB	_	_	0	root	_	_
3	cats	cat	NOUN	_	_	2	obj	_	_
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


def report_of(folder: Path, **wanted: object) -> dict[str, Any]:
    """The report of an example, with a certified gap, a picture and these entries."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert 0.0 <= report["gap"] == pytest.approx(report["primal"] - report["dual"], abs=1e-12)
    assert {name: report[name] for name in wanted} == wanted
    assert (folder / "convergence.png").stat().st_size > 10_000
    return report
