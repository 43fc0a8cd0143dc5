"""What can be wrong with an entry of a saved state."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch

from torchssvm.core.schema import with_seal


def replaced(state: Any, path: tuple[Any, ...], *value: Any) -> Any:
    """The state with another value at a place, or without the entry."""
    changed = copy.deepcopy(state)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if value:
        inner[path[-1]] = value[0]
    else:
        del inner[path[-1]]
    return changed


def places(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every entry of a state, and of what it holds."""
    if path:
        yield path, state
    if isinstance(state, dict | list):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from places(value, (*path, key))


def resealed(state: Any) -> Any:
    """The state with the checksums of what it holds now, where that can be summed: another check has to refuse it."""
    if isinstance(state, list):
        return [resealed(value) for value in state]
    if not isinstance(state, dict):
        return state
    state = {name: resealed(value) for name, value in state.items()}
    with contextlib.suppress(Exception):
        return with_seal(state) if "seal" in state else state
    return state


UNKNOWN = {"gap_estimates", "oracle_gaps", "certified_gap", "snapshots", "features"}
"""Entries that may be infinite."""


def damages(state: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The path of every entry, with states in which it is gone, of another type, cut off, or no number."""
    for path, held in places(state):
        numbers = [torch.nan] if UNKNOWN & set(path) else [torch.nan, torch.inf]
        wrong: list[Any] = ["x", {"x": 1}]
        if isinstance(held, torch.Tensor):
            wrong += [held.unsqueeze(0), held.to(torch.float16), held.to_sparse(), held.to("meta")]
            if held.numel():
                wrong.append(held[:-1].clone() if held.ndim else held.new_zeros(2))
            if held.numel() and held.is_floating_point():
                for number in numbers:
                    wrong.append(held.clone())
                    wrong[-1].view(-1)[-1] = number
        elif isinstance(held, int | float) and not isinstance(held, bool):
            wrong += [*numbers, -1 - abs(held), 10**30, True]
        yield path, replaced(state, path)
        for value in wrong:
            yield path, replaced(state, path, value)
