"""A training set of decisions: features, true costs, and the decisions that are optimal for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_tensor
from torchssvm.core.batch import Batch, tree_map
from torchssvm.core.naming import naming
from torchssvm.core.structure import reject_rows
from torchssvm.structures.decisions.potentials import Situations
from torchssvm.structures.decisions.structure import Decisions


class DecisionProblems(Dataset[int]):
    """A map-style dataset of decisions; the oracle solves every problem once, when it is made.

    Args:
        x: Features, ``[n, F]``, or ``[n, D, F]`` for heads with shared weights; or :class:`Situations`.
        costs: The true costs, ``[n, D]``, of which known ones (``Situations.fixed``) are a part.
        structure: The decisions.

    Attributes:
        x: As given.
        structure: As given.
        target: The :class:`Decision` of all examples.

    Raises:
        TypeError: ``structure`` is not a :class:`Decisions`.
        ValueError: Sizes differ; features or costs are not finite; or the oracle did not prove its decisions optimal.

    Example:
        >>> problems = DecisionProblems(torch.rand(8, 3), torch.rand(8, 4), Decisions(ShortestPath.grid(2, 2)))
        >>> problems.target.y.shape
        torch.Size([8, 4])
    """

    def __init__(self, x: Tensor | Situations, costs: Tensor | Any, structure: Decisions) -> None:
        if not isinstance(structure, Decisions):
            raise TypeError(f"structure={structure!r} must be Decisions(oracle), not a {type(structure).__name__}")
        features = check_tensor(x.x if isinstance(x, Situations) else x, "x")
        costs = torch.as_tensor(costs)
        if not len(features) or len(features) != len(costs):
            raise ValueError(f"x has {len(features)} examples, and costs {len(costs)}")
        if isinstance(x, Situations):
            for name in ("fixed", "given"):
                if (each := getattr(x, name)) is not None and len(check_tensor(each, name)) != len(features):
                    raise ValueError(f"x has {len(features)} examples, and its {name} {len(each)}")
        self.x, self.structure = x, structure
        with naming(torch.arange(len(features))):
            reject_rows(~torch.isfinite(features).flatten(1).all(1), "x of {rows} is not finite")
            self.target = structure.target(costs, x.given if isinstance(x, Situations) else None)

    def __len__(self) -> int:
        return len(self.target.y)

    def __getitem__(self, i: int) -> int:
        return range(len(self))[i]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """The batch of these examples; a ``DataLoader`` calls this."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        x, target = (tree_map(lambda tensor: tensor[index], each) for each in (self.x, self.target))
        return Batch(x, target, index)

    def collate(self, items: Batch | Sequence[int]) -> Batch:
        """The batch of items."""
        return items if isinstance(items, Batch) else self.__getitems__(items)
