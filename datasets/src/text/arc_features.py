"""First-order features of dependency arcs, after McDonald et al. (2005), hashed to columns."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.core.arguments import check_several, check_whole

# From their table 1; h is the head, t the token, w a word, g a tag, -1 and +1 the neighbours. Prefixes of long words
# are left out.
_ALONE = (("hw", "hg"), ("hw",), ("hg",))
_PAIRS = (
    ("hw", "hg", "tw", "tg"),
    ("hg", "tw", "tg"),
    ("hw", "tw", "tg"),
    ("hw", "hg", "tg"),
    ("hw", "hg", "tw"),
    ("hw", "tw"),
    ("hg", "tg"),
    ("hg", "hg+1", "tg-1", "tg"),
    ("hg-1", "hg", "tg-1", "tg"),
    ("hg", "hg+1", "tg", "tg+1"),
    ("hg-1", "hg", "tg", "tg+1"),
)
# All arcs of a token share these: they distinguish heads only together with the distance.
_TOKEN = (("tw", "tg"), ("tw",), ("tg",))
_TEMPLATES = (*_ALONE, *_PAIRS, *_TOKEN)
_ROWS = {"w": 0, "g": 1, "g-1": 2, "g+1": 3}


def _steps(end: str) -> np.ndarray:
    """``[templates, 2]``: the rows of codes that a template takes of the head or of the token, -1 for none."""
    names = [[_ROWS[name[1:]] for name in template if name[0] == end] for template in _TEMPLATES]
    return np.array([[*rows, -1, -1][:2] for rows in names])


_OF_HEAD, _OF_TOKEN = _steps("h"), _steps("t")  # in a template, the names of the head come first
_PLAIN = len(_ALONE) + len(_PAIRS)  # templates that also count without the distance
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
_HALF = np.uint64(32)


def arc_columns(words: Sequence[str], tags: Sequence[str], num_features: int) -> Tensor:
    """The features of every arc of a sentence: columns as ``LinearArcs`` takes them.

    The templates of McDonald, Crammer and Pereira (2005), "Online large-margin training of dependency parsers", table
    1: words and tags of head and token, the tags of their neighbours, each with and without the direction and the
    distance of the arc (1 to 5, up to 10, more), and with the direction the tags that stand between. A feature's column
    is a hash of its text, so that no list of words is needed; two features may share a column.

    Args:
        words: The T words.
        tags: Their T parts of speech.
        num_features: Columns are 0 to ``num_features - 1``.

    Returns:
        ``[T, T+1, P]`` int32: at ``[t-1, h]`` the arc from head h (0 is the root) to token t; -1 where it has fewer
        features, and at arcs of a token to itself, which have none.

    Raises:
        ValueError: The numbers of words and tags differ, or ``num_features`` is out of range.

    Example:
        >>> columns = arc_columns(["Dogs", "sleep"], ["NOUN", "VERB"], num_features=1000)
        >>> columns.shape[:2]  # two tokens, and three heads with the root
        torch.Size([2, 3])
    """
    num_features = check_whole(num_features, "num_features", most=2**31 - 1)
    for name, given in (("words", words), ("tags", tags)):
        check_several(given, name, "a list of texts")
    length = len(words)
    if len(tags) != length:
        raise ValueError(f"words are {length} and tags {len(tags)}: give a tag for every word")
    word, tag = _codes(["<root>", *words]), _codes(["<left>", "<root>", *tags, "<right>"])
    codes = np.stack([word, tag[1:-1], tag[:-2], tag[2:]])  # [4, T+1]
    kinds, kind = np.unique(tag[2:-1], return_inverse=True)
    columns = np.empty((length, length + 1, _PLAIN + len(_TEMPLATES) + len(kinds)), np.int32)
    begun, last = np.empty(len(_TEMPLATES), np.uint64), np.empty(len(kinds), np.int64)
    _fill(codes, _OF_HEAD, _OF_TOKEN, kinds, kind, np.uint64(num_features), begun, last, columns)
    return torch.from_numpy(columns)


@lru_cache(2**17)
def _code(text: str) -> int:
    return zlib.crc32(text.encode()) + 1


def _codes(texts: Sequence[str]) -> np.ndarray:
    return np.array([_code(text) for text in texts], np.uint64)


@njit
def _fill(codes, of_head, of_token, kinds, kind, size, begun, last, columns):
    """Fill ``columns``; ``begun`` is room for a code of each template, ``last`` for a place of each kind of tag.

    ``codes`` ``[4, T+1]`` are words, tags, tags before and tags after; ``kinds`` are the tags, ascending, and ``kind``
    ``[T]`` numbers those of the tokens.
    """
    length, templates = columns.shape[0], len(begun)
    for h in range(length + 1):
        for n in range(templates):
            begun[n] = _mix_all(np.uint64(n + 1), codes, of_head[n], h)
        for k in range(len(kinds)):
            last[k] = -1  # no such tag since the head
        for side in range(2):
            for far in range(1, (length - h if side == 0 else h - 1) + 1):
                t = h + far if side == 0 else h - far
                row = columns[t - 1, h]
                near = min(far, 5) + (far > 5) + (far > 10)
                apart = np.uint64(2 * near + (h < t) + 1)
                place = 0
                for n in range(templates):
                    code = _mix_all(begun[n], codes, of_token[n], t)
                    if n < _PLAIN:
                        row[place] = _column(code, size)
                        place += 1
                    row[place] = _column(_mix(code, apart), size)
                    place += 1
                ends = _mix(_mix(_mix(np.uint64(templates + 1), codes[1, h]), codes[1, t]), np.uint64(h < t))
                for k in range(len(kinds)):
                    row[place + k] = _column(_mix(ends, kinds[k]), size) if last[k] == side else -1
                last[kind[t - 1]] = side
    for t in range(length):
        columns[t, t + 1] = -1


@njit
def _mix_all(code, codes, rows, at):
    """``code``, mixed with the codes of a token or a head that a template takes."""
    for row in rows:
        if row >= 0:
            code = _mix(code, codes[row, at])
    return code


@njit
def _column(code, size):
    """``code % size``; a division takes longer than the rest of the hash."""
    power = size & (size - np.uint64(1)) == 0
    return np.int32(code & (size - np.uint64(1)) if power else code % size)


@njit
def _mix(code, more):
    """A hash of both in 64-bit arithmetic."""
    mixed = (code ^ more) * _ODD
    return mixed ^ (mixed >> _HALF)
