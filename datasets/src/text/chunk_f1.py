"""Precision, recall and F1 of chunks, by the rules of conlleval, the script of the CoNLL tasks.

A chunk is correct if type, first and last token are right. seqeval counts in the same way, and the tests compare with
it; it is no dependency because it needs scikit-learn and has had no release since 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchssvm.core.arguments import check_several

from .tag_schemes import to_bio


class Chunk(NamedTuple):
    """The tokens ``start`` to ``stop - 1`` of a sentence.

    Example:
        >>> chunks(["B-NP", "I-NP", "O"])
        [Chunk(start=0, stop=2, type='NP')]
    """

    start: int
    stop: int
    type: str


def chunks(tags: Sequence[str]) -> list[Chunk]:
    """The chunks of a sentence.

    A chunk of type X begins and goes on where :func:`to_bio` has B-X and I-X: tags of IOB1, IOB2, BIOES and BILOU are
    taken as they are.

    Args:
        tags: The tags of its tokens: O, or a letter (B, I, E, S, L, U or M), a hyphen and a type.

    Raises:
        ValueError: A tag has another form.

    Example:
        >>> [(chunk.start, chunk.stop, chunk.type) for chunk in chunks(["B-NP", "I-NP", "O", "B-VP"])]
        [(0, 2, 'NP'), (3, 4, 'VP')]
    """
    check_several(tags, "tags", "a list of tags")
    if not all(isinstance(tag, str) for tag in tags):
        raise TypeError(f"tags={tags!r} must be a list of tags, such as ['B-NP', 'O']")
    spans: list[Chunk] = []
    start, kind = 0, ""  # of the chunk that is open; no type: none is
    for place, tag in enumerate(to_bio(tags)):
        if tag[0] == "I":
            continue
        if kind:
            spans.append(Chunk(start, place, kind))
        start, kind = place, tag[2:]
    if kind:
        spans.append(Chunk(start, len(tags), kind))
    return spans


@dataclass(frozen=True)
class Score:
    """Counts of chunks, predicted, true and both, and scores; a share of 0 chunks is 0, as in conlleval."""

    correct: int
    predicted: int
    true: int

    @property
    def precision(self) -> float:
        """Share of the predicted chunks that are true."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the true chunks that are predicted."""
        return self.correct / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2.0 * self.correct / (self.predicted + self.true) if self.correct else 0.0


@dataclass(frozen=True)
class ChunkScores:
    """Scores of all chunks and of each type; ``str`` is a table like conlleval's.

    Attributes:
        overall: Scores of all chunks together.
        by_type: Scores of each type that occurs, in alphabetical order.
        tokens: Number of tokens.
        wrong_tokens: Number of tokens whose predicted tag is wrong.

    Example:
        >>> scores = chunk_scores([["B-NP", "I-NP", "O"]], [["B-NP", "O", "O"]])
        >>> scores.overall.f1, scores.wrong_tokens
        (0.0, 1)
    """

    overall: Score
    by_type: dict[str, Score]
    tokens: int
    wrong_tokens: int

    @property
    def token_error(self) -> float:
        """Share of wrong tags."""
        return self.wrong_tokens / self.tokens if self.tokens else 0.0

    def __str__(self) -> str:
        rows = [("all", self.overall), *self.by_type.items()]
        width = max(len(name) for name, _ in rows)
        lines = [f"{'':{width}}  precision  recall      F1    true  predicted"]
        for name, score in rows:
            shares = f"{100 * score.precision:8.2f}% {100 * score.recall:6.2f}%  {100 * score.f1:6.2f}"
            lines.append(f"{name:{width}}  {shares}  {score.true:6d}  {score.predicted:9d}")
        return "\n".join(lines)


def chunk_scores(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> ChunkScores:
    """Compare the chunks of sentences.

    Args:
        true: The tags of each sentence, of any scheme that :func:`to_bio` takes.
        predicted: The predicted tags of the same sentences.

    Raises:
        ValueError: Sentences or tags are missing, or a tag has another form.

    Example:
        >>> scores = chunk_scores(true=[["B-NP", "I-NP", "B-VP"]], predicted=[["B-NP", "I-NP", "O"]])
        >>> scores.overall.precision, scores.overall.recall
        (1.0, 0.5)
    """
    correct: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    got: Counter[str] = Counter()
    tokens = wrong = 0
    for name, given in (("true", true), ("predicted", predicted)):
        check_several(given, name, "lists of tags, one for each sentence")
    sentences, answers = list(true), list(predicted)
    if len(sentences) != len(answers):
        raise ValueError(f"true has {len(sentences)} sentences, but predicted has {len(answers)}")
    for number, (a, b) in enumerate(zip(sentences, answers, strict=True)):
        if len(a) != len(b):
            raise ValueError(f"sentence {number} has {len(a)} true tags, but {len(b)} are predicted")
        tokens += len(a)
        wrong += sum(x != y for x, y in zip(a, b, strict=True))
        theirs, ours = set(chunks(a)), set(chunks(b))
        wanted.update(chunk.type for chunk in theirs)
        got.update(chunk.type for chunk in ours)
        correct.update(chunk.type for chunk in theirs & ours)
    return ChunkScores(
        overall=Score(correct.total(), got.total(), wanted.total()),
        by_type={name: Score(correct[name], got[name], wanted[name]) for name in sorted(wanted | got)},
        tokens=tokens,
        wrong_tokens=wrong,
    )
