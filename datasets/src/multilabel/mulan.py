"""Multilabel ARFF files: in Mulan's format an XML file names the labels, in MEKA's the relation has their number.

The formats: http://mulan.sourceforge.net/format.html and https://waikato.github.io/meka/datasets/
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from torchssvm.core.arguments import is_whole

from ..lines import UNPACKED_LIMIT, read_content
from .arff import Arff, Attribute, read_arff
from .sparse_rows import SparseRows


class LabelledRows(NamedTuple):
    """The multilabel examples of a file: features ``[n, F]``, labels ``[n, K]``, all 1, and the names of both."""

    features: SparseRows
    labels: SparseRows
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    source: str


class Label(NamedTuple):
    """A label in an XML file, and its line."""

    name: str
    line: int


_NUMBER_OF_LABELS = re.compile(r"(?:^|[\s:])-C\s+(-?[0-9]{1,18})(?!\w)", re.IGNORECASE)
_SPLIT = re.compile(r"[-_.](train|test|training|testing)$", re.IGNORECASE)


def read_mulan(
    arff: str | os.PathLike[str],
    labels: str | os.PathLike[str] | int | None = None,
    *,
    page: str | None = None,
    limit: int = UNPACKED_LIMIT,
) -> LabelledRows:
    """Read features in the order of the ARFF file, and labels in the order of the XML file, or of the attributes.

    Nominal features become a feature of 0 and 1 for each of their values, ``colour=red``, unless these are 0 and 1. For
    ``labels`` see ``Multilabel.from_mulan``. ``page`` is where the files are published, for messages.

    Raises:
        OSError: A file cannot be opened.
        ValueError: A file is malformed, or they do not fit together; the message begins with file and line.
    """
    named = None if labels is None or is_whole(labels) else read_labels(labels, page=page)  # type: ignore[arg-type]
    table = read_arff(arff, limit=limit)
    if named is None:
        if labels is None and (written := _NUMBER_OF_LABELS.search(table.relation)):
            labels = int(written[1])  # that MEKA wrote into the relation
        if labels is None:
            named = read_labels(labels := _beside(arff))
    many = len(table.attributes)
    if named is None:
        assert isinstance(labels, int)
        if not 0 < abs(labels) < many:
            raise ValueError(
                f"{arff} has {many} attributes, and labels={labels}: give the number of labels, at least 1 and less "
                "than that, negative if they are the last attributes"
            )
        places = list(range(many))[:labels] if labels > 0 else list(range(many))[labels:]
    else:
        known = {attribute.name: place for place, attribute in enumerate(table.attributes)}
        for name, line in named:
            if name not in known:
                raise ValueError(f"{labels}, line {line}: label {name!r} is not an attribute of {arff}")
        places = [known[name] for name, _ in named]
    rest = [attribute for place, attribute in enumerate(table.attributes) if place not in set(places)]
    if not rest:
        raise ValueError(f"{labels} names every attribute of {arff} a label: no feature is left")
    wanted = [table.attributes[place] for place in places]
    return LabelledRows(
        table.rows.columns([column for a in rest for column in range(a.first, a.first + len(a.columns))]),
        _labels(table, wanted),
        tuple(column for attribute in rest for column in attribute.columns),
        tuple(attribute.name for attribute in wanted),
        str(arff),
    )


def _beside(arff: str | os.PathLike[str]) -> Path:
    """The XML file beside an ARFF file, of the same name, or of that without ``-train`` or ``-test``."""
    path = Path(arff)
    stem = path.name.removesuffix(".gz").removesuffix(".arff")
    tried = [path.with_name(f"{name}.xml") for name in dict.fromkeys([stem, _SPLIT.sub("", stem)])]
    for xml in tried:
        if xml.is_file():
            return xml
    raise ValueError(
        f"{arff} names no labels, and {' or '.join(xml.name for xml in tried)} is not beside it: give labels, the XML "
        "file or their number, negative if they come last"
    )


def read_labels(path: str | os.PathLike[str], *, page: str | None = None) -> list[Label]:
    """The labels of an XML file, in order; in a hierarchy parents come first.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is malformed; the message begins with its name and the line.
    """
    lines: dict[str, int] = {}
    depth = 0
    parser = expat.ParserCreate(namespace_separator=" ")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        where, tag = f"{path}, line {parser.CurrentLineNumber}", tag.rpartition(" ")[2]
        if tag != ("label" if depth else "labels"):
            wanted = "<label name=...>" if depth else "<labels>"
            raise ValueError(f"{where}: <{tag}> must be {wanted}; labels stand in <labels>, and may hold labels")
        depth += 1
        if tag == "labels":
            return
        name = attributes.get("name", "")
        if not name:
            raise ValueError(f"{where}: a label has no name; write <label name=...>")
        if name in lines:
            raise ValueError(f"{where}: label {name!r} is named on line {lines[name]} already; remove one")
        lines[name] = parser.CurrentLineNumber

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1

    parser.StartElementHandler, parser.EndElementHandler = start, end
    try:
        text = read_content(Path(path))
    except FileNotFoundError as error:
        where = "" if page is None else f"; fetch it from {page}"
        raise FileNotFoundError(
            f"{path} is not there: Mulan's data are two files, an ARFF file, and this XML file, which names the labels"
            f"{where}"
        ) from error
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        if text.lstrip()[:1] in (b"@", b"%"):
            advice = "; it looks like an ARFF file, so the arguments seem swapped: the ARFF file is the first"
        else:
            advice = "" if page is None else f"; fetch it again from {page}"
        raise ValueError(f"{path}, line {error.lineno}: not well-formed XML ({reason}){advice}") from error
    if not lines:
        raise ValueError(f"{path} names no label: write <labels><label name=...></label></labels>")
    return [Label(name, line) for name, line in lines.items()]


def _labels(table: Arff, wanted: list[Attribute]) -> SparseRows:
    """The columns of these attributes; raises ValueError unless all are 0 or 1."""
    for attribute in wanted:
        if attribute.columns != (attribute.name,):
            raise ValueError(
                f"{table.source}, line {attribute.line}: label {attribute.name!r} has other values than {{0,1}}"
            )
    rows = table.rows.columns([attribute.first for attribute in wanted])
    wrong = (rows.values != 1.0).nonzero()
    if len(wrong):
        entry = int(wrong[0])
        line, name = table.lines[int(rows.row[entry])], wanted[int(rows.indices[entry])].name
        raise ValueError(
            f"{table.source}, line {line}: label {name!r} is {float(rows.values[entry]):g}, must be 0 or 1"
        )
    return rows
