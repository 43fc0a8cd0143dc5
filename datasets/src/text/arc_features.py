"""First-order features of dependency arcs, after McDonald et al. (2005), hashed to columns."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

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


def _steps(end: str) -> list[tuple[list[int], list[int]]]:
    """For the first name of the head or the token, and the second: templates that have it, and its rows."""
    names = [[_ROWS[name[1:]] for name in template if name[0] == end] for template in _TEMPLATES]
    several = [[n for n, rows in enumerate(names) if len(rows) > place] for place in range(2)]
    return [(which, [names[n][place] for n in which]) for place, which in enumerate(several)]


_OF_HEAD, _OF_TOKEN = _steps("h"), _steps("t")  # in a template, the names of the head come first
_PLAIN = len(_ALONE) + len(_PAIRS)  # templates that also count without the distance
_ORDER = [row for n in range(len(_TEMPLATES)) for row in ([n] if n < _PLAIN else []) + [len(_TEMPLATES) + n]]
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
        ``[T, T+1, P]`` int64: at ``[t-1, h]`` the arc from head h (0 is the root) to token t; -1 where it has fewer
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
    heads, tokens = np.arange(length + 1)[None, :], np.arange(1, length + 1)[:, None]
    distance = np.abs(heads - tokens)
    to_right = (heads < tokens).astype(np.uint64)
    near = np.minimum(distance, 5) + (distance > 5) + (distance > 10)
    apart = near.astype(np.uint64) * np.uint64(2) + to_right + np.uint64(1)

    # All templates at once, since an operation on one takes less time than its call.
    code = np.repeat(np.arange(1, len(_TEMPLATES) + 1, dtype=np.uint64)[:, None], length + 1, 1)
    for which, rows in _OF_HEAD:
        code[which] = _mix(code[which], codes[rows])
    code = np.repeat(code[:, None], length, 1)  # [templates, T, T+1]
    for which, rows in _OF_TOKEN:
        code[which] = _mix(code[which], codes[rows, 1:, None])
    hashed = _columns(np.concatenate([code, _mix(code, apart)])[_ORDER], num_features)

    # Each tag between head and token, once: its counts before the two differ.
    kinds, kind = np.unique(tag[2:-1], return_inverse=True)
    count = np.zeros((length + 2, len(kinds)), np.int64)
    count[np.arange(2, length + 2), kind] = 1
    count = count.cumsum(0)  # [i]: among the tokens before i
    low, high = np.minimum(heads, tokens), np.maximum(heads, tokens)
    between = count[high] > count[np.minimum(low + 1, high)]  # [T, T+1, kinds]
    ends = _mix(_mix(_mix(np.full((1, 1), len(_TEMPLATES) + 1, np.uint64), codes[1]), codes[1, 1:, None]), to_right)
    inside = _columns(_mix(ends[:, :, None], kinds), num_features)
    features = np.empty((length, length + 1, len(_ORDER) + len(kinds)), np.int64)
    features[:, :, : len(_ORDER)] = hashed.transpose(1, 2, 0)
    features[:, :, len(_ORDER) :] = np.where(between, inside, -1)
    features[distance == 0] = -1
    return torch.from_numpy(features)


def _codes(texts: Sequence[str]) -> np.ndarray:
    return np.array([zlib.crc32(text.encode()) + 1 for text in texts], np.uint64)


def _columns(hashed: np.ndarray, num_features: int) -> np.ndarray:
    """``hashed % num_features`` as int64, by a division, which NumPy does in half the time."""
    size = np.uint64(num_features)
    return (hashed - hashed // size * size).view(np.int64)


def _mix(code: np.ndarray, more: np.ndarray) -> np.ndarray:
    """A hash of both in 64-bit arithmetic."""
    mixed = (code ^ more) * _ODD
    mixed ^= mixed >> _HALF
    return mixed
