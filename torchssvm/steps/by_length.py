"""Batches of examples of similar length, so that little of a batch is padding."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from torchssvm.core.arguments import check_length_form
from torchssvm.steps.orders import Order, Permutation, Proportional, Uniform


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
