"""A resumable batch sampler for the orders of :mod:`torchssvm.steps.directions`."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from torchssvm.core.arguments import check_length_form, check_object, check_seed, check_type, check_whole
from torchssvm.core.operators import on_host
from torchssvm.core.random_state import check_random_state
from torchssvm.core.ranks import Ranks
from torchssvm.core.states import ByRank, Numbers, check_entries, copied, damaged
from torchssvm.dual.checks import check_dual
from torchssvm.dual.state import DualState
from torchssvm.steps.directions import Order, Permutation, Proportional, Uniform


class GapBatchSampler(Sampler[list[int]], ByRank):
    """Batches for a ``DataLoader(batch_sampler=...)``, drawn by the block gaps and resumable in the middle of an epoch.

    An epoch is ``ceil(n / batch_size)`` batches. Of several processes, each draws ``batch_size`` of its own examples
    for every step, and n is the largest number that a process has. Examples whose gap is unknown come first, in random
    order. After that, orders that need gaps draw chunks of ``chunk`` batches. A chunk is drawn from the gaps as they
    were when the chunk before the previous one was used up. So draws are the same with and without worker processes, if
    these fetch at most ``chunk`` batches ahead.

    Orders by gaps need an exact pass some every ten epochs, by :func:`~torchssvm.certify` ([G16] appendix D): an
    example whose last gap was small is not drawn before, however large its gap has become.

    Args:
        dual: The dual whose gaps are used; None if ``bind`` sets it later, as ``StructuredSVM`` does; then
            ``num_examples`` is needed.
        batch_size: Examples in a batch; capped at n.
        num_examples: n, the size of the dataset; None is the dual's.
        order: ``Proportional(power=1.0)`` (the default), ``LargestGap()``, ``Uniform()``, ``Permutation()``; or
            ``ByLength(lengths)``, batches of similar length.
        chunk: Batches in a chunk; None is a twentieth of an epoch, at least 8.

    Raises:
        TypeError: ``dual`` or ``order`` is of another type, or a size is not a number.
        ValueError: A size is not a positive whole number, or ``num_examples`` differs from that of the dual or of the
            lengths of ``order``.

    Example:
        >>> dual = DualState.for_head(LinearMulticlass(4, 3), num_examples=30, lam=0.1)
        >>> sampler = GapBatchSampler(dual, batch_size=8)
        >>> loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
        >>> [len(batch.index) for batch in loader]
        [8, 8, 8, 6]
    """

    state_name = "sampler"

    def __init__(
        self,
        dual: DualState | None = None,
        *,
        batch_size: int,
        num_examples: int | None = None,
        order: Order | None = None,
        seed: int = 0,
        chunk: int | None = None,
    ) -> None:
        if num_examples is None and dual is not None:
            num_examples = check_dual(dual).num_examples
        num_examples = check_whole(num_examples, "num_examples", advice=": is the dataset empty?")
        batch_size = check_whole(batch_size, "batch_size")
        if order is not None:
            check_object(order, "order", "draw", "Permutation()")
        if isinstance(order, ByLength):
            order.check(num_examples)
        self.num_examples = num_examples
        self.order: Order = order if order is not None else Proportional()
        self._batch_size, self._chunk = batch_size, chunk if chunk is None else check_whole(chunk, "chunk")
        self.epoch = 0
        self._generator = torch.Generator().manual_seed(check_seed(seed))
        self._drawn: list[Tensor] = []  # batches of the current epoch, used or not
        self._first = 0  # position in the epoch of _drawn[0]: 0 unless resumed
        self._snapshots: dict[int, Tensor] = {}  # batches used -> gaps at that moment
        self._visits = 0  # the dual's visits at position _first
        self._started = False  # whether an epoch has begun here
        self._continues = False  # whether the next iteration continues a loaded epoch
        self._iterator: weakref.ref[Iterator[list[int]]] | None = None  # of the current epoch
        self._at_continuing: Callable[[], None] | None = None
        self._by_permutation: Callable[[], bool] | None = None
        self._dual: DualState | None = None
        if dual is not None:
            self.bind(dual)

    def bind(self, dual: DualState, by_permutation: Callable[[], bool] | None = None) -> None:
        """Use the gaps of ``dual``.

        Args:
            by_permutation: Returns whether the current epoch visits every example once, in place of ``order``: for
                epochs that train the features, not the blocks.

        Raises:
            ValueError: The dual is for another number of examples.
        """
        if check_dual(dual).num_examples != self.num_examples:
            raise ValueError(f"the sampler has num_examples={self.num_examples}, and the dual {dual.num_examples}")
        self._by_permutation = by_permutation
        if dual is self._dual:
            return
        if self._dual is not None:
            self._dual.mailbox.forget(self)
        self._dual = dual
        self._visits = dual.visits
        dual.mailbox.observe(self)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return math.ceil(math.ceil(self.num_examples / self.ranks.size) / self._batch_size)

    @property
    def batch_size(self) -> int:
        """Examples in a batch."""
        return min(self._batch_size, len(self.own))

    @property
    def chunk(self) -> int:
        """Batches in a chunk."""
        return max(8, math.ceil(len(self) / 20)) if self._chunk is None else self._chunk

    @property
    def own(self) -> range:
        """The examples of this process, from which batches are drawn."""
        return self.ranks.own(self.num_examples)

    @property
    def ranks(self) -> Ranks:  # type: ignore[override]
        """The processes that train together."""
        return Ranks.here() if self._dual is None else self._dual.ranks

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of one epoch, or the remaining batches of a loaded epoch.

        None remain if the state was saved in the loop's body at the last batch; the code that follows the loop then
        still has to run.
        """
        batches = self._batches()
        self._iterator = weakref.ref(batches)
        return batches

    def _batches(self) -> Iterator[list[int]]:
        self._begin()
        position = self._first
        while position < len(self):
            if position - self._first >= len(self._drawn):
                self._extend(position)
            yield (self._drawn[position - self._first] + self.own.start).tolist()
            position += 1

    def _begin(self) -> None:
        dual = self._bound()
        if self._continues and self._at_continuing is not None:
            self._at_continuing()
        self._at_continuing = None
        if not self._continues:
            self.epoch += self._started
            self._first = 0
            self._snapshots = {0: self._gaps()}
            self._drawn = self._unseen(self._snapshots[0])
        self._continues = False
        self._started = True
        # Waiting proposals are accumulated batches of the previous epoch.
        self._visits = dual.visits + len(dual.mailbox.waiting)

    @property
    def seed(self) -> int:
        """The seed of the draws."""
        return self._generator.initial_seed()

    @property
    def used(self) -> int:
        """Batches of this epoch that were used, by the dual's count of visits."""
        if not self._started:
            return self._first
        visits = max(self._bound().visits - self._visits, 0)
        return self._first + min(visits, len(self._drawn))

    @property
    def in_epoch(self) -> bool:
        """Whether the loop of an epoch still has its iterator; all its batches may be used."""
        return self._continues or (self._iterator is not None and self._iterator() is not None)

    def before_continuing(self, action: Callable[[], None]) -> None:
        """Call ``action`` before the first batch when the next iteration continues a loaded epoch."""
        self._at_continuing = action

    def state_dict(self, used: int | None = None) -> dict[str, Any]:
        """The state of :meth:`own_state`, or those of all ranks, after ``consolidate_state_dict()``."""
        return super().state_dict() if self.ranks else self.own_state(used)

    def own_state(self, used: int | None = None) -> dict[str, Any]:
        """Everything that the next draws of this process depend on, including batches drawn but not yet used.

        If all batches of the epoch are used, the state is the end of that epoch while the loop still holds its
        iterator (as ``for batch in loader`` does until it ends), and the beginning of the next epoch after that.

        Args:
            used: Batches of this epoch that training has used; None is the dual's count. Needed if training skips
                steps; ``len(self)`` means that the epoch is over.
        """
        over = used is not None or not self.in_epoch
        used = self.used if used is None else used
        epoch, under_way = self.epoch, self._started or self._continues
        if used >= len(self) and over:
            epoch, used, under_way = epoch + 1, 0, False
        state = {**super().own_state(), "epoch": epoch, "used": used, "under_way": under_way}
        state["drawn"] = state["drawn"][used - self._first :]
        return state if under_way else {**state, "drawn": [], "snapshots": {}}

    def _restarted(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The beginning of the next epoch: drawn batches are of other examples."""
        begun, given = parts[0]["under_way"], parts[self.ranks.rank % len(parts)]
        return {
            **self.own_state(),
            **{name: given[name] for name in ("num_examples", "order", "generator")},
            "epoch": given["epoch"] + begun,
            **{"used": 0, "under_way": False, "drawn": [], "snapshots": {}},
        }

    def _entries(self) -> dict[str, Any]:
        return {
            **self._identity(),
            "epoch": self.epoch,
            "used": self._first,
            "under_way": self._continues,
            "generator": self._generator.get_state(),
            "drawn": copied(self._drawn),
            "snapshots": {str(at): gaps.clone() for at, gaps in self._snapshots.items()},
        }

    def _identity(self) -> dict[str, Any]:
        sizes = {"num_examples": self.num_examples, "batch_size": self.batch_size, "chunk": self.chunk}
        return {**sizes, "order": repr(self.order)}

    def _check_own(self, state: dict[str, Any]) -> None:
        n, drawn, snapshots = len(self.own), state["drawn"], state["snapshots"]
        wanted = {
            **self._identity(),
            "epoch": Numbers(int, low=0),
            "used": Numbers(int, low=0, high=len(self)),
            "under_way": bool,
            "generator": Tensor,
            "drawn": [Numbers(torch.int64, (None,), 0, n - 1)] * len(drawn),
            "snapshots": dict,
        }
        check_entries(state, wanted, "sampler")
        gaps = Numbers(torch.float64, (n,), 0.0, math.inf)
        check_entries(snapshots, dict.fromkeys(snapshots, gaps), "sampler['snapshots']")
        check_random_state(state["generator"], "sampler['generator']")
        if not all(at.isdigit() for at in snapshots) or state["under_way"] != bool(snapshots):
            raise damaged("sampler['snapshots']")

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.epoch, self._first, self._continues = state["epoch"], state["used"], state["under_way"]
        self._generator.set_state(state["generator"].cpu())
        self._drawn = [batch.to("cpu", copy=True) for batch in state["drawn"]]
        self._snapshots = {int(at): gaps.to("cpu", copy=True) for at, gaps in state["snapshots"].items()}
        self._started = False
        self._iterator = self._at_continuing = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies are outside of any epoch's loop."""
        return {**vars(self), "_iterator": None, "_at_continuing": None}

    @property
    def bound_dual(self) -> DualState | None:
        """The dual whose gaps are used; None before ``bind``."""
        return self._dual

    def _bound(self) -> DualState:
        if self._dual is None:
            raise RuntimeError("dual=None: call bind(dual), or train with StructuredSVM")
        return self._dual

    @property
    def _order(self) -> Order:
        """The order of this epoch."""
        order = self.order
        if self._by_permutation and self._by_permutation():
            order = ByLength(order.lengths, Permutation()) if isinstance(order, ByLength) else Permutation()
        return order.of(self.own) if isinstance(order, ByLength) and self.ranks else order

    def _gaps(self) -> Tensor:
        return on_host(self._bound().gap_estimates).clone()

    def after_step(self) -> None:
        """Keep the current gaps if a chunk was just used up; the dual calls this."""
        at = self.used // self.chunk * self.chunk
        if self._order.needs_gaps and at not in self._snapshots:
            self._snapshots[at] = self._gaps()
            self._snapshots.pop(at - 3 * self.chunk, None)

    def _unseen(self, gaps: Tensor) -> list[Tensor]:
        """Batches of the examples with unknown gaps, in random order; the last batch is filled up with others."""
        unknown = torch.isinf(gaps).nonzero().flatten()
        if not self._order.needs_gaps or not len(unknown):
            return []
        order = self._order
        if isinstance(order, ByLength):
            batches, order = order.cut(unknown, self.batch_size, self._generator), order.order
        else:
            unknown = unknown[torch.randperm(len(unknown), generator=self._generator)]
            batches = list(unknown.split(self.batch_size))
        if len(batches[-1]) < self.batch_size and len(unknown) < len(gaps):
            others = (~torch.isinf(gaps)).nonzero().flatten()
            size = min(self.batch_size - len(batches[-1]), len(others))
            (fill,) = order.draw(gaps[others], 1, size, self._generator)
            batches[-1] = torch.cat([batches[-1], others[fill]])
        return batches[: len(self)]

    def _extend(self, position: int) -> None:
        """Draw batches to the end of the chunk that contains ``position``, or to the end of the epoch."""
        if not self._order.needs_gaps:
            order, wanted = self._order, len(self) - position
            while wanted > 0:  # a process with one example less than another may need one batch more
                drawn = order.draw(torch.zeros(len(self.own)), wanted, self.batch_size, self._generator)
                self._drawn, wanted = self._drawn + drawn, wanted - len(drawn)
            return
        chunk = position // self.chunk
        wanted = max(chunk - 1, 0) * self.chunk
        known = max((at for at in self._snapshots if at <= wanted), default=0)
        gaps = self._snapshots.get(known)
        gaps = self._gaps() if gaps is None else gaps
        finite = torch.where(torch.isinf(gaps), 0.0, gaps)
        # Gaps unknown at that moment belong to blocks drawn in this epoch; they count as the average.
        finite = torch.where(torch.isinf(gaps), finite.mean() if bool(finite.any()) else 1.0, finite)
        count = min((chunk + 1) * self.chunk, len(self)) - position
        self._drawn += self._order.draw(finite, count, self.batch_size, self._generator)


class ByLength:
    """Another order, in batches of examples of similar length.

    The examples, sorted by length, are cut into buckets: each has at least twice as many examples as a batch (as far as
    there are so many), and examples of one length are never in two buckets. Random batches of sentences pad the arcs
    of a parser 5 to 8 times; these pad them 1.1 to 1.6 times, at batches of 16 to 64.

    The draws, batch for batch:

    * ``Proportional`` and ``Uniform``: ``order`` draws the first example of a batch from all examples, and the others,
      without replacement, from the bucket of the first. Under ``Uniform()`` every example is in a batch with
      probability ``batch_size / n``. Under ``Proportional()`` expected visits are proportional to the gap, if
      no gap dominates its bucket.
    * ``Permutation``: every example once in an epoch. The batches are cut from a random order within each bucket, and
      come in random order; a smaller batch comes last.

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
            raise ValueError(f"lengths={lengths.tolist()[:5]}... must be at least 0, one for each example")
        self.lengths = lengths.cpu().clone()
        order = order if order is not None else Proportional()
        such = "Proportional(), Uniform() or Permutation()"
        self.order: Order = check_type(order, (Proportional, Uniform, Permutation), "order", such)
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
        """See :class:`ByLength`; ValueError if ``gaps`` has another number of examples than ``lengths``."""
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
        result: list[Tensor] = [chosen] * batches
        for number in chosen.unique().tolist():
            places, bucket = (chosen == number).nonzero().flatten().tolist(), buckets[number]
            drawn = self.order.draw(gaps[bucket], len(places), batch_size, generator)
            for place, batch in zip(places, drawn, strict=True):
                result[place] = bucket[batch]
        return result

    def cut(self, chosen: Tensor, batch_size: int, generator: torch.Generator) -> list[Tensor]:
        """Batches with each of these distinct examples once; a smaller batch comes last.

        Args:
            chosen: ``[M]`` int64.
        """
        bucket = torch.zeros_like(self.lengths)
        for number, members in enumerate(self.buckets(batch_size)):
            bucket[members] = number
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
            raise ValueError(f"lengths has {len(self.lengths)} numbers: it must have {num_examples}")

    def __repr__(self) -> str:
        digest = zlib.crc32(self.lengths.numpy().tobytes())
        return f"ByLength({len(self.lengths)} lengths, crc32 {digest:08x}, {self.order})"
