"""A few labelings of every example with their mass: active set and cache in one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit
from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.decoding import Labeling
from torchssvm.core.operators import read_together, upload
from torchssvm.core.states import Numbers, Stateful, check_entries, copied, damaged
from torchssvm.core.structure import fit


@njit
def victim(count, mass, used):
    """A free slot of ``[C]``, or the least recent without mass, or the one with the least mass."""
    if count < len(mass):
        return count
    slot = 0
    for c in range(1, len(mass)):
        candidate, least = mass[c], mass[slot]
        if candidate == 0.0:
            if least > 0.0 or used[c] < used[slot]:
                slot = c
        elif least > 0.0 and candidate < least:
            slot = c
    return slot


@njit
def victims(count, mass, used, slots):
    """:func:`victim` for the examples of a batch, ``[B]`` and ``[B, C]``, written to ``slots`` ``[B]``."""
    for b in range(len(slots)):
        slots[b] = victim(count[b], mass[b], used[b])


_FIELDS = ("count", "length", "mass", "loss", "used", "known")


class ActiveSets(Stateful):
    """Up to ``capacity`` labelings for each of n examples; those with mass are the active set, all are the cache.

    Labelings are kept in the smallest integer type that fits. If a rule needs inner products of an example's labelings,
    these are kept too: ``capacity^2`` numbers an example.

    Attributes:
        count: ``[n]`` int64, number of labelings; they fill the first slots.
        length: ``[n]`` int64, the example's length, 0 if unknown.
        mass: ``[n, C]`` float64, their dual mass.
        loss: ``[n, C]`` float64, their loss L_i.
        used: ``[n, C]`` int64, the value of ``clock`` when the slot was last a corner.
        labelings: Tensors ``[n, C, ...]``; an empty list before the first labeling.
        gram: ``[n, C, C]`` inner products ``<Phi_i^T p(y), Phi_i^T p(y')>``; None if no rule needs them.
        known: ``[n, C]`` bool, whether a slot's row of ``gram`` is filled in.
    """

    state_name = "sets"
    per_example = (*_FIELDS, "labelings", "gram")

    def __init__(self, num_examples: int, capacity: int, padding: int, like: Tensor) -> None:
        """Inner products have the dtype of ``like``, and everything lies on its device."""
        self.capacity = capacity
        self.padding = padding
        self.dtype, device = like.dtype, like.device
        shape = (num_examples, capacity)
        self.count = torch.zeros(num_examples, dtype=torch.int64, device=device)
        self.length = torch.zeros_like(self.count)
        self.mass = torch.zeros(shape, dtype=torch.float64, device=device)
        self.loss = torch.zeros(shape, dtype=torch.float64, device=device)
        self.used = torch.zeros(shape, dtype=torch.int64, device=device)
        self.labelings: list[Tensor] = []
        self.gram: Tensor | None = None
        self.known = torch.zeros(shape, dtype=torch.bool, device=device)
        self.clock = 0

    @staticmethod
    def bytes_each(labeling: Labeling, capacity: int, gram_bytes: int) -> int:
        """Bytes of one example whose labelings have the sizes of the first row of ``labeling``."""
        numbers = sum(t[0].numel() * _narrow(t).itemsize for t in tree_tensors(labeling))
        return 16 + capacity * (numbers + 3 * 8 + 1 + capacity * gram_bytes)

    def read(self, index: Tensor, columns: int, template: Labeling) -> Labeling:
        """The first ``columns`` labelings of the examples: ``[B, columns, ...]``, in the template's dtypes."""
        dtypes = [t.dtype for t in tree_tensors(template)]
        tensors = [t[index, :columns].to(dtype) for t, dtype in zip(self.labelings, dtypes, strict=True)]
        return tree_replace(template, tensors)

    def insert(
        self,
        index: Tensor,
        lengths: Tensor | None,
        labeling: Labeling,
        loss: Tensor,
        mass: Tensor | None = None,
        evict: Callable[[Tensor, Tensor], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Cache new labelings ``[R, ...]`` of the examples ``index`` ``[R]``, with losses ``[R]`` and optional masses.

        A labeling takes a free slot, else the slot of the least recent labeling without mass, else the slot with the
        least mass, for which ``evict`` is called with positions and slots. Returns the positions in ``index`` that were
        cached, among them all with mass, and their slots.
        """
        device, given = index.device, () if mass is None else (mass,)
        count, masses, used, *gained = read_together(*(t[index] for t in (self.count, self.mass, self.used)), *given)
        slots = torch.empty_like(count)
        victims(*(t.numpy() for t in (count, masses, used)), slots.numpy())
        at_slot = masses.gather(1, slots.clamp(max=self.capacity - 1).unsqueeze(1)).squeeze(1)
        lost = torch.where(slots < count, at_slot, 0.0)
        wanted = (lost == 0.0) | (gained[0] > 0.0) if gained else lost == 0.0
        rows = wanted.nonzero().flatten()
        leaving = rows[lost[rows] > 0.0]
        if len(leaving):
            assert evict is not None
            evict(upload(leaving, device), upload(slots[leaving], device))
        empty = (count[rows] == 0).nonzero().flatten()
        kept, slots = upload(rows, device), upload(slots[rows], device)
        index = index[kept]
        self.clock += 1
        self._write(index, slots, tree_map(lambda t: t[kept], labeling), loss[kept], upload(empty, device))
        self.used[index, slots] = self.clock
        if lengths is not None:
            self.length[index] = lengths[kept]
        if mass is not None:
            self.mass[index, slots] = mass[kept]
        return kept, slots

    def _write(self, index: Tensor, slots: Tensor, labeling: Labeling, loss: Tensor, first: Tensor) -> None:
        """Write one labeling of each example ``index`` into its slot, with mass 0; rows ``first`` had none before."""
        self.reserve(labeling)
        for buffer, values in zip(self.labelings, tree_tensors(labeling), strict=True):
            values = fit(values, buffer.shape[2:], self.padding).to(buffer.dtype)
            buffer[index, slots] = values
            if len(first):  # fill empty slots with labelings that can be scored
                buffer[index[first]] = values[first].unsqueeze(1)
        self.count[index] = torch.maximum(self.count[index], slots + 1)
        self.mass[index, slots] = 0.0
        self.loss[index, slots] = loss
        self.known[index, slots] = False

    def keep_gram(self) -> None:
        """Allocate the inner products."""
        if self.gram is None:
            self.gram = torch.zeros(*self.mass.shape, self.capacity, dtype=self.dtype, device=self.mass.device)

    def reserve(self, labeling: Labeling, *, exact: bool = False) -> None:
        """Make room, in size and in dtype, for labelings ``[R, ...]``; if ``exact``, cut larger ones to the size."""
        tensors = tree_tensors(labeling)
        if not self.labelings:
            self.labelings = [
                torch.full((*self.mass.shape, *t.shape[1:]), self.padding, dtype=_narrow(t), device=self.mass.device)
                for t in tensors
            ]
        for place, (buffer, values) in enumerate(zip(self.labelings, tensors, strict=True)):
            sizes = [b if exact else max(a, b) for a, b in zip(buffer.shape[2:], values.shape[1:], strict=True)]
            buffer = fit(buffer, sizes, self.padding).contiguous()
            wanted = torch.promote_types(buffer.dtype, _narrow(values))
            self.labelings[place] = buffer.to(wanted)

    def nbytes(self) -> int:
        """Bytes in use."""
        tensors = [self.count, self.length, self.mass, self.loss, self.used, self.known, *self.labelings]
        return sum(t.numel() * t.element_size() for t in tensors if self.labelings) + (
            0 if self.gram is None or not self.labelings else self.gram.numel() * self.gram.element_size()
        )

    def to(self, device: torch.device) -> None:
        """Move everything."""
        for name in _FIELDS:
            setattr(self, name, getattr(self, name).to(device))
        self.labelings = [t.to(device) for t in self.labelings]
        self.gram = None if self.gram is None else self.gram.to(device)

    def _entries(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "clock": self.clock,
            **{name: getattr(self, name).clone() for name in _FIELDS},
            "labelings": copied(self.labelings),
            "gram": None if self.gram is None else self.gram.clone(),
        }

    def _check_own(self, state: dict[str, Any]) -> None:
        shape = (len(self.mass), self.capacity)
        wanted = {
            "capacity": self.capacity,
            "clock": int,
            "count": Numbers(torch.int64, shape[:1], 0, self.capacity),
            "length": Numbers(torch.int64, shape[:1], 0),
            "mass": Numbers(torch.float64, shape, 0.0, 1.0 + 1e-6),
            "loss": Numbers(torch.float64, shape),  # below 0 where known scores are counted with it
            "used": Numbers(torch.int64, shape),
            "known": Numbers(torch.bool, shape),
            "labelings": list,
            "gram": None if state["gram"] is None else Numbers(self.dtype, (*shape, self.capacity)),
        }
        check_entries(state, wanted, "sets")
        if any(tensor.shape[:2] != shape for tensor in state["labelings"]):
            raise damaged("sets['labelings']")

    def _restore_own(self, state: dict[str, Any]) -> None:
        device = self.mass.device
        for name in _FIELDS:
            setattr(self, name, state[name].to(device, copy=True))
        self.clock = state["clock"]
        self.labelings = [tensor.to(device, copy=True) for tensor in state["labelings"]]
        self.gram = None if state["gram"] is None else state["gram"].to(device, copy=True)

    @override
    def merged_state(self, states: list[dict[str, Any]], parts: list[range]) -> dict[str, Any]:
        labelings = []
        for like in zip(*(state["labelings"] for state in states if state["labelings"]), strict=True):
            sizes = [max(axis) for axis in zip(*(t.shape[2:] for t in like), strict=True)]
            wanted, given = functools.reduce(torch.promote_types, (t.dtype for t in like)), iter(like)
            whole = [
                fit(next(given), sizes, self.padding).to(wanted)
                if state["labelings"]
                else torch.full((*state["mass"].shape, *sizes), self.padding, dtype=wanted)
                for state in states
            ]
            labelings.append(torch.cat(whole))
        grams = [state["gram"] for state in states]
        if any(gram is not None for gram in grams):
            grams = [
                state["mass"].new_zeros(*state["mass"].shape, self.capacity, dtype=self.dtype) if gram is None else gram
                for gram, state in zip(grams, states, strict=True)
            ]
        several = [
            {**state, "labelings": [], "gram": gram, "clock": 0} for state, gram in zip(states, grams, strict=True)
        ]
        clock = max(state["clock"] for state in states)
        return {**super().merged_state(several, parts), "clock": clock, "labelings": labelings}


def _narrow(values: Tensor) -> torch.dtype:
    """The smallest integer dtype that holds these numbers."""
    if values.is_floating_point() or values.dtype == torch.bool or not values.numel():
        return values.dtype if values.numel() else torch.int8
    low, high = (int(v) for v in read_together(*values.aminmax()))
    for dtype in (torch.int8, torch.int16, torch.int32):
        if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max:
            return dtype
    return torch.int64
