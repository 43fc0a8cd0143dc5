"""The spans of texts, with their probabilities: windows of a text are joined before one Viterbi decodes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torchssvm.core.arguments import check_several
from torchssvm.core.modules import evaluating
from torchssvm.core.potentials import Potentials
from torchssvm.datasets.padded import padded
from torchssvm.datasets.text.chunk_f1 import Chunk, chunks
from torchssvm.datasets.text.tag_schemes import to_bio
from torchssvm.transformers.batches import words_of
from torchssvm.transformers.windows import Window, check_stride, cut, read


class Span(NamedTuple):
    """Some words of a text that bear a label.

    Attributes:
        label: Its name, without the letter of the scheme.
        start: The first character, or the first word of a list of words.
        stop: The character, or word, after the last.
        text: The characters, or the words joined by spaces.
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
    whole: Any
    places: list[tuple[int, int]]  # start and stop of each word
    windows: list[Window]


def tag_texts(tagger: Any, texts: Any, tokenizer: Any, batch_size: int, stride: int | None) -> list[list[Span]]:
    """See :meth:`StructuredTagger.tag`."""
    check_several(texts, "texts", "a list of texts")
    limit = getattr(tagger.config.encoder, "max_position_embeddings", None) or 1 << 40
    limit = min(limit, tokenizer.model_max_length)
    check_stride(stride, tokenizer, limit)
    every, sizes = list[_Text](), list[int]()
    for place, text in enumerate(texts):
        pieces = read(text, f"texts[{place}]", tokenizer)
        every.append(_Text(text, pieces.places, cut(pieces, f"texts[{place}]", limit, stride)))
        sizes.append(pieces.bounds[-1])
    order, by_text = sorted(range(len(every)), key=sizes.__getitem__), [list[Span]() for _ in every]
    with evaluating(tagger):
        for begin in range(0, len(every), batch_size):
            places = order[begin : begin + batch_size]
            spans = _tag(tagger, [every[place] for place in places], tokenizer, batch_size)
            for place, its_spans in zip(places, spans, strict=True):
                by_text[place] = its_spans
    return by_text


@torch.no_grad()
def _tag(tagger: Any, texts: list[_Text], tokenizer: Any, batch_size: int) -> list[list[Span]]:
    potentials = _potentials(tagger, texts, tokenizer, batch_size)
    tags = tagger.head.structure.argmax(potentials).labeling.cpu()
    by_text = [_chunks(tagger, row[: len(text.places)].tolist()) for row, text in zip(tags, texts, strict=True)]
    scores = iter(_probabilities(tagger, potentials, tags, by_text))
    spans: list[list[Span]] = []
    for (whole, places, _), its_chunks in zip(texts, by_text, strict=True):
        spans.append([])
        for chunk in its_chunks:
            start, stop = places[chunk.start][0], places[chunk.stop - 1][1]
            content = whole[start:stop] if isinstance(whole, str) else " ".join(whole[start:stop])
            spans[-1].append(Span(chunk.type, start, stop, content, next(scores)))
    return spans


def _potentials(tagger: Any, texts: list[_Text], tokenizer: Any, batch_size: int) -> Potentials:
    """The scores of whole texts; the encoder sees ``batch_size`` windows at a time, whose features are not kept."""
    windows = [(window, window.words.stop < len(text.places)) for text in texts for window in text.windows]
    emission: list[Tensor] = []
    for begin in range(0, len(windows), batch_size):
        some = windows[begin : begin + batch_size]
        # on the right, whatever the tokeniser does: the positions of many encoders count from the left
        inputs = tokenizer.pad([window.inputs for window, _ in some], padding_side="right", return_tensors="pt")
        inputs = inputs.to(tagger.device)
        # An empty word stands for those before and behind, so that the head's scores of a text's ends go to the ends.
        mask = torch.zeros(len(some), inputs["input_ids"].shape[1] + 2, dtype=torch.bool)
        for row, (window, goes_on) in enumerate(some):
            mask[row, torch.tensor(window.first) + 1] = True
            mask[row, 0], mask[row, -1] = window.words.start > 0, goes_on
        hidden = functional.pad(tagger.hidden(**inputs), (0, 0, 1, 1))
        potentials = tagger.potentials(words_of(hidden, mask.to(hidden.device), None))
        for row, (window, _) in zip(potentials["emission"], some, strict=True):
            skip = int(window.words.start > 0)
            emission.append(row[skip : skip + len(window.words)].clone())
    parts, transition = iter(emission), potentials["transition"][:1]
    rows = [torch.cat([next(parts) for _ in text.windows]) for text in texts]
    lengths = torch.tensor([len(row) for row in rows], device=tagger.device)
    return Potentials({"emission": padded(rows, 0), "transition": transition.expand(len(rows), -1, -1)}, lengths)


def _chunks(tagger: Any, states: Sequence[int]) -> list[Chunk]:
    names = [tagger.config.labels[state] for state in states]
    if tagger.config.scheme is None:
        return [Chunk(place, place + 1, name) for place, name in enumerate(names)]
    return chunks(to_bio(names))


def _probabilities(tagger: Any, potentials: Potentials, tags: Tensor, by_text: list[list[Chunk]]) -> list[float]:
    """The probability of each span: the mass of the sequences with its states, over that of all sequences."""
    places = [(row, chunk.start, chunk.stop - 1) for row, its_chunks in enumerate(by_text) for chunk in its_chunks]
    if not places:
        return []
    config, labels = tagger.config, tagger.config.labels
    restricted = tagger.head.structure.restricted(potentials)
    emission, transition = (
        restricted[name].cpu().double() / config.probability_temperature for name in ("emission", "transition")
    )
    lengths = (tags >= 0).sum(1)
    before, behind = _messages(emission, transition, lengths)
    row, first, last = torch.tensor(places).unbind(1)
    every = before[torch.arange(len(tags)), lengths - 1].logsumexp(1)
    known, texts = tags.clamp(min=0), torch.arange(len(tags)).unsqueeze(1)
    steps = emission.gather(2, known.unsqueeze(2)).squeeze(2)
    steps[:, 1:] += transition[texts, known[:, :-1], known[:, 1:]]
    path = steps.cumsum(1)
    state = known[row, last]
    after = behind[row, last, state]
    if config.scheme == "BIO":  # the span must not go on
        on = torch.tensor([[name[:1] == "I" and name[1:] == other[1:] for name in labels] for other in labels])
        next_place = (last + 1).clamp(max=emission.shape[1] - 1)
        scores = transition[row, state] + emission[row, next_place] + behind[row, next_place]
        after = torch.where(last + 1 < lengths[row], scores.masked_fill(on[state], -torch.inf).logsumexp(1), after)
    total = before[row, first, known[row, first]] + path[row, last] - path[row, first] + after
    return (total - every[row]).exp().clamp(max=1.0).tolist()


def _messages(emission: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The log masses of what may stand up to a word, it included, and of what may follow it: ``[B, N, K]`` each."""
    before, behind = emission.clone(), torch.zeros_like(emission)
    for place in range(1, emission.shape[1]):
        before[:, place] += (before[:, place - 1].unsqueeze(2) + transition).logsumexp(1)
    for place in range(emission.shape[1] - 1, 0, -1):
        follows = (transition + (emission[:, place] + behind[:, place]).unsqueeze(1)).logsumexp(2)
        behind[:, place - 1] = follows.masked_fill((lengths <= place).unsqueeze(1), 0.0)
    return before, behind
