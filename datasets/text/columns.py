"""Column files: a token a line, ``word pos tag``, and an empty line after every sentence, as in the CoNLL tasks."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchssvm.core.arguments import check_whole

UNPACKED_LIMIT = 2**29
"""Bytes that a gzip file may unpack to, unless a reader is told otherwise: 80 times the largest that is published."""

_GZIP = b"\x1f\x8b"
_BIO = re.compile(r"O|[BI]-\S+")


@dataclass(frozen=True)
class TaggedSentences:
    """The tokens of all sentences of a file, one after another.

    Attributes:
        words: Word of every token.
        pos: Part-of-speech tag of every token.
        tags: Chunk tag of every token; None for a file without tags.
        offsets: int64 ``[n + 1]``: sentence i has the tokens ``offsets[i]`` to ``offsets[i + 1] - 1``.
        lines: int64 ``[tokens]``, the line number of every token, from 1.
        source: The file, for messages.
    """

    words: list[str]
    pos: list[str]
    tags: list[str] | None
    offsets: np.ndarray
    lines: np.ndarray
    source: str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, start: int, stop: int) -> TaggedSentences:
        """The sentences ``start`` to ``stop - 1``, 0 <= start < stop <= n."""
        if not 0 <= start < stop <= len(self):
            raise ValueError(f"start={start} and stop={stop} must leave some of the {len(self)} sentences")
        a, b = int(self.offsets[start]), int(self.offsets[stop])
        return TaggedSentences(
            words=self.words[a:b],
            pos=self.pos[a:b],
            tags=None if self.tags is None else self.tags[a:b],
            offsets=self.offsets[start : stop + 1] - a,
            lines=self.lines[a:b],
            source=self.source,
        )

    def where(self, token: int) -> str:
        """File and line of a token, for messages."""
        return f"{self.source}, line {self.lines[token]}"


def read_columns(
    path: str | os.PathLike[str], *, tags_optional: bool = False, limit: int = UNPACKED_LIMIT
) -> TaggedSentences:
    """Read a column file.

    Columns are separated by spaces or tabs; one or more empty lines end a sentence. UTF-8, plain or gzipped (by
    its first bytes, not its name).

    Args:
        path: The file.
        tags_optional: Whether the third column may be missing, on all lines, as in text to predict tags for.
        limit: Bytes that a gzip file may unpack to.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is malformed; the message begins with its name and, if known, the line.
    """
    content = read_content(Path(path), limit)
    _check_encoding(content, path)
    content = content.removeprefix(codecs.BOM_UTF8)
    words: list[str] = []
    pos: list[str] = []
    tags: list[str] = []
    lines: list[int] = []
    ends: list[int] = []
    columns = 0  # of the first token, and so of all
    # Split bytes at ASCII blanks only: a word may contain a no-break space.
    for number, line in enumerate(content.split(b"\n"), start=1):
        fields = line.split()
        if not fields:
            if words and (not ends or ends[-1] != len(words)):
                ends.append(len(words))
            continue
        if len(fields) != columns:
            columns = _check_columns(len(fields), columns, tags_optional, f"{path}, line {number}")
        words.append(fields[0].decode())
        pos.append(fields[1].decode())
        if columns == 3:
            tags.append(fields[2].decode())
        lines.append(number)
    if not words:
        raise ValueError(f"{path} holds no sentence: {number} lines, and all of them are empty")
    if ends[-1:] != [len(words)]:
        ends.append(len(words))
    found = TaggedSentences(
        words=words,
        pos=pos,
        tags=tags if columns == 3 else None,
        offsets=np.array([0, *ends], np.int64),
        lines=np.array(lines, np.int64),
        source=str(path),
    )
    if all(map(_BIO.fullmatch, set(pos))):
        raise ValueError(
            f"{found.where(0)}: the second column holds chunk tags, such as {pos[0]!r}, on all lines, and must hold "
            "parts of speech: columns are word, pos and tag; put a column between, of _ where nothing is known"
        )
    if wrong := {tag for tag in set(tags) if not _BIO.fullmatch(tag)}:
        first = next(token for token, tag in enumerate(tags) if tag in wrong)
        raise ValueError(f"{found.where(first)}: tag {tags[first]!r} must be O, or B-TYPE or I-TYPE for some type")
    return found


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


def read_text(path: str | os.PathLike[str], limit: int = UNPACKED_LIMIT) -> str:
    """The text of a UTF-8 file, unpacked where it is a gzip file (to ``limit`` bytes at most), without a BOM.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is damaged, or not UTF-8; the message begins with its name.
    """
    content = read_content(Path(path), limit)
    _check_encoding(content, path)
    return content.removeprefix(codecs.BOM_UTF8).decode()


def _check_encoding(content: bytes, path: str | os.PathLike[str]) -> None:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8 ({error.reason}); "
            "convert the file, e.g. with iconv -f LATIN1 -t UTF-8"
        ) from error
    if (place := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, place) + 1
        raise ValueError(nul_byte(f"{path}, line {line}"))


def nul_byte(where: str) -> str:
    """The message for a NUL byte in a text."""
    return f"{where}: a NUL byte; this is no text in UTF-8 (UTF-16 has such bytes: convert the file, e.g. with iconv)"


def _check_columns(count: int, before: int, tags_optional: bool, where: str) -> int:
    """The number of columns of all lines; 0 before the first."""
    wanted = "word, pos and tag" if not tags_optional else "word and pos, or word, pos and tag"
    if count not in ((2, 3) if tags_optional else (3,)):
        raise ValueError(f"{where}: {count} column{'s' * (count > 1)}, must be {wanted}, separated by blanks")
    if before:
        raise ValueError(f"{where}: {count} columns, but the lines before have {before}")
    return count
