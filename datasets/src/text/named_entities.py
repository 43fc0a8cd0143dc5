"""Named entities in column files of any kind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from torchssvm.core.arguments import check_whole
from torchssvm.structures.chain.transitions import Transitions

from .chunking import ChunkingDataset
from .chunking_features import Vocabulary, sorted_tags
from .columns import Columns, TaggedSentences, read_columns
from .entity_features import entity_attributes
from .tag_schemes import BIO, bio_transitions, to_bio
from .templates import Attributes


class NamedEntities(ChunkingDataset):
    """Sentences with named entities, and attributes of spelling: words, shapes, prefixes and suffixes, neighbours.

    Items, batches and methods are as in :class:`ChunkingDataset`. Tags are BIO, whatever the scheme of the file:
    O, then B-X and I-X of each type in alphabetical order. Tags that were read with ``scheme=None`` stay as they are.
    Attributes that the training set does not have are left out.

    Args:
        sentences: From :func:`torchssvm.datasets.read_columns`.
        vocabulary: That of the training set; None makes it of these sentences, which need tags.
        min_count: How often an attribute must occur to have a column, where the vocabulary is made.
        stand_in: The tag in ``y`` for tags that are not in the vocabulary, such as tags of a type without training
            examples; None makes them an error.
        attributes: The attributes of these sentences, if they are computed already.

    Attributes:
        vocabulary: As given, or made.

    Raises:
        ValueError: ``attributes`` or ``vocabulary`` belongs to other sentences or templates, or a tag is not in the
            vocabulary; the message names file and line.

    Example:
        >>> train = NamedEntities(read_columns("train.txt", Columns(pos=1)))
        >>> train.vocabulary.num_states
        5
        >>> test = NamedEntities.from_file("train.txt", train.vocabulary, columns=Columns(pos=1))
        >>> test.tags(1)
        ['B-NP', 'B-VP']
    """

    describe = staticmethod(entity_attributes)

    def __init__(
        self,
        sentences: TaggedSentences,
        vocabulary: Vocabulary | None = None,
        *,
        min_count: int = 1,
        stand_in: str | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        if not isinstance(sentences, TaggedSentences):
            raise TypeError(f"sentences must be TaggedSentences, as of read_columns, not a {type(sentences).__name__}")
        if sentences.tags is not None and sentences.scheme is not None:
            sentences = replace(sentences, tags=to_bio(sentences.tags, sentences.offsets))
        if vocabulary is None:
            if sentences.tags is None:
                raise ValueError(f"{sentences.source} has no tags: give the vocabulary of a training set")
            check_whole(min_count, "min_count")  # before the work
            attributes = self.describe(sentences) if attributes is None else attributes
            tags = sorted_tags(sentences.tags) if sentences.scheme is None else entity_tags(sentences.tags)
            vocabulary = Vocabulary.from_attributes(attributes, min_count, tags)
        super().__init__(sentences, vocabulary, stand_in=stand_in, attributes=attributes)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        vocabulary: Vocabulary | None = None,
        *,
        columns: Columns | None = None,
        min_count: int = 1,
        stand_in: str | None = None,
        scheme: str | None = BIO,
    ) -> NamedEntities:
        """The sentences of a column file, taken as it is.

        Args:
            path: The file, plain or gzipped.
            vocabulary: That of the training set; None for the training set itself.
            columns: Which columns are read; None is the first for words and the last for tags.
            min_count: As in the class.
            stand_in: As in the class.
            scheme: As in :func:`read_columns`.
        """
        sentences = read_columns(path, columns or Columns(), tags_optional=vocabulary is not None, scheme=scheme)
        return cls(sentences, vocabulary, min_count=min_count, stand_in=stand_in)

    @property
    def transitions(self) -> Transitions:
        """I-X only after B-X and I-X: the ``transitions`` of a :class:`torchssvm.Chain` for these tags."""
        return bio_transitions(self.vocabulary.tags)


def entity_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """O, and B-X and I-X of every type that occurs, in alphabetical order."""
    types = sorted({tag[2:] for tag in tags if tag != "O"})
    return ("O", *(f"{letter}-{kind}" for kind in types for letter in "BI"))
