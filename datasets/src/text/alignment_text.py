"""The files of the word alignment task: sentence pairs, and the links between their words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ..lines import read_lines, words_of

Link = tuple[int, int]
"""A French and an English word, by their positions in the sentence, from 0."""

_SENTENCE = re.compile(r"<s snum=([0-9]{1,18})>(.*)</s>")
_LINK = re.compile(r"([0-9]{1,18})-([0-9]{1,18})(-P)?")


class SentencePair(NamedTuple):
    """A sentence in both languages, with its links if they are known.

    Attributes:
        french: Its words.
        english: Its words.
        sure: Links that an alignment must have.
        possible: Links that an alignment may have, including the sure ones.

    Example:
        >>> links = frozenset({(0, 0)})
        >>> pair = SentencePair(french=("le", "chien"), english=("the", "dog"), sure=links, possible=links | {(1, 1)})
        >>> sorted(pair.possible)
        [(0, 0), (1, 1)]
    """

    french: tuple[str, ...]
    english: tuple[str, ...]
    sure: frozenset[Link] = frozenset()
    possible: frozenset[Link] = frozenset()


def read_aligned(french: Path, english: Path, links: Path) -> list[SentencePair]:
    """Sentence pairs with their links.

    A line of the texts is ``<s snum=0001> its words </s>``; the line of the links that belongs to it has entries
    ``3-5`` (a sure link of French word 3 with English word 5) and ``3-5-P`` (a possible one). ValueError, with file and
    line, if a line has another form, a link names a missing word, or the files do not belong together.
    """
    left, right, linked = _lines(french), _lines(english), _lines(links)
    _same_length({french: left, english: right, links: linked})
    pairs = []
    for number, (f, e, text) in enumerate(zip(left, right, linked, strict=True), 1):
        (one, f_words), (other, e_words) = _tagged(french, number, f), _tagged(english, number, e)
        if one != other:
            raise ValueError(f"{english}, line {number}: snum={other}, and {french.name} has snum={one} there")
        pairs.append(_with_links(f_words, e_words, text, f"{links}, line {number}"))
    return pairs


def read_unaligned(french: Path, english: Path) -> list[SentencePair]:
    """Sentence pairs without links: one sentence a line, words separated by spaces.

    ValueError if a sentence has no words, or the files have different numbers of lines.
    """
    left, right = _lines(french), _lines(english)
    _same_length({french: left, english: right})
    sides = [
        [_words(path, number, text) for number, text in enumerate(lines, 1)]
        for path, lines in ((french, left), (english, right))
    ]
    return [SentencePair(*pair) for pair in zip(*sides, strict=True)]


def _with_links(french: tuple[str, ...], english: tuple[str, ...], text: str, where: str) -> SentencePair:
    sure: set[Link] = set()
    possible: set[Link] = set()
    for entry in words_of(text):
        match = _LINK.fullmatch(entry)
        if match is None:
            raise ValueError(f"{where}: {entry!r} is no link; a link is FRENCH-ENGLISH or FRENCH-ENGLISH-P, from 0")
        link = int(match[1]), int(match[2])
        if link[0] >= len(french) or link[1] >= len(english):
            raise ValueError(
                f"{where}: the link {entry} is out of range of {len(french)} French and {len(english)} English words"
            )
        if link in possible:
            raise ValueError(f"{where}: the link {link[0]}-{link[1]} comes twice")
        possible.add(link)
        if not match[3]:
            sure.add(link)
    return SentencePair(french, english, frozenset(sure), frozenset(possible))


def _lines(path: Path) -> list[str]:
    lines = read_lines(path)
    if not lines[-1]:
        del lines[-1]
    if not lines:
        raise ValueError(f"{path} is empty")
    return lines


def _same_length(files: dict[Path, list[str]]) -> None:
    if len({len(lines) for lines in files.values()}) > 1:
        counts = ", ".join(f"{path} has {len(lines)}" for path, lines in files.items())
        raise ValueError(f"the files must have one line for each sentence pair: {counts}")


def _tagged(path: Path, number: int, line: str) -> tuple[int, tuple[str, ...]]:
    match = _SENTENCE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"{path}, line {number}: expected '<s snum=NUMBER> words </s>', got {line[:60]!r}")
    return int(match[1]), _words(path, number, match[2])


def _words(path: Path, number: int, text: str) -> tuple[str, ...]:
    words = tuple(words_of(text))
    if not words:
        raise ValueError(f"{path}, line {number}: the sentence has no words")
    return words
