"""Tables of tokens: a header that names the columns, and a token a row."""

from __future__ import annotations

import csv
import os

import numpy as np

from ..lines import BLANKS, is_blank, read_lines
from .columns import TaggedSentences, as_bio
from .tag_schemes import BIO, check_scheme

_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons"}


def read_table(
    path: str | os.PathLike[str],
    sentence: str | None = "sentence",
    word: str = "word",
    tag: str | None = "tag",
    pos: str | None = None,
    *,
    scheme: str | None = BIO,
) -> TaggedSentences:
    r"""Read a table of tokens, such as a CSV file, whose first row names the columns.

    A sentence begins where ``sentence`` is not empty and differs from the row before, and after an empty row. Commas,
    tabs or semicolons separate cells, whichever the header has most of. A cell may stand in quotes, as csv writes it,
    on one line; between tabs, a quote that is not closed is a character.

    Args:
        path: The file, as :func:`read_columns` takes it.
        sentence, word: The names of these columns; where ``sentence`` is None, empty rows alone end sentences.
        tag, pos: Of tags and of parts of speech; None does not read them.
        scheme: As in :func:`read_columns`.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The header lacks a name, a row has another number of cells, a cell is empty, or a tag is of no
            scheme; the message begins with file and line. Or ``scheme`` is another.

    Example:
        >>> with open("table.csv", "w") as file:
        ...     _ = file.write("Sentence #,Word,Tag\n1,Anna,B-PER\n,sleeps,O\n2,Dogs,O\n")
        >>> sentences = read_table("table.csv", sentence="Sentence #", word="Word", tag="Tag")
        >>> sentences.words, sentences.offsets
        (['Anna', 'sleeps', 'Dogs'], array([0, 2, 3]))
    """
    check_scheme(scheme)
    source, (first, *lines) = os.fspath(path), read_lines(path)
    separator = max(_SEPARATORS, key=first.count)
    header = _cells(f"{source}, line 1", first, separator)
    read = [name for name in (word, tag, pos) if name is not None]
    wanted = read if sentence is None else [sentence, *read]
    if lacking := [name for name in wanted if name not in header]:
        raise ValueError(f"{source}, line 1: no column has the name {lacking[0]!r}; the header names {header}")
    if several := [name for name in wanted if header.count(name) > 1]:
        raise ValueError(f"{source}, line 1: {header.count(several[0])} columns have the name {several[0]!r}")
    rows, numbers, offsets, begins, last = list[list[str]](), list[int](), [0], False, ""
    for number, line in enumerate(lines, start=2):
        if is_blank(line.replace(separator, "")):
            begins = True
            continue
        cells = _cells(f"{source}, line {number}", line, separator)
        if len(cells) != len(header):
            raise ValueError(f"{source}, line {number}: {len(cells)} cells, and the header has {len(header)}")
        mark = "" if sentence is None else cells[header.index(sentence)]
        row = [cells[header.index(name)] for name in read]
        if "" in row:
            raise ValueError(f"{source}, line {number}: the cell of {read[row.index('')]!r} is empty")
        if rows and (begins or mark not in ("", last)):
            offsets.append(len(rows))
        begins, last = False, mark or last
        rows.append(row)
        numbers.append(number)
    if not rows:
        raise ValueError(f"{source} holds no sentence: no row follows the header")
    words, *others = map(list, zip(*rows, strict=True))
    tags, parts = None if tag is None else others[0], ["_"] * len(words) if pos is None else others[-1]
    places = np.array([*offsets, len(rows)], np.int64), np.array(numbers, np.int64)
    sentences = TaggedSentences(words, parts, tags, *places, source, scheme, _SEPARATORS[separator])
    return sentences if scheme is None else as_bio(sentences)


def _cells(where: str, line: str, separator: str) -> list[str]:
    try:
        cells = next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error as error:
        if separator != "\t":
            raise ValueError(
                f"{where}: a quote is not as csv writes it ({error}): double it, and quote the cell"
            ) from None
        cells = line.split("\t")
    return [cell.strip(BLANKS) for cell in cells]
