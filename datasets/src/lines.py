"""The lines of text files, their columns, however they are separated, and numbers."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from torchssvm.core.arguments import check_whole

UNPACKED_LIMIT = 2**29
"""Bytes that a gzip file may unpack to, unless a reader is told otherwise: 80 times the largest that is published."""

BLANKS = " \t\v\f"
"""What separates words. Others of Unicode do not: a word may contain a no-break space."""

LARGEST = 3.4028234663852886e38
"""The largest number of float32."""

_GZIP = b"\x1f\x8b"
_ARCHIVE = re.compile(rb"(?P<zip>PK\x03\x04)|(?P<xz>\xfd7zXZ\0)|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<zstd>\x28\xb5\x2f\xfd)")
_MARKS = {  # UTF-32 first: its mark begins with the mark of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_BOM = "\ufeff"
_WORD = re.compile(f"[^{BLANKS}]+")


def read_lines(path: str | os.PathLike[str], limit: int = UNPACKED_LIMIT) -> list[str]:
    """The lines of a file, unpacked where it is a gzip file, without byte order marks where files begin.

    It is UTF-8, or what its byte order mark says, such as UTF-16. LF, CRLF or a lone CR ends a line; after the last end
    there is one more, empty line. A gzip file may unpack to ``limit`` bytes.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is damaged, an archive, or not UTF-8; the message begins with its name.
    """
    content = read_content(Path(path), limit)
    coding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(coding)
    except UnicodeDecodeError as error:
        if coding != "utf-8":
            raise ValueError(f"{path} begins as {coding.upper()}, and is not: convert the file to UTF-8") from error
        number = _with_lf(content[: error.start].decode()).count("\n") + 1
        raise ValueError(
            f"{path}, line {number}: byte 0x{content[error.start]:02x} is not UTF-8 ({error.reason}); "
            "convert the file, e.g. with iconv -f LATIN1 -t UTF-8"
        ) from error
    if (place := text.find("\0")) >= 0:
        number = _with_lf(text[:place]).count("\n") + 1
        raise ValueError(
            f"{path}, line {number}: a NUL byte; this is no text in UTF-8: convert it, e.g. with iconv -f UTF-16"
        )
    lines = _with_lf(text.removeprefix(_BOM)).split("\n")
    # Files that were joined have a mark at each beginning; a token may be this character, or begin with it.
    for at, line in enumerate(lines):
        if line.startswith(_BOM) and at and is_blank(lines[at - 1]) and not is_blank(line[1:2]):
            lines[at] = line[1:]
    return lines


def _with_lf(text: str) -> str:
    """The text with LF for CRLF, a lone CR, and CRCRLF, which CRLF becomes where a text is converted twice."""
    return text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n")


def read_content(path: Path, limit: int = UNPACKED_LIMIT) -> bytes:
    """The bytes of a file, unpacked where it is a gzip file, at most to ``limit`` bytes.

    ValueError if it is a gzip file that is damaged, or unpacks to more, or an archive of another kind.
    """
    content = _unpacked(path, check_whole(limit, "limit"))
    if packed := _ARCHIVE.match(content):
        raise ValueError(f"{path} is packed by {packed.lastgroup}: unpack it; text is read plain or packed by gzip")
    return content


def _unpacked(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        if file.read(len(_GZIP)) != _GZIP:
            file.seek(0)
            return file.read()
    try:
        with gzip.open(path) as packed:
            content = packed.read(limit)
            if packed.read(1):
                raise ValueError(f"{path} unpacks to more than limit={limit} bytes: unpack it, or give a larger limit")
            return content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: it begins as a gzip file and cannot be unpacked ({error})") from error


def is_blank(line: str) -> bool:
    """Whether a line has nothing but blanks and tabs."""
    return not line.strip(BLANKS)


def words_of(line: str) -> list[str]:
    """What stands between blanks and tabs."""
    return _WORD.findall(line)


def number(token: str) -> float | None:
    """A finite float32 in ASCII digits, or None. Python's float() takes underscores and digits of other scripts too."""
    try:
        value = float(token)
    except ValueError:
        return None
    return value if abs(value) <= LARGEST and is_plain(token) else None


def whole(token: str) -> int | None:
    """A whole number, 0 or more, of at most 18 ASCII digits, or None."""
    return int(token) if token.isascii() and token.isdigit() and len(token) <= 18 else None


def is_plain(text: str) -> bool:
    """Whether numbers in a text are spelt as data files spell them: in ASCII, without underscores."""
    return text.isascii() and "_" not in text


class Fields(NamedTuple):
    """How some lines are split into columns, how many each line has, and what separates them, for messages."""

    split: Callable[[str], list[str]]
    sizes: list[int]
    separator: str

    @property
    def width(self) -> int:
        """How many columns the most lines have."""
        return _usual(self.sizes)

    @property
    def agree(self) -> int:
        """How many lines have ``width`` columns."""
        return self.sizes.count(self.width)


def split_columns(lines: Sequence[str], widths: Sequence[int] = ()) -> Fields:
    """The columns of lines, separated by single tabs or by any number of blanks and tabs, the same for all of them.

    Of the two, that by which more lines have the same number of columns; tabs, if both do equally well. Tabs that end a
    line make a column where all lines, or as many as any, have it. No line is blank, and there is one. What has one of
    the expected ``widths`` goes first, then blanks.
    """
    by_tabs = _at_tabs(lines) if any("\t" in line for line in lines) else None
    if by_tabs and not widths and by_tabs.width > 1 and by_tabs.agree == len(lines):
        return by_tabs
    by_blanks = Fields(words_of, [len(words_of(line)) for line in lines], "blanks")
    if by_tabs is None or by_tabs.width == 1:
        return by_blanks
    same = by_tabs.sizes == by_blanks.sizes and all(words_of(line) == line.split("\t") for line in lines)
    order = (by_tabs, by_blanks) if same or not widths else (by_blanks, by_tabs)
    return max(order, key=lambda fields: (fields.width in widths, fields.agree))  # the first, if they are equal


def _at_tabs(lines: Sequence[str]) -> Fields:
    every = [line.count("\t") + 1 for line in lines]
    used = [line.rstrip(BLANKS).count("\t") + 1 for line in lines]  # up to the last column that is not empty
    width = max(used) if len(set(every)) == 1 else _usual(used)

    def split(line: str) -> list[str]:
        fields = [field.strip(BLANKS) for field in line.split("\t")]
        while len(fields) > width and not fields[-1]:
            del fields[-1]
        return fields

    return Fields(split, [min(a, max(b, width)) for a, b in zip(every, used, strict=True)], "tabs")


def _usual(sizes: Sequence[int]) -> int:
    return Counter(sizes).most_common(1)[0][0]  # of several, the size of the first line
