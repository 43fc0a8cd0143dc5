"""Objects with a state in checkpoints: plain dicts of tensors and numbers, checked before anything changes."""

from __future__ import annotations

import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from torchssvm.core.interrupts import undisturbed
from torchssvm.core.ranks import Ranks

_LARGEST = sys.float_info.max


class Numbers(NamedTuple):
    """Allowed numbers of an entry: finite ones, unless ``high`` is infinite, and never NaN.

    Attributes:
        kind: int or float, or the dtype of a tensor.
        shape: Sizes of a tensor; None for an axis, or in place of the shape, allows any size.
    """

    kind: Any
    shape: tuple[int | None, ...] | None = ()
    low: float = -_LARGEST
    high: float = _LARGEST

    def fit(self, value: Any) -> bool:
        """Whether the value has this type, dtype and shape, and lies between ``low`` and ``high``."""
        if self.kind in (int, float):
            return isinstance(value, self.kind) and type(value) is not bool and self.low <= value <= self.high
        if not isinstance(value, Tensor) or value.dtype != self.kind:
            return False
        if self.shape is not None and (
            value.ndim != len(self.shape)
            or any(wanted not in (None, size) for wanted, size in zip(self.shape, value.shape, strict=True))
        ):
            return False
        if value.dtype is torch.bool or not value.numel():
            return True
        smallest, largest = value.detach().aminmax()  # both are NaN if any number is
        return self.low <= smallest.item() and largest.item() <= self.high


def check_entries(state: Any, wanted: dict[str, Any], where: str) -> None:
    """Raise ValueError unless ``state`` has these entries and no others.

    ``wanted`` describes an entry by a type, by :class:`Numbers`, by a list of descriptions, or by its value, which
    identifies the problem.
    """
    if not isinstance(state, dict) or state.keys() != wanted.keys():
        raise damaged(f"{where} does not have the entries {list(wanted)}")
    for name, entry in wanted.items():
        _check_entry(state[name], entry, f"{where}[{name!r}]")


def _check_entry(value: Any, wanted: Any, where: str) -> None:
    match wanted:
        case type():
            fits = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        case Numbers():
            fits = wanted.fit(value)
        case list():
            fits = isinstance(value, list) and len(value) == len(wanted)
            for place, (item, inner) in enumerate(zip(value, wanted, strict=True) if fits else ()):
                _check_entry(item, inner, f"{where}[{place}]")
        case _:
            fits = type(value) is type(wanted) and value == wanted
            if not fits and isinstance(value, str | int | float):
                raise ValueError(f"the checkpoint is of another problem: {where} is {value}, and must be {wanted}")
    if not fits:
        raise damaged(where)


def damaged(where: str) -> ValueError:
    """The error for a state that this object cannot have."""
    return ValueError(f"the checkpoint is damaged, or of another problem: {where} does not fit")


class Stateful(ABC):
    """An object with a state in checkpoints. It checks a state as a whole, then loads all of it or nothing."""

    state_name: str
    """The state's name in error messages."""

    per_example: ClassVar[tuple[str, ...]] = ()
    """Entries with one row for each example: None, a tensor or a list of tensors."""

    @abstractmethod
    def _entries(self) -> dict[str, Any]:
        """Copies of the state's entries, except those of :meth:`_nested`; ``"format"`` adds a checksum."""

    def _nested(self) -> dict[str, Stateful]:
        """The objects whose states are entries."""
        return {}

    @abstractmethod
    def _check_own(self, state: dict[str, Any]) -> None:
        """Raise ValueError unless :meth:`_restore_own` can load this state."""

    @abstractmethod
    def _restore_own(self, state: dict[str, Any]) -> None:
        """Set this object, bit for bit, to a checked state."""

    def own_state(self) -> dict[str, Any]:
        """The state of this process."""
        state = {**self._entries(), **{name: each.state_dict() for name, each in self._nested().items()}}
        return with_seal(state) if "format" in state else state

    def state_dict(self) -> dict[str, Any]:
        """The exact state as tensors, numbers and strings, which ``weights_only=True`` can load.

        RuntimeError if several processes hold parts of it and did not call ``consolidate_state_dict()`` just before.
        """
        return self.own_state()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect the state of all ranks for the next ``state_dict()`` of the rank ``to``; all ranks call it."""
        for each in self._nested().values():
            each.consolidate_state_dict(to)

    def _own_part(self, state: Any) -> Any:
        """The part of this process in a state of all."""
        return state

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ValueError if ``state`` is damaged or of another problem; changes nothing."""
        try:
            self._check_own(self._own_part(state))
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise damaged(f"{self.state_name}: {error!r}") from error

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Set this object, bit for bit, to its part of a state that :meth:`check_state` has accepted."""
        self._restore_own(self._own_part(state))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, bit for bit; ValueError, and nothing changes, if it does not fit."""
        self.check_state(state)
        with undisturbed():
            self.restore(state)

    def part_of_state(self, state: dict[str, Any], own: range | Tensor) -> dict[str, Any]:
        """The state of some examples, a range or places ``[m]`` int64, from the state of all."""
        rows: Any = slice(own.start, own.stop) if isinstance(own, range) else own
        part = {**state, **{name: _rows(state[name], rows) for name in self.per_example}}
        part |= {name: each.part_of_state(state[name], own) for name, each in self._nested().items()}
        return with_seal(part) if "seal" in part else part

    def merged_state(self, states: list[dict[str, Any]], parts: list[range]) -> dict[str, Any]:
        """The state of all examples, from the states of processes with these consecutive ``parts`` of them."""
        whole = {**states[0], **{name: _joined([state[name] for state in states]) for name in self.per_example}}
        for name, each in self._nested().items():
            whole[name] = each.merged_state([state[name] for state in states], parts)
        return with_seal(whole) if "seal" in whole else whole


def _rows(value: Any, rows: Any) -> Any:
    """The rows of a tensor, or of each tensor of a list; None stays None."""
    if isinstance(value, list):
        return [tensor[rows] for tensor in value]
    return None if value is None else value[rows]


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], list):
        return [torch.cat(several) for several in zip(*values, strict=True)]
    return None if any(value is None for value in values) else torch.cat(values)


class ByRank(Stateful):
    """An object whose state is spread over the processes that train together.

    All ranks call ``consolidate_state_dict()``, then one of them ``state_dict()``, as for torch's
    ``ZeroRedundancyOptimizer``; Lightning and :func:`torchssvm.save_checkpoint` call both. Every rank loads the whole
    state and takes its part.
    """

    ranks: Ranks
    _whole: dict[str, Any] | None = None
    _collected: Any = None  # the progress at which _whole was collected

    def _progress(self) -> Any:
        """A value that every step changes; it tells whether a collected state is out of date."""
        return None

    def _merge(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole state, from those of all ranks in their order."""
        return {"ranks": parts}

    def _own_part(self, state: Any) -> Any:
        parts = state.get("ranks") if isinstance(state, dict) else None
        if not parts:
            if not self.ranks or not isinstance(state, dict):
                return state
            parts = [state]
        return parts[self.ranks.rank] if len(parts) == self.ranks.size else self._restarted(parts)

    def _restarted(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The part of this process, from a state of another number of processes."""
        raise NotImplementedError

    @override
    def consolidate_state_dict(self, to: int = 0) -> None:
        if self.ranks:
            parts = self.ranks.collect(self.own_state(), to)
            self._whole = None if parts is None else self._merge(parts)
            self._collected = self._progress()

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`Stateful.state_dict`: the whole state, and :meth:`own_state` is that of this process."""
        if not self.ranks:
            return self.own_state()
        whole, self._whole = self._whole, None
        if whole is None or self._collected != self._progress():
            raise RuntimeError(
                f"rank {self.ranks.rank} has only a part of the {self.state_name}: call consolidate_state_dict(), or "
                "save_checkpoint(...), on every rank"
            )
        return whole


class StatefulOptimizer(Stateful, Optimizer):
    """An optimizer of torch, whose state has further entries."""

    def _entries(self) -> dict[str, Any]:
        return Optimizer.state_dict(self)

    def _check_own(self, state: dict[str, Any]) -> None:
        sizes = [[len(group["params"]) for group in groups] for groups in (state["param_groups"], self.param_groups)]
        if sizes[0] != sizes[1] or not isinstance(state["state"], dict):
            raise ValueError(f"the checkpoint is of another problem: {self.state_name} has other parameter groups")
        for name, each in self._nested().items():
            each.check_state(state[name])

    def _restore_own(self, state: dict[str, Any]) -> None:
        Optimizer.load_state_dict(self, {name: state[name] for name in ("state", "param_groups")})
        for name, each in self._nested().items():
            each.restore(state[name])


def copied(values: Sequence[Tensor]) -> list[Tensor]:
    """Copies of tensors for a state, without gradients."""
    return [value.detach().clone() for value in values]


def with_seal(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a checksum of its entries."""
    return {**state, "seal": seal({name: value for name, value in state.items() if name != "seal"})}


def check_seal(state: Any, form: int, where: str) -> None:
    """Raise ValueError, naming ``where``, unless the state has the format ``form`` and its own checksum."""
    if not isinstance(state, dict) or state.get("format") != form:
        written = state.get("format") if isinstance(state, dict) else None
        raise ValueError(
            f"the checkpoint's {where} has format {written}, this version reads format {form}: load it with the "
            "release that wrote it"
        )
    if state.get("seal") != with_seal(state)["seal"]:
        raise ValueError(f"the checkpoint is damaged: {where} does not match its checksum. Load an earlier checkpoint")


def seal(value: Any, crc: int = 0) -> int:
    """CRC-32 of nested dicts, lists and tensors, independent of the device; it goes on from ``crc``."""
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous()
        crc = seal(f"{array.dtype} {list(array.shape)}", crc)
        return zlib.crc32(array.view(-1).view(torch.uint8).numpy().data, crc) if array.numel() else crc
    if isinstance(value, dict):
        for name in sorted(value):
            crc = seal(value[name], seal(name, crc))
        return crc
    if isinstance(value, list | tuple):
        for item in value:
            crc = seal(item, crc)
        return seal(len(value), crc)
    return zlib.crc32(repr(value).encode(), crc)
