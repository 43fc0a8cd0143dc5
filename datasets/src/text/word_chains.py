"""Sentences as chains whose states are words, to be recovered from corrupted spellings."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import as_number, check_choice, check_whole

from ..padded import PADDING
from .chunking_features import Vocabulary
from .columns import read_columns
from .conll2000 import SPLITS, locate
from .sparse_chains import SparseChains
from .spelling import Spellings

OTHER = "<other>"
"""The state of all words that are not among the most frequent ones."""

_NUM_STATES = 1000
_MIN_COUNT = 3


class WordChains(SparseChains):
    """The sentences of CoNLL-2000 with misspelt words; a labeling gives the true words.

    States are the K - 1 most frequent words of the training set, in lower case, and state 0 for all others. The
    attributes of a token are the pairs of letters, the first and last three letters and the length of a spelling in
    which each letter was dropped, changed or swapped with the next one with total probability ``noise``. Many words
    then look alike, and their neighbours tell them apart: the decoder of a noisy channel, for any K.

    The files are as in :class:`torchssvm.datasets.CoNLL2000`, items and batches as in :class:`SparseChains`,
    with columns only. The same arguments give the same spellings.

    Args:
        split: ``"train"`` or ``"test"``.
        num_states: K, at least 2; None takes it from ``vocabulary``, or 1000.
        noise: Probability that a letter is changed, 0 to below 1.
        min_count: How often an attribute must occur in the training set; None takes it from ``vocabulary``, or 3.
        num_chains: Number of sentences, from the first; None is all. The vocabulary always comes from all.
        vocabulary: The vocabulary of the training set, whose ``tags`` are the words; None makes it.
        seed: Seed of the noise.
        root: The folder that has ``conll2000``; None is ``TORCHSSVM_DATA`` and the cache.

    Attributes:
        vocabulary: As above.
        spellings: The corrupted spelling of every token.

    Raises:
        FileNotFoundError: A file is missing and cannot be downloaded; the message says where to put it.
        ValueError: An argument is out of its range, or disagrees with the vocabulary.

    Example:
        >>> train = WordChains("train", num_states=50, num_chains=10)
        >>> len(train), train.num_states
        (10, 50)
    """

    what = "sentences"
    vocabulary: Vocabulary
    spellings: list[str]

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        *,
        num_states: int | None = None,
        noise: float = 0.3,
        min_count: int | None = None,
        num_chains: int | None = None,
        vocabulary: Vocabulary | None = None,
        seed: int = 0,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        check_choice(split, "split", *SPLITS)
        if vocabulary is None and (split, num_chains) != ("train", None):
            training = WordChains(num_states=num_states, noise=noise, min_count=min_count, seed=seed, root=root)
            vocabulary = training.vocabulary
        sentences = read_columns(locate(split, root))
        if num_chains is not None:
            num_chains = check_whole(num_chains, "num_chains", most=len(sentences), advice=", or None for all")
            sentences = sentences.part(0, num_chains)
        # The test set has other noise.
        self._hold(
            *(sentences.words, sentences.offsets, noise, [seed, SPLITS.index(split)]),
            *(num_states, min_count, vocabulary),
        )

    @classmethod
    def from_sentences(
        cls,
        sentences: Sequence[Sequence[str]],
        *,
        num_states: int | None = None,
        noise: float = 0.3,
        min_count: int | None = None,
        vocabulary: Vocabulary | None = None,
        seed: int = 0,
    ) -> WordChains:
        """Any sentences, each a list of words; give a test set the vocabulary of the training set, and another seed.

        Raises:
            ValueError: There is no sentence, or a sentence or a word is empty; or as in the class.
        """
        if isinstance(sentences, str) or any(isinstance(sentence, str) for sentence in sentences):
            raise TypeError("sentences must be lists of words, and one is a str: split it, by sentence.split()")
        words = [word for sentence in sentences for word in sentence]
        if not words or not all(map(len, sentences)) or not all(words):
            raise ValueError("sentences must be at least one, each of at least one word, and no word empty")
        if wrong := next((word for word in words if not isinstance(word, str) or "\0" in word), None):
            raise ValueError(f"sentences hold {wrong!r}: a word is a str without NUL characters")
        offsets = np.cumsum([0, *map(len, sentences)])
        made = cls.__new__(cls)
        made._hold(words, offsets, noise, [seed], num_states, min_count, vocabulary)
        return made

    def _hold(
        self,
        words: Sequence[str],
        offsets: np.ndarray,
        noise: float,
        seed: list[int],
        num_states: int | None,
        min_count: int | None,
        vocabulary: Vocabulary | None,
    ) -> None:
        if not 0.0 <= as_number(noise, "noise") < 1.0:
            raise ValueError(f"noise={noise!r} must be a probability below 1")
        seed = [check_whole(number, "seed", 0) for number in seed]
        if vocabulary is not None:
            given = {"num_states": (num_states, vocabulary.num_states), "min_count": (min_count, vocabulary.min_count)}
            for name, (value, its) in given.items():
                if value not in (None, its):
                    raise ValueError(f"{name}={value}, but the vocabulary given has {name}={its}: leave one out")
        words = [word.lower() for word in words]
        seen = Spellings.of(words).corrupted(noise, np.random.default_rng(seed))
        attributes = seen.attributes()
        if vocabulary is None:
            tags = _most_frequent(words, _NUM_STATES if num_states is None else num_states)
            vocabulary = Vocabulary.from_attributes(attributes, _MIN_COUNT if min_count is None else min_count, tags)
        rows, columns = vocabulary.columns(attributes)
        state = {word: number for number, word in enumerate(vocabulary.tags)}
        super().__init__(
            offsets=torch.from_numpy(offsets),
            rows=torch.from_numpy(rows),
            columns=torch.from_numpy(columns),
            states=torch.tensor([state.get(word, 0) for word in words]),
            in_features=len(vocabulary),
            num_states=vocabulary.num_states,
        )
        self.vocabulary = vocabulary
        self.spellings = seen.words()
        self._words = words

    def words(self, i: int) -> list[str]:
        """The true words of a sentence, including words without a state."""
        return self._words[self.tokens(i)]

    def observed(self, i: int) -> list[str]:
        """The spellings of a sentence."""
        return self.spellings[self.tokens(i)]

    def features(self, i: int) -> list[list[str]]:
        """The attributes of the tokens of a sentence that are in the vocabulary."""
        tokens, names = self.tokens(i), self.vocabulary.attributes
        rows = self.rows[tokens.start : tokens.stop + 1].tolist()
        return [[names[c] for c in self.columns[a:b].tolist()] for a, b in itertools.pairwise(rows)]

    def words_of(self, states: Tensor | Sequence[int]) -> list[str]:
        """The words of states; padding (-1) is left out.

        Raises:
            ValueError: A number is not a state.
        """
        numbers = [int(state) for state in states if int(state) != PADDING]
        if wrong := [number for number in numbers if not 0 <= number < self.num_states]:
            raise ValueError(f"states must be 0 to {self.num_states - 1}, or {PADDING}, not {wrong[0]}")
        return [self.vocabulary.tags[number] for number in numbers]


def _most_frequent(words: Sequence[str], num_states: int) -> list[str]:
    """``OTHER`` and the most frequent words; ties in alphabetical order."""
    counts = Counter(words)
    check_whole(num_states, "num_states", 2, most=len(counts) + 1, advice=", one more than there are words")
    return [OTHER, *sorted(counts, key=lambda word: (-counts[word], word))[: num_states - 1]]
