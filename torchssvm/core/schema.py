"""Checkpoint states: each state declares its entries once, and one function checks a state against its declaration.

A state is checked as a whole before anything changes.

=================================  ====================================================================================
Declaration                        Allowed value
=================================  ====================================================================================
``Entry(torch.float64, (n, 3))``   A dense tensor of that dtype and shape, without NaN, within its range.
``Entry(float)``, ``Entry(int)``   A number within its range; ints have 64 bits and are not bools.
``bool``, ``str``, ``dict``        Any value of that type.
``Same(value)``                    This value, which identifies the problem.
``Maybe(declaration)``             The declared value, or None.
``Each(list, declaration)``        A list (or dict) of any length whose values are as declared.
``[declaration, ...]``             A list of that length.
``{name: declaration}``            A dict with these entries and no others.
``Open({name: declaration})``      A dict with these entries and possibly others, as torch's optimizers have.
a function ``(value, where)``      Any value that the function accepts; used for the state of another object.
=================================  ====================================================================================

``_schema()`` of each :class:`Stateful` holds its declaration:

=======================================  ==============================================================================
State                                    Declared in
=======================================  ==============================================================================
dual                                     ``dual/checkpoint.py``; bounds in ``core/bounds.py``; KernelSSVM's has one more
its storage                              ``dual/mean_parts.py`` with ``rows.py``, ``weights.py``, ``labelings.py`` with
                                         ``active_sets.py``
BCFW, averages, GDMM                     ``solvers/bcfw.py``, ``averages.py``, ``gdmm/state.py``, ``gdmm/chains.py``,
                                         ``gdmm/label_sets.py``
kernel models                            ``solvers/kernel/ssvm.py``
samplers, compiled draws, random state   ``steps/orders.py``, ``solvers/compiled/draws.py``, ``core/random_state.py``
a Lightning run, a path                  ``lightning/resume.py``, ``path/result.py``
=======================================  ==============================================================================
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.undisturbed import undisturbed

Declaration = Any
"""One of the declarations in the table above."""
Schema = dict[str, Declaration]


@dataclass(frozen=True)
class Entry:
    """A tensor or a number.

    Attributes:
        kind: The dtype of a tensor, ``Tensor`` for any dtype and any numbers, or a Python type.
        shape: Sizes of the axes. A name stands for the same size throughout the declaration, None for any size; ``...``
            at the end for any further axes.
        low: The smallest allowed number.
        high: The largest allowed number.
        above: An exclusive lower bound.
        infinite: Whether infinite numbers are allowed; NaN never is.
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
    """Compare a state with its declaration.

    Args:
        state: The saved state.
        declaration: Its declaration.
        where: Its name in error messages.

    Raises:
        ValueError: An entry is missing or not as declared; the message names it.
    """
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
            if not isinstance(value, type(nothing)) or value != nothing:
                _check(value, inner, where, sizes)
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
            _check_entries(value, declaration, where, sizes)
            if unknown := value.keys() - declaration.keys():
                raise damaged(f"{where} has the unknown entries {sorted(map(str, unknown))}")
        case _:
            declaration(value, where)


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
    if isinstance(value, Tensor):
        return str(Entry(value.dtype, tuple(value.shape), infinite=True))
    return str(Entry(type(value), infinite=True))


class Stateful(ABC):
    """An object with a state in checkpoints. It checks a state as a whole, then loads all of it or nothing.

    If the state declares a ``"seal"``, :func:`with_seal` made it.
    """

    state_name: str
    """The state's name in error messages."""

    @abstractmethod
    def _schema(self) -> Declaration:
        """The declaration of the state."""

    def _check_relations(self, state: dict[str, Any], where: str) -> None:
        """Raise ValueError if entries contradict each other or this object."""
        return

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Set this object, bit for bit, to a state that :meth:`check_state` has accepted."""

    def check_state(self, state: dict[str, Any], where: str | None = None) -> None:
        """Raise ValueError if ``state`` is damaged or of another problem; changes nothing.

        Args:
            state: A ``state_dict()``.
            where: Its name in error messages.
        """
        schema, where = self._schema(), where or self.state_name
        check(state, schema, where)
        self._check_relations(state, where)
        if isinstance(schema, dict) and "seal" in schema:
            check_seal(state, where)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, bit for bit; nothing changes if it does not fit.

        Raises:
            ValueError: The state is damaged or of another problem.
        """
        self.check_state(state)
        with undisturbed():
            self.restore(state)


def seal(state: Any) -> int:
    """CRC-32 of nested dicts, lists and tensors, independent of the device."""
    return _add(state, 0)


def with_seal(state: dict[str, Any]) -> dict[str, Any]:
    """The state with a checksum of its entries, by which edited states are refused."""
    return {**state, "seal": seal({name: value for name, value in state.items() if name != "seal"})}


def check_seal(state: dict[str, Any], where: str) -> None:
    """Raise ValueError, naming ``where``, if the state does not hold the numbers that were saved."""
    if state["seal"] != with_seal(state)["seal"]:
        raise damaged(
            f"in {where} numbers are not those that were saved, so the certificate would not hold. Load an "
            "earlier checkpoint"
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
