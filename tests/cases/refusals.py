"""Every ``pytest.raises`` of the suite also checks that the refusal has changed nothing.

On entering the block, the state of every object of the package that a test has made is kept: what its ``state_dict``
says, the weights of its head, and the little that checkpoints leave out. When the expected error has come, all of it
must be as it was, to the bit. So only the refused call belongs into the block. Where a block rightly goes on before it
is stopped, it says so: ``with changes_state("why"), pytest.raises(...)``.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchssvm import DualState
from torchssvm.core.schema import ByRank, Stateful, StatefulOptimizer

_made: list[weakref.ref[Any]] = []
_followed: set[type] = set()
_allowed: list[Allowed] = []
_raises = pytest.raises


class Allowed:
    """A block in which states may change.

    Attributes:
        changed: Whether one has.
    """

    changed = False


@contextmanager
def changes_state(why: str) -> Iterator[None]:
    """The refusals in this block come after something that has changed: ``why`` says what. Fails if nothing has."""
    assert why
    _allowed.append(Allowed())
    try:
        yield
    finally:
        block = _allowed.pop()
    if not block.changed:
        pytest.fail(f"changes_state({why!r}), and nothing has changed: take it out")


def follow(kind: type) -> None:
    """Remember every object of this class from now on, copies included: ``__init__`` would not see those."""
    if any(base in _followed for base in kind.__mro__):
        return

    def remember(cls: type, *_: Any, **__: Any) -> Any:
        made = object.__new__(cls)
        _made.append(weakref.ref(made))
        return made

    kind.__new__ = remember  # type: ignore[assignment]
    _followed.add(kind)


def classes_with_state() -> list[type]:
    """All classes of the package, as far as it is imported, that say what their state is; the first of a line first.

    Parts of a dual are in its state, and the callbacks of Lightning only carry what is followed already.
    """
    modules = [m for name, m in sys.modules.items() if name.startswith("torchssvm.") and ".lightning" not in name]
    found = {
        value: None
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.startswith("torchssvm.") and _says_its_state(value)
    }
    return sorted(found, key=lambda kind: len(kind.__mro__))


def _says_its_state(kind: type) -> bool:
    return issubclass(kind, DualState) or (
        not vars(kind).keys().isdisjoint({"state_dict", "_schema", "_own_schema", "_groups"})
        and kind not in (Stateful, ByRank, StatefulOptimizer)
        and ".dual." not in kind.__module__
    )


def forget_all() -> None:
    """What other tests have made is no concern of the next one."""
    _made.clear()


def snapshot() -> dict[int, tuple[Any, dict[str, Any]]]:
    """Every followed object that lives, with its state."""
    found = {}
    for reference in _made:
        if (made := reference()) is not None and (state := state_of(made)) is not None:
            found[id(made)] = made, state
    return found


def state_of(made: Any) -> dict[str, Any] | None:
    """All that must stay; None where the constructor refused, and there is only half an object."""
    try:
        state = {"state_dict": made.state_dict(), "weights": _weights(made)}
    except (AttributeError, RuntimeError):
        return None
    for name in ("restarts", "held_norm"):
        if hasattr(made, name):
            state[name] = getattr(made, name)
    return _copied(state)


def _weights(made: Any) -> dict[str, Any]:
    """Weights that the object holds beside its state; buffers of a kernel head follow from the dual when asked for."""
    if isinstance(made, Optimizer):
        return {"params": [p for group in made.param_groups for p in group["params"]]}
    own = vars(made).items()
    found: dict[str, Any] = {
        name: dict(value.named_parameters()) for name, value in own if isinstance(value, nn.Module)
    }
    for name, value in own:
        if isinstance(value, list) and value and all(isinstance(p, nn.Parameter) for p in value):
            found[name] = value
    return found


def _copied(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: _copied(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [_copied(value) for value in state]
    return state


def difference(before: Any, after: Any, where: str) -> str | None:
    """The first entry that is not the same to the bit."""
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return None if _same(before, after) else f"{where} was {before} and is {after}"
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        pairs = ((f"{where}[{name!r}]", value, after[name]) for name, value in before.items())
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = ((f"{where}[{i}]", *both) for i, both in enumerate(zip(before, after, strict=True)))
    else:
        same = before is after or bool(before == after) or (before != before and after != after)
        return None if same else f"{where} was {before!r} and is {after!r}"
    return next((found for place, a, b in pairs if (found := difference(a, b, place)) is not None), None)


def _same(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device or a.layout != b.layout:
        return False
    if torch.equal(a, b):
        return True
    return a.layout == torch.strided and bool(((a == b) | ((a != a) & (b != b))).all())


class Refusal:
    """``pytest.raises``, and the check."""

    def __init__(self, expected: Any) -> None:
        self.expected = expected
        self.before: dict[int, tuple[Any, dict[str, Any]]] = {}

    def __enter__(self) -> Any:
        self.before = snapshot()
        return self.expected.__enter__()

    def __exit__(self, *error: Any) -> bool:
        expected = bool(self.expected.__exit__(*error))
        before, self.before = self.before, {}
        if expected and isinstance(error[1], Exception):
            for made, state in before.values():
                changed = difference(state, state_of(made), type(made).__name__)
                if changed is not None and _allowed:
                    _allowed[-1].changed = True
                elif changed is not None:
                    pytest.fail(f"refused with {type(error[1]).__name__}, but a state has changed: {changed}")
        return expected


def raises(*args: Any, **options: Any) -> Refusal:
    """In the place of ``pytest.raises``, as a context manager."""
    return Refusal(_raises(*args, **options))


def install() -> None:
    """Follow all classes that are imported by now, and check in every ``pytest.raises``."""
    for kind in classes_with_state():
        follow(kind)
    pytest.raises = raises  # type: ignore[assignment]
