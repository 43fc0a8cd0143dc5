"""A few labelings of every example with their mass: active set and cache in one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.on_host import read_together, upload
from torchssvm.core.schema import Each, Entry, Maybe, Same, check, damaged
from torchssvm.core.structure import Labeling, fit
from torchssvm.dual.numba import victims

_FIELDS = ("count", "length", "mass", "loss", "used", "known")


class ActiveSets:
    """Up to ``capacity`` labelings for each of n examples; those with mass are the active set, all are the cache.

    Labelings are kept in the smallest integer type that holds them. If a rule needs inner products of an example's
    labelings, these are kept too: ``capacity^2`` numbers an example.

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

    def __init__(self, num_examples: int, capacity: int, padding: int, device: torch.device) -> None:
        self.capacity = capacity
        self.padding = padding
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
        found = [t[index, :columns].to(dtype) for t, dtype in zip(self.labelings, dtypes, strict=True)]
        return tree_replace(template, found)

    def insert(
        self,
        index: Tensor,
        lengths: Tensor | None,
        labeling: Labeling,
        loss: Tensor,
        mass: Tensor | None = None,
        evict: Callable[[Tensor, Tensor], None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Cache new labelings of the examples ``index``.

        A labeling takes a free slot, else that of the least recent one without mass, else that with the least mass.

        Args:
            index: ``[R]`` int64.
            lengths: ``[R]`` int64, of the examples.
            labeling: ``[R, ...]``.
            loss: ``[R]``.
            mass: ``[R]`` float64; None for labelings without mass.
            evict: Called with the positions and slots of labelings with mass that are replaced; needed with ``mass``.

        Returns:
            The positions in ``index`` that were cached (all with mass are), and their slots.
        """
        device, given = index.device, () if mass is None else (mass,)
        count, masses, used, *gained = read_together(*(t[index] for t in (self.count, self.mass, self.used)), *given)
        slots = torch.empty_like(count)
        victims(*(t.numpy() for t in (count, masses, used)), slots.numpy())
        at_slot = masses.gather(1, slots.clamp(max=self.capacity - 1).unsqueeze(1)).squeeze(1)
        held = torch.where(slots < count, at_slot, 0.0)
        wanted = (held == 0.0) | (gained[0] > 0.0) if gained else held == 0.0
        rows = wanted.nonzero().flatten()
        leaving = rows[held[rows] > 0.0]
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
        """Write one labeling of each example ``index`` into its slot, with mass 0; those ``first`` had none before."""
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

    def keep_gram(self, dtype: torch.dtype) -> None:
        """Allocate the inner products."""
        if self.gram is None:
            self.gram = torch.zeros(*self.mass.shape, self.capacity, dtype=dtype, device=self.mass.device)

    def reserve(self, labeling: Labeling) -> None:
        """Make room, in size and in dtype, for the labelings ``[R, ...]``."""
        tensors = tree_tensors(labeling)
        if not self.labelings:
            self.labelings = [
                torch.full((*self.mass.shape, *t.shape[1:]), self.padding, dtype=_narrow(t), device=self.mass.device)
                for t in tensors
            ]
        for place, (buffer, values) in enumerate(zip(self.labelings, tensors, strict=True)):
            sizes = [max(a, b) for a, b in zip(buffer.shape[2:], values.shape[1:], strict=True)]
            buffer = fit(buffer, sizes, self.padding)
            wanted = torch.promote_types(buffer.dtype, _narrow(values))
            self.labelings[place] = buffer.to(wanted)

    def nbytes(self) -> int:
        """Bytes held now."""
        held = [self.count, self.length, self.mass, self.loss, self.used, self.known, *self.labelings]
        return sum(t.numel() * t.element_size() for t in held if self.labelings) + (
            0 if self.gram is None or not self.labelings else self.gram.numel() * self.gram.element_size()
        )

    def to(self, device: torch.device) -> None:
        """Move everything."""
        for name in _FIELDS:
            setattr(self, name, getattr(self, name).to(device))
        self.labelings = [t.to(device) for t in self.labelings]
        self.gram = None if self.gram is None else self.gram.to(device)

    def state_dict(self) -> dict[str, Any]:
        """All state, as tensors and numbers."""
        return {
            "capacity": self.capacity,
            "clock": self.clock,
            **{name: getattr(self, name).clone() for name in _FIELDS},
            "labelings": [t.clone() for t in self.labelings],
            "gram": None if self.gram is None else self.gram.clone(),
        }

    def check_state(self, state: Any, where: str, dtype: torch.dtype) -> None:
        """Raise ValueError if a state is damaged or has other sizes.

        Args:
            state: The result of ``state_dict``.
            where: Its name in messages.
            dtype: The dtype of inner products.
        """
        n, capacity = shape = tuple(self.mass.shape)
        schema = {
            "capacity": Same(capacity),
            "clock": int,
            "count": Entry(torch.int64, (n,), low=0, high=capacity),
            "length": Entry(torch.int64, (n,), low=0),
            "mass": Entry(torch.float64, shape, low=0.0, high=1.0 + 1e-6),
            "loss": Entry(torch.float64, shape),  # below 0 where known scores are counted with it
            "used": Entry(torch.int64, shape),
            "known": Entry(torch.bool, shape),
            "labelings": Each(list, Entry(Tensor, (*shape, ...))),
            "gram": Maybe(Entry(dtype, (*shape, capacity))),
        }
        check(state, schema, where)
        empty = torch.arange(capacity, device=state["count"].device) >= state["count"].unsqueeze(1)
        if bool((state["mass"][empty] > 0.0).any()) or bool((state["used"] > state["clock"]).any()):
            raise damaged(f"{where} has mass, or uses, where there is no labeling")
        if not state["labelings"] and bool(state["count"].any()):
            raise damaged(f"{where}['labelings'] is empty, and {where}['count'] is not 0")

    @staticmethod
    def merged(states: list[dict[str, Any]], padding: int) -> dict[str, Any]:
        """The state of all examples, from those of consecutive parts of them."""
        made = [state for state in states if state["labelings"]]
        labelings = []
        for like in zip(*(state["labelings"] for state in made), strict=True):
            sizes = [max(own) for own in zip(*(t.shape[2:] for t in like), strict=True)]
            given = iter(like)
            whole = [
                fit(next(given), sizes, padding)
                if state["labelings"]
                else torch.full((*state["mass"].shape, *sizes), padding, dtype=torch.int8)
                for state in states
            ]
            wanted = functools.reduce(torch.promote_types, (t.dtype for t in like))
            labelings.append(torch.cat([t.to(wanted) for t in whole]))
        grams = [state["gram"] for state in states]
        known = next((gram for gram in grams if gram is not None), None)
        if known is not None:
            grams = [
                gram if gram is not None else known.new_zeros(*state["mass"].shape, known.shape[2])
                for gram, state in zip(grams, states, strict=True)
            ]
        return {
            "capacity": states[0]["capacity"],
            "clock": max(state["clock"] for state in states),
            **{name: torch.cat([state[name] for state in states]) for name in _FIELDS},
            "labelings": labelings,
            "gram": None if known is None else torch.cat(grams),
        }

    @staticmethod
    def part(state: dict[str, Any], own: range) -> dict[str, Any]:
        """The state of consecutive examples, from that of all."""
        some = slice(own.start, own.stop)
        return {
            **state,
            **{name: state[name][some] for name in _FIELDS},
            "labelings": [t[some] for t in state["labelings"]],
            "gram": None if state["gram"] is None else state["gram"][some],
        }

    @classmethod
    def restored(cls, state: dict[str, Any], padding: int, device: torch.device) -> ActiveSets:
        """The active sets of a state that passed :meth:`check_state`, with the same bits."""
        n, capacity = state["mass"].shape
        made = cls(n, capacity, padding, device)
        for name in _FIELDS:
            setattr(made, name, state[name].to(device, copy=True))
        made.clock = state["clock"]
        made.labelings = [t.to(device, copy=True) for t in state["labelings"]]
        made.gram = None if state["gram"] is None else state["gram"].to(device, copy=True)
        return made


def _narrow(values: Tensor) -> torch.dtype:
    """The smallest integer dtype that holds these numbers."""
    if values.is_floating_point() or values.dtype == torch.bool or not values.numel():
        return values.dtype if values.numel() else torch.int8
    low, high = (int(v) for v in read_together(*values.aminmax()))
    for dtype in (torch.int8, torch.int16, torch.int32):
        if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max:
            return dtype
    return torch.int64
