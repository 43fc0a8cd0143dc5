"""Finds races of Triton kernels on global memory, in Triton's interpreter: ``with no_races():`` around the launches.

The interpreter runs a program's threads as one, so that its results say nothing of races; but it sees every address.
NVIDIA's racecheck looks at shared memory alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

_WARP = 32


class _Access(NamedTuple):
    """Of one entry of a tensor."""

    entry: int
    size: int  # entries of the tensor
    stored: Any  # the number, or None where it is loaded


class _Watch:
    """What the programs of one launch load and store."""

    def __init__(self, name: str, warps: int) -> None:
        self.name, self.warps, self.program = name, warps, -1
        self.since: list[tuple[np.ndarray, np.ndarray, int, np.ndarray | None]] = []  # the last barrier
        self.read: dict[int, np.ndarray] = {}
        self.written: dict[int, np.ndarray] = {}

    def note(self, pointers: Any, mask: Any, values: Any) -> None:
        where = np.asarray(pointers).ravel()
        entries = np.flatnonzero(np.broadcast_to(mask, np.shape(pointers)))
        kept = None if values is None else np.broadcast_to(values, np.shape(pointers)).ravel()[entries]
        self.since.append((where[entries], entries, where.size, kept))
        seen = self.read if values is None else self.written
        seen[self.program] = np.union1d(seen.get(self.program, np.empty(0, where.dtype)), where[entries])

    def barrier(self) -> None:
        """Between two barriers no thread loads what another one stores, and no two store different numbers."""
        since, self.since = self.since, []
        stored = [where for where, _, _, values in since if values is not None]
        if not stored:
            return
        results: dict[int, list[_Access]] = {int(address): [] for where in stored for address in where}
        for where, entries, size, values in since:
            for at in np.flatnonzero(np.isin(where, np.concatenate(stored))):
                results[int(where[at])].append(_Access(int(entries[at]), size, None if values is None else values[at]))
        for accesses in results.values():
            for place, one in enumerate(accesses):
                for later in accesses[place + 1 :]:
                    assert self._safe(one, later), f"{self.name} has a race between barriers: {one}, {later}"

    def _safe(self, one: _Access, later: _Access) -> bool:
        # An entry belongs to one thread, unless the tensor has fewer entries than the program has threads: then each
        # warp has them all, loads them when it gets there, and one of the threads stores.
        one_thread = one.entry == later.entry and one.size == later.size >= _WARP * self.warps
        if one.stored is None:  # threads of one warp load together
            return later.stored is None or one_thread or self.warps == 1
        if later.stored is None:
            return one_thread
        return one_thread or one.entry == later.entry or bytes(one.stored) == bytes(later.stored)

    def end(self) -> None:
        """No program loads what another one stores, and no two store at one place."""
        for program, places in self.written.items():
            for seen in (self.read, self.written):
                for other, others in seen.items():
                    assert other == program or not np.intersect1d(places, others).size, f"programs of {self.name} race"


@contextmanager
def no_races() -> Iterator[None]:
    """Raise AssertionError where a kernel that is launched inside has a race."""
    watch: list[_Watch] = []
    run, load, store = (
        GridExecutor.__call__,
        InterpreterBuilder.create_masked_load,
        InterpreterBuilder.create_masked_store,
    )
    move = InterpreterBuilder.set_grid_idx

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        watch.append(_Watch(f"{self.fn.__module__}.{self.fn.__name__}", kwargs.get("num_warps", 4)))
        run(self, *args, **kwargs)
        watch[-1].barrier()
        watch.pop().end()

    def begin(self: Any, *index: int) -> None:
        watch[-1].barrier()
        watch[-1].program += 1
        move(self, *index)

    def loaded(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        watch[-1].note(pointers.data, mask.data, None)
        return load(self, pointers, mask, *others)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        watch[-1].note(pointers.data, mask.data, value.data)
        return store(self, pointers, value, mask, *others)

    with (
        patch.object(GridExecutor, "__call__", launch),
        patch.object(InterpreterBuilder, "set_grid_idx", begin),
        patch.object(InterpreterBuilder, "create_masked_load", loaded),
        patch.object(InterpreterBuilder, "create_masked_store", stored),
        patch.object(InterpreterBuilder, "create_barrier", lambda self: watch[-1].barrier()),
    ):
        yield
