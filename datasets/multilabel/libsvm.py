"""Multilabel data in the format of LIBSVM: ``1,5,7 12:0.5 90:1``, labels and then features, an example a line.

https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multilabel.html has such files; those of the extreme
classification repository begin with a line of three numbers: examples, features, labels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchssvm.core.arguments import check_whole

from ..text.columns import UNPACKED_LIMIT, read_text
from .arff import number
from .mulan import LabelledRows
from .sparse_rows import SparseRows


def read_libsvm(
    path: str | os.PathLike[str],
    num_features: int | None = None,
    num_labels: int | None = None,
    *,
    first_feature: int = 1,
    first_label: int = 0,
    limit: int = UNPACKED_LIMIT,
) -> LabelledRows:
    """Read a file; features and labels are named by their numbers in it.

    A line without labels begins with its first feature, or a blank. What follows a ``#`` is a comment.

    Args:
        path: The file, plain or gzipped.
        num_features: How many there are; None where the first line says so.
        num_labels: How many there are; None where the first line says so.
        first_feature: The number of the first feature, 0 or 1.
        first_label: The number of the first label, 0 or 1.
        limit: Bytes that a gzip file may unpack to.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is malformed; the message begins with its name and, where there is one, the line. Or a number is
            missing, or is not 0 or 1.
    """
    for name, value in (("first_feature", first_feature), ("first_label", first_label)):
        if isinstance(value, bool) or value not in (0, 1):
            raise ValueError(f"{name}={value!r} must be 0 or 1, the number of the first one in the file")
    lines = read_text(path, limit).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    header = _header(lines)
    if header is not None:
        num_features = _agreed(num_features, header[1], "num_features", str(path))
        num_labels = _agreed(num_labels, header[2], "num_labels", str(path))
    features = _Lists("feature", "first_feature", _positive(num_features, "num_features"), first_feature)
    labels = _Lists("label", "first_label", _positive(num_labels, "num_labels"), first_label)
    for place, line in enumerate(lines[header is not None :], start=1 + (header is not None)):
        text, where = line.partition("#")[0], f"{path}, line {place}"
        if text.strip():
            _take(text, where, features, labels)
        elif "#" not in line:
            raise ValueError(f"{where}: an empty line, and more after it; an example has a label or a feature")
    if not features.counts:
        raise ValueError(f"{path} has no example")
    if header is not None and len(features.counts) != header[0]:
        raise ValueError(f"{path}, line 1: {header[0]} examples, but {len(features.counts)} follow; is it cut off?")
    return LabelledRows(features.rows(), labels.rows(), features.names, labels.names, str(path))


@dataclass
class _Lists:
    """The features, or the labels, of the examples that have been read."""

    what: str
    argument: str
    total: int
    first: int
    counts: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(place + self.first) for place in range(self.total))

    def rows(self) -> SparseRows:
        return SparseRows.of(self.counts, self.indices, self.values, self.total)

    def add(self, entries: Iterable[tuple[str, float]], where: str) -> None:
        """Those of one example."""
        seen: set[int] = set()
        before = len(self.indices)
        for digits, value in entries:
            if not (digits.isascii() and digits.isdigit()):
                raise ValueError(f"{where}: {digits!r} must be the number of a {self.what}; lines are 1,5 12:0.5 90:1")
            place = int(digits) - self.first
            if not 0 <= place < self.total:
                last = self.total - 1 + self.first
                raise ValueError(
                    f"{where}: {self.what} {digits} is out of range, must be {self.first} to {last}: there are "
                    f"{self.total}, and {self.argument}={self.first}"
                )
            if place in seen:
                raise ValueError(f"{where}: {self.what} {digits} comes twice; leave one out")
            seen.add(place)
            self.indices.append(place)
            self.values.append(value)
        self.counts.append(len(self.indices) - before)


def _take(text: str, where: str, features: _Lists, labels: _Lists) -> None:
    tokens = text.split()
    has_labels = ":" not in tokens[0]
    labels.add(((digits, 1.0) for digits in tokens[0].split(",")) if has_labels else (), where)
    features.add((_entry(token, where) for token in tokens[has_labels:]), where)


def _entry(token: str, where: str) -> tuple[str, float]:
    digits, colon, spelt = token.partition(":")
    value = number(spelt)
    if not colon:
        raise ValueError(f"{where}: {token!r} must be feature:value; labels are separated by commas, without blanks")
    if value is None:
        raise ValueError(f"{where}: the value of {token!r} must be a finite float32 number")
    return digits, value


def _header(lines: list[str]) -> tuple[int, int, int] | None:
    """Examples, features and labels, where the first line is three numbers."""
    tokens = lines[0].split() if lines else []
    if len(tokens) != 3 or not all(token.isascii() and token.isdigit() for token in tokens):
        return None
    examples, features, labels = map(int, tokens)
    return examples, features, labels


def _agreed(given: int | None, found: int, name: str, source: str) -> int:
    if given not in (None, found):
        raise ValueError(f"{source}, line 1: {found}, but {name}={given}; leave the argument out")
    return found


def _positive(given: int | None, name: str) -> int:
    if given is None:
        raise ValueError(f"{name} is needed: the first line of the file does not say (examples, features, labels)")
    return check_whole(given, name)
