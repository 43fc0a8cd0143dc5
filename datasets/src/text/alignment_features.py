"""Features of a pair of words: association, position, spelling, frequency, and its neighbours.

After B. Taskar, S. Lacoste-Julien, D. Klein, *A Discriminative Matching Approach to Word Alignment* (EMNLP
2005), and its sequel (HLT-NAACL 2006). All features are of the order of 1, most of them between 0 and 1:

========== ==========================================================================================================
group      features of French word f at i of S, and English word e at j of T
========== ==========================================================================================================
Dice       of f and e, counted over the sentences of the unaligned text; its root and bins; whether it is the best of
           its row and column, its share of the best of both, and its lead over the next. Three times: for words
           (``dice``), with a discount for rare ones (``steady_dice``), and for their first letters (``stem_dice``)
position   ``|i/S - j/T|``, its square, root and bins, ``|i - j|``, both first, both last, one of them last
spelling   the same string, punctuation or number; common prefix, suffix and letters; lengths
frequency  ranks of both words by frequency: among the first, both common, both rare, how different; never seen
neighbours the largest of Dice and same spelling for the pairs before, after, crossed and beside
products   of the above, such as Dice times nearness
========== ==========================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from .alignment_text import SentencePair

STEM = 5
"""Length of the prefixes by which words are compared as stems."""

_DISCOUNT = 2.0  # sentences: discounts pairs that were seen together only once
_NUMBER = re.compile(r"\d[\d.,]*")

Key = Callable[[str], str]


def lower(word: str) -> str:
    """The word in lower case: only the unaligned text capitalises headings."""
    return word.lower()


def stem(word: str) -> str:
    """The first letters of the word in lower case."""
    return word.lower()[:STEM]


class CoOccurrence:
    """How often words of both languages, as ``key`` makes them, occur in the same sentence pair of an unaligned text.

    ValueError if there are no sentences.
    """

    def __init__(self, pairs: Sequence[SentencePair], key: Key = lower) -> None:
        if not pairs:
            raise ValueError("pairs is empty: associations need unaligned sentences")
        self.key = key
        self.french: dict[str, int] = {}
        self.english: dict[str, int] = {}
        codes, seen_f, seen_e = [], [], []
        for pair in pairs:
            f = np.array(sorted({self.french.setdefault(key(w), len(self.french)) for w in pair.french}))
            e = np.array(sorted({self.english.setdefault(key(w), len(self.english)) for w in pair.english}))
            seen_f.append(f)
            seen_e.append(e)
            codes.append((f[:, None] << 32 | e).ravel())
        # The last entry of each counts unseen words.
        self.french_count = np.append(np.bincount(np.concatenate(seen_f), minlength=len(self.french)), 0)
        self.english_count = np.append(np.bincount(np.concatenate(seen_e), minlength=len(self.english)), 0)
        self._codes, self._counts = np.unique(np.concatenate(codes), return_counts=True)

    def numbers(self, pair: SentencePair) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the words of a sentence pair in the counts, ``[S]`` and ``[T]``."""
        unseen_f, unseen_e = len(self.french), len(self.english)
        return (
            np.array([self.french.get(self.key(w), unseen_f) for w in pair.french]),
            np.array([self.english.get(self.key(w), unseen_e) for w in pair.english]),
        )

    def counts(self, pair: SentencePair) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sentence pairs with both words ``[S, T]``, with the French one ``[S, 1]``, with the English one ``[T]``."""
        f, e = self.numbers(pair)
        wanted = f[:, None] << 32 | e
        place = np.searchsorted(self._codes, wanted).clip(max=len(self._codes) - 1)
        both = np.where(self._codes[place] == wanted, self._counts[place], 0)
        return both, self.french_count[f][:, None], self.english_count[e]


def dice(co: CoOccurrence, pair: SentencePair, discount: float = 0.0) -> np.ndarray:
    """The Dice coefficient ``2 C(f, e) / (C(f) + C(e) + discount)``, ``[S, T]`` between 0 and 1."""
    both, french, english = co.counts(pair)
    return 2.0 * both / np.maximum(french + english + discount, 1.0)


class AlignmentFeatures:
    """Features of all word pairs of a sentence pair; the unaligned text ``pairs`` gives association and frequency."""

    def __init__(self, pairs: Sequence[SentencePair]) -> None:
        self.words = CoOccurrence(pairs)
        self.stems = CoOccurrence(pairs, stem)
        # The rank of every word by frequency, from 0; unseen words come last.
        self._french_rank = (-self.words.french_count).argsort(kind="stable").argsort(kind="stable")
        self._english_rank = (-self.words.english_count).argsort(kind="stable").argsort(kind="stable")

    def named(self, pair: SentencePair) -> dict[str, np.ndarray]:
        """Every feature by name, ``[S, T]``."""
        position = _position(pair)
        spelling = _spelling(pair)
        word = dice(self.words, pair)
        association = _association("dice", word, (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7))
        steady = dice(self.words, pair, _DISCOUNT)
        association |= {f"steady_{name}": v for name, v in _association("dice", steady, (0.1, 0.3)).items()}
        stems = dice(self.stems, pair, _DISCOUNT)
        association |= {f"stem_{name}": v for name, v in _association("dice", stems, (0.1, 0.2, 0.3, 0.5)).items()}
        frequency = self._frequency(pair)
        likely = np.maximum(stems, np.maximum(steady, spelling["same"]))
        neighbours = _neighbours(likely)
        near = 1.0 - position["distance"]
        best = association["stem_dice_best"]
        mixed = {
            "dice*near": word * near,
            "stem_dice*near": stems * near,
            "best*distance": best * position["distance"],
            "best*near": best * near,
            "best*rare": best * frequency["rare"],
            "best*common": best * frequency["common"],
            "best*around": best * neighbours["around"],
            "stem_dice*around": stems * neighbours["around"],
            "dice*rare": word * frequency["rare"],
            "dice*common": word * frequency["common"],
            "common*distance": frequency["common"] * position["distance"],
            "common*around": frequency["common"] * neighbours["around"],
            "rare*around": frequency["rare"] * neighbours["around"],
            "rare*near": frequency["rare"] * near,
            "around*near": neighbours["around"] * near,
            "same*distance": spelling["same"] * position["distance"],
            "punctuation*distance": spelling["same_punctuation"] * position["distance"],
            "prefix*near": spelling["common_prefix"] * near,
        }
        return {"bias": np.ones_like(word)} | association | position | spelling | frequency | neighbours | mixed

    def __call__(self, pair: SentencePair) -> Tensor:
        """``[S, T, F]`` float32."""
        return torch.from_numpy(np.stack(list(self.named(pair).values()), 2).astype(np.float32))

    def _frequency(self, pair: SentencePair) -> dict[str, np.ndarray]:
        f, e = self.words.numbers(pair)
        seen_f, seen_e = self.words.french_count[f][:, None] > 0, self.words.english_count[e] > 0
        rank_f, rank_e = self._french_rank[f][:, None], self._english_rank[e]
        logs = np.log1p(rank_f) / 10.0, np.log1p(rank_e) / 10.0
        everywhere = np.ones((len(f), len(e)))
        return {
            "french_top_5": (rank_f < 5) * everywhere,
            "french_top_30": (rank_f < 30) * everywhere,
            "english_top_5": (rank_e < 5) * everywhere,
            "english_top_30": (rank_e < 30) * everywhere,
            "common": (rank_f < 50) & (rank_e < 50),
            "rare": (rank_f >= 200) & (rank_e >= 200),
            "unequal": (rank_f < 50) ^ (rank_e < 50),
            "rank_difference": np.abs(logs[0] - logs[1]),
            "rank_difference_squared": np.square(logs[0] - logs[1]),
            "french_unseen": ~seen_f * everywhere,
            "english_unseen": ~seen_e * everywhere,
            "both_unseen": ~seen_f & ~seen_e,
        }


def _association(name: str, values: np.ndarray, thresholds: Sequence[float]) -> dict[str, np.ndarray]:
    """A coefficient, its bins, and its comparison with the others of its row and column."""
    row, row_next = _best_and_next(values, 1)
    column, column_next = _best_and_next(values, 0)
    first_f, first_e = (values == row) & (values > 0), (values == column) & (values > 0)
    rival = np.maximum(np.where(first_f, row_next, row), np.where(first_e, column_next, column))
    return {
        name: values,
        f"{name}_root": np.sqrt(values),
        **{f"{name}>{t:g}": values > t for t in thresholds},
        f"{name}_best_of_french": first_f,
        f"{name}_best_of_english": first_e,
        f"{name}_best": first_f & first_e,
        f"{name}_of_french_best": values / np.maximum(row, 1e-9),
        f"{name}_of_english_best": values / np.maximum(column, 1e-9),
        f"{name}_lead": values - rival,
    }


def _best_and_next(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest and the second largest value along an axis, which is kept."""
    ordered = np.sort(values, axis)
    first = ordered.take([-1], axis)
    return first, ordered.take([-2], axis) if values.shape[axis] > 1 else np.zeros_like(first)


def _position(pair: SentencePair) -> dict[str, np.ndarray]:
    s, t = len(pair.french), len(pair.english)
    i, j = np.arange(s)[:, None], np.arange(t)
    distance = np.abs((i + 0.5) / s - (j + 0.5) / t)
    return {
        "distance": distance,
        "distance_squared": np.square(distance),
        "distance_root": np.sqrt(distance),
        **{f"distance<{t:g}": distance < t for t in (0.03, 0.06, 0.1, 0.2, 0.3)},
        "offset": np.abs(i - j) / 10.0,
        "both_first": (i == 0) & (j == 0),
        "both_last": (i == s - 1) & (j == t - 1),
        "one_last": (i == s - 1) ^ (j == t - 1),
    }


def _spelling(pair: SentencePair) -> dict[str, np.ndarray]:
    french, english = [w.lower() for w in pair.french], [w.lower() for w in pair.english]

    def table(value: Callable[[str, str], float]) -> np.ndarray:
        return np.array([[value(f, e) for e in english] for f in french], dtype=np.float64)

    def sides(is_so: Callable[[str], bool]) -> tuple[np.ndarray, np.ndarray]:
        return np.array([[is_so(f)] for f in french]), np.array([is_so(e) for e in english])

    same = table(lambda f, e: f == e)
    marks = sides(lambda w: not any(c.isalnum() for c in w))
    numbers = sides(lambda w: _NUMBER.fullmatch(w) is not None)
    prefix = table(_common_prefix)
    long = table(lambda f, e: min(len(f), len(e)) >= 4)
    lengths = table(lambda f, e: abs(len(f) - len(e)))
    return {
        "same": same,
        "same_long": same * long,
        "same_punctuation": same * (marks[0] & marks[1]),
        "same_number": same * (numbers[0] & numbers[1]),
        "both_punctuation": marks[0] & marks[1],
        "one_punctuation": marks[0] ^ marks[1],
        "both_numbers": numbers[0] & numbers[1],
        "one_number": numbers[0] ^ numbers[1],
        "prefix_3": prefix >= 3,
        "prefix_4": prefix >= 4,
        "prefix_5": prefix >= 5,
        "common_prefix": prefix / table(lambda f, e: max(len(f), len(e))),
        "common_letters": table(_common_letters) * long,
        "suffix_3": long * table(lambda f, e: f[-3:] == e[-3:]),
        "length_difference": np.minimum(lengths, 10) / 10.0,
    }


def _common_prefix(a: str, b: str) -> int:
    """The length of the common prefix of two words."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def _common_letters(a: str, b: str) -> float:
    """The longest common subsequence, as a share of the longer word (Melamed, 1995)."""
    row = [0] * (len(b) + 1)
    for x in a:
        corner = 0
        for place, y in enumerate(b, 1):
            above = row[place]
            row[place] = corner + 1 if x == y else max(above, row[place - 1])
            corner = above
    return row[-1] / max(len(a), len(b))


def _neighbours(values: np.ndarray) -> dict[str, np.ndarray]:
    """The coefficient of the pairs before and after; 0 beyond the ends of a sentence."""
    padded = np.pad(values, 1)
    before, after = padded[:-2, :-2], padded[2:, 2:]
    crossed = np.maximum(padded[:-2, 2:], padded[2:, :-2])
    return {
        "before": before,
        "after": after,
        "around": (before + after) / 2.0,
        "both_around": np.minimum(before, after),
        "crossed": crossed,
        "beside_french": np.maximum(padded[1:-1, :-2], padded[1:-1, 2:]),
        "beside_english": np.maximum(padded[:-2, 1:-1], padded[2:, 1:-1]),
    }
