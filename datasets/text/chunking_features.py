"""Features of a token: the attributes of CRFsuite's tutorial on chunking, and their columns.

The templates are those of http://www.chokkan.org/software/crfsuite/tutorial.html, which [B13] and [G16] (appendix I.2)
used too. An attribute is a string such as ``w[0]=the`` or ``pos[-1]|pos[0]=IN|DT``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchssvm.core.arguments import check_whole

from .columns import TaggedSentences

TEMPLATES: tuple[tuple[tuple[str, int], ...], ...] = (
    *(((("w", d),)) for d in (-2, -1, 0, 1, 2)),
    *((("w", d), ("w", d + 1)) for d in (-1, 0)),
    *(((("pos", d),)) for d in (-2, -1, 0, 1, 2)),
    *((("pos", d), ("pos", d + 1)) for d in (-2, -1, 0, 1)),
    *((("pos", d), ("pos", d + 1), ("pos", d + 2)) for d in (-2, -1, 0)),
)
"""The 19 templates: fields (word or part of speech) and their offsets from the token."""

BEGIN, END = "__BOS__", "__EOS__"
"""Attributes of the first and of the last token of a sentence."""

_FORMAT = "torchssvm chunking vocabulary 1"


class Attributes(NamedTuple):
    """The attributes of every token, as lists of numbers.

    Attributes:
        names: The attributes that occur, each once: template by template, each in the order of its values.
        rows: int64 ``[tokens + 1]``: token t has the attributes ``codes[rows[t] : rows[t + 1]]``.
        codes: int32, indices into ``names``.
    """

    names: list[str]
    rows: np.ndarray
    codes: np.ndarray

    def counts(self) -> np.ndarray:
        """The count of each attribute, int64."""
        return np.bincount(self.codes, minlength=len(self.names))

    def check(self, sentences: TaggedSentences) -> None:
        """Raise ValueError unless these are the attributes of the sentences."""
        for prefix, wanted in (("w[0]=", sentences.words), ("pos[0]=", sentences.pos)):
            own = np.array([name.startswith(prefix) for name in self.names], bool)[self.codes]
            if [self.names[code] for code in self.codes[own]] != [prefix + value for value in wanted]:
                raise ValueError(
                    f"found holds the attributes of other sentences than those of {sentences.source}: give those that "
                    "attributes(sentences) makes, or None"
                )
        begins = np.array([name == BEGIN for name in self.names], bool)[self.codes]
        token = np.repeat(np.arange(len(self.rows) - 1), np.diff(self.rows))[begins]
        if not np.array_equal(token, sentences.offsets[:-1]):
            raise ValueError(f"found has other sentences than {sentences.source}, of the same words: give None")

    def of(self, token: int) -> list[str]:
        """The attributes of a token."""
        return [self.names[code] for code in self.codes[self.rows[token] : self.rows[token + 1]]]


def attributes(sentences: TaggedSentences) -> Attributes:
    """The attributes of all tokens; a template that reaches outside the sentence gives none.

    All tokens are processed at once: words and parts of speech become numbers, and only distinct attributes become
    strings.
    The 211,727 tokens of CoNLL-2000's training set have 335,674 attributes.
    """
    fields = {"w": sentences.words, "pos": sentences.pos}
    numbered = {field: _numbers(values) for field, values in fields.items()}
    lengths = np.diff(sentences.offsets)
    place = np.arange(len(sentences.words)) - np.repeat(sentences.offsets[:-1], lengths)
    left, right = place, np.repeat(lengths, lengths) - 1 - place  # tokens before and after in the sentence

    table: dict[str, int] = {}
    codes = np.full((len(place), len(TEMPLATES) + 2), -1, np.int32)
    for column, template in enumerate(TEMPLATES):
        inside = np.logical_and.reduce([(left >= -d) & (right >= d) for _, d in template])
        tokens = np.flatnonzero(inside)
        key = np.zeros(len(tokens), np.int64)
        for field, d in template:
            numbers, distinct = numbered[field]
            if int(key.max(initial=0)) >= 2**62 // distinct:  # the product would overflow: use ranks
                key = np.unique(key, return_inverse=True)[1]
            key = key * distinct + numbers[tokens + d]
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        prefix = "|".join(f"{field}[{d}]" for field, d in template) + "="
        values = [map(fields[field].__getitem__, (tokens[first] + d).tolist()) for field, d in template]
        names = [prefix + "|".join(some) for some in zip(*values, strict=True)]
        # Words that contain | can give two keys the same attribute.
        codes[tokens, column] = np.array([table.setdefault(name, len(table)) for name in names], np.int32)[inverse]
    codes[left == 0, -2] = table.setdefault(BEGIN, len(table))
    codes[right == 0, -1] = table.setdefault(END, len(table))
    there = codes >= 0
    return Attributes(list(table), _rows(there.sum(1)), codes[there])


class Vocabulary:
    """The attributes and the tags that a model knows, each with its number.

    CoNLL-2000's training set has 335,674 attributes; 75,289 of them occur three times or more. ([G16] counts 74,658,
    of the same templates.) A chain of 22 tags then has 75,289 * 22 + 22 * 22 + 3 * 22 = 1,656,908 weights.

    Args:
        attributes: The attribute of every column, all different.
        tags: The tag of every state, all different.
        min_count: How often an attribute had to occur; kept for datasets that are derived later.

    Raises:
        ValueError: Attributes or tags are missing or duplicate, or ``min_count`` is below 1.
    """

    def __init__(self, attributes: Iterable[str], tags: Iterable[str], min_count: int = 1) -> None:
        for name, given in (("attributes", attributes), ("tags", tags)):
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise TypeError(f"{name}={given!r} must be a list of strings, not a {type(given).__name__}")
        self.attributes = tuple(attributes)
        self.tags = tuple(tags)
        if wrong := [value for value in (*self.attributes, *self.tags) if not isinstance(value, str)]:
            raise TypeError(f"attributes and tags must be strings, and {wrong[0]!r} is a {type(wrong[0]).__name__}")
        self.min_count = check_count(min_count)
        self._columns = {name: column for column, name in enumerate(self.attributes)}
        self._states = {tag: state for state, tag in enumerate(self.tags)}
        for name, values, table in (("attributes", self.attributes, self._columns), ("tags", self.tags, self._states)):
            if not values:
                raise ValueError(f"{name} is empty: a vocabulary needs at least one")
            if len(table) != len(values):
                twice = next(value for place, value in enumerate(values) if table[value] != place)
                raise ValueError(f"{name} has {twice!r} twice")

    @classmethod
    def of(cls, sentences: TaggedSentences, min_count: int = 1, tags: Sequence[str] | None = None) -> Vocabulary:
        """The vocabulary of a training set.

        Args:
            sentences: With tags.
            min_count: How often an attribute must occur in them.
            tags: The tags in order; None is those of the sentences: O, then B and I of each type in alphabetical order.

        Raises:
            ValueError: ``min_count`` is below 1, or no attribute occurs so often, or the sentences have no tags.
        """
        if sentences.tags is None and tags is None:
            raise ValueError(f"{sentences.source} has no tag column: a vocabulary needs tags")
        check_count(min_count)  # before the work
        tags = sorted_tags(sentences.tags or ()) if tags is None else tags
        return cls.from_attributes(attributes(sentences), min_count, tags)

    @classmethod
    def from_attributes(cls, found: Attributes, min_count: int, tags: Sequence[str]) -> Vocabulary:
        """As :meth:`of`, from attributes that are computed already."""
        often = np.flatnonzero(found.counts() >= check_count(min_count)).tolist()
        if not often:
            raise ValueError(f"min_count={min_count}: no attribute occurs so often")
        return cls([found.names[code] for code in often], tags, min_count)

    def __len__(self) -> int:
        """Columns: ``in_features`` of a head."""
        return len(self.attributes)

    @property
    def num_states(self) -> int:
        """Tags: ``num_states`` of a head."""
        return len(self.tags)

    def state(self, tag: str) -> int | None:
        """The number of a tag; None if it is unknown."""
        return self._states.get(tag)

    def columns(self, found: Attributes) -> tuple[np.ndarray, np.ndarray]:
        """Row offsets int64 ``[tokens + 1]`` and columns int32; unknown attributes are left out."""
        column = np.array([self._columns.get(name, -1) for name in found.names], np.int32)[found.codes]
        known = column >= 0
        before = np.concatenate([[0], np.cumsum(known, dtype=np.int64)])  # known attributes before each place
        return before[found.rows], column[known]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as JSON."""
        content = {
            "format": _FORMAT,
            "min_count": self.min_count,
            "tags": self.tags,
            "attributes": self.attributes,
        }
        Path(path).write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read what :meth:`save` wrote.

        Raises:
            OSError: The file cannot be opened.
            ValueError: It is not a saved vocabulary, or damaged.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"its format is {content['format']!r}")
            names, tags = content["attributes"], content["tags"]
            if not all(
                isinstance(values, list) and all(isinstance(v, str) for v in values) for values in (names, tags)
            ):
                raise ValueError("attributes and tags must be lists of strings")
            return cls(names, tags, content["min_count"])
        except (ValueError, KeyError, TypeError) as error:
            reason = "no text" if isinstance(error, UnicodeDecodeError) else f"{error!r:.200}"
            raise ValueError(f"{path} is not a vocabulary that was saved, or damaged: {reason}") from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return (self.attributes, self.tags, self.min_count) == (other.attributes, other.tags, other.min_count)

    __hash__ = None  # type: ignore[assignment]  # long to compare, and nobody's key

    def __repr__(self) -> str:
        return f"Vocabulary: {len(self)} attributes, {self.num_states} tags, min_count={self.min_count}"


def sorted_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Each tag once: O, then B and I of each type in alphabetical order."""
    return tuple(sorted(set(tags), key=lambda tag: (tag != "O", tag[2:], tag[:1])))


def check_count(min_count: int) -> int:
    """``min_count`` as an int of at least 1."""
    return check_whole(min_count, "min_count")


def _numbers(values: list[str]) -> tuple[np.ndarray, int]:
    """The rank of every value among the sorted distinct values, and the number of these."""
    place = {value: number for number, value in enumerate(sorted(set(values)))}
    return np.array([place[value] for value in values], np.int64), len(place)


def _rows(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
