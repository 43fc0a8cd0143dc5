"""Attributes of tokens from templates: fields of a token and of its neighbours, such as ``w[0]=the``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .columns import TaggedSentences

Template = tuple[tuple[str, int], ...]
"""Fields and their offsets from the token."""

BEGIN, END = "__BOS__", "__EOS__"
"""Attributes of the first and of the last token of a sentence."""


class Attributes(NamedTuple):
    """The attributes of every token, as lists of numbers.

    Attributes:
        names: The attributes that occur, each once: template by template, each in the order of its values.
        rows: int64 ``[tokens + 1]``: token t has the attributes ``codes[rows[t] : rows[t + 1]]``.
        codes: int32, indices into ``names``.
        templates: The name of the templates; empty if they have none.
        tokens: The fingerprint of the tokens; empty if it was not taken.
    """

    names: list[str]
    rows: np.ndarray
    codes: np.ndarray
    templates: str = ""
    tokens: str = ""

    def counts(self) -> np.ndarray:
        """The count of each attribute, int64."""
        return np.bincount(self.codes, minlength=len(self.names))

    def check(self, sentences: TaggedSentences) -> None:
        """Raise ValueError unless these are the attributes of the sentences."""
        if self.tokens != fingerprint(sentences):
            raise ValueError(f"attributes belong to other sentences than {sentences.source}: leave them out")

    def of(self, token: int) -> list[str]:
        """The attributes of a token."""
        return [self.names[code] for code in self.codes[self.rows[token] : self.rows[token + 1]]]


class Field(NamedTuple):
    """A property of every token: ``numbers`` int64 ``[tokens]``, indices into the sorted ``values`` that occur.

    A token whose value is empty gets no attribute of it.
    """

    numbers: np.ndarray
    values: list[str]

    @classmethod
    def of(cls, values: Sequence[str]) -> Field:
        """From the value of each token."""
        distinct = sorted(set(values))
        place = {value: number for number, value in enumerate(distinct)}
        return cls(np.array([place[value] for value in values], np.int64), distinct)

    def mapped(self, function: Callable[[str], str]) -> Field:
        """A function of this property, called once for each value."""
        of_values = Field.of([function(value) for value in self.values])
        return Field(of_values.numbers[self.numbers], of_values.values)


def describe(
    sentences: TaggedSentences, fields: Mapping[str, Field], templates: Sequence[Template], name: str
) -> Attributes:
    """The attributes of all tokens; a template that reaches outside the sentence gives none.

    All tokens are processed at once: values become numbers, and only distinct attributes become strings. A template
    gives a token at most one attribute, such as ``w[-1]|w[0]=of|the``; ``name`` is what the templates are called.
    """
    lengths = np.diff(sentences.offsets)
    place = np.arange(len(sentences.words)) - np.repeat(sentences.offsets[:-1], lengths)
    left, right = place, np.repeat(lengths, lengths) - 1 - place  # tokens before and after in the sentence

    table: dict[str, int] = {}
    codes = np.full((len(place), len(templates) + 2), -1, np.int32)
    for column, template in enumerate(templates):
        tokens = np.flatnonzero(np.logical_and.reduce([(left >= -d) & (right >= d) for _, d in template]))
        for field, d in template:
            numbers, values = fields[field]
            if values[0] == "":  # sorted, it comes first
                tokens = tokens[numbers[tokens + d] > 0]
        key = np.zeros(len(tokens), np.int64)
        for field, d in template:
            numbers, values = fields[field]
            if int(key.max(initial=0)) >= 2**62 // len(values):  # the product would overflow: use ranks
                key = np.unique(key, return_inverse=True)[1]
            key = key * len(values) + numbers[tokens + d]
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        prefix = "|".join(f"{field}[{d}]" for field, d in template) + "="
        parts = [
            [fields[field].values[number] for number in fields[field].numbers[tokens[first] + d].tolist()]
            for field, d in template
        ]
        names = [prefix + "|".join(some) for some in zip(*parts, strict=True)]
        # Values that contain | can give two keys the same attribute.
        codes[tokens, column] = np.array([table.setdefault(name, len(table)) for name in names], np.int32)[inverse]
    codes[left == 0, -2] = table.setdefault(BEGIN, len(table))
    codes[right == 0, -1] = table.setdefault(END, len(table))
    there = codes >= 0
    rows = np.concatenate([[0], np.cumsum(there.sum(1), dtype=np.int64)])
    return Attributes(list(table), rows, codes[there], name, fingerprint(sentences))


def fingerprint(sentences: TaggedSentences) -> str:
    """A short name of the words, parts of speech and lengths of sentences: the same for the same sentences only."""
    hashed = hashlib.blake2b(digest_size=16)
    for values in (sentences.words, sentences.pos):
        hashed.update("\0".join(values).encode("utf-8", "surrogatepass"))
        hashed.update(b"\0\0")
    hashed.update(np.ascontiguousarray(sentences.offsets - sentences.offsets[0], np.int64).tobytes())
    return hashed.hexdigest()
