"""The options of BCFW's parameter groups: ``lower`` and ``upper`` bounds, and ``lr``, which only shows the step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchssvm.core.bounds import Box
from torchssvm.dual.state import DualState

OPTIONS = {"params", "param_names", "lr", "lower", "upper"}  # of a parameter group
ALLOWED = OPTIONS | {"initial_lr", "max_lr", "min_lr"}  # schedulers note these in a group whose lr they write


def bounds_of(groups: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Lower and upper bounds of each group, as given."""
    return [(group.get("lower"), group.get("upper")) for group in groups]


def make_box(groups: list[dict[str, Any]], dual: DualState) -> Box:
    """The bounds of each of the head's parameters."""
    of = {id(p): bounds for group, bounds in zip(groups, bounds_of(groups), strict=True) for p in group["params"]}
    return Box(dual.parameters, [of[id(p)] for p in dual.parameters])


def check_unchanged(groups: list[dict[str, Any]], bounds: list[tuple[Any, Any]], rate: float) -> None:
    """Raise RuntimeError if options of groups were changed since BCFW was made.

    Args:
        groups: The parameter groups.
        bounds: Their bounds at the start.
        rate: The ``lr`` that BCFW published.
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
