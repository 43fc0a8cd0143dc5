"""Rows of many examples in one growing tensor, without padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit
from torchssvm.core.launch import fits_numba
from torchssvm.core.operators import on_host, upload
from torchssvm.core.states import Numbers, Stateful, check_entries, damaged
from torchssvm.core.triton_support import fits_triton

_NONE = torch.empty(0, dtype=torch.int64)


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
            from torchssvm.dual.rows_triton import read_triton

            return read_triton(self.values, *self._places(), index, longest), wrong
        places = self.locate(index, longest)
        copied = self.values.index_select(0, places.flatten()).view(*places.shape, *self.values.shape[1:])
        return copied if copied.shape == shape else _resize(copied, shape), wrong

    def add(self, index: Tensor, rows: Tensor | None, values: Tensor, factors: Tensor) -> None:
        """Add ``factors_i values_i`` to the rows of distinct examples.

        ``values`` ``[B, longest, *trailing]`` are zero where padded; ``rows`` are those of :meth:`read`.
        """
        if self.examples < len(self.start):
            self._place(on_host(index), rows)
        if self.used > len(self.values) or values.shape[2:] != self.values.shape[1:]:
            self.widen(values.shape[2:])
        if values.shape[2:] == self.values.shape[1:]:
            if self._compiled and all(tensor.is_contiguous() for tensor in (index, values, factors)):
                flat = values.numpy().reshape(*values.shape[:2], math.prod(values.shape[2:]))
                _add(*self._as_arrays(), index.numpy(), flat, factors.numpy())
                return
            if not self._compiled and fits_triton(self.values, index, values, factors):
                from torchssvm.dual.rows_triton import add_triton

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
            grown = self.values.new_zeros(capacity, *wide)
            if self.values.ndim == grown.ndim:  # there are rows to copy
                grown[(slice(len(self.values)), *(slice(size) for size in self.values.shape[1:]))] = self.values
            self.values = grown

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
