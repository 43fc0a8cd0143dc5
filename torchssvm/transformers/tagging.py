"""Raw text to spans with probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torchssvm.core.gradients import evaluating
from torchssvm.core.marginals import marginals_at
from torchssvm.core.potentials import Potentials
from torchssvm.datasets.text.chunk_f1 import Chunk, chunks
from torchssvm.datasets.text.tag_schemes import to_bio
from torchssvm.transformers.batches import check_pieces


class Span(NamedTuple):
    """Some words of a text that bear a label.

    Attributes:
        label: Its name, without the letter of the scheme.
        start: The first character, or the first word of a list of words.
        stop: The character, or word, behind the last.
        text: What is there.
        score: The probability that exactly these words are such a span, at the temperature of the tagger.

    Example:
        >>> Span("LOC", start=7, stop=11, text="Rome", score=0.9).text
        'Rome'
    """

    label: str
    start: int
    stop: int
    text: str
    score: float


class _Text(NamedTuple):
    pieces: Any  # of the tokeniser
    first: list[int]  # of the pieces: that of each word
    places: list[tuple[int, int]]  # of each word, in characters or words


def tag_texts(tagger: Any, texts: Any, tokenizer: Any, batch_size: int) -> list[list[Span]]:
    """See :meth:`StructuredTagger.tag`."""
    if isinstance(texts, str):
        raise TypeError("texts is one string, and a list of texts is needed: [text]")
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"tokenizer is a {type(tokenizer).__name__}, and a fast one is needed, which knows the words of its pieces"
        )
    limit = getattr(tagger.config.encoder, "max_position_embeddings", None) or 1 << 40
    limit = min(limit, tokenizer.model_max_length)
    read = [_read(text, place, tokenizer, limit) for place, text in enumerate(texts)]
    found: list[list[Span]] = []
    with evaluating(tagger):
        for begin in range(0, len(read), batch_size):
            some = read[begin : begin + batch_size]
            found += _tag(tagger, some, texts[begin : begin + batch_size], tokenizer)
    return found


def _read(text: Any, place: int, tokenizer: Any, limit: int) -> _Text:
    split = not isinstance(text, str)
    if split and not (isinstance(text, list | tuple) and all(isinstance(word, str) for word in text)):
        raise TypeError(f"texts[{place}]={text!r} must be a text, or a list of words")
    pieces = tokenizer(text, is_split_into_words=split, return_offsets_mapping=True, truncation=False, verbose=False)
    words, offsets = pieces.word_ids(), pieces.pop("offset_mapping")
    first: list[int] = []
    places: list[Any] = []
    for piece, word in enumerate(words):
        if word is None:
            continue
        if not first or word != words[first[-1]]:
            first.append(piece)
            places.append((word, word + 1) if split else tuple(offsets[piece]))
        elif not split:
            places[-1] = (places[-1][0], offsets[piece][1])
    if not first:
        raise ValueError(f"texts[{place}]={text!r} has no word: leave it out")
    if split and len(first) < len(text):
        empty = next(i for i in range(len(text)) if i not in words)
        raise ValueError(
            f"texts[{place}] has the word {text[empty]!r} at {empty}, of which no piece is left: leave it out"
        )
    check_pieces(len(words), limit, f"texts[{place}]")
    return _Text(pieces, first, places)


@torch.no_grad()
def _tag(tagger: Any, read: list[_Text], texts: Any, tokenizer: Any) -> list[list[Span]]:
    inputs = tokenizer.pad([dict(text.pieces) for text in read], return_tensors="pt").to(tagger.device)
    shift = [0] * len(read)
    if tokenizer.padding_side == "left":
        shift = (inputs["input_ids"].shape[1] - torch.tensor([len(t.pieces["input_ids"]) for t in read])).tolist()
    mask = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    for row, text in enumerate(read):
        mask[row, torch.tensor(text.first) + shift[row]] = True
    words = tagger.words(word_mask=mask, **inputs)
    potentials = tagger.potentials(words)
    tags = tagger.head.structure.argmax(potentials).labeling.cpu()
    found = [_chunks(tagger, row[:length].tolist()) for row, length in zip(tags, words.lengths.tolist(), strict=True)]
    scores = iter(_probabilities(tagger, potentials, tags, found))
    spans: list[list[Span]] = []
    for text, whole, its in zip(read, texts, found, strict=True):
        spans.append([])
        for chunk in its:
            start, stop = text.places[chunk.start][0], text.places[chunk.stop - 1][1]
            content = whole[start:stop] if isinstance(whole, str) else " ".join(whole[start:stop])
            spans[-1].append(Span(chunk.type, start, stop, content, next(scores)))
    return spans


def _chunks(tagger: Any, states: Sequence[int]) -> list[Chunk]:
    names = [tagger.config.labels[state] for state in states]
    if tagger.config.scheme is None:
        return [Chunk(place, place + 1, name) for place, name in enumerate(names)]
    return chunks(to_bio(names))


def _probabilities(tagger: Any, potentials: Potentials, tags: torch.Tensor, found: list[list[Chunk]]) -> list[float]:
    """``Z`` of the sequences with a span over that of all: the scores of all other tags there are -inf."""
    rows = [row for row, its in enumerate(found) for _ in its]
    if not rows:
        return []
    structure, config = tagger.head.structure, tagger.config
    scores = {name: tensor.detach().cpu() for name, tensor in potentials.tensors.items()}
    lengths = None if potentials.lengths is None else potentials.lengths.cpu()
    every = marginals_at(structure, Potentials(scores, lengths), config.probability_temperature).log_partition
    emission, inside = scores["emission"][rows].clone(), [name.startswith("I-") for name in config.labels]
    for copy, chunk in enumerate(chunk for its in found for chunk in its):
        states = tags[rows[copy], chunk.start : chunk.stop]
        own = emission[copy, chunk.start : chunk.stop]
        own.copy_(torch.full_like(own, -torch.inf).scatter(1, states[:, None], own.gather(1, states[:, None])))
        if config.scheme == "BIO" and chunk.stop < emission.shape[1]:  # it must not go on
            on = [state for state, name in enumerate(config.labels) if inside[state] and name[2:] == chunk.type]
            emission[copy, chunk.stop, on] = -torch.inf
    fixed = Potentials(
        {"emission": emission, "transition": scores["transition"][rows]}, None if lengths is None else lengths[rows]
    )
    own = marginals_at(structure, fixed, config.probability_temperature).log_partition
    ratio = (own - every[rows]).exp()
    return ratio.clamp(max=1.0).tolist()
