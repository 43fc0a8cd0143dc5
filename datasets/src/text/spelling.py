"""Spellings through a noisy channel: letters dropped, changed and swapped; and attributes of spellings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from .templates import Attributes

_BEGIN, _END, _NOTHING = "^", "$", ""  # before a word, after it, and where a word is shorter
_LETTERS = np.frombuffer("abcdefghijklmnopqrstuvwxyz".encode("utf-32-le"), np.uint32)
_LONGEST = 12  # longer words have the same length


class Spellings:
    """The letters of many words, one after another, as code points uint32.

    Word i has the letters ``letters[starts[i] : starts[i + 1]]``, at least one; ``starts`` is int64 ``[words + 1]``.
    """

    def __init__(self, letters: np.ndarray, starts: np.ndarray) -> None:
        self.letters = letters
        self.starts = starts

    @classmethod
    def of(cls, words: Sequence[str]) -> Spellings:
        """The letters of words, none of them empty."""
        sizes = np.fromiter(map(len, words), np.int64, len(words))
        letters = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), np.uint32)
        return cls(letters, np.concatenate([[0], np.cumsum(sizes)]))

    def words(self) -> list[str]:
        """The words as strings."""
        text = self.letters.tobytes().decode("utf-32-le", "surrogatepass")
        starts = self.starts.tolist()
        return [text[a:b] for a, b in itertools.pairwise(starts)]

    def corrupted(self, noise: float, random: np.random.Generator) -> Spellings:
        """The words after noise: with probability ``noise`` a letter is dropped, changed into any of a to z, or swapped
        with the next one, with equal shares. A word whose letters would all be dropped keeps the first; swaps do not
        overlap. The result for a word does not depend on the number of words after it.
        """
        chance = random.random((len(self.letters), 3))
        word = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        kind = np.where(chance[:, 0] < noise, (3.0 * chance[:, 1]).astype(np.int64), -1)
        letters = np.where(kind == 1, _LETTERS[(len(_LETTERS) * chance[:, 2]).astype(np.int64)], self.letters)
        swapped = kind == 2
        swapped[:-1] &= word[:-1] == word[1:]
        swapped[-1:] = False
        swapped[1:] &= ~swapped[:-1]
        at = np.flatnonzero(swapped)
        letters[at], letters[at + 1] = letters[at + 1], letters[at]
        kept = kind != 0
        left = np.bincount(word[kept], minlength=len(self.starts) - 1)
        kept[self.starts[:-1][left == 0]] = True
        sizes = np.maximum(left, 1)
        return Spellings(letters[kept], np.concatenate([[0], np.cumsum(sizes)]))

    def attributes(self) -> Attributes:
        """The attributes of each word: its pairs of letters, its first and last three letters, and its length.

        Attributes are strings such as ``pair=^t``, ``pair=th``, ``begin=the``, ``end=the`` and ``length=3``, where
        ``^`` and ``$`` are the ends of the word; each comes at most once in a word.
        """
        sizes = np.diff(self.starts)
        known, code = np.unique(self.letters, return_inverse=True)
        names = [*map(chr, known.tolist()), _BEGIN, _END, _NOTHING]
        begin, end, nothing = range(len(known), len(known) + 3)
        first, last, words = self.starts[:-1], self.starts[1:] - 1, np.arange(len(sizes))
        padded = np.concatenate([code, [nothing] * 3])

        before = np.concatenate([[begin], code[:-1]])  # the letter before each letter
        before[first] = begin
        word = np.repeat(words, sizes)
        pairs = np.concatenate([before, code[last]]), np.concatenate([code, np.full(len(words), end)])
        seen = [
            ("pair=", np.concatenate([word, words]), pairs),
            ("begin=", words, tuple(np.where(k < sizes, padded[first + k], nothing) for k in range(3))),
            ("end=", words, tuple(np.where(k < sizes, code[np.maximum(last - k, 0)], nothing) for k in (2, 1, 0))),
        ]
        table: dict[str, int] = {}
        tokens, codes = [], []
        for prefix, owners, letters in seen:
            key = np.zeros(len(owners), np.int64)
            for each in letters:
                key = key * len(names) + each
            _, place, inverse = np.unique(key, return_index=True, return_inverse=True)
            spelt = zip(*(each[place].tolist() for each in letters), strict=True)
            texts = [prefix + "".join(names[letter] for letter in some) for some in spelt]
            # Words that contain ^ or $ can give two keys the same attribute.
            codes.append(np.array([table.setdefault(text, len(table)) for text in texts])[inverse])
            tokens.append(owners)
        lengths = np.array([table.setdefault(f"length={size}", len(table)) for size in range(1, _LONGEST + 1)])
        codes.append(lengths[np.minimum(sizes, _LONGEST) - 1])
        tokens.append(words)

        key = np.sort(np.concatenate(tokens) * len(table) + np.concatenate(codes))
        key = key[np.diff(key, prepend=-1) > 0]  # ten times as fast as np.unique, which hashes
        rows = np.searchsorted(key // len(table), np.arange(len(words) + 1))
        return Attributes(list(table), rows, (key % len(table)).astype(np.int32))
