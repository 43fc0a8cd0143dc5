"""Word alignment of the Canadian Hansards (HLT-NAACL 2003), a bipartite matching task of [B13] section 6."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_choice, check_several
from torchssvm.core.batch import Batch
from torchssvm.structures.matching.head import Edges
from torchssvm.structures.matching.oracle import best_matching
from torchssvm.structures.matching.structure import POSSIBLE

from ..files import find
from ..padded import PADDING, collating, padded, place_of
from .alignment_features import AlignmentFeatures
from .alignment_text import Link, SentencePair, read_aligned, read_unaligned

PAGE = "https://web.eecs.umich.edu/~mihalcea/wpt/ (HLT-NAACL 2003 shared task, English-French)"
_FOLDER = "hansards"
_TRAIN = 100  # of the test sentences: the split of Taskar et al. (2006)
_NAMES = {"train": "test/test", "test": "test/test", "dev": "dev/trial"}


class AlignmentExample(NamedTuple):
    """One sentence pair: its features, its target, and its number in the training set."""

    x: Tensor  # [S, T, F]
    y: Tensor  # [S, T]
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks an example for


class WordAlignment(Dataset[AlignmentExample]):
    """Sentence pairs as bipartite graphs: S French words on the left, T English words on the right.

    An item is ``(x, y, index)``: the features of all word pairs, float32 ``[S, T, F]``; the target of
    :class:`torchssvm.Matching`, int64 ``[S, T]``; and its number in this split. Batches have ``x`` as
    :class:`torchssvm.Edges`, and the numbers of French words as lengths.

    Sure links may be many to one, but the edges of a matching are one to one: the target is the largest matching of
    sure links (of several, the one nearest to the diagonal). All other sure and possible links are marked as possible,
    and cost nothing.

    The split is from Taskar et al. (2006): of the 447 annotated test sentences of the shared task, ``train`` has the
    first 100 and ``test`` the other 347; ``dev`` are the shared task's 37 trial sentences. Features count associations
    in the 2383 unaligned sentence pairs of ``hansards/train``, and are computed once.

    Args:
        split: ``"train"``, ``"dev"`` or ``"test"``.
        root: The folder that has ``hansards``; None is ``TORCHSSVM_DATA`` and the cache.
        features: The ``features`` of another split, so that the unaligned text is read once; None computes them.

    Raises:
        ValueError: There is no such split, or a file is malformed; the message has file and line.
        FileNotFoundError: A file is missing; the message says what to fetch and where to put it.

    Example:
        >>> pairs = WordAlignment("test")
        >>> x, y, index = pairs[0]
        >>> x.shape[:2] == y.shape
        True
    """

    def __init__(
        self,
        split: Literal["train", "dev", "test"] = "train",
        root: str | os.PathLike[str] | None = None,
        features: AlignmentFeatures | None = None,
    ):
        check_choice(split, "split", "train", "dev", "test")
        self.split = split
        french, english, links = (
            find(f"{_FOLDER}/{_NAMES[split]}.{ending}", PAGE, root) for ending in ["f", "e", "align"]
        )
        pairs = read_aligned(french, english, links)
        if split == "test" and len(pairs) <= _TRAIN:
            raise ValueError(f"{links} has {len(pairs)} lines: the first {_TRAIN} are for training, and none is left")
        self.pairs = {"train": pairs[:_TRAIN], "test": pairs[_TRAIN:]}.get(split, pairs)
        self.features = features if features is not None else AlignmentFeatures(_unaligned(root))
        self.feature_names = list(self.features.named(self.pairs[0]))
        self._x = [self.features(pair) for pair in self.pairs]
        self._y = [target_of(pair) for pair in self.pairs]

    @property
    def in_features(self) -> int:
        """F, features of a word pair."""
        return len(self.feature_names)

    def feature(self, name: str) -> list[Tensor]:
        """One feature of all word pairs, ``[S, T]`` for each sentence pair.

        Raises:
            ValueError: There is no such feature.
        """
        if name not in self.feature_names:
            raise ValueError(f"name={name!r} is not one of the features {self.feature_names}")
        place = self.feature_names.index(name)
        return [x[:, :, place] for x in self._x]

    @property
    def lengths(self) -> Tensor:
        """``[n]`` int64, the number of French words of each pair: exact passes and ``ByLength`` pad little with it."""
        return torch.tensor([len(pair.french) for pair in self.pairs])

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> AlignmentExample:
        at = place_of(i, len(self))
        return AlignmentExample(self._x[at], self._y[at], at)

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """The sentence pairs at ``indices`` as one batch; a ``DataLoader`` calls this."""
        return self.collate([self[int(i)] for i in indices])

    @staticmethod
    @collating
    def collate(examples: Sequence[AlignmentExample]) -> Batch:
        """Sentence pairs, padded to the longest of both languages."""
        sizes = torch.tensor([example.y.shape for example in examples])
        x, y = padded([example.x for example in examples], 0), padded([example.y for example in examples], PADDING)
        index = torch.tensor([example.index for example in examples])
        return Batch(Edges(x, sizes[:, 1].contiguous()), y, index, sizes[:, 0].contiguous())

    def __repr__(self) -> str:
        return f"WordAlignment(split={self.split!r}): {len(self)} sentence pairs, {self.in_features} features"


def target_of(pair: SentencePair) -> Tensor:
    """The target of :class:`torchssvm.Matching`, ``[S, T]`` int64, as :class:`WordAlignment` describes it."""
    s, t = len(pair.french), len(pair.english)
    labeling = torch.zeros(s, t, dtype=torch.int64)
    scores = torch.zeros(1, s, t, dtype=torch.float64)
    for f, e in pair.possible:
        labeling[f, e] = POSSIBLE
    for f, e in pair.sure:
        # All distances together weigh less than one link, so that the matching has the largest size.
        scores[0, f, e] = 1.0 - abs((f + 0.5) / s - (e + 0.5) / t) / (1 + min(s, t))
    labeling[best_matching(scores)[0]] = 1
    return labeling


def links_of(labeling: Tensor) -> frozenset[Link]:
    """The links of one labeling ``[S, T]``, padded or not."""
    return frozenset((f, e) for f, e in (labeling == 1).nonzero().tolist())


class AlignmentErrors(NamedTuple):
    """Scores of alignments (Och and Ney, *A Systematic Comparison of Various Statistical Alignment Models*, 2003).

    Attributes:
        error_rate: AER, ``1 - (|A and S| + |A and P|) / (|A| + |S|)``: 0 is perfect. A are the predicted links, S the
            sure ones, P the possible ones with the sure ones among them, each over all sentences.
        precision: ``|A and P| / |A|``.
        recall: ``|A and S| / |S|``.

    Example:
        >>> pair = SentencePair(("le", "chien"), ("the", "dog"), sure=frozenset({(0, 0)}), possible=frozenset({(0, 0)}))
        >>> alignment_errors([[(0, 0)]], [pair])
        AlignmentErrors(error_rate=0.0, precision=1.0, recall=1.0)
    """

    error_rate: float
    precision: float
    recall: float


def alignment_errors(predicted: Iterable[Iterable[Link]], pairs: Sequence[SentencePair]) -> AlignmentErrors:
    """Alignment error rate, precision and recall of the predicted links of each sentence pair.

    Without links to count, precision and recall are 1, and the error rate is 0.

    Raises:
        ValueError: The numbers of alignments and sentence pairs differ.

    Example:
        >>> sure = frozenset({(0, 0), (1, 1)})
        >>> pair = SentencePair(("le", "chien"), ("the", "dog"), sure=sure, possible=sure)
        >>> alignment_errors([[(0, 0)]], [pair]).recall  # of the predicted links of each pair
        0.5
    """
    for name, given in (("predicted", predicted), ("pairs", pairs)):
        check_several(given, name, "a list, with an entry for each sentence pair")
    alignments = [frozenset(links) for links in predicted]
    if len(alignments) != len(pairs):
        raise ValueError(f"predicted has {len(alignments)} alignments, and pairs {len(pairs)} sentence pairs")
    for number, chosen in enumerate(alignments):
        if wrong := [link for link in chosen if not (isinstance(link, tuple) and len(link) == 2)]:
            raise TypeError(f"predicted[{number}] holds {wrong[0]!r}, and a link is a pair (French, English) of places")
    together = list(zip(alignments, pairs, strict=True))
    links, sure = sum(len(a) for a in alignments), sum(len(pair.sure) for pair in pairs)
    in_sure, in_possible = sum(len(a & p.sure) for a, p in together), sum(len(a & p.possible) for a, p in together)
    return AlignmentErrors(
        1.0 - _share(in_sure + in_possible, links + sure), _share(in_possible, links), _share(in_sure, sure)
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _unaligned(root: str | os.PathLike[str] | None) -> list[SentencePair]:
    folder = find(f"{_FOLDER}/train", PAGE, root)
    texts: list[Path] = sorted(folder.glob("*.f"))
    if not texts:
        raise FileNotFoundError(f"{folder} has no texts *.f and *.e: fetch them from {PAGE}")
    return [pair for text in texts for pair in read_unaligned(text, find(f"{_FOLDER}/train/{text.stem}.e", PAGE, root))]
