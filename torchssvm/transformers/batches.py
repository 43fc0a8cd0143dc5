"""Tokenised sentences: their batches, and the words of which a tokeniser made several pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.batch import select_tokens

INPUTS = ("input_ids", "attention_mask", "token_type_ids")

NO_WORD = -100
"""The label of a position that is tagged with no word: padding, special tokens, further pieces of a word."""


def tokenized(
    tokenizer: Any, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[str]], labels: Sequence[str]
) -> list[dict[str, list[int]]]:
    """Sentences as lists of words, with their tags, as the items that a tagger and ``transformers.Trainer`` train on.

    Args:
        tokenizer: A fast one.
        sentences: Words.
        tags: The tag of every word.
        labels: The name of every state.

    Returns:
        For each sentence ``input_ids``, ``attention_mask`` and ``labels``: the state of the tag at the first piece of a
        word, -100 elsewhere.

    Raises:
        ValueError: A sentence has another number of tags than words, a tag is none of the labels, a word has no piece,
            or a sentence has more pieces than the tokeniser says that the encoder takes: nothing is cut off.

    Example:
        >>> tokenized(tokenizer, sentences, tags, labels)[1]["labels"]
        [0, 1]
    """
    states = {name: state for state, name in enumerate(labels)}
    found = []
    for place, (words, own) in enumerate(zip(sentences, tags, strict=True)):
        if len(words) != len(own):
            raise ValueError(f"sentence {place} has {len(words)} words and {len(own)} tags")
        if unknown := [tag for tag in own if tag not in states]:
            raise ValueError(f"sentence {place} has the tag {unknown[0]!r}, which is none of labels={list(labels)}")
        pieces = tokenizer(list(words), is_split_into_words=True, truncation=False, verbose=False)
        held = pieces.word_ids()
        check_pieces(len(held), tokenizer.model_max_length, f"sentence {place}")
        if len(set(held) - {None}) < len(words):
            lost = min(set(range(len(words))) - set(held))
            raise ValueError(f"word {lost} of sentence {place}, {words[lost]!r}, has no piece: the tokeniser drops it")
        first = [word is not None and word not in held[:piece] for piece, word in enumerate(held)]
        target = [states[own[word]] if begins else NO_WORD for word, begins in zip(held, first, strict=True)]
        found.append({**{name: pieces[name] for name in INPUTS if name in pieces}, "labels": target})
    return found


def check_pieces(count: int, limit: int, name: str) -> None:
    """Raise ValueError if a text has more pieces than the encoder takes."""
    if count > limit:
        raise ValueError(
            f"{name} has {count} pieces, and the encoder takes {limit}: cut it into sentences, as nothing is left out "
            "silently"
        )


class Words(NamedTuple):
    """The words of a batch, each row's from the left.

    Attributes:
        features: ``[B, T, F]``.
        labels: ``[B, T]`` int64, -1 in the padding; None where none are given.
        lengths: ``[B]`` int64.
        mask: ``[B, N]`` bool, the positions that the words come from.
    """

    features: Tensor
    labels: Tensor | None
    lengths: Tensor
    mask: Tensor

    def scatter(self, tags: Tensor) -> Tensor:
        """Tags of the words ``[B, T]`` at their positions, ``[B, N]``; ``NO_WORD`` elsewhere."""
        found = torch.full(self.mask.shape, NO_WORD, device=tags.device)
        found[self.mask] = tags[torch.arange(tags.shape[1], device=tags.device) < self.lengths.unsqueeze(1)]
        return found


def words_of(hidden: Tensor, mask: Tensor, labels: Tensor | None) -> Words:
    """The words at the True positions of ``mask``, gradients included.

    Raises:
        ValueError: A row has no word.
    """
    if not bool(mask.any(1).all()):
        row = int((~mask.any(1)).nonzero()[0, 0])
        raise ValueError(
            f"row {row} of the batch has no word: a label of {NO_WORD} stands at every position. Leave the sentence out"
        )
    if labels is None:
        features, lengths = select_tokens(mask, hidden)
        return Words(features, None, lengths, mask)
    features, packed, lengths = select_tokens(mask, hidden, labels)
    return Words(features, packed, lengths, mask)


def batches_of(dataset: Any, size: int, pad: int, device: torch.device) -> Iterator[dict[str, Tensor]]:
    """Padded batches of a dataset of tokenised sentences, in its order.

    Args:
        dataset: Map-style; an item maps names such as ``input_ids``, ``attention_mask`` and ``labels`` to lists of
            numbers of one length.
        size: Sentences in a batch.
        pad: The id of padding.
        device: Where the tensors are needed.

    Raises:
        TypeError: An item is no mapping, or has no ``input_ids``.
    """
    fill = {"input_ids": pad, "labels": NO_WORD}
    for begin in range(0, len(dataset), size):
        items = [dataset[i] for i in range(begin, min(begin + size, len(dataset)))]
        for place, item in enumerate(items):
            if not isinstance(item, Mapping) or "input_ids" not in item:
                raise TypeError(
                    f"dataset[{begin + place}] is a {type(item).__name__}, and must map input_ids, attention_mask and "
                    "labels to lists of numbers, as a tokeniser makes them"
                )
        longest = max(len(item["input_ids"]) for item in items)
        batch = {}
        for name in items[0]:
            if name in (*INPUTS, "labels"):
                rows = torch.full((len(items), longest), fill.get(name, 0))
                for row, item in zip(rows, items, strict=True):
                    row[: len(item[name])] = torch.as_tensor(item[name])
                batch[name] = rows.to(device)
        if "attention_mask" not in batch:
            lengths = torch.tensor([len(item["input_ids"]) for item in items]).unsqueeze(1)
            batch["attention_mask"] = (torch.arange(longest) < lengths).long().to(device)
        yield batch
