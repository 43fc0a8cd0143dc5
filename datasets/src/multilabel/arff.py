"""ARFF, the format of Weka: a header that declares attributes, then an example a line, dense or sparse.

Parsed by hand: ``scipy.io.arff`` does not read sparse rows, and ``liac-arff`` has had no release since 2020.
The format: https://waikato.github.io/weka-wiki/formats_and_processing/arff_stable/
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..lines import UNPACKED_LIMIT, number, read_lines, whole
from .sparse_rows import SparseRows

_QUOTED = r"'(?:[^'\\]|\\.)*'|" + r'"(?:[^"\\]|\\.)*"'
_ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|[^\s{{}}'\"][^\s{{}}]*)\s*(.*)", re.IGNORECASE)
_BEFORE_COMMENT = re.compile(rf"(?:[^%'\"]|{_QUOTED})*")
_ENTRY = re.compile(rf"((?:[^,'\"]|{_QUOTED})*)(,|$)")
_ESCAPE = re.compile(r"\\(.)")
_NUMERIC = ("numeric", "real", "integer")


class Attribute(NamedTuple):
    """A column of the file, its name without quotes, and the line of its declaration.

    Attributes:
        first: The first of its columns in the matrix.
        columns: Their names: the attribute's, or ``name=value`` for each of its nominal values.
        values: Column and number of each value that a nominal attribute may take, by their spelling, the first declared
            first; None for a numeric attribute.
    """

    name: str
    line: int
    first: int
    columns: tuple[str, ...]
    values: dict[str, tuple[int, float]] | None

    @property
    def omitted(self) -> tuple[int, float]:
        """Column and number in sparse rows that omit the attribute: 0, or the first of its nominal values."""
        return next(iter(self.values.values())) if self.values else (self.first, 0.0)


@dataclass(frozen=True)
class Arff:
    """The content of a file: its attributes in order, ``rows`` ``[n, columns]`` of all of their columns, and their
    lines.

    ``source`` is the file, for messages; ``relation`` the name after @relation, into which MEKA writes options.
    """

    source: str
    attributes: list[Attribute]
    rows: SparseRows
    lines: list[int]
    relation: str


def read_arff(path: str | os.PathLike[str], *, limit: int = UNPACKED_LIMIT) -> Arff:
    """Read a file whose attributes are numeric, real, integer, or nominal, such as ``{red,green}``.

    A nominal attribute becomes a column of 0 and 1 for each of its values, numbers such as ``{1,2,3}`` too, which are
    names of categories; one of ``{0,1}`` stays as it is.

    Rows are dense (``0.5,0,1``) or sparse (``{3 1, 17 0.5}``, attributes counted from 0). Values omitted in a row are
    0, or the first value of a nominal attribute, as in Weka. UTF-8, plain or gzipped, unpacked to at most ``limit``
    bytes.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is malformed; the message begins with its name and, if known, the line.
    """
    reading = _Reading(str(path))
    for place, line in enumerate(read_lines(path, limit), start=1):
        text = (_before_comment(line) if "%" in line else line).strip()
        if text:
            reading.take(text, place)
    return reading.result()


@dataclass
class _Reading:
    """What has been read so far."""

    source: str
    attributes: list[Attribute] = field(default_factory=list)
    omitted: dict[int, tuple[int, float]] = field(default_factory=dict)  # column and number, where it is not 0
    num_columns: int = 0
    in_data: bool = False
    counts: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    relation: str = ""

    def take(self, text: str, line: int) -> None:
        where = f"{self.source}, line {line}"
        if not self.in_data:
            self._header(text, line, where)
            return
        row = self._sparse(text, where) if text.startswith("{") else self._dense(text, where)
        before = len(self.indices)
        for index, value in row:
            if value:
                self.indices.append(index)
                self.values.append(value)
        self.counts.append(len(self.indices) - before)
        self.lines.append(line)

    def result(self) -> Arff:
        if not self.in_data:
            raise ValueError(f"{self.source} has no @data line: the file is cut off, or is no ARFF file")
        if not self.lines:
            raise ValueError(f"{self.source} has no example: nothing follows its @data line")
        rows = SparseRows.of(self.counts, self.indices, self.values, self.num_columns)
        return Arff(self.source, self.attributes, rows, self.lines, self.relation)

    def _header(self, text: str, line: int, where: str) -> None:
        keyword = text.split(maxsplit=1)[0].lower()
        if keyword == "@attribute":
            self.attributes.append(attribute := _attribute(text, line, where, self.num_columns))
            self.num_columns += len(attribute.columns)
            if attribute.omitted[1]:
                self.omitted[len(self.attributes) - 1] = attribute.omitted
        elif keyword == "@data":
            self._check_attributes(where)
            self.in_data = True
        elif keyword == "@relation":
            self.relation = _unquoted(text[len(keyword) :].strip())
        else:
            raise ValueError(
                f"{where}: {text[:60]!r} stands before @data; only @relation, @attribute and % comments may"
            )

    def _check_attributes(self, where: str) -> None:
        if not self.attributes:
            raise ValueError(f"{where}: @data comes before any @attribute")
        first: dict[str, int] = {}
        for attribute in self.attributes:
            if (before := first.setdefault(attribute.name, attribute.line)) != attribute.line:
                raise ValueError(
                    f"{self.source}, line {attribute.line}: {attribute.name!r} is declared on line {before} too: rename"
                )

    def _sparse(self, text: str, where: str) -> Iterator[tuple[int, float]]:
        body, brace, rest = text[1:].rpartition("}")
        if not brace or rest.strip() or "}" in body:
            raise ValueError(
                f"{where}: a sparse row must end with its }}, got {text[-30:]!r}"
                + ("; weights of examples are not read, remove them" if "}" in body else "")
            )
        seen = set()
        for entry in _split(body, where) if body.strip() else ():
            digits, _, token = entry.partition(" " if " " in entry else "\t")
            if digits.isascii() and digits.startswith("-") and digits[1:].strip("0").isdigit():  # -0 is only misspelt
                raise ValueError(f"{where}: attribute {digits} must not be negative: they are counted from 0")
            index = whole(digits)
            if index is None or not token.strip():
                raise ValueError(f"{where}: {entry!r} must be the number of an attribute, a blank, and its value")
            if index >= len(self.attributes):
                raise ValueError(f"{where}: attribute {index} is out of range: there are {len(self.attributes)}")
            if index in seen:
                raise ValueError(f"{where}: attribute {index} comes twice; leave one out")
            seen.add(index)
            yield self._entry(index, token.strip(), where)
        for index, first in self.omitted.items():
            if index not in seen:
                yield first

    def _dense(self, text: str, where: str) -> Iterator[tuple[int, float]]:
        tokens = _split(text, where)
        if len(tokens) != len(self.attributes):
            raise ValueError(f"{where}: {len(tokens)} values separated by commas, must be {len(self.attributes)}")
        for index, token in enumerate(tokens):
            yield self._entry(index, token, where)

    def _entry(self, index: int, token: str, where: str) -> tuple[int, float]:
        """Column and number of a value."""
        attribute = self.attributes[index]
        spelt = _unquoted(token)
        if attribute.values is not None:
            if spelt in attribute.values:
                return attribute.values[spelt]
            if token != "?":
                raise ValueError(
                    f"{where}: {spelt!r} is not among the values of attribute {attribute.name!r}, "
                    f"{{{','.join(attribute.values)}}} by line {attribute.line}"
                )
        value = number(spelt)
        if value is None:
            what = "a missing value" if token == "?" else f"{spelt!r}"
            raise ValueError(
                f"{where}: attribute {attribute.name!r} is {what}, must be "
                f"{'a finite float32 number' if attribute.values is None else 'one of its values'}; "
                "fill it in or leave the example out"
            )
        return attribute.first, value


def _attribute(text: str, line: int, where: str, first: int) -> Attribute:
    match = _ATTRIBUTE.fullmatch(text)
    if match is None:
        raise ValueError(f"{where}: {text[:60]!r} must be @attribute, a name (in quotes if it has blanks) and a type")
    name, kind = _unquoted(match[1]), match[2].strip()
    if kind.lower() in _NUMERIC:
        return Attribute(name, line, first, (name,), None)
    if kind.startswith("{") and kind.endswith("}"):
        tokens = _split(kind[1:-1], where)
        values = [_unquoted(token) for token in tokens]
        if "" in tokens or len(set(values)) < len(values):
            raise ValueError(
                f"{where}: the values {kind[:60]} of attribute {name!r} must be named between commas, each once"
            )
        if {number(value) for value in values} <= {0.0, 1.0}:  # one column of 0 and 1 already
            return Attribute(name, line, first, (name,), {value: (first, float(value)) for value in values})
        places = {value: (first + place, 1.0) for place, value in enumerate(values)}
        return Attribute(name, line, first, tuple(f"{name}={value}" for value in values), places)
    what = f"the type {kind[:60]!r}" if kind else "no type"
    raise ValueError(
        f"{where}: attribute {name!r} has {what}, must be numeric, real, integer or nominal: convert or remove it"
    )


def _split(text: str, where: str) -> list[str]:
    """The entries between commas, with their quotes."""
    if "'" not in text and '"' not in text:
        return [token.strip() for token in text.split(",")]
    tokens, at = [], 0
    while True:
        entry = _ENTRY.match(text, at)
        if entry is None:
            raise ValueError(f"{where}: a quote is not closed, or stands within a word, in {text[at : at + 40]!r}")
        tokens.append(entry[1].strip())
        at = entry.end()
        if not entry[2]:
            return tokens


def _unquoted(token: str) -> str:
    if len(token) >= 2 and token[0] in "'\"" and token[-1] == token[0]:
        return _ESCAPE.sub(r"\1", token[1:-1])
    return token


def _before_comment(line: str) -> str:
    before = _BEFORE_COMMENT.match(line)
    end = before.end() if before else 0
    return line[:end] if line[end : end + 1] == "%" else line
