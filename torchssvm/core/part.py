"""Some examples of a dataset as a dataset of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.batch import Batch, Collate, fetcher, lengths_of

SIZES = ("in_features", "num_features", "edge_features", "num_states", "num_classes", "num_labels")
NAMES = ("vocabulary", "labels")


class Part:
    """Some examples of a dataset as a dataset of its own, numbered from 0; an item is its number.

    ``torch.utils.data.Subset`` keeps the numbers of the whole, which name other examples' dual blocks.

    Args:
        dataset: Map-style.
        rows: Which examples, by their places in ``dataset``.
        collate_fn: Makes a ``Batch`` of items of ``dataset``; None is ``dataset.collate``.

    Attributes:
        rows: int64 ``[m]``.
        lengths: int64 ``[m]`` where ``dataset`` has such a tensor, else None.

    What describes columns and states is that of ``dataset``, such as ``in_features``, ``num_states``, ``vocabulary``
    and, with it, ``labels``.

    Raises:
        ValueError: There is neither ``collate_fn`` nor ``dataset.collate``.
    """

    def __init__(self, dataset: Any, rows: Sequence[int] | Tensor, collate_fn: Collate | None = None) -> None:
        self.rows = torch.as_tensor(rows, dtype=torch.int64)
        self._fetch = fetcher(dataset, collate_fn)
        lengths = lengths_of(dataset)
        self.lengths = None if lengths is None else lengths.cpu()[self.rows]
        if collate_fn is None:  # one of the user's own may make other features
            sizes = {name: own for name in SIZES if isinstance(own := getattr(dataset, name, None), int)}
            names = {name: getattr(dataset, name) for name in NAMES if hasattr(dataset, name)}
            vars(self).update(sizes | (names if "vocabulary" in names else {}))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> int:
        if not 0 <= i < len(self.rows):
            raise IndexError(f"example {i} of a dataset of {len(self.rows)}")
        return i

    def collate(self, items: Sequence[int]) -> Batch:
        """The examples with these numbers."""
        index = torch.tensor(list(items), dtype=torch.int64)
        batch = self._fetch(self.rows[index].tolist())
        return batch.replace(index=index.to(batch.index.device))
