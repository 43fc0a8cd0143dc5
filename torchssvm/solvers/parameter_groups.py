"""The options of BCFW's parameter groups: ``lower`` and ``upper`` bounds, and ``lr``, which only shows the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchssvm.core.problem import Bound, Box
from torchssvm.dual.state import DualState

OPTIONS = {"params", "param_names", "lr", "lower", "upper"}  # of a parameter group
ALLOWED = OPTIONS | {"initial_lr", "max_lr", "min_lr"}  # schedulers note these in a group whose lr they write


NamedBounds = Mapping[str, tuple[Bound | None, Bound | None]]
"""``(lower, upper)`` by the name of a parameter of the head, None for no bound."""


def check_bounds(head: nn.Module, bounds: NamedBounds | None) -> NamedBounds:
    """``bounds``, or none for None; ValueError for an entry that is no pair, or names no parameter of the head."""
    named = dict(head.named_parameters())
    for name, pair in (bounds or {}).items():
        if name not in named:
            raise ValueError(f"bounds names {name!r}, and the parameters of the head are {sorted(named)}")
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"bounds[{name!r}]={pair} must be a pair (lower, upper), None for no bound")
        Box([named[name]], [(pair[0], pair[1])])
    return dict(bounds or {})


def groups(head: nn.Module, bounds: NamedBounds) -> list[dict[str, Any]]:
    """The head's parameters as groups of ``BCFW``, each bounded one in its own."""
    named = dict(head.named_parameters())
    free = [p for name, p in named.items() if name not in bounds]
    bounded = [{"params": [named[name]], "lower": low, "upper": high} for name, (low, high) in bounds.items()]
    return [{"params": free}, *bounded] if free else bounded


def bounds_of(groups: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Lower and upper bounds of each group, as given."""
    return [(group.get("lower"), group.get("upper")) for group in groups]


def make_box(groups: list[dict[str, Any]], dual: DualState) -> Box:
    """The bounds of each of the head's parameters."""
    of = {id(p): bounds for group, bounds in zip(groups, bounds_of(groups), strict=True) for p in group["params"]}
    return Box(dual.parameters, [of[id(p)] for p in dual.parameters])


def check_unchanged(groups: list[dict[str, Any]], bounds: list[tuple[Any, Any]], rate: float) -> None:
    """Raise RuntimeError if options of groups were changed since BCFW was made; it published ``rate`` as
    their ``lr``.
    """
    for group, (lower, upper) in zip(groups, bounds, strict=True):
        if not group.keys() <= ALLOWED:
            raise RuntimeError(
                f"a parameter group was given {sorted(group.keys() - ALLOWED)} after BCFW was made, and BCFW has "
                "no such options: the regularisation is the dual's lam, and the step size is found. Delete them "
                "from the group"
            )
        if group["lr"] != rate and "initial_lr" not in group:
            raise RuntimeError(
                f"a parameter group was given lr={group['lr']} after BCFW was made: BCFW has no learning rate, it "
                f"finds the step, and lr only shows the last one, {rate}. Leave lr as it is"
            )
        if not (_same(group.get("lower"), lower) and _same(group.get("upper"), upper)):
            raise RuntimeError(
                "the bounds of a parameter group were changed after BCFW was made, and the dual value depends on "
                "them: make a new DualState and BCFW"
            )


def _same(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)
