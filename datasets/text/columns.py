"""Column files: a token a line, and an empty line after every sentence, as in the CoNLL tasks."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from torchssvm.core.arguments import check_whole

from .column_layout import NAMES_LINE, Columns
from .tag_schemes import first_wrong, to_bio

UNPACKED_LIMIT = 2**29
"""Bytes that a gzip file may unpack to, unless a reader is told otherwise: 80 times the largest that is published."""

DOCUMENT = "-DOCSTART-"
"""The word that stands alone in a sentence where a document begins."""

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

    Example:
        >>> sentences = read_columns("train.txt")
        >>> sentences.offsets
        array([0, 4, 6])
        >>> sentences.part(1, 2).words
        ['Dogs', 'sleep']
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
    path: str | os.PathLike[str],
    columns: Columns | None = None,
    *,
    tags_optional: bool = False,
    limit: int = UNPACKED_LIMIT,
) -> TaggedSentences:
    """Read a column file.

    One or more empty lines end a sentence. UTF-8, plain or gzipped (by its first bytes, not its name). Without
    ``columns``, lines are ``word pos tag``, separated by spaces or tabs, and tags are O, B-X or I-X. With them, a file
    is taken as it is: columns are separated by tabs if its first token has one, and otherwise by blanks; sentences of
    the word -DOCSTART- alone are left out; tags of IOB1, BIOES and BILOU become BIO.

    Args:
        path: The file.
        columns: Which columns are read; parts of speech are _ where it names none.
        tags_optional: Whether the third column may be missing, on all lines, as in text to predict tags for.
        limit: Bytes that a gzip file may unpack to.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is malformed, or has no such column; the message begins with its name and, if known, the
            line.

    Example:
        >>> sentences = read_columns("train.txt")  # word, part of speech, tag
        >>> len(sentences), sentences.words[0]
        (2, 'Anna')
    """
    layout = None if columns is None else columns.check()
    content = read_content(Path(path), limit)
    _check_encoding(content, path)
    table = _Table(str(path), layout, tags_optional)
    # Split bytes at ASCII blanks only: a word may contain a no-break space.
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        table.add(number, line)
    found = table.sentences()
    return found if layout is None else _as_bio(found)


class _Table:
    """The tokens of a column file, line by line."""

    def __init__(self, source: str, layout: Columns | None, tags_optional: bool) -> None:
        self.source, self.layout, self.tags_optional = source, layout, tags_optional
        self.comment = b"" if layout is None else layout.comment.encode()
        self.names: list[str] = []
        self.separator: bytes | None = None
        self.count = 0  # columns of the first token, and so of all
        self.places: list[int | None] = []  # of word, tag and pos
        self.values: tuple[list[str], list[str], list[str]] = ([], [], [])
        self.lines: list[int] = []
        self.offsets = [0]
        self.number = 0

    def add(self, number: int, line: bytes) -> None:
        """Read a line."""
        self.number = number
        if not line.strip():
            self._end_sentence()
            return
        if self.offsets[-1] == len(self.lines) and self.layout is not None and self._is_no_token(line):
            return
        if not self.count and self.layout is not None and b"\t" in line:
            self.separator = b"\t"
        fields = line.split() if self.separator is None else line.rstrip(b"\t\r\n").split(self.separator)
        if self.layout is not None and line.split()[0] == DOCUMENT.encode() and self.offsets[-1] == len(self.lines):
            return
        if len(fields) != self.count:
            self._set_columns(len(fields), f"{self.source}, line {number}")
        for values, place in zip(self.values, self.places, strict=True):
            if place is not None:
                values.append(fields[place].decode())
        self.lines.append(number)

    def _is_no_token(self, line: bytes) -> bool:
        """Whether a line before a sentence is a comment, or names the columns."""
        assert self.layout is not None
        text, wanted = line.decode(), self.layout.names
        if wanted and not self.count and not self.names:
            named = text.removeprefix(NAMES_LINE).split()
            if text.startswith(NAMES_LINE) or set(wanted) <= set(named):
                self.names = named
                return True
        return bool(self.comment) and line.startswith(self.comment)

    def _set_columns(self, count: int, where: str) -> None:
        if self.layout is None:
            self.count = _check_columns(count, self.count, self.tags_optional, where)
            self.places = [0, 2 if count == 3 else None, 1]
            return
        if self.count:
            raise ValueError(
                f"{where}: {count} columns, but the lines before have {self.count}; comments between sentences are "
                f"left out if columns names how they begin (comment={self.layout.comment!r})"
            )
        layout, self.count = self.layout, count
        try:
            self.places = layout.places(count, self.names, where)
        except ValueError:
            if not self.tags_optional:
                raise
            self.places = layout._replace(tag=None).places(count, self.names, where)
        if self.tags_optional and self.places[1] == self.places[0]:  # the last column is that of the words
            self.places[1] = None

    def _end_sentence(self) -> None:
        start, stop = self.offsets[-1], len(self.lines)
        if self.layout is not None and self.values[0][start:stop] == [DOCUMENT]:
            for values in (*self.values, self.lines):
                del values[start:]
        elif stop > start:
            self.offsets.append(stop)

    def sentences(self) -> TaggedSentences:
        """All sentences."""
        self._end_sentence()
        words, tags, pos = self.values
        if not words:
            raise ValueError(f"{self.source} holds no sentence: {self.number} lines, and all of them are empty")
        found = TaggedSentences(
            words=words,
            pos=pos if pos else ["_"] * len(words),
            tags=tags if tags else None,
            offsets=np.array(self.offsets, np.int64),
            lines=np.array(self.lines, np.int64),
            source=self.source,
        )
        if "" in (set(words)):
            raise ValueError(f"{found.where(words.index(''))}: the word is empty")
        if self.layout is None:
            _check_three(found)
        return found


def _check_three(found: TaggedSentences) -> None:
    """Raise ValueError where the tags of ``word pos tag`` are not BIO, or in the place of the parts of speech."""
    pos, tags = found.pos, found.tags or []
    if all(map(_BIO.fullmatch, set(pos))):
        raise ValueError(
            f"{found.where(0)}: the second column holds chunk tags, such as {pos[0]!r}, on all lines, and must hold "
            "parts of speech: columns are word, pos and tag; name others, such as columns=Columns(word=0, tag=1)"
        )
    if wrong := {tag for tag in set(tags) if not _BIO.fullmatch(tag)}:
        first = next(token for token, tag in enumerate(tags) if tag in wrong)
        raise ValueError(f"{found.where(first)}: tag {tags[first]!r} must be O, or B-TYPE or I-TYPE for some type")


def _as_bio(found: TaggedSentences) -> TaggedSentences:
    if found.tags is None:
        return found
    if (wrong := first_wrong(found.tags)) is not None:
        raise ValueError(
            f"{found.where(wrong)}: tag {found.tags[wrong]!r} must be O, or a letter of BIO, BIOES or BILOU, a hyphen "
            "and a type: is this the column of the tags? Lines of comments are left out by Columns(comment=...)"
        )
    return replace(found, tags=to_bio(found.tags, found.offsets))


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
