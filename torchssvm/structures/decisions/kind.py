"""Decisions for the compiled loop: a row of features for each variable, or one for all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.potentials import SINGLE, Potentials
from torchssvm.kinds.adapter import HeadAdapter, Ragged
from torchssvm.kinds.examples import Examples
from torchssvm.structures.decisions import kind_numba as kinds
from torchssvm.structures.decisions.combinatorial import Assignment, Knapsack, Selection, SpanningTree, whole_numbers
from torchssvm.structures.decisions.shortest_path import ShortestPath

ORACLES = (Assignment, Knapsack, Selection, ShortestPath, SpanningTree)
"""Those that kernels can call."""


class DecisionAdapter(HeadAdapter):
    """:class:`LinearDecisions` with one of ``ORACLES``. Labels are decisions, and their costs are ``delta``."""

    emission, ragged, notes = SINGLE, False, True

    def __init__(self, head: Any) -> None:
        super().__init__(head)
        self.products, self.known = not head.shared, False

    def inputs(self, x: Any) -> Any:
        """The features, with what else is known or without."""
        return x if isinstance(x, Tensor) else x.x

    def targets(self, target: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The decisions, and what a variable's change costs.

        Raises:
            ValueError: A decision is neither 0 nor 1.
        """
        y = target.y.to(torch.int64)
        if bool(((target.y != 0) & (target.y != 1)).any()):
            raise ValueError("target.y has numbers other than 0 and 1: make targets by Decisions(oracle).target(costs)")
        delta: Any = self.structure.loss_potentials(target)[0]
        return y.flatten(), delta.flatten(), torch.full((len(y),), y.shape[1])

    def lists(self, sizes: Tensor, own: dict[str, Ragged]) -> Tensor:
        """A row for each variable, or one."""
        return sizes if self.head.shared else torch.ones_like(sizes)

    def features(self, x: Any, target: Any) -> Tensor:
        """The same rows."""
        found = self.inputs(x)
        return found.flatten(0, 1) if self.head.shared else found

    def own(self, x: Any, target: Any, potentials: Potentials) -> dict[str, Ragged]:
        """What the oracle is given.

        Raises:
            ValueError: It does not fit the oracle, or a target is not optimal.
        """
        structure: Any = self.structure
        given, batch, oracle = potentials.given, len(target.y), structure.oracle  # type: ignore[attr-defined]
        structure.regret(structure.target(target.cost, given), target)
        self.known |= target.fixed is not None
        if given is None:
            most = getattr(oracle, "k", getattr(oracle, "capacity", 0))
            numbers = np.full(batch, most)
        else:
            numbers = whole_numbers(given.cpu().numpy(), batch, "the size")
        return {"given": (torch.ones(batch, dtype=torch.int64), torch.from_numpy(numbers))}

    def kind(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Any:
        """That of the oracle, from what it is given, ``[n]`` int64."""
        oracle: Any = self.structure.oracle  # type: ignore[attr-defined]
        given = own["given"][1].numpy()
        common = self.head.shared, self.known, 2.0 if oracle.maximize else -2.0
        if isinstance(oracle, ShortestPath):
            tails, heads = np.ascontiguousarray(oracle.arcs.T)
            return kinds.Paths(*common, oracle.order, tails, heads, oracle.source, oracle.sink)
        if isinstance(oracle, Selection):
            return kinds.Selections(*common, oracle.at_most, given)
        if isinstance(oracle, Knapsack):
            return kinds.Knapsacks(*common, oracle.weights, np.minimum(given, oracle.weights.sum()))
        if isinstance(oracle, SpanningTree):
            return kinds.Trees(*common, oracle.edges)
        return kinds.Assignments(*common, oracle.tasks)

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the oracle."""
        return partial(kinds.make_room, self.structure.oracle, examples.kind)  # type: ignore[attr-defined]

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """A row of D for each example."""
        return {self.emission: (torch.ones_like(lengths), (self.head.structure.num_costs,))}

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """Chosen or not."""
        return 0, torch.ones_like(lengths)
