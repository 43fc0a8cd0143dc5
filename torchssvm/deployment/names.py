"""Features by name as lists of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.sparse_features import FeatureLists, SparseFeatures


def batch_of_names(sentences: Sequence[Sequence[Any]], vocabulary: Mapping[str, int]) -> tuple[SparseFeatures, Tensor]:
    """A batch for :class:`~torchssvm.SparseLinearChain` from the features of tokens by name.

    Args:
        sentences: For every sentence, for every token, its features: a list of names, each of the value 1, or
            ``{name: text, number, True or False}``, where a text becomes the feature ``name=text``. Features without a
            column are left out.
        vocabulary: The column of every feature by its name.

    Returns:
        Columns ``[B, N, P]`` int64, -1 in the padding, with values float32 ``[B, N, P]`` if one of them is not 1;
        and the lengths ``[B]`` int64.

    Raises:
        ValueError: There is no sentence, a sentence has no token, or a number is not finite.
        TypeError: A token is something else, or ``sentences`` and ``vocabulary`` are.

    Example:
        >>> sentences = [[{"word": "the", "first": True}, {"word": "cat"}]]
        >>> x, lengths = batch_of_names(sentences, {"first": 0, "word=the": 1, "word=cat": 2})
        >>> x.columns.tolist(), lengths.tolist()
        ([[[1, 0], [2, -1]]], [2])
    """
    if not isinstance(vocabulary, Mapping):
        raise TypeError(
            f"vocabulary={vocabulary!r} must map names of features to columns, as load_model finds it in a file"
        )
    for given in [sentences] if not hasattr(sentences, "__len__") else sentences:
        if not hasattr(given, "__len__"):
            raise TypeError(f"sentences must be lists of tokens, one list for every sentence; got {given!r}")
    lengths = [len(sentence) for sentence in sentences]
    if not lengths or min(lengths) < 1:
        raise ValueError(f"sentences must hold at least one sentence, each with a token; their lengths are {lengths}")
    lists = FeatureLists(sentences, vocabulary)
    return lists.batch(torch.arange(len(lengths))), lists.lengths
