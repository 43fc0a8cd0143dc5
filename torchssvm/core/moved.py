"""Arguments that have gone, and where to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

TO_SOLVER = {
    "options": "solver=Solver(seed=..., order=..., schedule=..., batch_size=..., round_visits=...)",
    "recipe": "solver=Solver(direction=..., oracle=..., storage=..., bounds=...)",
    "collate_fn": "an attribute of the dataset: dataset.collate = ...",
    **{
        name: f"solver=Solver({name}=...)"
        for name in (
            *("storage", "block_steps", "direction", "oracle", "line_search", "compiled"),
            *("bounds", "memory_limit", "round_visits"),
        )
    },
}
"""By the old name, what to give in its place."""


def moved(*names: str, **own: str) -> Callable[[Function], Function]:
    """Decorates a function whose arguments ``names`` have gone to the solver: they raise TypeError, which says so.

    Args:
        names: Of ``TO_SOLVER``.
        own: Other names, and what to give in their place.
    """
    gone = {name: TO_SOLVER[name] for name in names} | own

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            for name in gone.keys() & kwargs.keys():
                raise TypeError(f"the argument {name} has gone: give {gone[name]} in its place")
            return function(*args, **kwargs)

        call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]  # getfullargspec reads it
        return call  # type: ignore[return-value]

    return decorate
