"""The blocks of a dual as arrays that a compiled loop writes to, and the checks before it does."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.batch import tree_tensors
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.structure import Structure
from torchssvm.dual.checks import check_targets
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts, RowBuffer, other_length
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import check_memory
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.kinds.hidden import Hidden


class BlockArrays(NamedTuple):
    """The active sets and the rest, as in ``Labelings``; ``MeanParts`` are a rest without slots.

    ``rest_emission`` and ``rest_transition`` are rows, ``[*, K]``; each block has consecutive rows.
    ``rest_used`` ``[*]`` says which rows of ``rest_transition`` may not be zero: of 26 states some 10 have a pair.
    """

    count: Any
    mass: Any
    loss: Any
    used: Any
    labelings: Any
    gram: Any
    known: Any
    rest_mass: Any
    rest_loss: Any
    mixed: Any
    rest_emission: Any
    rest_emission_start: Any
    rest_transition: Any
    rest_transition_start: Any
    rest_used: Any


def without_slots(n: int, longest: int, dtype: Any) -> dict[str, Any]:
    """The arrays of mean parts without their rows: n blocks, of ``longest`` labels at most."""
    return {
        "count": np.zeros(n, np.int64),
        "mass": np.zeros((n, 0)),
        "loss": np.zeros((n, 0)),
        "used": np.zeros((n, 0), np.int64),
        "labelings": np.zeros((n, 0, longest), np.int8),
        "gram": np.zeros((1, 1, 1), dtype),
        "known": np.zeros((n, 0), np.bool_),
        "rest_mass": np.ones(n),
        "rest_loss": np.zeros(n),
        "mixed": np.ones(n, np.bool_),
    }


class Scalars(NamedTuple):
    """Numbers of each example: l_i, the last gap, and the gap at the last oracle call."""

    loss: Any
    gaps: Any
    oracle_gaps: Any


class Options(NamedTuple):
    """The parameters of the direction and of the oracle rule."""

    direction: int  # the ``rule`` of the direction
    steps: int  # steps of the corrective direction
    tolerance: float  # tolerance of the corrective direction
    cache: bool  # whether the cache may answer
    factor: float  # F of the cache rule
    threshold: float  # nu g / n of the cache rule
    lam: float  # regularisation
    num_examples: int  # n
    by_gap: bool  # whether blocks are drawn by their gaps, else in the given order
    power: float = 1.0  # blocks are drawn in proportion to this power of the gap
    gap: float = np.inf  # where whole blocks are solved, the gap after the last round of all; infinite in such a round
    most: float = np.inf  # where whole blocks are solved, a sweep ends after the round with this oracle call
    relaxation: float = 1.0  # how many times an exact step is taken; 2 would leave the dual as it is


_SMALLER = "storage=Weights() or Labelings() may take less"


class BlockMemory:
    """Views of the storage, and its growth; MemoryError where the blocks would not fit in the dual's ``memory_limit``.

    ``lengths`` ``[n]`` int64 belong to the examples, ``labels`` is the largest number of labels of one, and
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
        self._views: tuple[list[Any], Hidden] | None = None  # the tensors that ``blocks`` shows, and how
        if self.labelings is not None:
            if curvature:
                self.labelings.keep_curvature()
            self._check(self._labelings_bytes(), "give Labelings() a smaller capacity")
        elif not self.has_rest:
            self._check(self._rest_bytes(), _SMALLER)
        n, dtype = len(dual.own), torch.zeros(0, dtype=dual.parameters[0].dtype).numpy().dtype
        self._nothing = BlockArrays(
            **without_slots(n, self.longest, dtype),
            rest_emission=np.zeros((1, adapter.num_states), dtype),
            rest_emission_start=np.zeros(n, np.int64),
            rest_transition=np.zeros((0, adapter.weights.pair_width), dtype),
            rest_transition_start=np.zeros(n, np.int64),
            rest_used=np.zeros(0, np.bool_),
        )

    @property
    def clock(self) -> int:
        """The time that is noted when a labeling is used."""
        return 0 if self.labelings is None else self.labelings.sets.clock

    @clock.setter
    def clock(self, value: int) -> None:
        if self.labelings is not None:  # mean parts have no clock
            self.labelings.sets.clock = value

    @property
    def has_rest(self) -> bool:
        """Whether every example has its rows in the rest."""
        return bool(self.rest.buffers) and all(buffer.complete for buffer in self.rest.buffers.values())

    def blocks(self) -> BlockArrays:
        """The arrays, sharing their memory with the storage."""
        return self.laid_out().plain

    def laid_out(self) -> Hidden:
        """The arrays of :meth:`blocks`, laid out for kernels once for all calls."""
        if self._views is not None and [*map(id, self._views[0])] == [*map(id, self._tensors())]:
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
                width < wanted
                for name, (_, trailing) in shapes.items()
                for width, wanted in zip(self.rest.buffers[name].values.shape[1:], trailing, strict=True)
            ):
                self.make_rest()  # rows were made for smaller examples
            for name, (_, trailing) in shapes.items():
                if len(trailing) == 1 and self.rest.buffers[name].values.shape[1] > trailing[0]:
                    self.rest.buffers[name].crop(trailing[0])  # they were made for larger ones of another process
            emission, *pairs = (self.rest.buffers[name] for name in shapes)
            rows, start = _as_rows(emission, self.adapter.num_states)
            blocks = blocks._replace(rest_emission=rows.numpy(), rest_emission_start=start.numpy())
            for buffer in pairs:
                rows, start = _as_rows(buffer, self.adapter.weights.pair_width)
                if self._used is None:
                    self._used = rows.any(1)
                blocks = blocks._replace(
                    rest_transition=rows.numpy(), rest_transition_start=start.numpy(), rest_used=self._used.numpy()
                )
        laid_out = Hidden(blocks)
        self._views = self._tensors(), laid_out
        return laid_out

    def _tensors(self) -> list[Any]:
        """What :meth:`blocks` shows."""
        shown = [tensor for buffer in self.rest.buffers.values() for tensor in (buffer.values, buffer.start)]
        if self.labelings is None:
            return shown
        sets, storage = self.labelings.sets, self.labelings
        slots = sets.count, sets.mass, sets.loss, sets.used, sets.known, sets.gram, *sets.labelings
        return [*shown, *slots, storage.rest_mass, storage.rest_loss, storage.mixed]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_views": None}  # a copy makes views of the copied storage

    def changed(self) -> None:
        """Others have changed blocks."""
        self._used, self._finished = None, self.clock
        self._views = None

    def make_rest(self) -> None:
        """Give every example its rows in the rest, zero where it had none."""
        advice = "give Labelings() a larger capacity" if self.capacity else _SMALLER
        self._check(self._rest_bytes() + self._labelings_bytes(), advice)
        for name, (rows, trailing) in self.adapter.part_shapes(self.lengths).items():
            buffer = self.rest.buffers.get(name)
            if buffer is None:
                dtype = self.dual.parameters[0].dtype
                buffer = self.rest.buffers[name] = RowBuffer(len(rows), dtype, torch.device("cpu"))
            buffer.fill_up(rows, trailing)
        self._used = self._views = None

    def has_room_for_copies(self) -> bool:
        """Whether all blocks, each with its rows in the rest, fit twice; the rows are then made."""
        try:
            self._check(2 * (self._rest_bytes() + self._labelings_bytes()), "")
            if not self.has_rest:
                self.make_rest()
        except MemoryError:
            return False
        return True

    def remember_lengths(self, index: Tensor | None) -> None:
        """Note the lengths of the blocks ``index`` (None for all), which hold labelings now; finish the labelings."""
        if self.labelings is None:
            return
        sets = self.labelings.sets
        if self.adapter.ragged:
            rows = slice(None) if index is None else index
            sets.length[rows] = torch.where(sets.count[rows] > 0, self.lengths[rows], sets.length[rows])
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
        """Check the memory of all blocks together, without allocated memory."""
        storage = self.dual.storage
        if storage.memory_limit is None:
            needed = max(needed - storage.nbytes(), 0)
        what = f"storage={type(storage).__name__}()"
        check_memory(needed, self.dual.parameters[0].device, storage.memory_limit, what, advice)


def _as_rows(buffer: RowBuffer, width: int) -> tuple[Tensor, Tensor]:
    """The rows of a buffer as rows of ``width`` numbers, sharing its memory, and where each example begins."""
    values = buffer.values.view(-1, width)
    return values, buffer.start * (len(values) // len(buffer.values))


def validate_problem(structure: Structure, dual: DualState) -> None:
    """Raise an error unless the dual's storage is compiled and its structure is ``structure``."""
    if type(dual.storage) not in (Labelings, MeanParts):
        raise TypeError(f"dual has storage={type(dual.storage).__name__}(): use MeanParts() or Labelings()")
    if not dual.structure.same_as(structure):
        raise ValueError(f"dual has structure={dual.structure}, but the head {structure}: give the head the same one")


def validate_weights(
    adapter: HeadAdapter, dual: DualState, layout: list[tuple[torch.Size, torch.dtype]], *, begun: bool = True
) -> None:
    """Raise an error unless the head has the dual's parameters, unchanged since the last step and without bounds.

    ``layout`` are the shapes and dtypes from when the loop was made; ``begun`` says that a new dual's weights are zero.
    """
    head = adapter.head
    same = [id(p) for p in head.parameters()] == [id(p) for p in dual.parameters]
    same = same and [(p.shape, p.dtype) for p in dual.parameters] == layout
    if not same or not all(p.is_contiguous() and p.device.type == "cpu" for p in dual.parameters):
        raise ValueError("head has other parameters than the dual's, on the CPU: make a new DualState and CompiledBCFW")
    if dual.box.has_bounds:
        raise TypeError("head has weights with bounds, which are not compiled: use BlockGap and BCFW")
    # With many weights, only writes that torch tracks are detected here; exact passes read all weights.
    written = dual.written_to() or not dual.is_large
    size = math.sqrt(squared_norm(dual.parameters)) if written else dual.held_norm
    if not math.isfinite(size):
        raise RuntimeError("head has weights that are not finite: load a state")
    if (begun or dual.steps) and dual.recomputed is None and dual.norm_changed(size):
        raise RuntimeError(f"head has changed weights (norm {size:.6g}, was {dual.held_norm:.6g}): load a state")


def validate_blocks(adapter: HeadAdapter, dual: DualState, lengths: Tensor, sizes: Tensor, targets: Tensor) -> None:
    """Raise RuntimeError for a block of another target, and ValueError for one of another length or of unknown labels.

    ``lengths`` of the examples, their numbers of labels ``sizes`` and digests ``targets`` are ``[n]`` int64.
    """
    storage, first = dual.storage, dual.own.start
    if isinstance(storage, Labelings):
        _check_lengths(storage.sets.length, lengths, first)
        fit = _labelings_fit(adapter, storage, lengths, sizes)
        fit = fit and _rows_fit(adapter, storage.rest.buffers, lengths, first, storage.mixed)
    else:
        assert isinstance(storage, MeanParts)
        fit = _rows_fit(adapter, storage.buffers, lengths, first)
    if not fit:
        raise ValueError("dual has blocks of another problem: give the examples and the head that it was trained with")
    check_targets(dual, targets)


def _check_lengths(block_lengths: Tensor, lengths: Tensor, first: int) -> None:
    if bool((wrong := (block_lengths > 0) & (block_lengths != lengths)).any()):
        i = int(wrong.nonzero()[0])
        raise other_length(first + i, int(lengths[i]), int(block_lengths[i]))


def _labelings_fit(adapter: HeadAdapter, storage: Labelings, lengths: Tensor, sizes: Tensor) -> bool:
    sets, (least, most) = storage.sets, adapter.label_limits(lengths)
    if not sets.labelings:
        return True
    like = tree_tensors(adapter.longest_labeling(1))
    first = sets.labelings[0]
    if len(sets.labelings) != len(like) or first.ndim != 1 + like[0].ndim:
        return False
    if first.is_floating_point() or first.dtype == torch.bool:
        return False
    labels = adapter.as_sequences(first)
    if labels.shape[2] < int((sizes * (sets.count > 0)).max()):
        return False
    inside = torch.arange(labels.shape[2]) < sizes.unsqueeze(1)
    used = torch.arange(labels.shape[1]) < sets.count.unsqueeze(1)
    unknown = (labels < least) | (labels > most.view(-1, 1, 1))
    return not bool((unknown & inside.unsqueeze(1) & used.unsqueeze(2)).any())


def _rows_fit(
    adapter: HeadAdapter, buffers: dict[str, RowBuffer], lengths: Tensor, first: int, needed: Tensor | None = None
) -> bool:
    """Whether the rows fit the examples from ``first`` on; ``needed`` marks the examples that must have rows."""
    shapes = adapter.part_shapes(lengths)
    if not buffers:
        return needed is None or not bool(needed.any())
    if buffers.keys() != shapes.keys():
        return False
    for name, buffer in buffers.items():
        rows, sizes = shapes[name]
        filled, widths = buffer.start > 0, tuple(buffer.values.shape[1:])
        if bool((filled != (buffer.rows > 0)).any()) or (needed is not None and not bool(filled[needed].all())):
            return False
        _check_lengths(buffer.rows, rows, first)
        wide = buffer.values.ndim == 1 or widths == sizes
        if not wide and adapter.ragged_labels:  # rows are as long as the longest example so far
            wide = len(widths) == len(sizes) and all(a <= b for a, b in zip(widths, sizes, strict=True))
            # Rows of another process may be longer, and have been zero here.
            wide |= widths[1:] == sizes[1:] if len(sizes) > 1 else not bool(buffer.values[:, sizes[0] :].any())
        if not wide:
            return False
    return True
