"""Multilabel files for tests: written by the simplest code there is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from torchssvm.datasets.files import find
from torchssvm.datasets.multilabel.dataset import PAGE

XML = """\
<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="sad"></label>
<label name="loud">
  <label name="very loud"></label>
</label>
</labels>
"""

SPARSE = """\
% three features, and three labels among them
@relation 'some songs'

@ATTRIBUTE tempo NUMERIC
@attribute loud {0,1}
@attribute "very loud" { 0, 1 }  % a quoted name
@attribute 'it\\'s 100% pitch' real
@attribute sad {0,1}
@attribute drums {0,1}

@Data
{0 0.5, 4 1}
{ }
% in between
{1 1,2 1,\t3 -2e1,5 1} % behind
"""

DENSE = (
    SPARSE[: SPARSE.index("{0 0.5")]
    + """\
0.5,0,0,0,1,0
0,0,0,0.0,0,0
0, 1, '1', -20, 0, 1
"""
)


class Column(NamedTuple):
    """An attribute: None for its values if it is numeric."""

    name: str
    values: list[str] | None


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def quoted(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def arff_text(columns: list[Column], rows: list[list[str]], sparse: bool) -> str:
    """A file of these values; sparse rows leave out what they may."""
    lines = ["@relation r"]
    for name, values in columns:
        lines.append(f"@attribute {quoted(name)} {'numeric' if values is None else '{' + ','.join(values) + '}'}")
    lines.append("@data")
    omitted = ["0" if values is None else values[0] for _, values in columns]
    for row in rows:
        if sparse:
            entries = [f"{i} {v}" for i, (v, usual) in enumerate(zip(row, omitted, strict=True)) if v != usual]
            lines.append("{" + ",".join(entries) + "}")
        else:
            lines.append(",".join(row))
    return "\n".join(lines) + "\n"


def multilabel_or_skip(name: str) -> None:
    """Skips the test where the files are not there."""
    try:
        find(f"multilabel/{name}", PAGE)
    except FileNotFoundError as error:
        pytest.skip(str(error))
