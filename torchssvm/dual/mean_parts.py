"""The storage by mean parts, whose rows lie in one growing tensor, without padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit
from torchssvm.core.arguments import OLD_NUMBERS
from torchssvm.core.decoding import Labeling, OracleResult
from torchssvm.core.launch import fits_numba
from torchssvm.core.operators import on_host, pick, upload
from torchssvm.core.potentials import Parts, Potentials, inner, scale
from torchssvm.core.states import Numbers, Stateful, check_entries, damaged
from torchssvm.core.structure import check_padding
from torchssvm.core.triton_support import fits_triton
from torchssvm.dual.storage import Storage, Stored

_NONE = torch.empty(0, dtype=torch.int64)


def other_length(example: int, now: int, before: int) -> ValueError:
    """The error for an example that came with another length than before."""
    return ValueError(
        f"example {example} came with length {now}, and before with {before}: an index must always name the same "
        f"example ({OLD_NUMBERS})"
    )


class MeanParts(Storage):
    """Keeps ``psi_i = p(y_i) - mu_i`` in the shape of the potentials.

    The size is that of the potentials and does not depend on the number of weights: T K + K^2 numbers for a chain of
    length T with K states and shared transitions. Blocks remain valid when features change.

    Example:
        >>> solve(LinearChain(4, 3), chains, lam=0.1, solver=Solver(storage=MeanParts())).relative_gap <= 0.01
        True
    """

    def __init__(self) -> None:
        self.buffers: dict[str, RowBuffer] = {}

    def estimate(self, potentials: Potentials, target: Labeling = None) -> int:
        """Bytes for all examples, if their mean length is that of the batch."""
        total = 0.0
        for name, tensor in potentials.tensors.items():
            rows = _rows(potentials, name)
            longest = _row_view(potentials, name).shape[1]
            share = 1.0 if rows is None or not longest else float(rows.to(torch.float64).mean()) / longest
            total += share * tensor[:1].numel() * self.parameters[0].element_size()
        return int(total * len(self.own))

    @override
    def gather(self, index: Tensor, potentials: Potentials, target: Labeling = None) -> StoredParts:
        if not self.buffers:
            self.check_memory(
                potentials,
                target,
                "storage=Weights() may take less",
            )
            zeros = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in potentials.tensors.items()}
            return StoredParts(self, index, potentials, zeros, target)
        if self.buffers.keys() != potentials.tensors.keys():
            raise ValueError(f"potentials={potentials} must have the names of earlier batches, {sorted(self.buffers)}")
        psi = {}
        counts = {name: _rows(potentials, name) for name in self.buffers}
        for name, rows in counts.items():
            buffer, shape = self.buffers[name], potentials.tensors[name].shape
            longest, trailing = (shape[1], shape[2:]) if name in potentials.ragged else (1, shape[1:])
            trailing_before = buffer.values.shape[1:]
            if trailing_before != trailing and (potentials.lengths is None or len(trailing_before) != len(trailing)):
                example = int(on_host(index)[0]) + self.own.start
                raise ValueError(
                    f"{name} of example {example} has rows of {list(trailing)}, not {list(trailing_before)}: examples "
                    "of different sizes need lengths"
                )
            values, wrong = buffer.read(index, rows, longest, trailing)
            if wrong >= 0 and rows is not None:
                example, more = int(on_host(index)[wrong]), potentials.ragged[name]  # rows than the length
                now, before = int(rows[wrong]) - more, int(buffer.rows[example]) - more
                raise other_length(example + self.own.start, now, before)
            psi[name] = values.view(shape).to(potentials.dtype)
        return StoredParts(self, index, potentials, psi, target)

    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise ValueError if an example is in two batches with different numbers of rows."""
        pairs: dict[tuple[str, int], int] = {}
        for batch in batches:
            assert isinstance(batch, StoredParts)
            for name in batch.psi:
                counts = _rows(batch.potentials, name)
                for example, count in zip(
                    on_host(batch.index).tolist(), [] if counts is None else counts.tolist(), strict=False
                ):
                    if (before := pairs.setdefault((name, example), count)) != count:
                        more = batch.potentials.ragged[name]
                        raise other_length(example + self.own.start, count - more, before - more)

    def add(self, index: Tensor, potentials: Potentials, parts: Parts, factors: Tensor | None = None) -> None:
        """``psi_i += factors_i parts_i`` for distinct examples, ``factors=None`` is 1; the first call allocates."""
        if factors is None:
            factors = torch.ones(len(index), dtype=torch.float64, device=index.device)
        counts = {name: _rows(potentials, name) for name in parts}
        for name, rows in counts.items():
            values = parts[name] if name in potentials.ragged else parts[name].unsqueeze(1)
            if name not in self.buffers:
                self.buffers[name] = RowBuffer(len(self.own), values.dtype, values.device)
            self.buffers[name].add(index, rows, values, factors)

    @override
    def rescale(self, factor: float) -> None:
        for buffer in self.buffers.values():
            buffer.values *= factor

    @override
    def widen(self, potentials: Potentials) -> None:
        for name, buffer in self.buffers.items():
            buffer.widen(_row_view(potentials, name).shape[2:])

    def write(self, index: Tensor, potentials: Potentials, parts: Parts) -> None:
        """``psi_i = parts_i`` for distinct examples that :meth:`add` has seen."""
        for name, values in parts.items():
            self.buffers[name].write(index, values.view(_row_view(potentials, name).shape))

    @override
    def nbytes(self) -> int:
        return sum(buffer.nbytes() for buffer in self.buffers.values())

    @override
    def to(self, device: torch.device) -> None:
        for buffer in self.buffers.values():
            buffer.to(device)

    def _entries(self) -> dict[str, Any]:
        return {"kind": "mean_parts", "buffers": {name: rows.state_dict() for name, rows in self.buffers.items()}}

    def _check_own(self, state: dict[str, Any]) -> None:
        check_entries(state, {"kind": "mean_parts", "buffers": dict}, "storage")
        for rows in state["buffers"].values():
            self._new_rows().check_state(rows)

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.buffers = {name: self._new_rows() for name in state["buffers"]}
        for name, rows in state["buffers"].items():
            self.buffers[name].restore(rows)

    @override
    def part_of_state(self, state: dict[str, Any], own: range | Tensor) -> dict[str, Any]:
        like = self._new_rows()
        return {**state, "buffers": {name: like.part_of_state(rows, own) for name, rows in state["buffers"].items()}}

    def merged_state(self, states: list[dict[str, Any]], parts: list[range]) -> dict[str, Any]:
        """The state of all examples; parts without rows have zeros."""
        like, several = self._new_rows(), [state["buffers"] for state in states]
        names = dict.fromkeys(name for buffers in several for name in buffers)
        merged = {name: like.merged_state([buffers.get(name) for buffers in several], parts) for name in names}
        return {**states[0], "buffers": merged}

    def _new_rows(self) -> RowBuffer:
        return RowBuffer(len(self.own), self.parameters[0].dtype, self._device)


class StoredParts(Stored):
    """Blocks as ``psi``, in the shapes of the potentials."""

    def __init__(
        self, storage: MeanParts, index: Tensor, potentials: Potentials, psi: Parts, target: Labeling = None
    ) -> None:
        self.psi = psi
        self._storage = storage
        self._target = target
        self.index = index
        self.potentials = potentials
        self.num_examples = storage.num_examples

    @override
    def inner(self, potentials: Potentials) -> Tensor:
        return inner(self.psi, potentials.tensors, self.num_examples)

    @override
    def mean_loss(self, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        return self._storage.structure._mean_loss(self.psi, self._target, potentials)

    def combine(self, change: Tensor | None, corner: OracleResult) -> tuple[Parts, None]:
        """Corner and block, weighted by ``change``; if that is None, this may write into ``psi``."""
        structure, psi = self._storage.structure, self.psi
        if corner.made is None and change is None:
            return structure._add_difference(psi, corner.labeling, self._target, self.potentials), None
        parts = corner.made
        if parts is None:
            parts = structure._difference(corner.labeling, self._target, self.potentials)
        check_padding(parts, self.potentials)
        if change is not None:
            parts, psi = scale(parts, change[:, 1]), scale(psi, -change[:, 0])
        return {name: tensor + psi[name] for name, tensor in parts.items()}, None

    def move(
        self, coefficients: Tensor, rows: Tensor, change: Tensor | None, parts: Parts, gradients: list[Tensor] | None
    ) -> None:
        """``psi_i -= coefficients_i Delta_i``."""
        index, potentials = self.index, self.potentials
        if len(rows) < len(index):
            index, potentials, coefficients = pick(index, rows), potentials.select(rows), coefficients[rows]
            parts = {name: tensor[rows] for name, tensor in parts.items()}
        self._storage.add(index, potentials, parts, -coefficients)


def _row_view(potentials: Potentials, name: str) -> Tensor:
    """The tensor as ``[B, rows, *trailing]``, with one row if axis 1 is not ragged."""
    tensor = potentials.tensors[name]
    return tensor if name in potentials.ragged else tensor.unsqueeze(1)


def _rows(potentials: Potentials, name: str) -> Tensor | None:
    """Number of rows of each example, ``[B]`` int64 on the CPU; None for one each."""
    if name not in potentials.ragged or potentials.lengths is None:
        return None
    offset, lengths = potentials.ragged[name], on_host(potentials.lengths)
    return (lengths + offset).clamp(min=0) if offset else lengths


class RowBuffer(Stateful):
    """Consecutive rows ``[rows_i, *trailing]`` for each example, initially zero.

    Row 0 of the buffer stays zero and represents padding. Trailing axes grow to the largest size written. The places of
    the rows are kept on the CPU, where they are checked, and copied to the device of the rows when some are new.
    """

    state_name = "rows"

    def __init__(self, num_examples: int, dtype: torch.dtype, device: torch.device) -> None:
        self.start = torch.zeros(num_examples, dtype=torch.int64)
        self.rows = torch.zeros(num_examples, dtype=torch.int64)
        self.values = torch.zeros(1, dtype=dtype, device=device)
        self.used = 1
        self.examples = 0
        self._copied: tuple[Tensor, Tensor] | None = None  # `start` and `rows` on the device, where it is no CPU
        self._compiled = fits_numba(self.values)

    @property
    def complete(self) -> bool:
        """Whether all examples have rows."""
        return self.examples == self.start.shape[0]

    def locate(self, index: Tensor, longest: int) -> Tensor:
        """Places of the rows of the examples ``index``, ``[B, longest]``; 0 for padding and missing rows."""
        start, rows = self._places()
        position = torch.arange(longest, device=index.device)
        places = start[index].unsqueeze(1) + position
        return places.masked_fill_(position >= rows[index].unsqueeze(1), 0)

    def _places(self) -> tuple[Tensor, Tensor]:
        if self.values.is_cpu:
            return self.start, self.rows
        if self._copied is None:
            self._copied = upload(self.start, self.values.device), upload(self.rows, self.values.device)
        return self._copied

    def read(self, index: Tensor, rows: Tensor | None, longest: int, trailing: Sequence[int]) -> tuple[Tensor, int]:
        """The rows of the examples ``index`` ``[B]`` as ``[B, longest, *trailing]``; missing rows are zero.

        ``rows`` ``[B]`` int64 on the CPU are the expected numbers of rows; None for one each, unchecked. The second
        result is the first position in ``index`` of an example with another number of rows, or -1.
        """
        shape = (len(index), longest, *trailing)
        if self.used == 1:
            return self.values.new_zeros(shape), -1
        if self._compiled and index.is_contiguous() and shape[2:] == self.values.shape[1:]:
            copied = self.values.new_empty(shape)
            flat = copied.numpy().reshape(*shape[:2], math.prod(shape[2:]))
            return copied, _read(*self._as_arrays(), index.numpy(), (_NONE if rows is None else rows).numpy(), flat)
        wrong = -1
        if rows is not None:
            place = on_host(index)
            differs = (self.rows[place] != rows) & (self.start[place] > 0)
            if bool(differs.any()):
                wrong = int(differs.nonzero()[0])
        if shape[2:] == self.values.shape[1:] and fits_triton(self.values, index):
            from torchssvm.dual.mean_parts_triton import read_triton

            return read_triton(self.values, *self._places(), index, longest), wrong
        places = self.locate(index, longest)
        copied = self.values.index_select(0, places.flatten()).view(*places.shape, *self.values.shape[1:])
        return copied if copied.shape == shape else _resize(copied, shape), wrong

    def add(self, index: Tensor, rows: Tensor | None, values: Tensor, factors: Tensor) -> None:
        """Add ``factors_i values_i`` to the rows of distinct examples.

        ``values`` ``[B, longest, *trailing]`` are zero where padded; ``rows`` are those of :meth:`read`.
        """
        if not self.complete:
            self._place(on_host(index), rows)
        self.widen(values.shape[2:])
        if values.shape[2:] == self.values.shape[1:]:
            if self._compiled and all(tensor.is_contiguous() for tensor in (index, values, factors)):
                flat = values.numpy().reshape(*values.shape[:2], math.prod(values.shape[2:]))
                _add(*self._as_arrays(), index.numpy(), flat, factors.numpy())
                return
            if not self._compiled and fits_triton(self.values, index, values, factors):
                from torchssvm.dual.mean_parts_triton import add_triton

                add_triton(self.values, *self._places(), index, values, factors)
                return
        values = values * factors.to(values.dtype).view(-1, *[1] * (values.ndim - 1))
        places = self.locate(index, values.shape[1])
        values = values.flatten(0, 1)
        if values.shape[1:] != self.values.shape[1:]:
            values = _resize(values, (len(values), *self.values.shape[1:]))
        self.values.index_add_(0, places.flatten(), values)  # padding adds zeros to row 0

    def _as_arrays(self) -> tuple[Any, ...]:
        """Values ``[rows, numbers]``, start and rows as numpy arrays for the kernels."""
        # Not kept: sharing a tensor between processes moves its storage.
        values = self.values.numpy().reshape(self.values.shape[0], math.prod(self.values.shape[1:]))
        return values, self.start.numpy(), self.rows.numpy()

    def write(self, index: Tensor, values: Tensor) -> None:
        """Replace rows of examples that have some by ``values`` ``[B, longest, *trailing]``, zero where padded."""
        places = self.locate(index, values.shape[1])
        self.widen(values.shape[2:])
        values = values.flatten(0, 1)
        if values.shape[1:] != self.values.shape[1:]:
            values = _resize(values, (len(values), *self.values.shape[1:]))
        self.values.index_copy_(0, places.flatten(), values)  # padding writes zeros to row 0

    def fill_up(self, rows: Tensor, trailing: Sequence[int]) -> None:
        """Give every example ``rows`` rows (``[n]`` int64) of size ``trailing`` or larger; new rows are zero."""
        self._place(torch.arange(len(rows)), rows.cpu())
        self.widen(trailing)

    def _place(self, index: Tensor, rows: Tensor | None) -> None:
        """Assign places to the examples that have none; ``index`` and ``rows`` are on the CPU."""
        new = self.start[index] == 0
        if bool(new.any()):
            added = torch.ones_like(index[new]) if rows is None else rows[new]
            ends = added.cumsum(0)
            self.start[index[new]] = self.used + ends - added
            self.rows[index[new]] = added
            self.used += int(ends[-1])
            self._copied = None
            self.examples += len(added)

    def widen(self, trailing: Sequence[int]) -> None:
        """Make room for all rows in use, of size ``trailing`` or larger."""
        old = tuple(self.values.shape[1:])
        wide = tuple(max(a, b) for a, b in zip(old, trailing, strict=True)) if old else tuple(trailing)
        if self.used > self.values.shape[0] or wide != old:
            # Extrapolate the final size from the examples so far; zeros take no memory until they are written.
            expected = 2 + int((self.used - 1) / max(self.examples, 1) * len(self.start) * 1.02)
            capacity = max(self.used, expected, len(self.values))
            grown = self._zeros(capacity, *wide)
            if self.values.ndim == grown.ndim:  # there are rows to copy
                grown[(slice(len(self.values)), *(slice(size) for size in self.values.shape[1:]))] = self.values
            self.values = grown

    def _zeros(self, *shape: int) -> Tensor:
        """Zeros like the values; those of torch take memory at once, those of NumPy where they are written."""
        if not self._compiled:
            return self.values.new_zeros(shape)
        return torch.from_numpy(np.zeros(shape, self.values.numpy().dtype))

    def crop(self, size: int) -> None:
        """Keep the first ``size`` numbers of each row of numbers; the others are zero."""
        self.values = self.values[:, :size].contiguous()

    def nbytes(self) -> int:
        """Bytes of rows and places."""
        return sum(t.numel() * t.element_size() for t in (self.values, self.start, self.rows))

    def to(self, device: torch.device) -> None:
        """Move everything."""
        self.values, self._copied = self.values.to(device), None
        self._compiled = fits_numba(self.values)

    def _entries(self) -> dict[str, Any]:
        values = self.values[: self.used].clone()
        return {"start": self.start.clone(), "rows": self.rows.clone(), "values": values, "examples": self.examples}

    def _check_own(self, state: dict[str, Any]) -> None:
        places = Numbers(torch.int64, (len(self.start),), 0)
        rows = Numbers(self.values.dtype, None)
        check_entries(state, {"start": places, "rows": places, "values": rows, "examples": Numbers(int, low=0)}, "rows")
        if bool((state["start"] + state["rows"] > len(state["values"])).any()):
            raise damaged("rows['start']")

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.start, self.rows = (state[name].to("cpu", copy=True) for name in ("start", "rows"))
        self.values = state["values"].to(self.values.device, copy=True)
        self.used, self.examples, self._copied = len(self.values), state["examples"], None

    def merged_state(self, states: list[Any], parts: list[range]) -> dict[str, Any]:
        """The state of all examples, from the states of consecutive parts; None for a part without rows."""
        device = torch.device("cpu")
        states = [
            state or RowBuffer(len(part), self.values.dtype, device).state_dict()
            for state, part in zip(states, parts, strict=True)
        ]
        wide = [max(sizes) for sizes in zip_longest(*(state["values"].shape[1:] for state in states), fillvalue=0)]
        values, starts, used = [states[0]["values"].new_zeros(1, *wide)], [], 0
        for state in states:
            starts.append(torch.where(state["start"] > 0, state["start"] + used, 0))
            rows = state["values"][1:]
            values.append(_resize(rows, (len(rows), *wide)) if len(rows) else rows.new_zeros(0, *wide))
            used += len(rows)
        return {
            "start": torch.cat(starts),
            "rows": torch.cat([state["rows"] for state in states]),
            "values": torch.cat(values),
            "examples": sum(state["examples"] for state in states),
        }

    @override
    def part_of_state(self, state: dict[str, Any], own: range | Tensor) -> dict[str, Any]:
        chosen: Any = slice(own.start, own.stop) if isinstance(own, range) else own
        start, rows = (state[name][chosen] for name in ("start", "rows"))
        rows = torch.where(start > 0, rows, 0)
        ends = rows.cumsum(0)
        total = int(ends[-1])
        places = torch.repeat_interleave(start - ends + rows, rows) + torch.arange(total)
        return {
            "start": torch.where(start > 0, ends - rows + 1, 0),
            "rows": rows,
            "values": torch.cat([state["values"][:1], state["values"][places]]),
            "examples": int((start > 0).sum()),
        }


def _resize(values: Tensor, shape: Sequence[int]) -> Tensor:
    result = values.new_zeros(shape)
    common = tuple(slice(min(a, b)) for a, b in zip(values.shape, shape, strict=True))
    result[common] = values[common]
    return result


@njit
def _read(values: Any, start: Any, rows: Any, index: Any, expected: Any, copied: Any) -> int:
    wrong = -1
    for b in range(index.shape[0]):
        first, count = start[index[b]], rows[index[b]]
        if first > 0 and expected.shape[0] and expected[b] != count and wrong < 0:
            wrong = b
        count = min(count, copied.shape[1]) if first > 0 else 0
        for t in range(copied.shape[1]):
            row = copied[b, t]
            if t < count:
                stored = values[first + t]
                for k in range(row.shape[0]):
                    row[k] = stored[k]
            else:
                row[:] = 0
    return wrong


@njit
def _add(values: Any, start: Any, rows: Any, index: Any, change: Any, factors: Any) -> None:
    for b in range(index.shape[0]):
        first, factor = start[index[b]], values.dtype.type(factors[b])
        for t in range(min(rows[index[b]], change.shape[1])):
            row, added = values[first + t], change[b, t]
            for k in range(row.shape[0]):
                row[k] += factor * added[k]
