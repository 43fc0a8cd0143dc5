"""Tokenised sentences with tags, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import check_readable, check_several, is_whole, places_of
from torchssvm.core.batch import select_tokens
from torchssvm.core.structure import reject_rows
from torchssvm.datasets.padded import padded
from torchssvm.transformers.windows import check_stride, cut, read

INPUTS = ("input_ids", "attention_mask", "token_type_ids")

NO_WORD = -100  # the label of positions without a tag: padding, special tokens, and all but the first piece of a word
_SEVERAL = (set, frozenset, tuple, list)


def tokenized(
    tokenizer: Any,
    sentences: Sequence[str] | Sequence[Sequence[str]],
    tags: Sequence[Sequence[Any]],
    labels: Sequence[str],
    *,
    stride: int | None = None,
) -> list[dict[str, list[Any]]]:
    """Sentences with the tags of their words, as the items that a tagger and ``transformers.Trainer`` train on.

    Args:
        tokenizer: A fast one.
        sentences: Lists of words, or texts, whose words are the tokeniser's, as of :func:`spans_to_tags`.
        tags: The tag of every word, one of ``labels`` or, where these are texts, its place among them; or, as a set,
            tuple or list, those that it may have, which are all ``labels`` where it is unknown. Arrays are taken too.
        stride: Cuts a sentence of more than ``tokenizer.model_max_length`` pieces into windows; two neighbours share
            up to ``stride`` pieces; each is an item. A word has its label in the window in which it stands farthest
            from an edge, and -100 in others. No window begins within a span, at I- or E-. None refuses such a sentence.

    Returns:
        For each sentence ``input_ids``, ``attention_mask`` and ``labels``: the state of the tag at the first piece of a
        word, -100 elsewhere. Where a word of any sentence has several tags, ``labels`` are lists of truth values at
        each piece, one for each of K labels: True at those that are allowed, and all False where no word begins. With
        ``stride`` also ``window``: the number of the item among those of its sentence, and how many these are.

    Raises:
        TypeError: ``sentences`` is one text, or the tags of a sentence are no list.
        ValueError: Sentences and tags differ in number, a sentence has no word, or another number of tags than words, a
            tag is none of the labels, a word has no piece or may have no tag, or a sentence has more pieces than the
            tokeniser says that the encoder takes: nothing is cut off. With ``stride``: it is not less than a window, or
            a span is longer.

    Example:
        >>> tokenized(tokenizer, sentences, tags, labels)[1]["labels"]
        [0, 1]
        >>> tokenized(tokenizer, [["in", "Rome"]], [[0, 1]], labels)[0]["labels"]
        [0, 1]
        >>> tokenized(tokenizer, [["in", "Rome"]], [["O", {"B-LOC", "I-LOC"}]], labels)[0]["labels"]
        [[True, False, False], [False, True, True]]
    """
    states = places_of(labels)
    limit = tokenizer.model_max_length
    check_stride(stride, tokenizer, limit)
    check_several(sentences, "sentences", "a list of sentences")
    check_several(tags, "tags", "a list with the tags of each sentence")
    sentences, tags = list(sentences), list(tags)
    if len(tags) != len(sentences):
        raise ValueError(f"tags has {len(tags)} entries and sentences {len(sentences)}: give tags for each sentence")
    for place, row in enumerate(tags):
        check_several(row, f"tags[{place}]", "a list of tags")
        check_readable(row, f"tags[{place}]")
    tags = [row.tolist() if hasattr(row, "tolist") else row for row in tags]
    several = any(isinstance(tag, _SEVERAL) for row in tags for tag in row)
    names = dict(enumerate(labels)) if all(isinstance(label, str) for label in labels) else {}  # by place
    items: list[dict[str, list[Any]]] = []
    for place, (words, row) in enumerate(zip(sentences, tags, strict=True)):
        pieces = read(words, name := f"sentences[{place}]", tokenizer)
        if (count := len(pieces.places)) != len(row):
            raise ValueError(f"{name}={words!r} must have as many words as tags: {count} words, {len(row)} tags")
        allowed = [
            [names.get(one, one) if is_whole(one) else one for one in (tag if isinstance(tag, _SEVERAL) else (tag,))]
            for tag in row
        ]
        for word, choices in enumerate(allowed):
            if not choices or not all(tag in states for tag in choices):
                raise ValueError(f"tags[{place}][{word}]={row[word]!r}: give labels, or all where it is unknown")
        starts = [word for word, choices in enumerate(allowed) if not word or not all(map(_goes_on, choices))]
        windows = cut(pieces, name, limit, stride, starts)
        for number, window in enumerate(windows):
            positions = range(len(window.inputs["input_ids"]))
            target: list[Any] = [[False] * len(states) if several else NO_WORD for _ in positions]
            for piece, word in zip(window.first, window.words, strict=True):
                choices = allowed[word]
                target[piece] = [label in choices for label in states] if several else states[choices[0]]
            item = {key: window.inputs[key] for key in INPUTS if key in window.inputs}
            items.append(item | {"labels": target} | ({} if stride is None else {"window": [number, len(windows)]}))
    return items


def _goes_on(label: Any) -> bool:
    """Whether a word of this label belongs to the span of the word before."""
    return isinstance(label, str) and label.startswith(("I-", "E-"))


def documents_of(items: Sequence[Mapping[str, Any]]) -> list[range]:
    """The places of the items of each sentence: one, or all its windows."""
    documents, place = list[range](), 0
    while place < len(items):
        count = items[place].get("window", (0, 1))[1]
        numbers = [item.get("window", (0, 1)) for item in items[place : place + count]]
        if [tuple(number) for number in numbers] != [(number, count) for number in range(count)]:
            raise ValueError(f"dataset[{place}] is a window without the others of its text: split texts, not windows")
        documents.append(range(place, place + count))
        place += count
    return documents


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


def batches_of(dataset: Any, size: int, pad: int, device: torch.device) -> Iterator[dict[str, Tensor]]:
    """Padded batches of ``size`` tokenised sentences, items of :func:`collate`; ``pad`` is the id of padding."""
    for begin in range(0, len(dataset), size):
        batch = collate([dataset[place] for place in range(begin, min(begin + size, len(dataset)))], pad)
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
