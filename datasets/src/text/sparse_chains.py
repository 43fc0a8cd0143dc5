"""Chains of tokens with lists of features: the base of all datasets for ``SparseLinearChain``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_tensor
from torchssvm.core.batch import Batch
from torchssvm.core.sparse_features import SparseFeatures, padded_sequences, padded_tokens

from ..padded import PADDING, Example, collating, padded, place_of, places_of


class SparseChains(Dataset[Example]):
    """A map-style dataset of n chains; :meth:`collate` and ``__getitems__`` make its batches.

    An item is ``(x, y, index)``: ``SparseFeatures`` with columns int64 [T, P], -1 where a token has fewer than P, and
    values float32 [T, P], 0 there (or None); states int64 [T]; and the number of the chain. A batch has columns and
    values [B, N, P] and y [B, N], -1 where padded.

    Args:
        offsets: int64 ``[n + 1]``: chain i has the tokens ``offsets[i]`` to ``offsets[i + 1] - 1``, at least one.
        rows: int64 ``[tokens + 1]``, and
        columns: int32: token t has the features ``columns[rows[t] : rows[t + 1]]``.
        states: int64 ``[tokens]``, 0 to K - 1; -1 throughout if unknown.
        in_features: F; columns are 0 to F - 1.
        num_states: K, the number of states.
        values: float32, as many as columns; None means that all are 1.

    Attributes:
        lengths: int64 ``[n]``, tokens of each chain; all arguments are attributes too.

    Example:
        >>> columns = torch.tensor([0, 5, 1, 5], dtype=torch.int32)  # two features, one, and one
        >>> chains = SparseChains(
        ...     offsets=torch.tensor([0, 2, 3]), rows=torch.tensor([0, 2, 3, 4]), columns=columns,
        ...     states=torch.tensor([0, 1, 1]), in_features=6, num_states=2,
        ... )
        >>> chains[0].x.columns
        tensor([[ 0,  5],
                [ 1, -1]])
        >>> chains.lengths
        tensor([2, 1])
    """

    what = "chains"

    def __init__(
        self,
        offsets: Tensor,
        rows: Tensor,
        columns: Tensor,
        states: Tensor,
        in_features: int,
        num_states: int,
        values: Tensor | None = None,
    ) -> None:
        self.offsets = check_tensor(offsets, "offsets")
        self.rows, self.columns, self.values = rows, columns, values
        self.states = states
        self.in_features = in_features
        self.num_states = num_states
        self.lengths = offsets.diff()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Example:
        batch = self.__getitems__([i])
        columns, values = batch.x
        return Example(
            SparseFeatures(columns[0], None if values is None else values[0]), batch.y[0], int(batch.index[0])
        )

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """The chains at ``indices`` as one batch, cropped to its longest; a ``DataLoader`` calls this."""
        index = torch.tensor(places_of(indices, len(self), self.what))
        token, real = padded_tokens(self.offsets, index.numpy())
        y = torch.from_numpy(np.where(real, self.states.numpy()[token], PADDING))
        x = padded_sequences(token, real, self.rows, self.columns, self.values)
        return Batch(x=x, y=y, index=index, lengths=self.lengths[index])

    @staticmethod
    @collating
    def collate(examples: Sequence[Example]) -> Batch:
        """Examples, padded to the longest."""
        xs, ys, index = zip(*examples, strict=True)
        values = None if xs[0].values is None else padded([x.values for x in xs], 0)
        x = SparseFeatures(padded([x.columns for x in xs], PADDING), values)
        return Batch(x, padded(ys, PADDING), torch.tensor(index), torch.tensor([len(y) for y in ys]))

    def tokens(self, i: int) -> slice:
        """The range of a chain's tokens."""
        at = place_of(i, len(self), self.what)
        return slice(int(self.offsets[at]), int(self.offsets[at + 1]))

    def __repr__(self) -> str:
        sizes = f"{len(self.states)} tokens, {self.in_features} columns"
        return f"{type(self).__name__}: {len(self)} {self.what}, {sizes}"
