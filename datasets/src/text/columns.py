"""Column files: a token a line, and an empty line after every sentence, as in the CoNLL tasks."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from torchssvm.core.arguments import check_object, describe
from torchssvm.core.packages import warn

from ..lines import UNPACKED_LIMIT, Fields, is_blank, read_lines, split_columns, words_of
from .tag_schemes import BIO, check_scheme, first_wrong, to_bio

DOCUMENT = "-DOCSTART-"
"""The word that stands alone in a sentence where a document begins."""

_BIO = re.compile(r"O|[BI]-\S+")

_TABLE = re.compile(r"^[^\s,]+,\S*$|(^|[,;\t])\W?(word|token)s?\W?([,;\t]|$)", re.IGNORECASE)
"""The first line of what is no column file: commas without a blank, or a header."""


@dataclass(frozen=True, repr=False)
class TaggedSentences:
    """The tokens of all sentences of a file, one after another.

    Attributes:
        words: Word of every token.
        pos: Part-of-speech tag of every token.
        tags: Chunk tag of every token; None for a file without tags.
        offsets: int64 ``[n + 1]``: sentence i has the tokens ``offsets[i]`` to ``offsets[i + 1] - 1``.
        lines: int64 ``[tokens]``, the line number of every token, from 1.
        source: The file, for messages.
        scheme: ``"bio"`` for tags of chunks; None where tags are taken as they are.
        separator: What separates the columns of the file: ``"tabs"``, ``"blanks"``, or of a table ``"commas"`` or
            ``"semicolons"``.

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
    scheme: str | None = BIO
    separator: str = "blanks"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"TaggedSentences: {len(self)} sentences and {len(self.words)} tokens of {self.source}"

    def by_sentence(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """One list for each sentence, of values of all tokens, such as ``words`` or ``tags``."""
        return [values[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]

    def part(self, start: int, stop: int) -> TaggedSentences:
        """The sentences ``start`` to ``stop - 1``, 0 <= start < stop <= n."""
        if not 0 <= start < stop <= len(self):
            raise ValueError(f"start={start} and stop={stop} must leave some of the {len(self)} sentences")
        a, b = int(self.offsets[start]), int(self.offsets[stop])
        return replace(
            self,
            words=self.words[a:b],
            pos=self.pos[a:b],
            tags=None if self.tags is None else self.tags[a:b],
            offsets=self.offsets[start : stop + 1] - a,
            lines=self.lines[a:b],
        )

    def where(self, token: int) -> str:
        """File and line of a token, for messages."""
        return f"{self.source}, line {self.lines[token]}"


def read_columns(
    path: str | os.PathLike[str],
    columns: Columns | None = None,
    *,
    tags_optional: bool = False,
    scheme: str | None = BIO,
    limit: int = UNPACKED_LIMIT,
) -> TaggedSentences:
    """Read a column file.

    One or more blank lines end a sentence. UTF-8, plain or gzipped (by its first bytes, not its name); lines end with
    LF, CRLF or CR. Columns are separated by single tabs, or by any number of blanks and tabs: by that which gives more
    lines of the file the same number of columns, and by tabs where both do; between tabs a word may be a blank. Without
    ``columns``, lines are ``word pos tag``, by blanks and tabs wherever that gives three columns, and tags are O, B-X
    or I-X. With them, a file is taken as it is: sentences of the word -DOCSTART- alone are left out; tags of IOB1,
    BIOES and BILOU become BIO.

    Args:
        path: The file.
        columns: Which columns are read; parts of speech are _ where it names none.
        tags_optional: Whether the third column may be missing, on all lines, as in text to predict tags for.
        scheme: ``"bio"`` for the tags of chunks; None takes tags as they are, such as parts of speech, types without a
            letter before them, or letters without a type.
        limit: Bytes that a gzip file may unpack to.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is malformed, or has no such column; the message begins with its name and, if known, the
            line. Or ``scheme`` is another.

    Example:
        >>> sentences = read_columns("train.txt")  # word, part of speech, tag
        >>> len(sentences), sentences.words[0]
        (2, 'Anna')
        >>> read_columns("train.txt", Columns(word=0, tag=1), scheme=None).tags[:2]
        ['NNP', 'VBZ']
    """
    if columns is not None:
        check_object(columns, "columns", "check", "Columns(word=0, tag=1)")
    layout, source = None if columns is None else columns.check(), os.fspath(path)
    check_scheme(scheme)
    lines = read_lines(path, limit)
    try:
        return _read(source, lines, layout, tags_optional, scheme)
    except ValueError as error:
        if _TABLE.search(next((line for line in lines if not is_blank(line)), "")):
            raise ValueError(f"{error}; read_table reads tables with a header") from None
        raise


def _read(
    source: str, lines: Sequence[str], layout: Columns | None, tags_optional: bool, scheme: str | None
) -> TaggedSentences:
    tokens = _tokens(source, lines, layout)
    if not tokens.lines:
        raise ValueError(f"{source} holds no sentence: no line of {len(lines)} has a token")
    fields = split_columns(tokens.lines, () if layout else (2, 3) if tags_optional else (3,))
    word, tag, part = _places(source, layout, tokens, fields, tags_optional)
    offsets = [0]
    kept: list[int] = []
    for start, stop in itertools.pairwise(tokens.offsets):
        if layout is None or stop - start > 1 or fields.split(tokens.lines[start])[word] != DOCUMENT:
            kept.extend(range(start, stop))
            offsets.append(len(kept))
    words, tags, pos = list[str](), list[str](), list[str]()
    for token in kept:
        row = fields.split(tokens.lines[token])
        # Between tabs a word may be a blank, as where every character is a token.
        words.append(row[word] or (tokens.lines[token].split("\t")[word] if fields.separator == "tabs" else ""))
        tags.append("" if tag is None else row[tag])
        pos.append("_" if part is None else row[part])
    sentences = TaggedSentences(
        words=words,
        pos=pos,
        tags=None if tag is None else tags,
        offsets=np.array(offsets, np.int64),
        lines=np.array(tokens.numbers, np.int64)[kept],
        source=source,
        scheme=scheme,
        separator=fields.separator,
    )
    for what, values in (("word", words), ("tag", sentences.tags or ())):
        if "" in set(values):
            raise ValueError(f"{sentences.where(values.index(''))}: the {what} is empty")
    if scheme is None:
        return sentences
    return _check_three(sentences) if layout is None else as_bio(sentences)


class _Tokens(NamedTuple):
    """The lines of a file that hold tokens, their numbers, and where sentences begin and end among them."""

    lines: list[str]
    numbers: list[int]
    offsets: list[int]
    names: list[str]  # of the columns; empty if the file does not say


def _tokens(source: str, lines: Sequence[str], layout: Columns | None) -> _Tokens:
    tokens, comment, inside = _Tokens([], [], [0], []), "" if layout is None else layout.comment, list[int]()
    for number, line in enumerate([*lines, ""], start=1):
        begins = tokens.offsets[-1] == len(tokens.lines)
        if is_blank(line):
            if not begins:
                tokens.offsets.append(len(tokens.lines))
        elif layout is None or not begins or not _is_no_token(line, layout, tokens):
            if comment and line.startswith(comment):
                inside.append(number)
            tokens.lines.append(line)
            tokens.numbers.append(number)
    if inside:
        warn(
            f"{source}, line {inside[0]} begins with {comment!r} inside a sentence, and is taken as a token, like all "
            f"{len(inside)} lines of this kind: if they are comments, remove them or move them between sentences"
        )
    return tokens


def _is_no_token(line: str, layout: Columns, tokens: _Tokens) -> bool:
    """Whether a line before a sentence is a comment, says where a document begins, or names the columns."""
    wanted = layout.names
    if wanted and not tokens.lines and not tokens.names:
        named = words_of(line.removeprefix(NAMES_LINE))
        if line.startswith(NAMES_LINE) or set(wanted) <= set(named):
            tokens.names.extend(named)
            return True
    return words_of(line)[0] == DOCUMENT or (bool(layout.comment) and line.startswith(layout.comment))


def _places(
    source: str, layout: Columns | None, tokens: _Tokens, fields: Fields, tags_optional: bool
) -> tuple[int, int | None, int | None]:
    """The columns of words, tags and parts of speech, if all lines have the same number of columns."""
    sizes = fields.sizes

    def first(allowed: Sequence[int]) -> tuple[str, str] | None:
        """Place and columns of the first line with another number of columns."""
        if set(sizes) <= set(allowed):
            return None
        at = next(at for at, size in enumerate(sizes) if size not in allowed)
        return f"{source}, line {tokens.numbers[at]}", f"{sizes[at]} column{'s' * (sizes[at] > 1)}"

    if layout is None:
        allowed = (2, 3) if tags_optional else (3,)
        if place := first(allowed):
            wanted = "word and pos, or word, pos and tag" if tags_optional else "word, pos and tag"
            advice = "name others, and comments, as in columns=Columns(word=0, tag=1, comment='#')"
            raise ValueError(f"{place[0]}: {place[1]}, must be {wanted}, separated by {fields.separator}; {advice}")
        layout = Columns(word=0, pos=1, tag=2)
    where = f"{source}, line {tokens.numbers[sizes.index(fields.width)]}"
    try:
        places = layout.places(fields.width, tokens.names, where)
    except ValueError:
        if not tags_optional:
            raise
        places = layout._replace(tag=None).places(fields.width, tokens.names, where)
    if place := first([fields.width]):
        raise ValueError(
            f"{place[0]}: {place[1]}, but {fields.agree} of the {len(sizes)} lines have {fields.width}, separated by "
            f"{fields.separator}; Columns(comment={layout.comment!r}) leaves out comments between sentences"
        )
    word, tag, pos = places
    assert word is not None
    known = [place for place in places if place is not None]
    if twice := [place for place in known if known.count(place) > 1]:
        raise ValueError(
            f"{where}: word, tag and part of speech must be different columns, and two of them are column {twice[0]}; "
            f"the line has {fields.width} column{'s' * (fields.width > 1)}"
        )
    return word, None if tags_optional and tag == word else tag, pos  # the last column holds the words


def _check_three(sentences: TaggedSentences) -> TaggedSentences:
    """Raise ValueError where the tags of ``word pos tag`` are not BIO, or in the place of the parts of speech."""
    pos, tags = sentences.pos, sentences.tags or []
    if all(map(_BIO.fullmatch, set(pos))):
        advice = "name other columns, such as columns=Columns(word=0, tag=1)"
        raise ValueError(f"{sentences.where(0)}: column 2 must hold parts of speech, not {pos[0]!r}; {advice}")
    if wrong := {tag for tag in set(tags) if not _BIO.fullmatch(tag)}:
        first = next(token for token, tag in enumerate(tags) if tag in wrong)
        advice = "scheme=None takes tags as they are"
        raise ValueError(f"{sentences.where(first)}: tag {tags[first]!r} must be O, B-TYPE or I-TYPE; {advice}")
    return sentences


def as_bio(sentences: TaggedSentences) -> TaggedSentences:
    """Sentences with tags of BIO; ValueError for a tag of no scheme."""
    if sentences.tags is None:
        return sentences
    if (wrong := first_wrong(sentences.tags)) is not None:
        advice = "scheme=None takes tags as they are"
        raise ValueError(
            f"{sentences.where(wrong)}: tag {sentences.tags[wrong]!r} must be of BIO, BIOES or BILOU; {advice}"
        )
    return replace(sentences, tags=to_bio(sentences.tags, sentences.offsets))


NAMES_LINE = "# global.columns ="
"""The beginning of the comment in which a CoNLL-U Plus file names its columns."""


class Columns(NamedTuple):
    """Columns of a file, each by its position (from 0; negative from the last) or by its name.

    Names come from the comment ``# global.columns = ...`` of CoNLL-U Plus, or of the first line, if that holds all
    the names that are asked for.

    Attributes:
        word: The words.
        tag: The tags; None for a file without tags.
        pos: Parts of speech; None for a file without them.
        comment: Lines that begin with it between sentences are left out; empty means that there are no comments. A
            word at the beginning of a sentence may look like one, so say so only of files that have them.

    Example:
        >>> sentences = read_columns("train.txt", Columns(word=0, pos=1, tag=2))
        >>> sentences.words[:2], sentences.tags[:2]
        (['Anna', 'sees'], ['B-NP', 'B-VP'])
    """

    word: int | str = 0
    tag: int | str | None = -1
    pos: int | str | None = None
    comment: str = ""

    def check(self) -> Columns:
        """These, if their values are of the right kinds.

        Raises:
            TypeError: A column is neither a number nor a name, or ``comment`` is not a str.
        """
        for name, value in zip(self._fields[:3], self[:3], strict=True):
            if (value is None and name == "word") or isinstance(value, bool) or not isinstance(value, int | str | None):
                raise TypeError(f"{name}={value!r} must be the position of a column, or its name")
        if not isinstance(self.comment, str):
            raise TypeError(f"comment={describe(self.comment)} must be a str, such as '#', or empty")
        return self

    @property
    def names(self) -> list[str]:
        """The names that are asked for."""
        return [value for value in self[:3] if isinstance(value, str)]

    def places(self, count: int, names: Sequence[str], where: str) -> list[int | None]:
        """The positions of word, tag and pos in lines of ``count`` columns.

        Args:
            count: Columns of a line.
            names: The names of the file's columns; empty if it has none.
            where: File and line, for messages.

        Raises:
            ValueError: There is no such column.
        """
        chosen: list[int | None] = []
        for what, value in zip(self._fields[:3], self[:3], strict=True):
            if isinstance(value, str) and value not in names:
                known = f"the file names {', '.join(names)}" if names else "the file names no columns: give positions"
                raise ValueError(f"{where}: {what}={value!r} is not the name of a column; {known}")
            place = names.index(value) if isinstance(value, str) else value
            if place is not None and not -count <= place < count:
                raise ValueError(f"{where}: {count} column{'s' * (count > 1)}, and {what}={value!r} asks for another")
            chosen.append(None if place is None else place % count)
        return chosen
