"""Objects with a state in checkpoints: each lists its entries once, and the rest follows from the list.

``_schema()`` of a :class:`Stateful` declares its entries by name. By this list, an object is saved, checked, loaded,
and the parts of several processes are put together and divided. A state is checked as a whole before anything changes.

=================================  ====================================================================================
Declaration                        Allowed value
=================================  ====================================================================================
``Entry(torch.float64, (n, 3))``   A dense tensor of that dtype and shape, without NaN, within its range.
``Entry(float)``, ``Entry(int)``   A number within its range; ints have 64 bits and are not bools.
``bool``, ``str``, ``dict``        Any value of that type.
``Same(value)``                    This value, which identifies the problem.
``Noted(declaration, value)``      As declared; ``value`` is saved, and nothing is restored from it.
``Maybe(declaration)``             The declared value, or None.
``Each(list, declaration)``        A list (or dict) of any length whose values are as declared.
``[declaration, ...]``             A list of that length.
``{name: declaration}``            A dict with these entries and no others.
``Open({name: declaration})``      A dict with these entries and possibly others, as torch's optimizers have.
a :class:`Stateful`                The state of that object.
``New(make)``                      The state of an object that ``make()`` makes, and that loading makes anew.
a function ``(value, where)``      Any value that the function accepts.
=================================  ====================================================================================

An entry is the attribute of the same name, or of that name with an underscore in front; :class:`Field` says where it
has another name or form. Arrays are saved as tensors, and a generator as its state. A first axis of the length
:class:`Own` is that of the examples that a process holds. An entry ``"seal"`` is a checksum of the others.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchssvm.core.interrupts import undisturbed
from torchssvm.core.ranks import Ranks

Declaration = Any
"""One of the declarations in the table above."""
Schema = dict[str, Declaration]


class Own(int):
    """The length of a first axis over the examples that a process holds."""


@dataclass(frozen=True)
class Entry:
    """A tensor or a number, within ``low``, ``high`` and the exclusive bound ``above``; never NaN, maybe ``infinite``.

    Attributes:
        kind: The dtype of a tensor, ``Tensor`` for any dtype and any numbers, or a Python type.
        shape: Sizes of the axes. A name stands for the same size throughout the declaration, None for any size; ``...``
            at the end for any further axes.
    """

    kind: Any
    shape: tuple[Any, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    above: float | None = None
    infinite: bool = False

    def __str__(self) -> str:
        kind, tensor = self.kind, self.kind is Tensor or isinstance(self.kind, torch.dtype)
        name = getattr(kind, "__name__", str(kind).removeprefix("torch."))
        real = kind is float or (isinstance(kind, torch.dtype) and kind.is_floating_point)
        text = name if self.infinite or not real else f"finite {name}"
        if tensor:
            text += f" [{', '.join({None: 'any', ...: '...'}.get(size, str(size)) for size in self.shape)}]"
        else:
            text = f"{'an' if text[0] in 'aeiou' else 'a'} {text}"
        text += f", above {self.above}" if self.above is not None else ""
        text += f", at least {self.low}" if self.low > -math.inf else ""
        return text + (f", at most {self.high}" if self.high < math.inf else "")

    def check(self, value: Any, where: str, sizes: dict[str, int]) -> None:
        """Raise ValueError, naming ``where``, if the value does not fit; adds named sizes to ``sizes``."""
        kind: type = Tensor if isinstance(self.kind, torch.dtype) else self.kind
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise damaged(f"{where} should be {self}, it is {_shown(value)}")
        smallest: Any = value
        largest: Any = value
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_meta:
                raise damaged(f"{where} should be {self}, it is a sparse or meta tensor")
            if self.kind not in (Tensor, value.dtype) or not self._fits(value.shape, sizes):
                raise damaged(f"{where} should be {self}, it is {_shown(value)}", or_other=True)
            if self.kind in (Tensor, torch.bool) or not value.numel():
                return
            smallest, largest = (number.item() for number in value.detach().aminmax())  # both are NaN if any is
        elif kind not in (int, float):
            return
        inside = self.low <= smallest and largest <= self.high and (self.above is None or smallest > self.above)
        whole = kind is not int or -(2**63) <= smallest < 2**63
        if not inside or not whole or (not self.infinite and math.inf in (-smallest, largest)):
            found = f"it has {smallest} to {largest}" if isinstance(value, Tensor) else f"it is {value}"
            raise damaged(f"{where} should be {self if whole else 'a number of 64 bits'}, {found}")

    @property
    def is_divided(self) -> bool:
        """Whether each process has the rows of its own examples."""
        return bool(self.shape) and isinstance(self.shape[0], Own)

    def _fits(self, found: Sequence[int], sizes: dict[str, int]) -> bool:
        wanted = self.shape
        if wanted[-1:] == (...,):
            wanted, found = wanted[:-1], found[: len(wanted) - 1]
        return len(wanted) == len(found) and all(
            size is None or (sizes.setdefault(size, has) if isinstance(size, str) else size) == has
            for size, has in zip(wanted, found, strict=True)
        )


@dataclass(frozen=True)
class Same:
    """A value that identifies the problem; ``text`` is the message if the state has another one."""

    value: Any
    text: str = "the checkpoint is of another problem: {where} is {there} there and {here} here"


@dataclass(frozen=True)
class Noted:
    """A value that is saved and checked, and that nothing is restored from."""

    declaration: Declaration
    value: Any


@dataclass(frozen=True)
class Field:
    """An entry that the object keeps as the attribute ``at``, such as ``"pairs.value"``, or in another form.

    ``save`` makes the entry of the attribute, and ``load`` the attribute of the entry.
    """

    declaration: Declaration
    at: str = ""
    save: Callable[[Any], Any] | None = None
    load: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class New:
    """The state of an object of its own, made by ``make``."""

    make: Callable[[], Stateful]


@dataclass(frozen=True)
class Maybe:
    """The declared value, or ``nothing``."""

    declaration: Declaration
    nothing: Any = None


@dataclass(frozen=True)
class Each:
    """A list or dict of any length, and the declaration of its values."""

    kind: type
    declaration: Declaration


@dataclass(frozen=True)
class Open:
    """A dict with these entries and possibly others, as torch's optimizers have."""

    entries: Schema


def groups_like(groups: list[dict[str, Any]], **entries: Declaration) -> list[Open]:
    """The declaration of an optimizer's ``"param_groups"``: as many parameters as in ``groups``, and ``entries``."""
    return [Open({"params": [int] * len(group["params"]), **entries}) for group in groups]


def version(number: int, advice: str = "") -> Same:
    """The declaration of a state's ``"format"``, its first entry; ``advice`` is appended to the error."""
    return Same(number, f"the checkpoint has format {{there}}, this version reads format {{here}}{advice}")


def check(state: Any, declaration: Declaration, where: str) -> None:
    """Raise ValueError, naming ``where``, unless a state is as declared; a seal is for the caller to check."""
    if isinstance(declaration, dict):
        _check_dict(state, declaration, where, {})
    else:
        _check(state, declaration, where, {})


def _check(value: Any, declaration: Declaration, where: str, sizes: dict[str, int]) -> None:
    match declaration:
        case Entry():
            declaration.check(value, where, sizes)
        case type():
            Entry(declaration).check(value, where, sizes)
        case Same(here, text):
            if here is not None:
                Entry(type(here), infinite=True).check(value, where, sizes)
            if value != here:
                raise ValueError(text.format(where=where, there=value, here=here))
        case Maybe(inner, nothing):
            if not _is(value, nothing):
                _check(value, inner, where, sizes)
        case Field(inner) | Noted(inner):
            _check(value, inner, where, sizes)
        case Stateful():
            declaration.check_state(value, where)
        case New(make):
            make().check_state(value, where)
        case Each(kind, inner):
            Entry(kind).check(value, where, sizes)
            for name, item in value.items() if kind is dict else enumerate(value):
                _check(item, inner, f"{where}[{name!r}]", sizes)
        case list():
            Entry(list).check(value, where, sizes)
            if len(value) != len(declaration):
                raise damaged(f"{where} should have {len(declaration)} values, it has {len(value)}", or_other=True)
            for place, (item, inner) in enumerate(zip(value, declaration, strict=True)):
                _check(item, inner, f"{where}[{place}]", sizes)
        case Open(entries):
            _check_entries(value, entries, where, sizes)
        case dict():
            _check_dict(value, declaration, where, sizes)
            if "seal" in declaration:
                check_seal(value, where)
        case _:
            declaration(value, where)


def _check_dict(value: Any, entries: Schema, where: str, sizes: dict[str, int]) -> None:
    _check_entries(value, entries, where, sizes)
    if unknown := value.keys() - entries.keys():
        raise damaged(f"{where} has the unknown entries {sorted(map(str, unknown))}")


def _check_entries(value: Any, entries: Schema, where: str, sizes: dict[str, int]) -> None:
    Entry(dict).check(value, where, sizes)
    for name, declaration in entries.items():
        if name not in value and name == "format":
            raise damaged(f"{where}['format'] is missing, as in checkpoints of torchssvm 0.1", or_other=True)
        if name not in value:
            raise damaged(f"{where}[{name!r}] is missing", or_other=True)
        _check(value[name], declaration, f"{where}[{name!r}]", sizes)


def damaged(text: str, *, or_other: bool = False) -> ValueError:
    """The error for a damaged state; ``or_other``: it may also belong to another problem."""
    return ValueError(f"the checkpoint is damaged{', or of another problem' if or_other else ''}: {text}")


def _shown(value: Any) -> str:
    kind, shape = (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else (type(value), ())
    return str(Entry(kind, shape, infinite=True))


class Stateful(ABC):
    """An object with a state in checkpoints. It checks a state as a whole, then loads all of it or nothing."""

    state_name: str
    """The state's name in error messages."""

    @abstractmethod
    def _schema(self) -> Declaration:
        """The entries of the state."""

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        """Raise ValueError if entries contradict each other or this object."""
        return

    @property
    def _device(self) -> torch.device:
        """Where tensors are loaded to."""
        return torch.device("cpu")

    def _saved(self, how: str) -> dict[str, Any]:
        """The state; that of other objects by their method ``how``, ``"state_dict"`` or ``"kept"``."""
        return _save(self, self._schema(), how)

    def state_dict(self) -> dict[str, Any]:
        """The exact state as tensors, numbers and strings, which ``weights_only=True`` can load.

        RuntimeError if several processes hold parts of it and did not call ``consolidate_state_dict()`` just before.
        """
        return self._saved("state_dict")

    def kept(self) -> dict[str, Any]:
        """The state of this process alone, as ``load_state_dict`` takes it."""
        return self._saved("kept") if Ranks.here() else self.state_dict()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect the state of all ranks for the next ``state_dict()`` of the rank ``to``; all ranks call it."""
        schema = self._schema()
        for entry in (schema.entries if isinstance(schema, Open) else schema).values():
            if isinstance(entry, Stateful):
                entry.consolidate_state_dict(to)

    def check_state(self, state: dict[str, Any], where: str | None = None) -> None:
        """Raise ValueError, naming ``where``, if ``state`` is damaged or of another problem; changes nothing."""
        schema, where = self._schema(), where or self.state_name
        check(state, schema, where)
        self._check_relations(state, where)
        if isinstance(schema, dict) and "seal" in schema:
            check_seal(state, where)

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Set this object, bit for bit, to a state that :meth:`check_state` has accepted."""
        _restore(self, self._schema(), state, self._device)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, bit for bit; ValueError, and nothing changes, if it does not fit."""
        self.check_state(state)
        with undisturbed():
            self.restore(state)

    def part_of_state(self, state: dict[str, Any], own: range | Tensor) -> dict[str, Any]:
        """The state of some examples, consecutive ones or those of any places ``[m]`` int64, from that of all."""
        rows: Any = slice(own.start, own.stop) if isinstance(own, range) else own
        return self._made_of(
            [state], lambda tensors: tensors[0][rows], lambda other, states: other.part_of_state(states[0], own)
        )

    def merged_state(self, states: list[dict[str, Any]], parts: list[range]) -> dict[str, Any]:
        """The state of all examples, from those of every process, which holds these consecutive parts of them."""
        return self._made_of(states, torch.cat, lambda other, several: other.merged_state(several, parts))

    def _made_of(self, states: list[dict[str, Any]], rows: Any, of_other: Any) -> dict[str, Any]:
        schema = self._schema()
        made = {name: _rebuilt(schema.get(name), [s[name] for s in states], rows, of_other) for name in states[0]}
        return with_seal(made) if "seal" in made else made


class ByRank(Stateful):
    """An object whose state is a part of that in checkpoints, if several processes train together.

    All ranks call ``consolidate_state_dict()``, one of them then ``state_dict()``: torch's ``ZeroRedundancyOptimizer``
    has the same two methods, and Lightning calls them. :func:`torchssvm.save_checkpoint` does it by itself. Every rank
    loads the whole state and takes its part.
    """

    ranks: Ranks
    _whole: dict[str, Any] | None = None
    _collected: Any = None  # the progress at which _whole was collected

    def own_state(self) -> dict[str, Any]:
        """The state of this process."""
        return self._saved("state_dict")

    def _progress(self) -> Any:
        """What changes with every step, so that a state collected before one is not taken for that after it."""
        return None

    def _merge(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole state, from those of all ranks in their order."""
        return {"ranks": parts}

    def _own_part(self, state: Any, where: str) -> dict[str, Any]:
        """The part of this process in a state; the state itself if it is one."""
        parts = state.get("ranks") if isinstance(state, dict) else None
        if not isinstance(parts, list) or not parts:
            if not self.ranks or not isinstance(state, dict):
                return state
            parts = [state]
        return parts[self.ranks.rank] if len(parts) == self.ranks.size else self._restarted(parts)

    def _restarted(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The part of this process, where the state is of another number of processes."""
        raise NotImplementedError

    def kept(self) -> dict[str, Any]:
        """The state of this process, as ``load_state_dict`` takes it."""
        return {"ranks": [self.own_state()] * self.ranks.size} if self.ranks else self.own_state()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """As :meth:`Stateful.consolidate_state_dict`."""
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
                f"rank {self.ranks.rank} has a part of the {self.state_name} alone: call consolidate_state_dict() on "
                "every rank, then state_dict() on rank 0; or save_checkpoint(...) on every rank, which does both"
            )
        return whole

    def check_state(self, state: Any, where: str | None = None) -> None:
        """As :meth:`Stateful.check_state`; of the state of all ranks, only the part of this one is checked."""
        where = where or self.state_name
        try:
            part = self._own_part(state, where)
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(f"{where} has no part for rank {self.ranks.rank} of {self.ranks.size}") from error
        super().check_state(part, where)

    def restore(self, state: dict[str, Any]) -> None:
        """Set this object, bit for bit, to its part of a state that :meth:`check_state` has accepted."""
        super().restore(self._own_part(state, self.state_name))


class StatefulOptimizer(Stateful, Optimizer):
    """An optimizer of torch, whose state has further entries."""

    def _own_schema(self) -> Schema:
        """The entries beside those of torch."""
        return {}

    def _groups(self) -> Declaration:
        return groups_like(self.param_groups)

    def _schema(self) -> Declaration:
        return Open({**self._own_schema(), "state": dict, "param_groups": self._groups()})

    def _saved(self, how: str) -> dict[str, Any]:
        return {**Optimizer.state_dict(self), **_save(self, self._own_schema(), how)}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Set this optimizer, bit for bit, to a state that :meth:`check_state` has accepted."""
        own = self._own_schema()
        Optimizer.load_state_dict(self, {name: value for name, value in state.items() if name not in own})
        _restore(self, own, state, self._device)


def seal(state: Any) -> int:
    """CRC-32 of nested dicts, lists and tensors, independent of the device."""
    return _add(state, 0)


def with_seal(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a checksum of its entries, by which edited states are refused."""
    return {**state, "seal": seal({name: value for name, value in state.items() if name != "seal"})}


def check_seal(state: dict[str, Any], where: str) -> None:
    """Raise ValueError, naming ``where``, if the state does not hold the numbers that were saved."""
    if state["seal"] != with_seal(state)["seal"]:
        raise damaged(f"in {where} numbers are not those that were saved. Load an earlier checkpoint")


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


def _is(value: Any, nothing: Any) -> bool:
    return isinstance(value, type(nothing)) and bool(value == nothing)


def _place(owner: Any, path: str) -> tuple[Any, str]:
    """The object and the name of an attribute."""
    *inner, name = path.split(".")
    for each in inner:
        owner = getattr(owner, each)
    return owner, name if hasattr(owner, name) else "_" + name


def _put(owner: Any, path: str, value: Any) -> None:
    holder, name = _place(owner, path)
    if isinstance(holder, tuple):  # a named one
        _put(owner, path.rpartition(".")[0], holder._replace(**{name: value}))  # type: ignore[attr-defined]
    else:
        setattr(holder, name, value)


def _save(owner: Any, schema: Schema, how: str) -> dict[str, Any]:
    """The entries of an object; those of others by their method ``how``."""
    state: dict[str, Any] = {}
    for name, declaration in schema.items():
        match declaration:
            case _ if name == "seal":
                pass
            case Same(value) | Noted(value=value):
                state[name] = value
            case Stateful():
                state[name] = getattr(declaration, how)()
            case dict():
                state[name] = _save(owner, declaration, how)
            case _:
                field = declaration if isinstance(declaration, Field) else Field(declaration)
                held = getattr(*_place(owner, field.at or name))
                state[name] = field.save(held) if field.save else _copied(held)
    return with_seal(state) if "seal" in schema else state


def _copied(value: Any) -> Any:
    match value:
        case Tensor():
            return value.detach().clone()
        case np.ndarray():
            return torch.from_numpy(value.copy())
        case torch.Generator():
            return value.get_state()
        case Stateful():
            return value.state_dict()
        case list():
            return [_copied(item) for item in value]
        case dict():
            return {name: _copied(item) for name, item in value.items()}
        case _:
            return value


def _restore(owner: Any, schema: Schema, state: dict[str, Any], device: torch.device) -> None:
    """Set the entries of an object to a checked state."""
    for name, declaration in schema.items():
        match declaration:
            case Same() | Noted():
                pass
            case Stateful():
                declaration.restore(state[name])
            case dict():
                _restore(owner, declaration, state[name], device)
            case _ if name != "seal":
                field = declaration if isinstance(declaration, Field) else Field(declaration)
                path = field.at or name
                if field.load:
                    value = field.load(state[name])
                else:
                    value = _loaded(state[name], field.declaration, getattr(*_place(owner, path)), device)
                _put(owner, path, value)


def _loaded(value: Any, declaration: Declaration, held: Any, device: torch.device) -> Any:
    """A saved value, in the place of the one that is ``held``."""
    match declaration:
        case New(make):
            made = make()
            made.restore(value)
            return made
        case Each(kind, inner) if kind is dict:
            return {name: _loaded(item, inner, None, device) for name, item in value.items()}
    match held:
        case nn.Parameter():  # the head holds it too
            return held.copy_(value)
        case np.ndarray():
            return value.numpy().copy()
        case torch.Generator():
            return held.set_state(value.cpu())
    if isinstance(value, list):
        before = held if isinstance(held, list) and len(held) == len(value) else [None] * len(value)
        return [_loaded(item, None, one, device) for item, one in zip(value, before, strict=True)]
    return value.to(device, copy=True) if isinstance(value, Tensor) else value


def _rebuilt(declaration: Any, values: list[Any], rows: Callable[..., Tensor], state: Callable[..., Any]) -> Any:
    """An entry of one or several states: ``rows`` makes divided tensors, ``state`` the states of other objects.

    Whatever else there is, is the same in all processes; but a yes of one of them counts.
    """
    match declaration:
        case Entry(is_divided=True):
            return rows(values)
        case Stateful():
            return state(declaration, values)
        case New(make):
            return state(make(), values)
        case Field(inner):
            return _rebuilt(inner, values, rows, state)
        case Maybe(inner, nothing):
            some = not any(_is(value, nothing) for value in values)
            return _rebuilt(inner, values, rows, state) if some else nothing
        case Each(kind, inner) if kind is dict:
            names = {name: None for value in values for name in value}
            return {name: _rebuilt(inner, [value.get(name) for value in values], rows, state) for name in names}
        case Each() | list():
            several = list(zip(*values, strict=True))
            inner = declaration if isinstance(declaration, list) else [declaration.declaration] * len(several)
            return [_rebuilt(one, list(each), rows, state) for one, each in zip(inner, several, strict=True)]
        case type() if declaration is bool:
            return any(values)
        case _:
            return values[0]
