"""Texts as an encoder takes them: the pieces of their words, in one window or in several that overlap."""

from __future__ import annotations

import itertools
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torchssvm.core.arguments import check_readable, check_several, check_whole

_UNLIMITED = 10**6  # tokenisers that do not know what the encoder takes say 10^30


class Pieces(NamedTuple):
    """A text, tokenised."""

    inputs: dict[str, list[int]]  # of the encoder, lists of one length: input_ids, attention_mask
    bounds: list[int]  # where the pieces of each word begin, with spaces behind it, and the piece after the last
    first: list[int]  # the first piece of each word
    places: list[tuple[int, int]]  # start and stop of each word, in characters of a text, or words of a list


class Window(NamedTuple):
    """Some pieces of a text, between the special ones."""

    inputs: dict[str, list[int]]
    words: range  # those of the text that are read from this window; it may show others too
    first: list[int]  # the positions of their first pieces


def check_stride(stride: Any, tokenizer: Any, limit: int) -> None:
    """Raise unless ``stride`` is None, or fewer pieces than a window of ``limit`` has besides the special ones."""
    if stride is None:
        return
    if limit > _UNLIMITED:
        raise ValueError(f"tokenizer.model_max_length={limit}: set it to what the encoder takes, such as 512")
    most = limit - tokenizer.num_special_tokens_to_add() - 1
    check_whole(stride, "stride", 0, most=most, advice=", less than a window takes")


def read(text: Any, name: str, tokenizer: Any) -> Pieces:
    """The pieces of a text, or of a list of words; ValueError where it has no word, or a word has no piece."""
    split = not isinstance(text, str)
    if split:
        check_several(text, name, "a text or a list of words")
        check_readable(text, name)
        text = list(text)
    output = tokenizer(text, is_split_into_words=split, return_offsets_mapping=True, truncation=False, verbose=False)
    offsets, words = output.pop("offset_mapping"), output.word_ids()
    inner = [at for at, word in enumerate(words) if word is not None]
    first, places = list[int](), list[tuple[int, int]]()
    for word, group in itertools.groupby(inner, words.__getitem__):
        its = [*group]
        start, stop = (word, word + 1) if split else (offsets[its[0]][0], offsets[its[-1]][1])
        if not split:  # byte-level tokenisers keep the space before a word, and make words of other spaces
            content = text[start:stop]
            if not content.strip():
                continue
            start, stop = stop - len(content.lstrip()), start + len(content.rstrip())
        first.append(its[0])
        places.append((start, stop))
    if not first:
        raise ValueError(f"{name}={text!r} has no word: leave it out")
    if not split:  # tokenisers that drop accents count none behind the last letter
        bounds = [*(start for start, _ in places[1:]), len(text)]
        places = [
            (start, next((at for at in range(stop, bound) if not unicodedata.combining(text[at])), max(stop, bound)))
            for (start, stop), bound in zip(places, bounds, strict=True)
        ]
    if split and (lost := set(range(len(text))) - set(words)):
        raise ValueError(f"{name} has the word {text[min(lost)]!r}, which the tokeniser drops: leave it out")
    return Pieces(dict(output), [inner[0], *first[1:], inner[-1] + 1], first, places)


def cut(pieces: Pieces, name: str, limit: int, stride: int | None, starts: Sequence[int] | None = None) -> list[Window]:
    """Windows of at most ``limit`` pieces, the special ones included; together they read every word once, in order.

    Neighbours share at most ``stride`` pieces. Windows begin and end at ``starts``, the first word among them; None is
    all words. A word is read from the window in which it stands farthest from an edge; a window that would read none is
    left out. Raises ValueError where ``stride`` is None and one window is too small, or none takes a start to the next.
    """
    total = len(pieces.inputs["input_ids"])
    if total <= limit:
        return [Window(pieces.inputs, range(len(pieces.places)), pieces.first)]
    if stride is None:
        raise ValueError(
            f"{name} has {total} pieces, and the encoder takes {limit}: give stride=, or cut it into sentences"
        )
    starts = [*(range(len(pieces.places)) if starts is None else starts), len(pieces.places)]
    bounds = [pieces.bounds[word] for word in starts]
    room = limit - bounds[0] - (total - bounds[-1])
    for unit, (begin, stop) in enumerate(itertools.pairwise(bounds)):
        if stop - begin > room:
            start, end = pieces.places[starts[unit]][0], pieces.places[starts[unit + 1] - 1][1]
            raise ValueError(
                f"{name}: a window takes {room} pieces, and the word or span from {start} to {end} has {stop - begin}: "
                "cut it"
            )
    windows = []
    for begin, stop, unit, end in _shares(bounds, room, stride):
        inputs = {
            key: row[: bounds[0]] + row[bounds[begin] : bounds[stop]] + row[bounds[-1] :]
            for key, row in pieces.inputs.items()
        }
        words, shift = range(starts[unit], starts[end]), bounds[0] - bounds[begin]
        windows.append(Window(inputs, words, [pieces.first[word] + shift for word in words]))
    return windows


def _shares(bounds: list[int], room: int, stride: int) -> Iterator[tuple[int, int, int, int]]:
    """Begin and stop of each window, and of the units that are read from it; unit i has the pieces from ``bounds[i]``.

    The units are contiguous: a later window is better from some unit on, as the distance to its left edge grows.
    """
    units, windows = len(bounds) - 1, [(0, bisect_right(bounds, bounds[0] + room) - 1)]
    while (stop := windows[-1][1]) < units:
        begin = bisect_left(bounds, max(bounds[stop] - stride, bounds[stop + 1] - room))  # unit ``stop`` fits too
        windows.append((begin, bisect_right(bounds, bounds[begin] + room) - 1))
    best = [(-1, 0)] * units  # distance and, from 0 downwards, number of the window: of equal ones, the first
    for number, (begin, stop) in enumerate(windows):
        for unit in range(begin, stop):
            distance = min(bounds[unit] - bounds[begin], bounds[stop] - bounds[unit + 1])
            best[unit] = max(best[unit], (distance, -number))
    for number, group in itertools.groupby(range(units), lambda unit: -best[unit][1]):
        its = [*group]
        yield *windows[number], its[0], its[-1] + 1
