"""Column files for tests of text chunking."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from torchssvm.datasets.files import find
from torchssvm.datasets.text.columns import TaggedSentences
from torchssvm.datasets.text.conll2000 import PAGE

TWO_SENTENCES = """\
He PRP B-NP
reckons VBZ B-VP
the DT B-NP
deficit NN I-NP
. . O

Why WRB B-ADVP
? . O
"""


def write(folder: Path, text: str = TWO_SENTENCES, *, name: str = "some.txt", packed: bool = False) -> Path:
    path = folder / name
    content = text.encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def conll2000_or_skip() -> None:
    """Skips the test where the files are not there already; nothing is downloaded for tests."""
    try:
        for split in ("train", "test"):
            find(f"conll2000/{split}.txt.gz", PAGE)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def sentences_of(rows, tags=True):
    """Lists of (word, pos) as sentences, with tags that say nothing."""
    flat = [token for sentence in rows for token in sentence]
    return TaggedSentences(
        words=[word for word, _ in flat],
        pos=[pos for _, pos in flat],
        tags=["O"] * len(flat) if tags else None,
        offsets=np.cumsum([0, *map(len, rows)]),
        lines=np.arange(1, len(flat) + 1),
        source="a test",
    )
