"""Features of a token: the attributes of CRFsuite's tutorial on chunking, and their columns.

The templates are from http://www.chokkan.org/software/crfsuite/tutorial.html, which [B13] and [G16] (appendix I.2)
used too. An attribute is a string such as ``w[0]=the`` or ``pos[-1]|pos[0]=IN|DT``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from torchssvm.core.arguments import check_whole
from torchssvm.core.files import write_text

from .columns import TaggedSentences
from .templates import Attributes, Field, Template, describe

TEMPLATES: tuple[Template, ...] = (
    *(((("w", d),)) for d in (-2, -1, 0, 1, 2)),
    *((("w", d), ("w", d + 1)) for d in (-1, 0)),
    *(((("pos", d),)) for d in (-2, -1, 0, 1, 2)),
    *((("pos", d), ("pos", d + 1)) for d in (-2, -1, 0, 1)),
    *((("pos", d), ("pos", d + 1), ("pos", d + 2)) for d in (-2, -1, 0)),
)
"""The 19 templates: fields (word or part of speech) and their offsets from the token."""

_FORMAT = "torchssvm chunking vocabulary 1"


def attributes(sentences: TaggedSentences) -> Attributes:
    """The attributes of all tokens; the 211,727 tokens of CoNLL-2000's training set have 335,674."""
    fields = {"w": Field.of(sentences.words), "pos": Field.of(sentences.pos)}
    return describe(sentences, fields, TEMPLATES, "chunking")


class Vocabulary:
    """The attributes and the tags that a model knows, each with its number.

    CoNLL-2000's training set has 335,674 attributes; 75,289 of them occur three times or more. ([G16] counts 74,658,
    of the same templates.) A chain of 22 tags then has 75,289 * 22 + 22 * 22 + 3 * 22 = 1,656,908 weights.

    Args:
        attributes: The attribute of every column, all different.
        tags: The tag of every state, all different.
        min_count: How often an attribute had to occur; kept for datasets that are derived later.
        templates: The name of the templates that gave the attributes: datasets that describe tokens by others refuse
            the vocabulary. Empty is not compared.

    Raises:
        ValueError: Attributes or tags are missing or duplicate, or ``min_count`` is below 1.

    Example:
        >>> vocabulary = Vocabulary.of(read_columns("train.txt"))
        >>> vocabulary.tags
        ('B-NP', 'I-NP', 'B-VP')
        >>> vocabulary.save("vocabulary.json")
        >>> Vocabulary.load("vocabulary.json") == vocabulary
        True
    """

    def __init__(self, attributes: Iterable[str], tags: Iterable[str], min_count: int = 1, templates: str = "") -> None:
        for name, given in (("attributes", attributes), ("tags", tags)):
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise TypeError(f"{name}={given!r} must be a list of strings, not a {type(given).__name__}")
        self.attributes = tuple(attributes)
        self.tags = tuple(tags)
        if wrong := [value for value in (*self.attributes, *self.tags) if not isinstance(value, str)]:
            raise TypeError(f"attributes and tags must be strings, and {wrong[0]!r} is a {type(wrong[0]).__name__}")
        self.min_count = check_whole(min_count, "min_count")
        if not isinstance(templates, str):
            raise TypeError(f"templates={templates!r} must be a str")
        self.templates = templates
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
            tags: The tags in order; None takes them from the sentences: O, then B and I of each type in alphabetical
                order.

        Raises:
            ValueError: ``min_count`` is below 1, or no attribute occurs so often, or the sentences have no tags.
        """
        if not isinstance(sentences, TaggedSentences):
            raise TypeError(f"sentences={sentences!r} must be TaggedSentences, as of read_columns")
        if sentences.tags is None and tags is None:
            raise ValueError(f"{sentences.source} has no tag column: a vocabulary needs tags")
        check_whole(min_count, "min_count")  # before the work
        tags = sorted_tags(sentences.tags or ()) if tags is None else tags
        return cls.from_attributes(attributes(sentences), min_count, tags)

    @classmethod
    def from_attributes(cls, attributes: Attributes, min_count: int, tags: Sequence[str]) -> Vocabulary:
        """As :meth:`of`, from attributes that are computed already."""
        often = np.flatnonzero(attributes.counts() >= check_whole(min_count, "min_count")).tolist()
        if not often:
            raise ValueError(f"min_count={min_count}: no attribute occurs so often")
        return cls([attributes.names[code] for code in often], tags, min_count, attributes.templates)

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

    def columns(self, attributes: Attributes) -> tuple[np.ndarray, np.ndarray]:
        """Row offsets int64 ``[tokens + 1]`` and columns int32; unknown attributes are left out."""
        column = np.array([self._columns.get(name, -1) for name in attributes.names], np.int32)[attributes.codes]
        known = column >= 0
        before = np.concatenate([[0], np.cumsum(known, dtype=np.int64)])  # known attributes before each place
        return before[attributes.rows], column[known]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as JSON, whole or not at all."""
        content = {
            "format": _FORMAT,
            "min_count": self.min_count,
            "templates": self.templates,
            "tags": self.tags,
            "attributes": self.attributes,
        }
        write_text(path, json.dumps(content, ensure_ascii=False, indent=0) + "\n")

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
            return cls(names, tags, content["min_count"], content.get("templates", ""))
        except (ValueError, KeyError, TypeError) as error:
            reason = "no text" if isinstance(error, UnicodeDecodeError) else f"{error!r:.200}"
            raise ValueError(f"{path} is not a vocabulary that was saved, or damaged: {reason}") from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        ours, theirs = ((one.attributes, one.tags, one.min_count, one.templates) for one in (self, other))
        return ours == theirs

    __hash__ = None  # type: ignore[assignment]  # long to compare, and nobody's key

    def __repr__(self) -> str:
        return f"Vocabulary: {len(self)} attributes, {self.num_states} tags, min_count={self.min_count}"


def sorted_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Each tag once: O, then B and I of each type in alphabetical order, and tags of other forms among the types."""
    return tuple(sorted(set(tags), key=lambda t: (t != "O", t[2:] if t[1:2] == "-" else t, t)))
