"""The orders in which blocks are visited: gap sampling and others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchssvm.core.arguments import check_number


class Order(Protocol):
    """Draws batches from the last known block gaps."""

    needs_gaps: bool
    """Whether draws depend on the gaps; otherwise a whole epoch is drawn at once."""

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """``batches`` tensors of ``batch_size`` distinct examples each.

        Args:
            gaps: ``[n]`` float64, finite and non-negative.
            batches: How many batches to draw.
            batch_size: Examples in a batch, at most n.
            generator: The only source of randomness.
        """
        ...


@dataclass(frozen=True)
class Proportional:
    """Probability proportional to ``gap ** power`` ([G16] Algorithm 2 for power 1), distinct within a batch.

    Blocks with gap 0 are drawn, uniformly, only if the others are too few to fill a batch.

    Example:
        >>> dual = DualState.for_head(LinearMulticlass(4, 3), num_examples=30, lam=0.1)
        >>> sampler = GapBatchSampler(dual, batch_size=10, order=Proportional(power=0.5))
        >>> [len(rows) for rows in sampler]
        [10, 10, 10]
    """

    power: float = 1.0
    needs_gaps = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "power", check_number(self.power, "power", 0.0))

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Successive weighted draws, leaving out examples that the batch already has."""
        largest = float(gaps.max())
        weights = (gaps / largest) ** self.power if largest > 0.0 else torch.ones_like(gaps)
        ends = weights.cumsum(0)
        points = torch.rand(batches, 2 * batch_size + 16, dtype=torch.float64, generator=generator) * ends[-1]
        drawn = torch.searchsorted(ends, points, right=True).clamp_(max=len(ends) - 1)
        if not bool((weights[drawn] > 0.0).all()):  # rounding at the end of the last interval
            drawn = torch.where(weights[drawn] > 0.0, drawn, weights.argmax())
        return [self._batch(list(dict.fromkeys(row)), weights, batch_size, generator) for row in drawn.tolist()]

    def _batch(self, distinct: list[int], weights: Tensor, batch_size: int, generator: torch.Generator) -> Tensor:
        """The first ``batch_size`` distinct numbers, filled up with further draws if they are fewer."""
        if len(distinct) >= batch_size:
            return torch.tensor(distinct[:batch_size])
        # If few weights dominate, the others follow in the order of exponential variables with their weights as rates
        # (compared in logarithms); a weight of 0 comes after all others.
        noise = torch.empty_like(weights).exponential_(generator=generator)
        keys = torch.where(weights > 0.0, noise.log() - weights.log(), 1e6 + noise)
        keys[distinct] = torch.inf
        return torch.cat([torch.tensor(distinct), keys.topk(batch_size - len(distinct), largest=False).indices])


@dataclass(frozen=True)
class LargestGap:
    """The blocks with the largest gaps first.

    Example:
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=Solver(order=LargestGap())).relative_gap <= 0.01
        True
    """

    needs_gaps = True

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """The largest gaps in descending order, ties in random order; after all n blocks the order repeats."""
        n = len(gaps)
        shuffled = torch.randperm(n, generator=generator)
        order = shuffled[gaps[shuffled].argsort(descending=True, stable=True)]
        return _chunks(order.repeat(math.ceil(batches * batch_size / n)), batches, batch_size)


@dataclass(frozen=True)
class Uniform:
    """Every batch is a uniform draw of distinct examples, independent of the others ([B13] Algorithm 4).

    Example:
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=Solver(order=Uniform())).relative_gap <= 0.01
        True
    """

    needs_gaps = False

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Uniform draws."""
        return [torch.randperm(len(gaps), generator=generator)[:batch_size] for _ in range(batches)]


@dataclass(frozen=True)
class Permutation:
    """Every example once in an epoch, in random order.

    Example:
        >>> dual = DualState.for_head(LinearMulticlass(4, 3), num_examples=30, lam=0.1)
        >>> sampler = GapBatchSampler(dual, batch_size=10, order=Permutation())
        >>> sorted(row for rows in sampler for row in rows) == list(range(30))
        True
    """

    needs_gaps = False

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """One permutation, in batches; the last one may be smaller."""
        return list(torch.randperm(len(gaps), generator=generator).split(batch_size))[:batches]


def _chunks(order: Tensor, batches: int, batch_size: int) -> list[Tensor]:
    """Consecutive batches of ``order``, each of distinct examples."""
    result = []
    for start in range(0, batches * batch_size, batch_size):
        batch = order[start : start + batch_size]
        if len(batch.unique()) < len(batch):  # the end of one round and the start of the next
            batch = order[:batch_size]
        result.append(batch)
    return result
