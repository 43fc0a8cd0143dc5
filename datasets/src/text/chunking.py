"""Sentences with tags as sparse chains: every token has a list of columns."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_object

from ..padded import PADDING
from ..parts import size_of_share
from .chunking_features import Vocabulary, attributes
from .columns import Columns, TaggedSentences, read_columns
from .sparse_chains import SparseChains
from .tag_schemes import BIO
from .templates import Attributes


class ChunkingDataset(SparseChains):
    """A map-style dataset of sentences; :meth:`collate` and ``__getitems__`` make its batches.

    Items and batches are as in :class:`torchssvm.datasets.SparseChains`, with columns only; states are tags.

    Attributes that are not in the vocabulary are left out. If the sentences have no tags, y is -1 throughout, which
    suffices for predictions.

    Args:
        sentences: From :func:`torchssvm.datasets.text.columns.read_columns`.
        vocabulary: Columns and states.
        stand_in: The tag in ``y`` for tags that are not in the vocabulary; None makes them an error.
            :meth:`tags` always returns the tags of the file, so that chunk scores are not affected.
        attributes: The attributes of these sentences, if they are computed already.

    Attributes:
        sentences: As given.
        vocabulary: As given.
        offsets, rows, columns, states, lengths: As in :class:`torchssvm.datasets.SparseChains`.
        in_features: Columns of the vocabulary.
        num_states: Tags of the vocabulary.

    Raises:
        ValueError: A tag is not in the vocabulary (the message names file and line), ``attributes`` belongs to other
            sentences, or the vocabulary to other templates.

    Example:
        >>> sentences = read_columns("train.txt")
        >>> train = ChunkingDataset(sentences, Vocabulary.of(sentences))
        >>> train.words(0), train.tags(0)
        (['Anna', 'sees', 'the', 'river'], ['B-NP', 'B-VP', 'B-NP', 'I-NP'])
        >>> head = SparseLinearChain(train.in_features, train.num_states)
        >>> solve(head, train, lam=0.1, tolerance=Relative(0.1)).relative_gap <= 0.1
        True
    """

    what = "sentences"
    describe = staticmethod(attributes)
    """The attributes of sentences; a subclass may have others."""

    def __init__(
        self,
        sentences: TaggedSentences,
        vocabulary: Vocabulary,
        *,
        stand_in: str | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        if not isinstance(sentences, TaggedSentences) or not isinstance(vocabulary, Vocabulary):
            raise TypeError(
                "sentences must be TaggedSentences, as of read_columns, and vocabulary a Vocabulary, got a "
                f"{type(sentences).__name__} and a {type(vocabulary).__name__}"
            )
        states = _states(sentences, vocabulary, stand_in)
        if attributes is None:
            attributes = self.describe(sentences)
        else:
            check_object(attributes, "attributes", "check", "ChunkingDataset.describe(sentences)")
            attributes.check(sentences)
        if vocabulary.templates and attributes.templates != vocabulary.templates:
            raise ValueError(
                f"vocabulary has the attributes of {vocabulary.templates!r}, and a {type(self).__name__} has "
                f"{attributes.templates!r}: give the vocabulary of a training set of the same class"
            )
        rows, columns = vocabulary.columns(attributes)
        super().__init__(
            offsets=torch.from_numpy(sentences.offsets),
            rows=torch.from_numpy(rows),
            columns=torch.from_numpy(columns),
            states=torch.from_numpy(states),
            in_features=len(vocabulary),
            num_states=vocabulary.num_states,
        )
        self.sentences = sentences
        self.vocabulary = vocabulary
        self.stand_in = stand_in

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        vocabulary: Vocabulary,
        *,
        columns: Columns | None = None,
        stand_in: str | None = None,
        scheme: str | None = BIO,
    ) -> ChunkingDataset:
        """The sentences of any column file, with the vocabulary of a training set; the tag column may be missing.

        Args:
            path: The file.
            vocabulary: That of the training set.
            columns: Which columns are read, as :func:`read_columns` takes them.
            stand_in: As in the class.
            scheme: As :func:`read_columns` takes it.
        """
        return cls(read_columns(path, columns, tags_optional=True, scheme=scheme), vocabulary, stand_in=stand_in)

    def words(self, i: int) -> list[str]:
        """The words of a sentence."""
        return self.sentences.words[self.tokens(i)]

    def tags(self, i: int) -> list[str]:
        """The tags of a sentence as they stand in the file."""
        if self.sentences.tags is None:
            raise ValueError(f"{self.sentences.source} has no tags")
        return self.sentences.tags[self.tokens(i)]

    def features(self, i: int) -> list[list[str]]:
        """The attributes of the tokens of a sentence that are in the vocabulary."""
        tokens, names = self.tokens(i), self.vocabulary.attributes
        rows = self.rows[tokens.start : tokens.stop + 1].tolist()
        return [[names[c] for c in self.columns[a:b].tolist()] for a, b in itertools.pairwise(rows)]

    def tags_of(self, labelings: Tensor, lengths: Tensor) -> list[list[str]]:
        """The tags of a batch of predicted states.

        Args:
            labelings: ``[B, N]`` int64, states; entries beyond each length are ignored.
            lengths: ``[B]`` int64.

        Raises:
            ValueError: A state is not in the vocabulary.
        """
        names = self.vocabulary.tags
        inside = torch.arange(labelings.shape[1], device=labelings.device) < lengths.unsqueeze(1)
        if bool(((labelings < 0) | (labelings >= len(names)))[inside].any()):
            raise ValueError(f"labelings must hold 0 to {len(names) - 1}, states of the vocabulary, within the lengths")
        return [
            [names[state] for state in row[:length]]
            for row, length in zip(labelings.tolist(), lengths.tolist(), strict=True)
        ]

    def hold_out(self, share: float = 0.1) -> tuple[ChunkingDataset, ChunkingDataset]:
        """The first sentences for training and the last for validation, both numbered from 0.

        The new vocabulary comes from the first part, with the same ``min_count`` and the same tags.

        Args:
            share: Share of the sentences that is held out; their number is rounded.

        Raises:
            ValueError: ``share`` leaves one of the parts empty.
        """
        n = len(self)
        last = size_of_share(n, share)
        first, rest = self.sentences.part(0, n - last), self.sentences.part(n - last, n)
        attributes = self.describe(first)
        vocabulary = Vocabulary.from_attributes(attributes, self.vocabulary.min_count, self.vocabulary.tags)
        return (
            self._made_of(first, vocabulary, stand_in=self.stand_in, attributes=attributes),
            self._made_of(rest, vocabulary, stand_in=self.stand_in),
        )

    def _made_of(self, sentences: TaggedSentences, vocabulary: Vocabulary, **options: Any) -> ChunkingDataset:
        """Other sentences in the same form; a subclass reads files by its constructor."""
        made = type(self).__new__(type(self))
        ChunkingDataset.__init__(made, sentences, vocabulary, **options)
        return made


def _states(sentences: TaggedSentences, vocabulary: Vocabulary, stand_in: str | None) -> np.ndarray:
    """The state of every token; -1 where there are no tags."""
    other = None if stand_in is None else vocabulary.state(stand_in)
    if stand_in is not None and other is None:
        raise ValueError(f"stand_in={stand_in!r} is not one of the vocabulary's tags: {', '.join(vocabulary.tags)}")
    if sentences.tags is None:
        return np.full(len(sentences.words), PADDING, np.int64)
    state: dict[str, int] = {}
    for tag in set(sentences.tags):
        known = vocabulary.state(tag)
        known = other if known is None else known
        if known is None:
            raise ValueError(
                f"{sentences.where(sentences.tags.index(tag))}: tag {tag!r} is not one of the vocabulary's: "
                f"{', '.join(vocabulary.tags)}; stand_in= names the tag to show in its place"
            )
        state[tag] = known
    return np.array([state[tag] for tag in sentences.tags], np.int64)
