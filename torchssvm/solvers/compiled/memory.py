"""The blocks of a dual as arrays that a compiled loop writes to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.threads import undisturbed
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.rows import RowBuffer
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import MeanParts, check_memory
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.solvers.compiled.state import BlockArrays, without_slots


class BlockMemory:
    """Views of the storage, and its growth; MemoryError where the blocks would not fit in the dual's ``memory_limit``.

    ``lengths`` ``[n]`` int64 are those of the examples, ``labels`` is the largest number of labels of one, and
    ``curvature`` says whether inner products of labelings are kept.
    """

    def __init__(self, adapter: HeadAdapter, dual: DualState, lengths: Tensor, labels: int, *, curvature: bool) -> None:
        self.adapter, self.dual, self.lengths, self.longest = adapter, dual, lengths, labels
        storage = dual.storage
        assert isinstance(storage, Labelings | MeanParts)
        self.labelings = storage if isinstance(storage, Labelings) else None
        self.rest: MeanParts = storage.rest if isinstance(storage, Labelings) else storage
        self.capacity = 0 if self.labelings is None else self.labelings.capacity
        self.curvature = curvature
        self._used: Tensor | None = None  # of ``BlockArrays.rest_used``, while only compiled loops change blocks
        self._finished = 0  # labelings that were used later lack all but their labels
        self._views: tuple[list[Tensor], BlockArrays] | None = None  # of a rest alone, and the tensors that they show
        if self.labelings is not None:
            if curvature:
                self.labelings.keep_curvature()
            self._check(self._labelings_bytes(), "Labelings(capacity=...) with a smaller capacity takes less")
        elif not self.has_rest:
            self._check(self._rest_bytes(), "storage=Weights() or Labelings() may take less")
        n, dtype = len(dual.own), torch.zeros(0, dtype=dual.parameters[0].dtype).numpy().dtype
        self._nothing = BlockArrays(
            **without_slots(n, self.longest, dtype),
            rest_emission=np.zeros((1, adapter.row_width), dtype),
            rest_emission_start=np.zeros(n, np.int64),
            rest_transition=np.zeros((0, adapter.pair_width), dtype),
            rest_transition_start=np.zeros(n, np.int64),
            rest_used=np.zeros(0, np.bool_),
        )

    @property
    def clock(self) -> int:
        """The time that is noted when a labeling is used."""
        return 0 if self.labelings is None else self.labelings.sets.clock

    @clock.setter
    def clock(self, value: int) -> None:
        if self.labelings is not None:  # nothing depends on that of mean parts
            self.labelings.sets.clock = value

    @property
    def has_rest(self) -> bool:
        """Whether every example has its rows in the rest."""
        return bool(self.rest.buffers) and all(buffer.complete for buffer in self.rest.buffers.values())

    @undisturbed()
    def blocks(self) -> BlockArrays:
        """The arrays, sharing their memory with the storage."""
        if self._views is not None and [*map(id, self._views[0])] == [*map(id, self._rows())]:
            return self._views[1]
        blocks = self._nothing
        if self.labelings is not None:
            sets, storage = self.labelings.sets, self.labelings
            if self.curvature:
                sets.keep_gram()
            sets.reserve(self.adapter.longest_labeling(self.longest), exact=self.adapter.exact_labelings)
            blocks = blocks._replace(
                **{name: getattr(sets, name).numpy() for name in ("count", "mass", "loss", "used", "known")},
                labelings=self.adapter.as_sequences(sets.labelings[0]).numpy(),
                gram=blocks.gram if sets.gram is None else sets.gram.numpy(),
                rest_mass=storage.rest_mass.numpy(),
                rest_loss=storage.rest_loss.numpy(),
                mixed=storage.mixed.numpy(),
            )
        elif not self.has_rest:
            self.make_rest()
        if self.rest.buffers:
            shapes = self.adapter.part_shapes(self.lengths)
            if any(
                held < wanted
                for name, (_, trailing) in shapes.items()
                for held, wanted in zip(self.rest.buffers[name].values.shape[1:], trailing, strict=True)
            ):
                self.make_rest()  # rows were made for smaller examples
            for name, (_, trailing) in shapes.items():
                if len(trailing) == 1 and self.rest.buffers[name].values.shape[1] > trailing[0]:
                    self.rest.buffers[name].crop(trailing[0])  # they were made for larger ones of another process
            emission, *pairs = (self.rest.buffers[name] for name in shapes)
            rows, start = _as_rows(emission, self.adapter.row_width)
            blocks = blocks._replace(rest_emission=rows.numpy(), rest_emission_start=start.numpy())
            for buffer in pairs:
                rows, start = _as_rows(buffer, self.adapter.pair_width)
                if self._used is None:
                    self._used = rows.any(1)
                blocks = blocks._replace(
                    rest_transition=rows.numpy(), rest_transition_start=start.numpy(), rest_used=self._used.numpy()
                )
        if self.labelings is None:
            self._views = self._rows(), blocks
        return blocks

    def _rows(self) -> list[Tensor]:
        return [tensor for buffer in self.rest.buffers.values() for tensor in (buffer.values, buffer.start)]

    def __getstate__(self) -> dict[str, Any]:
        """Copies look at their own storage."""
        return {**vars(self), "_views": None}

    def changed(self) -> None:
        """Others have changed blocks."""
        self._used, self._finished = None, self.clock
        self._views = None

    def make_rest(self) -> None:
        """Give every example its rows in the rest, zero where it had none; MemoryError beyond the dual's
        ``memory_limit``.
        """
        advice = (
            "a larger capacity of Labelings() avoids it"
            if self.capacity
            else "storage=Weights() or Labelings() may take less"
        )
        self._check(self._rest_bytes() + self._labelings_bytes(), advice)
        for name, (rows, trailing) in self.adapter.part_shapes(self.lengths).items():
            buffer = self.rest.buffers.get(name)
            if buffer is None:
                dtype = self.dual.parameters[0].dtype
                buffer = self.rest.buffers[name] = RowBuffer(len(rows), dtype, torch.device("cpu"))
            buffer.fill_up(rows, trailing)
        self._used = self._views = None

    def remember_lengths(self, index: Tensor | None) -> None:
        """Note the lengths of the blocks ``index`` (None for all), which hold labelings now; finish the labelings."""
        if self.labelings is None:
            return
        if self.adapter.ragged:
            sets, own = self.labelings.sets, slice(None) if index is None else index
            sets.length[own] = torch.where(sets.count[own] > 0, self.lengths[own], sets.length[own])
        sets = self.labelings.sets
        if len(sets.labelings) > 1:
            examples, slots = (sets.used > self._finished).nonzero(as_tuple=True)
            self.adapter.finish(sets.labelings, examples, slots)
            self._finished = sets.clock

    def _labelings_bytes(self) -> int:
        if self.labelings is None:
            return 0
        gram = self.dual.parameters[0].element_size() if self.curvature else 0
        like = self.adapter.longest_labeling(self.longest)
        return len(self.lengths) * (self.labelings.sets.bytes_each(like, self.capacity, gram) + 8 + 8 + 1)

    def _rest_bytes(self) -> int:
        numbers = sum(int(n.sum()) * math.prod(sizes) for n, sizes in self.adapter.part_shapes(self.lengths).values())
        return numbers * self.dual.parameters[0].element_size()

    def _check(self, needed: int, advice: str) -> None:
        """Check the memory of all blocks together; what is already allocated does not count."""
        storage = self.dual.storage
        if storage.memory_limit is None:
            needed = max(needed - storage.nbytes(), 0)
        what = f"storage={type(storage).__name__}()"
        check_memory(needed, self.dual.parameters[0].device, storage.memory_limit, what, advice)


def _as_rows(buffer: RowBuffer, width: int) -> tuple[Tensor, Tensor]:
    """The rows of a buffer as rows of ``width`` numbers, sharing its memory, and where those of each example begin."""
    values = buffer.values.view(-1, width)
    return values, buffer.start * (len(values) // len(buffer.values))
