"""The lines of text files, however they end, and their columns, however they are separated."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchssvm.core.arguments import check_whole

UNPACKED_LIMIT = 2**29
"""Bytes that a gzip file may unpack to, unless a reader is told otherwise: 80 times the largest that is published."""

BLANKS = " \t\v\f"
"""What separates words. Others of Unicode do not: a word may contain a no-break space."""

_GZIP = b"\x1f\x8b"
_BOM = "\ufeff"
_END = re.compile("\r*\n|\r")  # LF, CRLF, CR, and CRCRLF, which CRLF becomes where a text is converted twice
_WORD = re.compile(f"[^{BLANKS}]+")


def read_lines(path: str | os.PathLike[str], limit: int = UNPACKED_LIMIT) -> list[str]:
    """The lines of a UTF-8 file, unpacked where it is a gzip file, without byte order marks.

    LF, CRLF or a lone CR ends a line; after the last end there is one more, empty line.

    Args:
        path: The file.
        limit: Bytes that a gzip file may unpack to.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is damaged, or not UTF-8; the message begins with its name.
    """
    content = read_content(Path(path), limit)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = len(_END.findall(content[: error.start].decode())) + 1
        raise ValueError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8 ({error.reason}); "
            "convert the file, e.g. with iconv -f LATIN1 -t UTF-8"
        ) from error
    if (place := text.find("\0")) >= 0:
        raise ValueError(
            f"{path}, line {len(_END.findall(text[:place])) + 1}: a NUL byte; this is no text in UTF-8 (UTF-16 has "
            "such bytes: convert the file, e.g. with iconv)"
        )
    lines = _END.split(text)
    # Files that were joined have a mark at each beginning.
    return [line.removeprefix(_BOM) for line in lines] if _BOM in text else lines


def read_content(path: Path, limit: int = UNPACKED_LIMIT) -> bytes:
    """The bytes of a file, unpacked where it is a gzip file.

    Args:
        path: The file.
        limit: Bytes that it may unpack to; unpacking stops there.

    Raises:
        ValueError: It is a gzip file that is damaged, or unpacks to more than ``limit`` bytes.
    """
    limit = check_whole(limit, "limit")
    with path.open("rb") as file:
        if file.read(len(_GZIP)) != _GZIP:
            file.seek(0)
            return file.read()
    try:
        with gzip.open(path) as packed:
            content = packed.read(limit)
            if packed.read(1):
                raise ValueError(
                    f"{path} unpacks to more than limit={limit} bytes: unpack it yourself, or give the reader a larger "
                    "limit, if it is the right file"
                )
            return content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: it begins as a gzip file and cannot be unpacked ({error})") from error


def is_blank(line: str) -> bool:
    """Whether a line has nothing but blanks and tabs."""
    return not line.strip(BLANKS)


def words_of(line: str) -> list[str]:
    """What stands between blanks and tabs."""
    return _WORD.findall(line)


class Fields(NamedTuple):
    """The columns of some lines.

    Attributes:
        rows: The columns of each line.
        width: How many the most lines have.
        separator: What separates them, for messages.
    """

    rows: list[list[str]]
    width: int
    separator: str

    @property
    def agree(self) -> int:
        """How many lines have ``width`` columns."""
        return sum(len(row) == self.width for row in self.rows)


def split_columns(lines: Sequence[str]) -> Fields:
    """The columns of lines, separated by single tabs or by any number of blanks and tabs, the same for all of them.

    Of the two, that by which more lines have the same number of columns; tabs, if both do equally well. Tabs that end
    a line make a column where all lines, or as many as any, have it.

    Args:
        lines: At least one, none of them blank.
    """
    blanks = [words_of(line) for line in lines]
    by_blanks = Fields(blanks, _usual(blanks), "blanks")
    if not any("\t" in line for line in lines):
        return by_blanks
    by_tabs = _at_tabs(lines)
    return by_tabs if by_tabs.width > 1 and by_tabs.agree >= by_blanks.agree else by_blanks


def _at_tabs(lines: Sequence[str]) -> Fields:
    rows = [[field.strip(BLANKS) for field in line.split("\t")] for line in lines]
    sizes = [max(place for place, field in enumerate(row, 1) if field) for row in rows]
    width = max(sizes) if len(set(map(len, rows))) == 1 else Counter(sizes).most_common(1)[0][0]
    rows = [row[: max(width, size)] for row, size in zip(rows, sizes, strict=True)]
    return Fields(rows, _usual(rows), "tabs")


def _usual(rows: Sequence[Sequence[str]]) -> int:
    return Counter(map(len, rows)).most_common(1)[0][0]  # of several, that of the first line
