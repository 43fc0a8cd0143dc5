"""Text chunking of CoNLL-2000 (Tjong Kim Sang and Buchholz 2000): a long sparse chain, the task of [B13] and [G16]."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from torchssvm.core.arguments import check_choice, check_whole

from ..files import fetch
from .chunking import ChunkingDataset
from .chunking_features import Vocabulary, attributes
from .columns import read_columns

PAGE = "https://www.clips.uantwerpen.be/conll2000/chunking/"
SPLITS = ("train", "test")
_SHA256 = {
    "train": "1209e1015aa3bbe3e0d16903b18b90505cadc75a8f6ba988c26c9b4c039ec4f2",
    "test": "3fc8afe2f5558e38cedbd557ca9ae5e0e8af77777a3cb99bc4b052b0e2d2edbc",
}
_MIN_COUNT = 3


class CoNLL2000(ChunkingDataset):
    """Sentences of the Wall Street Journal with the chunks of their words: 8936 to train on, 2012 to test on.

    The files lie under ``TORCHSSVM_DATA`` as ``conll2000/train.txt.gz`` and ``conll2000/test.txt.gz``, or
    downloaded once into the cache folder. See :class:`torchssvm.datasets.ChunkingDataset` for items and batches, for
    ``hold_out`` and for other files.

    The states are the 22 tags of the training set in the order of :attr:`chunk_tags`: O, then B and I of each type in
    alphabetical order, without ``I-LST``. Two tokens of the test set have the tag ``I-LST``: there ``y`` has O, while
    :meth:`tags` and chunk scores use ``I-LST``.

    Args:
        split: ``"train"`` or ``"test"``.
        min_count: How often an attribute must occur in the training set to have a column: 1 keeps all 335,674, 3 (the
            default) keeps 75,289, about as many as the papers have.
        vocabulary: ``CoNLL2000("train").vocabulary``, so that it is not made again.
        root: The folder that has ``conll2000``; None is ``TORCHSSVM_DATA`` and the cache.

    Raises:
        FileNotFoundError: A file is missing and cannot be downloaded; the message says where to put it.
        RuntimeError: A file is not the published one.

    Example:
        >>> train = CoNLL2000("train")
        >>> len(train), train.num_states
        (8936, 22)
    """

    chunk_tags = (
        *("O", "B-ADJP", "I-ADJP", "B-ADVP", "I-ADVP", "B-CONJP", "I-CONJP", "B-INTJ", "I-INTJ", "B-LST"),
        *("B-NP", "I-NP", "B-PP", "I-PP", "B-PRT", "I-PRT", "B-SBAR", "I-SBAR", "B-UCP", "I-UCP", "B-VP", "I-VP"),
    )

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        *,
        min_count: int | None = None,
        vocabulary: Vocabulary | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        check_choice(split, "split", *SPLITS)
        if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
            raise TypeError(f"vocabulary={vocabulary!r} must be a Vocabulary, such as CoNLL2000('train').vocabulary")
        if vocabulary is not None and min_count not in (None, vocabulary.min_count):
            raise ValueError(
                f"min_count={min_count}, but the vocabulary has min_count={vocabulary.min_count}: leave one out"
            )
        least = check_whole(_MIN_COUNT if min_count is None else min_count, "min_count")
        self.split = split
        sentences = read_columns(locate(split, root))
        described = attributes(sentences)
        if vocabulary is None:
            training = described if split == "train" else attributes(read_columns(locate("train", root)))
            vocabulary = Vocabulary.from_attributes(training, least, self.chunk_tags)
        super().__init__(sentences, vocabulary, stand_in="O" if split == "test" else None, attributes=described)


def locate(split: str, root: str | os.PathLike[str] | None = None) -> Path:
    """The file of a split, downloaded if it is missing; arguments and errors as in :class:`CoNLL2000`."""
    name = f"{split}.txt.gz"
    return fetch(f"conll2000/{name}", PAGE + name, _SHA256[split], PAGE, root)
