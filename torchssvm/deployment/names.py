"""Features by name as lists of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.named_features import named_values
from torchssvm.core.sparse_features import SparseFeatures


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
        TypeError: A token is something else.

    Example:
        >>> sentences = [[{"word": "the", "first": True}, {"word": "cat"}]]
        >>> x, lengths = batch_of_names(sentences, {"first": 0, "word=the": 1, "word=cat": 2})
        >>> x.columns.tolist(), lengths.tolist()
        ([[[1, 0], [2, -1]]], [2])
    """
    lengths = [len(sentence) for sentence in sentences]
    if not lengths or min(lengths) < 1:
        raise ValueError(f"sentences must hold at least one sentence, each with a token; their lengths are {lengths}")
    columns, values = [], []
    for sentence in sentences:
        for token in sentence:
            found = [(vocabulary[name], value) for name, value in named_values(token) if name in vocabulary]
            columns.append([column for column, _ in found])
            values.append([value for _, value in found])
    width = max(1, *map(len, columns))
    real = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    flat = torch.tensor([row + [-1] * (width - len(row)) for row in columns])
    padded = torch.full((*real.shape, width), -1)
    padded[real] = flat
    if all(value == 1.0 for row in values for value in row):
        return SparseFeatures(padded), torch.tensor(lengths)
    numbers = torch.zeros(*real.shape, width)
    numbers[real] = torch.tensor([row + [0.0] * (width - len(row)) for row in values])
    return SparseFeatures(padded, numbers), torch.tensor(lengths)
