"""Spans of characters, as annotators mark them, as the tags of a tokeniser's words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
        spans: For every text, start, stop and name of its spans, in any order; ``stop`` is the character after the
            last. Spaces at the ends of a span are left out.
        labels: The tagger's: O, and B-NAME and I-NAME of each name; if any is S-NAME or E-NAME, tags are in BIOES.

    Returns:
        For every text a tag of each word, one of ``labels``.

    Raises:
        TypeError: ``texts`` is one text, or a text is no string.
        ValueError: Texts and spans differ in number, a span is no such triple, has no word or lies outside of its text,
            begins or ends within a word, or overlaps another; or ``labels`` lack O, or a tag of its words.

    Example:
        >>> spans_to_tags(tokenizer, ["are we in Rome"], [[(10, 14, "LOC")]], labels)
        [['O', 'O', 'O', 'B-LOC']]
    """
    check_several(texts, "texts", "a list of texts")
    check_several(spans, "spans", "a list with the spans of each text")
    texts, spans = list(texts), list(spans)
    if len(spans) != len(texts):
        raise ValueError(f"spans has {len(spans)} entries and texts {len(texts)}: give spans for each text")
    states, every = places_of(labels), list[list[str]]()
    if "O" not in states:
        raise ValueError(f"labels={[*labels]} lack O: add it, for words outside of spans")
    bioes = any(str(label).startswith(("S-", "E-")) for label in labels)
    for number, (text, marked) in enumerate(zip(texts, spans, strict=True)):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}] is a {type(text).__name__}: give a string, whose characters spans count")
        begins, ends = zip(*read(text, f"texts[{number}]", tokenizer).places, strict=True)
        every.append(["O"] * len(begins))
        for span in marked:
            name, tags = f"spans[{number}] has {span!r}", every[-1]
            if not isinstance(span, tuple | list) or len(span) != 3 or not all(map(is_whole, span[:2])):
                raise ValueError(f"{name}: give (start, stop, label), the first two whole numbers")
            start, stop, label = span
            if not 0 <= start < stop <= len(text):
                raise ValueError(f"{name}: start must be less than stop, and both lie in the text, 0 to {len(text)}")
            first, last = bisect_right(ends, start), bisect_left(begins, stop)
            if first == last:
                raise ValueError(f"{name}: {text[start:stop]!r} has no word: leave it out")
            for border, word in ((start, first), (stop, last - 1)):
                if begins[word] < border < ends[word]:
                    around = f"{text[max(0, border - 20) : border]}|{text[border : border + 20]}"
                    raise ValueError(f"{name}: {border} lies within a word, {around!r}: move it to the word's edge")
            if set(tags[first:last]) != {"O"}:
                raise ValueError(f"{name}, which overlaps another span: keep one of them")
            letters = "B" + "I" * (last - first - 1)
            if bioes:
                letters = letters[:-1] + ("E" if letters[1:] else "S")
            tags[first:last] = [f"{letter}-{label}" for letter in letters]
            if lacking := sorted(set(tags[first:last]) - states.keys()):
                raise ValueError(f"{name}: labels lack {', '.join(lacking)}")
    return every
