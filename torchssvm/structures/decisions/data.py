"""Inputs of decisions: situations with known costs, their potentials, and a dataset of solved problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_readable, check_tensor, check_type, naming
from torchssvm.core.batch import Batch, tree_map
from torchssvm.core.potentials import Potentials, as_parts
from torchssvm.core.structure import reject_rows
from torchssvm.structures.common import check_shape
from torchssvm.structures.decisions.structure import Decisions


class Situations(NamedTuple):
    """Features of a batch, and what is known of its problems: the input of :class:`LinearDecisions`.

    Attributes:
        x: Features, ``[B, F]``, or ``[B, D, F]`` for a head with shared weights.
        fixed: ``[B, D]`` or None, the part of the costs that is known and not predicted.
        given: ``[B, ...]`` or None, what the oracle takes for every example, such as right-hand sides.

    Example:
        >>> paths = Decisions(ShortestPath.grid(2, 2))
        >>> head = LinearDecisions(in_features=3, structure=paths)
        >>> tolls = torch.tensor([[0.0, 5.0, 0.0, 0.0]])
        >>> paths.decode(head(Situations(torch.rand(1, 3), fixed=tolls)))
        tensor([[1, 0, 1, 0]])
    """

    x: Tensor
    fixed: Tensor | None = None
    given: Tensor | None = None


class DecisionPotentials(Potentials):
    """Predicted costs ``[B, D]``, with known costs and what else is given of every example's problem.

    Args:
        costs: ``[B, D]``, the predicted costs; a tensor, or one by name.
        fixed: ``[B, D]`` or None, known costs that are added to the predicted ones; no gradient flows to them.
        given: ``[B, ...]`` or None, what the oracle takes.
        options: ``adjoint``, ``gram_product`` and ``weights``, as :class:`~torchssvm.Potentials` takes
            them.

    Raises:
        ValueError: A shape does not fit.

    Example:
        >>> potentials = DecisionPotentials(torch.zeros(1, 4), fixed=torch.tensor([[0.0, 5.0, 0.0, 0.0]]))
        >>> Decisions(ShortestPath.grid(2, 2)).decode(potentials)
        tensor([[1, 0, 1, 0]])
    """

    __slots__ = ("fixed", "given")
    carried = ("fixed", "given")

    def __init__(
        self,
        costs: Tensor | dict[str, Tensor],
        *,
        fixed: Tensor | None = None,
        given: Tensor | None = None,
        **options: Any,
    ) -> None:
        named = as_parts(costs, "costs")
        shape = check_shape(next(iter(named.values())), "potentials", "B", "D").shape
        super().__init__(named, **options)
        if fixed is not None:
            fixed = check_shape(fixed, "fixed", *shape).detach().to(self.device, torch.float64)
        if given is not None:
            check_shape(given, "given", shape[0], *given.shape[1:])
        self.fixed = fixed
        self.given = given


class DecisionProblems(Dataset[int]):
    """A map-style dataset of decisions; the oracle solves every problem once, when it is made.

    Args:
        x: Features, ``[n, F]``, or ``[n, D, F]`` for heads with shared weights; or :class:`Situations`.
        costs: The true costs, ``[n, D]``, of which known ones (``Situations.fixed``) are a part.

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
        check_type(structure, Decisions, "structure", "Decisions(oracle)")
        features = check_tensor(x.x if isinstance(x, Situations) else x, "x")
        check_readable(costs, "costs")
        costs = torch.as_tensor(costs)
        others = {"costs": costs, "fixed": x.fixed, "given": x.given} if isinstance(x, Situations) else {"costs": costs}
        for name, each in others.items():
            if each is not None:
                check_shape(each, name, len(features), *each.shape[1:])
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
