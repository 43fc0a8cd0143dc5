"""Spans of characters, as annotators mark them, as the tags of a tokeniser's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchssvm.core.arguments import check_several, is_whole, places_of
from torchssvm.transformers.windows import read


def spans_to_tags(
    tokenizer: Any, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int, str]]], labels: Sequence[str]
) -> list[list[str]]:
    """The tags of the words of texts in which spans of characters are marked, as :func:`tokenized` takes them.

    Args:
        tokenizer: A fast one, which splits the texts into words, as ``word_ids`` says.
        texts: Strings.
        spans: Of every text, start, stop and name of its spans, in any order; ``stop`` is the character after the last.
            Doccano and spaCy export such triples. Spaces at their ends are left out.
        labels: The tagger's: O, and B-NAME and I-NAME of each name; with S-NAME or E-NAME tags are in BIOES.

    Returns:
        For every text a tag of each word, one of ``labels``.

    Raises:
        TypeError: ``texts`` is one text, or a text is no string.
        ValueError: A span is no such triple, is empty or beyond its text, begins or ends within a word, or overlaps
            another; or ``labels`` lack a tag that its words need.

    Example:
        >>> spans_to_tags(tokenizer, ["are we in Rome"], [[(10, 14, "LOC")]], labels)
        [['O', 'O', 'O', 'B-LOC']]
    """
    check_several(texts, "texts", "a list of texts")
    states = places_of(labels)
    bioes = any(str(label).startswith(("S-", "E-")) for label in labels)
    every = []
    for number, (text, marked) in enumerate(zip(texts, spans, strict=True)):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}] is a {type(text).__name__}: give a string, whose characters spans count")
        places = read(text, f"texts[{number}]", tokenizer).places
        tags = ["O"] * len(places)
        for span in marked:
            name = f"spans[{number}] has {span!r}"
            if not isinstance(span, tuple | list) or len(span) != 3 or not (is_whole(span[0]) and is_whole(span[1])):
                raise ValueError(f"{name}: give (start, stop, label), the first two whole numbers")
            start, stop, label = span
            if not 0 <= start < stop <= len(text):
                raise ValueError(f"{name}: start and stop must lie in order within the text, 0 to {len(text)}")
            words = [word for word, (begin, end) in enumerate(places) if begin < stop and start < end]
            for word in words[:1] + words[-1:]:
                begin, end = places[word]
                for border in (start, stop):
                    if begin < border < end:
                        around = text[max(0, begin - 20) : border] + "|" + text[border : end + 20]
                        raise ValueError(f"{name}: {border} lies within a word, {around!r}: move it to the word's edge")
            if not words:
                raise ValueError(f"{name}: {text[start:stop]!r} holds no word: leave it out")
            if any(tags[word] != "O" for word in words):
                raise ValueError(f"{name}, which overlaps another span: keep one of them")
            letters = ["B", *"I" * (len(words) - 1)]
            if bioes:
                letters[-1] = "S" if len(words) == 1 else "E"
            for word, letter in zip(words, letters, strict=True):
                tags[word] = f"{letter}-{label}"
                if tags[word] not in states:
                    raise ValueError(f"{name}: labels lack {tags[word]!r}")
        if "O" in tags and "O" not in states:
            raise ValueError(f"labels={list(labels)} lack 'O', for words in no span")
        every.append(tags)
    return every
