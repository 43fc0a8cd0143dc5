"""Tokenised sentences: batches of them, and the words that tokenisers split into pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import check_readable, check_several, is_whole, places_of
from torchssvm.core.batch import select_tokens
from torchssvm.core.marginals import marginals_at
from torchssvm.core.modules import evaluating
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import reject_rows
from torchssvm.datasets.padded import padded
from torchssvm.datasets.text.chunk_f1 import Chunk, chunks
from torchssvm.datasets.text.tag_schemes import to_bio

INPUTS = ("input_ids", "attention_mask", "token_type_ids")

NO_WORD = -100  # the label of positions without a tag: padding, special tokens, and all but the first piece of a word
_SEVERAL = (set, frozenset, tuple, list)


def tokenized(
    tokenizer: Any, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[Any]], labels: Sequence[str]
) -> list[dict[str, list[Any]]]:
    """Sentences as lists of words, with their tags, as the items that a tagger and ``transformers.Trainer`` train on.

    Args:
        tokenizer: A fast one.
        tags: The tag of every word, one of ``labels`` or, where these are texts, its place among them; or, as a set,
            tuple or list, those that it may have, which are all ``labels`` where it is unknown. Arrays are taken too.

    Returns:
        For each sentence ``input_ids``, ``attention_mask`` and ``labels``: the state of the tag at the first piece of a
        word, -100 elsewhere. Where a word of any sentence has several tags, ``labels`` are lists of truth values at
        each piece, one for each of K labels: True at those that are allowed, and all False where no word begins.

    Raises:
        ValueError: A sentence has another number of tags than words, a tag is none of the labels, a word has no piece
            or may have no tag, or a sentence has more pieces than the tokeniser says that the encoder takes: nothing is
            cut off.

    Example:
        >>> tokenized(tokenizer, sentences, tags, labels)[1]["labels"]
        [0, 1]
        >>> tokenized(tokenizer, [["in", "Rome"]], [[0, 1]], labels)[0]["labels"]
        [0, 1]
        >>> tokenized(tokenizer, [["in", "Rome"]], [["O", {"B-LOC", "I-LOC"}]], labels)[0]["labels"]
        [[True, False, False], [False, True, True]]
    """
    states = places_of(labels)
    for place, row in enumerate(tags):
        check_readable(row, f"tags[{place}]")
    tags = [row.tolist() if hasattr(row, "tolist") else row for row in tags]
    several = any(isinstance(tag, _SEVERAL) for row in tags for tag in row)
    names = dict(enumerate(labels)) if all(isinstance(label, str) for label in labels) else {}  # by place
    items = []
    for place, (words, row) in enumerate(zip(sentences, tags, strict=True)):
        check_readable(words, f"sentences[{place}]")
        if isinstance(words, str) or len(words) != len(row):
            raise ValueError(f"sentences[{place}]={words!r} must be a list of as many words as tags, {len(row)}")
        allowed = [
            [names.get(one, one) if is_whole(one) else one for one in (tag if isinstance(tag, _SEVERAL) else (tag,))]
            for tag in row
        ]
        for word, choices in enumerate(allowed):
            if not choices or not all(tag in states for tag in choices):
                raise ValueError(f"tags[{place}][{word}]={row[word]!r}: give labels, or all where it is unknown")
        pieces = tokenizer(list(words), is_split_into_words=True, truncation=False, verbose=False)
        word_ids = pieces.word_ids()
        check_pieces(words, word_ids, tokenizer.model_max_length, f"sentences[{place}]")
        begins = [None if word in word_ids[:piece] else word for piece, word in enumerate(word_ids)]
        target: list[Any]
        if several:
            target = [[word is not None and name in allowed[word] for name in states] for word in begins]
        else:
            target = [NO_WORD if word is None else states[allowed[word][0]] for word in begins]
        items.append({**{name: pieces[name] for name in INPUTS if name in pieces}, "labels": target})
    return items


def check_pieces(words: Sequence[str], word_ids: Sequence[int | None], limit: int, name: str) -> None:
    """Raise ValueError for a word without pieces, or more pieces than the encoder takes."""
    if lost := set(range(len(words))) - set(word_ids):
        raise ValueError(f"{name} has the word {words[min(lost)]!r}, which the tokeniser drops: leave it out")
    if len(word_ids) > limit:
        raise ValueError(f"{name} has {len(word_ids)} pieces, and the encoder takes {limit}: cut it into sentences")


class Words(NamedTuple):
    """The words of a batch, each row's from the left.

    Attributes:
        features: ``[B, T, F]``.
        labels: ``[B, T]`` int64, -1 in the padding; or those that are allowed, ``[B, T, K]`` bool, False in the
            padding; None where none are given.
        lengths: ``[B]`` int64.
        mask: ``[B, N]`` bool, the positions of the words.
    """

    features: Tensor
    labels: Tensor | None
    lengths: Tensor
    mask: Tensor

    def scatter(self, tags: Tensor, fill: float = NO_WORD) -> Tensor:
        """Tags of the words ``[B, T]``, or scores ``[B, T, K]``, at their positions, ``[B, N]``; ``fill`` elsewhere."""
        rows = torch.full((*self.mask.shape, *tags.shape[2:]), fill, dtype=tags.dtype, device=tags.device)
        rows[self.mask] = tags[torch.arange(tags.shape[1], device=tags.device) < self.lengths.unsqueeze(1)]
        return rows


def words_of(hidden: Tensor, mask: Tensor, labels: Tensor | None) -> Words:
    """The words at the True positions of ``mask``, gradients included."""
    reject_rows(~mask.any(1), "{rows} have no word, as no position has a label: leave these sentences out")
    features, *packed, lengths = select_tokens(mask, hidden, *([] if labels is None else [labels]))
    return Words(features, packed[0] if packed else None, lengths, mask)


def by_length(items: Sequence[Any]) -> list[int]:
    """The places of tokenised sentences, the shortest first: batches of similar lengths have little padding."""
    lengths = [len(item["input_ids"]) for item in items]
    return sorted(range(len(items)), key=lengths.__getitem__)


def batches_of(
    dataset: Any, size: int, pad: int, device: torch.device, order: Sequence[int] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Padded batches of ``size`` tokenised sentences, items of :func:`collate`, on ``device``.

    ``pad`` is the id of padding, and ``order`` the places of the sentences; None keeps the order of the dataset.
    """
    order = range(len(dataset)) if order is None else order
    for begin in range(0, len(order), size):
        places = order[begin : begin + size]
        batch = collate([dataset[place] for place in places], pad)
        yield {name: rows.to(device) for name, rows in batch.items()}


def collate(items: Sequence[Mapping[str, Any]], pad: int) -> dict[str, Tensor]:
    """A batch of tokenised sentences, padded on the right by the id ``pad``.

    Each of ``items`` maps ``input_ids``, ``attention_mask``, ``labels`` and ``word_mask``, or some of them, to lists of
    one length.
    """
    batch = {}
    for name in (*INPUTS, "labels", "word_mask"):
        having = [item for item in items if name in item]
        if having:
            rows = [torch.as_tensor(item[name]) for item in having]
            if len(having) < len(items) or len({row.ndim for row in rows}) > 1:
                raise ValueError(f"{name} is missing or of another form in some sentences: give one form for all")
            batch[name] = padded(rows, {"input_ids": pad, "labels": NO_WORD}.get(name, 0))
    if "attention_mask" not in batch:
        batch["attention_mask"] = padded([torch.ones_like(torch.as_tensor(item["input_ids"])) for item in items], 0)
    return batch


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
    pieces: Any  # output of the tokeniser
    first: list[int]  # the first piece of each word
    places: list[tuple[int, int]]  # start and stop of each word, in characters or words


def tag_texts(tagger: Any, texts: Any, tokenizer: Any, batch_size: int) -> list[list[Span]]:
    """See :meth:`StructuredTagger.tag`."""
    check_several(texts, "texts", "a list of texts")
    texts = list(texts)
    limit = getattr(tagger.config.encoder, "max_position_embeddings", None) or 1 << 40
    limit = min(limit, tokenizer.model_max_length)
    read = [_read(text, place, tokenizer, limit) for place, text in enumerate(texts)]
    order, by_text = by_length([text.pieces for text in read]), [list[Span]() for _ in read]
    with evaluating(tagger):
        for begin in range(0, len(read), batch_size):
            places = order[begin : begin + batch_size]
            spans = _tag(tagger, [read[place] for place in places], [texts[place] for place in places], tokenizer)
            for place, its_spans in zip(places, spans, strict=True):
                by_text[place] = its_spans
    return by_text


def _read(text: Any, place: int, tokenizer: Any, limit: int) -> _Text:
    split = not isinstance(text, str)
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
    check_pieces(text if split else (), words, limit, f"texts[{place}]")
    return _Text(pieces, first, places)


@torch.no_grad()
def _tag(tagger: Any, read: list[_Text], texts: Any, tokenizer: Any) -> list[list[Span]]:
    # on the right, whatever the tokeniser does: the positions of many encoders count from the left
    inputs = tokenizer.pad([dict(text.pieces) for text in read], padding_side="right", return_tensors="pt")
    inputs = inputs.to(tagger.device)
    mask = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    for row, text in enumerate(read):
        mask[row, text.first] = True
    words = tagger.words(word_mask=mask, **inputs)
    potentials = tagger.potentials(words)
    tags = tagger.head.structure.argmax(potentials).labeling.cpu()
    rows = zip(tags, words.lengths.tolist(), strict=True)
    by_text = [_chunks(tagger, row[:length].tolist()) for row, length in rows]
    scores = iter(_probabilities(tagger, potentials, tags, by_text))
    spans: list[list[Span]] = []
    for text, whole, its_chunks in zip(read, texts, by_text, strict=True):
        spans.append([])
        for chunk in its_chunks:
            start, stop = text.places[chunk.start][0], text.places[chunk.stop - 1][1]
            content = whole[start:stop] if isinstance(whole, str) else " ".join(whole[start:stop])
            spans[-1].append(Span(chunk.type, start, stop, content, next(scores)))
    return spans


def _chunks(tagger: Any, states: Sequence[int]) -> list[Chunk]:
    names = [tagger.config.labels[state] for state in states]
    if tagger.config.scheme is None:
        return [Chunk(place, place + 1, name) for place, name in enumerate(names)]
    return chunks(to_bio(names))


def _probabilities(tagger: Any, potentials: Potentials, tags: Tensor, by_text: list[list[Chunk]]) -> list[float]:
    """The share of the sequences with the span in the partition function; other tags of its words score -inf."""
    rows = [row for row, its_chunks in enumerate(by_text) for _ in its_chunks]
    if not rows:
        return []
    structure, config = tagger.head.structure, tagger.config
    scores = {name: tensor.detach().cpu() for name, tensor in potentials.tensors.items()}
    lengths = None if potentials.lengths is None else potentials.lengths.cpu()
    every = marginals_at(structure, Potentials(scores, lengths), config.probability_temperature).log_partition
    emission, inside = scores["emission"][rows].clone(), [name.startswith("I-") for name in config.labels]
    for copy, chunk in enumerate(chunk for its_chunks in by_text for chunk in its_chunks):
        states = tags[rows[copy], chunk.start : chunk.stop]
        words = emission[copy, chunk.start : chunk.stop]
        words.copy_(torch.full_like(words, -torch.inf).scatter(1, states[:, None], words.gather(1, states[:, None])))
        if config.scheme == "BIO" and chunk.stop < emission.shape[1]:  # it must not go on
            on = [state for state, name in enumerate(config.labels) if inside[state] and name[2:] == chunk.type]
            emission[copy, chunk.stop, on] = -torch.inf
    fixed = Potentials(
        {"emission": emission, "transition": scores["transition"][rows]}, None if lengths is None else lengths[rows]
    )
    with_span = marginals_at(structure, fixed, config.probability_temperature).log_partition
    return (with_span - every[rows]).exp().clamp(max=1.0).tolist()
