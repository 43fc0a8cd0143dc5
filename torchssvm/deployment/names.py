"""Features by name as lists of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from torchssvm.core.sparse_features import SparseFeatures

Names = Iterable[str] | Mapping[str, float]
"""The features of a token: their names, each with the value 1, or their values by name."""


def batch_of_names(
    sentences: Sequence[Sequence[Names]], vocabulary: Mapping[str, int]
) -> tuple[SparseFeatures, Tensor]:
    """A batch for :class:`~torchssvm.SparseLinearChain` from the features of tokens by name.

    Args:
        sentences: For every sentence, for every token, its features; those without a column are left out.
        vocabulary: The column of every feature by its name.

    Returns:
        Columns ``[B, N, P]`` int64, -1 in the padding, with values float32 ``[B, N, P]`` if any token has a mapping;
        and the lengths ``[B]`` int64.

    Raises:
        ValueError: There is no sentence, or a sentence has no token.
    """
    lengths = [len(sentence) for sentence in sentences]
    if not lengths or min(lengths) < 1:
        raise ValueError(f"sentences must hold at least one sentence, each with a token; their lengths are {lengths}")
    columns, values, weighted = [], [], False
    for sentence in sentences:
        for token in sentence:
            if isinstance(token, Mapping):
                weighted = True
                found = [(vocabulary[name], float(value)) for name, value in token.items() if name in vocabulary]
            else:
                found = [(vocabulary[name], 1.0) for name in token if name in vocabulary]
            columns.append([column for column, _ in found])
            values.append([value for _, value in found])
    width = max(1, *map(len, columns))
    real = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    flat = torch.tensor([row + [-1] * (width - len(row)) for row in columns])
    padded = torch.full((*real.shape, width), -1)
    padded[real] = flat
    if not weighted:
        return SparseFeatures(padded), torch.tensor(lengths)
    numbers = torch.zeros(*real.shape, width)
    numbers[real] = torch.tensor([row + [0.0] * (width - len(row)) for row in values])
    return SparseFeatures(padded, numbers), torch.tensor(lengths)
