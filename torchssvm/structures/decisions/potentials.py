"""Predicted costs, with what else is known of the examples' problems."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import check_tensor
from torchssvm.core.potentials import Potentials, as_parts


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
        options: ``adjoint``, ``gram_product``, ``weights`` and ``called_with``, as :class:`~torchssvm.Potentials` takes
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
        shape = next(iter(named.values())).shape
        if len(named) != 1 or len(shape) != 2:
            raise ValueError(f"potentials of decisions are one tensor [B, D], got {list(shape)}")
        super().__init__(named, **options)
        if fixed is not None:
            if check_tensor(fixed, "fixed").shape != shape:
                raise ValueError(f"fixed has shape {list(fixed.shape)}, and the potentials are {list(shape)}")
            fixed = fixed.detach().to(self.device, torch.float64)
        if given is not None and check_tensor(given, "given").shape[:1] != shape[:1]:
            raise ValueError(f"given has shape {list(given.shape)}; its first axis must be the batch, {shape[0]}")
        self.fixed = fixed
        self.given = given
