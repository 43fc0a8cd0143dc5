"""A problem as a map-style dataset."""

from __future__ import annotations

from typing import Any

from cases.problems import Problem
from torchssvm import FrankWolfe, Solver


class Items:
    """Its items are the numbers of the examples; ``collate`` makes the batch."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __len__(self) -> int:
        return self.problem.n

    def __getitem__(self, i: int) -> int:
        return i

    def collate(self, items):
        return self.problem.batch(items)


def plainly(*, batch_size: int = 2, **rules: Any) -> Solver:
    """The torch loop in small batches, by Frank-Wolfe steps on mean parts unless other rules are given."""
    if not rules.keys() & {"direction", "oracle", "storage"}:
        rules["direction"] = FrankWolfe()
    return Solver(batch_size=batch_size, compiled=False, **rules)


def with_solver(**options: Any) -> dict[str, Any]:
    """The options with those of a :class:`Solver` in one."""
    rules = {name: options.pop(name) for name in list(options) if name in Solver.__dataclass_fields__}
    return {**options, "solver": Solver(**rules)} if rules else options
