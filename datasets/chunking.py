"""Sentences with tags as sparse chains: a list of columns for every token, and never a dense matrix."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from torchssvm.batch import Batch
from torchssvm.sparse import SparseFeatures

from .chunking_features import Attributes, Vocabulary, attributes
from .columns import TaggedSentences, read_columns
from .padded import PADDING, Example, place_of


class ChunkingDataset(Dataset[Example]):
    """A map-style dataset of sentences; :meth:`collate` and ``__getitems__`` make its batches.

    An item is ``(x, y, index)``: ``SparseFeatures`` with columns int64 [T, P], -1 where a token has fewer than P; the
    states of the tags, int64 [T]; and the number of the sentence. A batch has columns [B, N, P] and y [B, N], both -1
    where padded.

    Attributes of the sentences that the vocabulary does not have are left out. Where the sentences have no tags, y is
    -1 throughout: enough to predict, and nothing else.

    Args:
        sentences: What :func:`torchssvm.datasets.columns.read_columns` read.
        vocabulary: Columns and states.
        stand_in: The tag that ``y`` shows in place of tags that the vocabulary does not have; None: they are an error.
            :meth:`tags` are those of the file in any case, so that chunk scores are not touched.
        found: The attributes of these sentences, where they have been made already.

    Attributes:
        sentences: As given.
        vocabulary: As given.
        rows: int64 ``[tokens + 1]``, and
        columns: int32: token t has the features ``columns[rows[t] : rows[t + 1]]``.
        states: int64 ``[tokens]``.
        lengths: int64 ``[n]``, tokens of each sentence.

    Raises:
        ValueError: A tag is not in the vocabulary; the message names file and line.
    """

    def __init__(
        self,
        sentences: TaggedSentences,
        vocabulary: Vocabulary,
        *,
        stand_in: str | None = None,
        found: Attributes | None = None,
    ) -> None:
        self.states = torch.from_numpy(_states(sentences, vocabulary, stand_in))
        self.sentences = sentences
        self.vocabulary = vocabulary
        self.stand_in = stand_in
        rows, columns = vocabulary.columns(attributes(sentences) if found is None else found)
        self.rows, self.columns = torch.from_numpy(rows), torch.from_numpy(columns)
        self._starts = torch.from_numpy(sentences.offsets)
        self.lengths = self._starts.diff()

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], vocabulary: Vocabulary, *, stand_in: str | None = None
    ) -> ChunkingDataset:
        """The sentences of any column file, with the vocabulary of a training set; the tag column may be missing."""
        return ChunkingDataset(read_columns(path, tags_optional=True), vocabulary, stand_in=stand_in)

    @property
    def in_features(self) -> int:
        """Columns of the vocabulary."""
        return len(self.vocabulary)

    @property
    def num_states(self) -> int:
        """Tags of the vocabulary."""
        return self.vocabulary.num_states

    def words(self, i: int) -> list[str]:
        """The words of a sentence."""
        return self.sentences.words[self._slice(i)]

    def tags(self, i: int) -> list[str]:
        """The tags of a sentence as they stand in the file."""
        if self.sentences.tags is None:
            raise ValueError(f"{self.sentences.source} has no tags")
        return self.sentences.tags[self._slice(i)]

    def features(self, i: int) -> list[list[str]]:
        """The attributes of the tokens of a sentence, without those that the vocabulary does not have."""
        tokens, names = self._slice(i), self.vocabulary.attributes
        rows = self.rows[tokens.start : tokens.stop + 1].tolist()
        return [[names[c] for c in self.columns[a:b].tolist()] for a, b in itertools.pairwise(rows)]

    def tags_of(self, labelings: Tensor, lengths: Tensor) -> list[list[str]]:
        """The tags that a batch of predicted states stands for.

        Args:
            labelings: ``[B, N]`` int64, states; what lies beyond each length is not read.
            lengths: ``[B]`` int64.

        Raises:
            ValueError: A state is not one of the vocabulary.
        """
        names = self.vocabulary.tags
        inside = torch.arange(labelings.shape[1], device=labelings.device) < lengths.unsqueeze(1)
        if bool(((labelings < 0) | (labelings >= len(names)))[inside].any()):
            raise ValueError(
                f"labelings must hold 0 to {len(names) - 1}, the states of the vocabulary, within the lengths"
            )
        return [
            [names[state] for state in row[:length]]
            for row, length in zip(labelings.tolist(), lengths.tolist(), strict=True)
        ]

    def hold_out(self, share: float = 0.1) -> tuple[ChunkingDataset, ChunkingDataset]:
        """The first sentences to train on, and the last to choose by: both numbered from 0.

        The vocabulary is made anew, of the first part alone and with the same ``min_count``; the tags stay.

        Args:
            share: Of the sentences, to be held out; the number is rounded.

        Raises:
            ValueError: ``share`` leaves one of the parts empty.
        """
        n = len(self)
        last = round(n * share) if 0 < share < 1 else 0
        if not 0 < last < n:
            raise ValueError(
                f"share={share} of {n} sentences leaves one of the parts empty: it must lie between 0 and 1"
            )
        first, rest = self.sentences.part(0, n - last), self.sentences.part(n - last, n)
        found = attributes(first)
        vocabulary = Vocabulary.from_attributes(found, self.vocabulary.min_count, self.vocabulary.tags)
        return (
            ChunkingDataset(first, vocabulary, stand_in=self.stand_in, found=found),
            ChunkingDataset(rest, vocabulary, stand_in=self.stand_in),
        )

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, i: int) -> Example:
        batch = self.__getitems__([i])
        return Example(SparseFeatures(batch.x.columns[0]), batch.y[0], int(batch.index[0]))

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """The sentences at ``indices`` as one batch, cropped to its longest; a ``DataLoader`` calls this."""
        index = torch.as_tensor(indices if isinstance(indices, Tensor) else list(indices))
        n = len(self)
        if not index.numel():
            raise ValueError("indices is empty: a batch needs at least one sentence")
        low, high = int(index.min()), int(index.max())
        if low < -n or high >= n:
            raise IndexError(f"index {high if high >= n else low} is out of range for a dataset of {n} sentences")
        index = index % n
        lengths = self.lengths[index]
        place = torch.arange(int(lengths.max()))
        real = place < lengths[:, None]
        token = torch.where(real, self._starts[index][:, None] + place, 0)  # [B, N]
        y = torch.where(real, self.states[token], PADDING)
        row, count = self.rows[token], torch.where(real, self.rows[token + 1] - self.rows[token], 0)
        within = torch.arange(max(int(count.max()), 1))
        there = within < count[..., None]
        at = torch.where(there, row[..., None] + within, 0)  # [B, N, P]
        taken = self.columns[at] if len(self.columns) else at  # no attribute may be known at all
        return Batch(x=SparseFeatures(torch.where(there, taken.long(), PADDING)), y=y, index=index, lengths=lengths)

    @staticmethod
    def collate(examples: Batch | Sequence[Example]) -> Batch:
        """A batch from what a ``DataLoader`` fetched: a batch already, or a list of examples to be padded."""
        if isinstance(examples, Batch):
            return examples
        if not examples:
            raise ValueError("examples is empty: a batch needs at least one example")
        most = max(example.x.columns.shape[1] for example in examples)
        columns = [pad(x.columns, (0, most - x.columns.shape[1]), value=PADDING) for x, _, _ in examples]
        return Batch(
            x=SparseFeatures(pad_sequence(columns, batch_first=True, padding_value=PADDING)),
            y=pad_sequence([y for _, y, _ in examples], batch_first=True, padding_value=PADDING),
            index=torch.tensor([index for _, _, index in examples]),
            lengths=torch.tensor([len(y) for _, y, _ in examples]),
        )

    def _slice(self, i: int) -> slice:
        at = place_of(i, len(self), "sentences")
        return slice(int(self._starts[at]), int(self._starts[at + 1]))

    def __repr__(self) -> str:
        tokens = len(self.sentences.words)
        return f"{type(self).__name__}: {len(self)} sentences, {tokens} tokens, {self.in_features} columns"


def _states(sentences: TaggedSentences, vocabulary: Vocabulary, stand_in: str | None) -> np.ndarray:
    """The state of every token; -1 where there are no tags."""
    other = None if stand_in is None else vocabulary.state(stand_in)
    if stand_in is not None and other is None:
        raise ValueError(f"stand_in={stand_in!r} is not one of the vocabulary's tags: {', '.join(vocabulary.tags)}")
    if sentences.tags is None:
        return np.full(len(sentences.words), PADDING, np.int64)
    state: dict[str, int] = {}
    for tag in set(sentences.tags):
        found = vocabulary.state(tag)
        found = other if found is None else found
        if found is None:
            raise ValueError(
                f"{sentences.where(sentences.tags.index(tag))}: tag {tag!r} is not one of the vocabulary's: "
                f"{', '.join(vocabulary.tags)}; stand_in= names the tag to show in its place"
            )
        state[tag] = found
    return np.array([state[tag] for tag in sentences.tags], np.int64)
