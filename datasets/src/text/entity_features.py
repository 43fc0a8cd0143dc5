"""Features of a token for named entities: its spelling and its neighbours' spelling; nothing is downloaded.

As in the feature sets of L. Ratinov, D. Roth, *Design Challenges and Misconceptions in Named Entity Recognition* (CoNLL
2009), without gazetteers and clusters: words, prefixes and suffixes in lower case, and shapes. The shape of a word has
X for a capital, x for a small letter and d for a digit; other signs, such as hyphens and full stops, stay. A short
shape has runs of the same sign once: ``McDonald's`` has the shapes ``XxXxxxxx'x`` and ``XxXx'x``.
"""

from __future__ import annotations

import itertools
from functools import partial

from .columns import TaggedSentences
from .templates import Attributes, Field, Template, describe

LONGEST = 5
"""Letters of the longest prefixes and suffixes."""

_SHAPE = 10  # longer shapes are cut off

TEMPLATES: tuple[Template, ...] = (
    *((("w", 0),), (("shape", 0),)),
    *((("lower", d),) for d in (-2, -1, 0, 1, 2)),
    *((("short", d),) for d in (-2, -1, 0, 1, 2)),
    *(((f"{end}{k}", 0),) for end in ("begin", "end") for k in range(1, LONGEST + 1)),
    *((("end3", d),) for d in (-1, 1)),
    *((("lower", d), ("lower", d + 1)) for d in (-1, 0)),
    *((("short", d), ("short", d + 1)) for d in (-1, 0)),
    (("short", -1), ("short", 0), ("short", 1)),
    (("lower", -1), ("short", 0)),
    (("short", 0), ("lower", 1)),
    *((("pos", d),) for d in (-1, 0, 1)),
    (("pos", -1), ("pos", 0)),
)
"""The templates; without parts of speech in a file, their templates give nothing."""


def entity_attributes(sentences: TaggedSentences) -> Attributes:
    """The attributes of all tokens."""
    words = Field.of(sentences.words)
    lower, form = words.mapped(str.lower), words.mapped(shape)
    fields = {"w": words, "lower": lower, "shape": form.mapped(lambda one: one[:_SHAPE]), "short": form.mapped(short)}
    fields["pos"] = Field.of(sentences.pos).mapped(lambda one: "" if one == "_" else one)
    for k in range(1, LONGEST + 1):
        fields[f"begin{k}"] = lower.mapped(partial(_begin, k))
        fields[f"end{k}"] = lower.mapped(partial(_end, k))
    return describe(sentences, fields, TEMPLATES, "entities")


def shape(word: str) -> str:
    """X for capitals, x for small letters, d for digits; other signs stay."""
    return "".join("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word)


def short(form: str) -> str:
    """Runs of the same sign become one."""
    return "".join(sign for sign, _ in itertools.groupby(form))


def _begin(size: int, word: str) -> str:
    return word[:size] if len(word) >= size else ""


def _end(size: int, word: str) -> str:
    return word[-size:] if len(word) >= size else ""
