"""The states of checkpoints: entries of their kind, and a checksum of the numbers that were saved."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor


def seal(state: Any) -> int:
    """CRC-32 of everything in nested dicts, lists and tensors, whatever the device."""
    return _add(state, 0)


def with_seal(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a checksum of its entries: one that was edited is refused, unless it is sealed again."""
    return {**state, "seal": seal({name: value for name, value in state.items() if name != "seal"})}


def check_seal(state: dict[str, Any], where: str) -> None:
    """Raise ValueError unless the state, which messages call ``where``, holds the numbers that were saved."""
    if require(state, "seal", int, where) != with_seal(state)["seal"]:
        raise ValueError(
            "the checkpoint is damaged: its numbers are not those that were saved, and what was edited proves nothing. "
            "Load an earlier checkpoint"
        )


def _add(value: Any, crc: int) -> int:
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous()
        crc = _add(f"{array.dtype} {list(array.shape)}", crc)
        return zlib.crc32(array.view(-1).view(torch.uint8).numpy().data, crc) if array.numel() else crc
    if isinstance(value, dict):
        for name in sorted(value):
            crc = _add(value[name], _add(name, crc))
        return crc
    if isinstance(value, list | tuple):
        for item in value:
            crc = _add(item, crc)
        return _add(len(value), crc)
    return zlib.crc32(repr(value).encode(), crc)


def require(state: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """An entry of a checkpoint, or a ValueError that names it.

    Counters must fit into 64 bits, and are no truth values; tensors, in lists and dictionaries too, must be dense.
    """
    if not isinstance(state, dict) or not isinstance(state.get(name), kind):
        found = type(state.get(name)).__name__ if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"the checkpoint is damaged: {where}[{name!r}] should be a {kind.__name__}, it is {found}")
    value = state[name]
    if kind is int and (isinstance(value, bool) or not -(2**63) <= value < 2**63):
        raise ValueError(f"the checkpoint is damaged: {where}[{name!r}] is {value}, and should be a number of 64 bits")
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    if any(isinstance(tensor, Tensor) and (tensor.layout is not torch.strided or tensor.is_meta) for tensor in held):
        raise ValueError(f"the checkpoint is damaged: {where}[{name!r}] holds a sparse or meta tensor")
    return value
