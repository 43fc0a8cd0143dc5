"""The orders in which blocks are visited: gap sampling and others."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchssvm.core.arguments import check_length_form, check_number


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


class ByLength:
    """Another order, in batches of examples of similar length.

    The examples, sorted by length, are cut into buckets: each has at least twice as many examples as a batch (as far as
    there are so many), and examples of one length are never in two buckets. Random batches of sentences pad the arcs
    of a parser 5 to 8 times; these pad them 1.1 to 1.6 times, at batches of 16 to 64.

    The draws, batch for batch:

    * ``Proportional`` and ``Uniform``: the batch's first example is example i with the probability that ``order`` gives
      it among all examples. Each further one has the probability that ``order`` gives it among the examples of the
      first one's bucket that the batch does not have yet. So under ``Uniform()`` every example is in a batch with
      probability ``batch_size / n``, as without buckets. Under ``Proportional()`` an example's expected number of
      visits is proportional to its gap where no gap dominates its bucket; the examples of a bucket share the visits
      that their gaps have together.
    * ``Permutation``: every example once in an epoch. The batches are cut from a random order within each bucket, and
      come in random order; the one that may be smaller comes last.

    Args:
        lengths: ``[n]`` int64, the length of each example of the dataset, at least 0; or a sequence of integers.
        order: ``Proportional()`` (the default), ``Uniform()`` or ``Permutation()``.

    Raises:
        ValueError: ``lengths`` is empty or has a negative number.
        TypeError: ``order`` is of another kind.

    Example:
        >>> lengths = [2, 9] * 15
        >>> dual = DualState.for_head(LinearMulticlass(4, 3), num_examples=30, lam=0.1)
        >>> sampler = GapBatchSampler(dual, batch_size=5, order=ByLength(lengths, Permutation()))
        >>> sorted({lengths[row] for row in rows} for rows in sampler)
        [{2}, {2}, {2}, {9}, {9}, {9}]
    """

    def __init__(self, lengths: Tensor | Sequence[int], order: Order | None = None) -> None:
        lengths = torch.as_tensor(lengths)
        check_length_form(lengths, len(lengths) if lengths.ndim else 1)
        if not len(lengths) or int(lengths.min()) < 0:
            raise ValueError(f"lengths={lengths.tolist()[:5]}... must be one number from 0 on for each example")
        self.lengths = lengths.cpu().clone()
        self.order: Order = order if order is not None else Proportional()
        if type(self.order) not in (Proportional, Uniform, Permutation):
            raise TypeError(f"order={self.order} must be Proportional(), Uniform() or Permutation()")
        self.needs_gaps = self.order.needs_gaps
        self._sorted, self._by_length = self.lengths.sort(stable=True)
        self._buckets: dict[int, list[Tensor]] = {}
        self._part: tuple[range, ByLength] | None = None

    def buckets(self, batch_size: int) -> list[Tensor]:
        """The examples of each bucket, ascending by length, for batches of this size."""
        if batch_size not in self._buckets:
            begins = self._sorted.diff(prepend=self._sorted[:1] - 1).nonzero().flatten().tolist()
            ends, start = [], 0
            for end in [*begins[1:], len(self.lengths)]:
                if end - start >= 2 * batch_size:
                    ends.append(end)
                    start = end
            sizes = torch.tensor([0, *ends[:-1], len(self.lengths)]).diff()  # too few are left over: the last has them
            if not ends:
                sizes = torch.tensor([len(self.lengths)])
            self._buckets[batch_size] = list(self._by_length.split(sizes.tolist()))
        return self._buckets[batch_size]

    def draw(self, gaps: Tensor, batches: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """See :class:`ByLength`; arguments as of every order.

        Raises:
            ValueError: ``gaps`` has another number of examples than ``lengths``.
        """
        self.check(len(gaps))
        if isinstance(self.order, Permutation):
            return self.cut(torch.arange(len(gaps)), batch_size, generator)[:batches]
        buckets = self.buckets(batch_size)
        weights = torch.ones(len(gaps), dtype=torch.float64)
        gaps = gaps.clamp(min=0.0)
        if isinstance(self.order, Proportional) and 0.0 < float(gaps.max()) < float("inf"):
            weights = (gaps / gaps.max()) ** self.order.power
        shares = torch.stack([weights[bucket].sum() for bucket in buckets])
        chosen = torch.multinomial(shares, batches, replacement=True, generator=generator)
        found: list[Tensor] = [chosen] * batches
        for number in chosen.unique().tolist():
            places, own = (chosen == number).nonzero().flatten().tolist(), buckets[number]
            drawn = self.order.draw(gaps[own], len(places), batch_size, generator)
            for place, batch in zip(places, drawn, strict=True):
                found[place] = own[batch]
        return found

    def cut(self, chosen: Tensor, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Batches that hold each of these distinct examples once; the one that may be smaller comes last.

        Args:
            chosen: ``[M]`` int64.
            batch_size: Examples in a batch.
            generator: The only source of randomness.
        """
        bucket = torch.zeros_like(self.lengths)
        for number, own in enumerate(self.buckets(batch_size)):
            bucket[own] = number
        shuffled = chosen[torch.randperm(len(chosen), generator=generator)]
        batches = list(shuffled[bucket[shuffled].argsort(stable=True)].split(batch_size))
        full = len(chosen) // batch_size
        return [batches[k] for k in torch.randperm(full, generator=generator).tolist()] + batches[full:]

    def of(self, examples: range) -> ByLength:
        """The order of some of the examples, which are numbered from 0."""
        if self._part is None or self._part[0] != examples:
            self._part = examples, ByLength(self.lengths[examples.start : examples.stop], self.order)
        return self._part[1]

    def check(self, num_examples: int) -> None:
        """Raise ValueError if this is not the number of lengths."""
        if num_examples != len(self.lengths):
            raise ValueError(f"lengths has {len(self.lengths)} numbers, and there are {num_examples} examples")

    def __repr__(self) -> str:
        digest = zlib.crc32(self.lengths.numpy().tobytes())
        return f"ByLength({len(self.lengths)} lengths, crc32 {digest:08x}, {self.order})"
