"""A problem as a map-style dataset."""

from __future__ import annotations

from typing import Any

from problems import Problem

from torchssvm import Recipe, RunOptions


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


def with_objects(
    *,
    batch_size: int = 2,
    schedule: Any = None,
    make_dual: Any = None,
    make_loss: Any = None,
    make_optimizer: Any = None,
    **others: Any,
) -> dict[str, Any]:
    """Arguments of grids and paths, with their options and their recipe made of what is given."""
    made = {"make_dual": make_dual, "make_loss": make_loss, "make_optimizer": make_optimizer}
    return {
        "options": RunOptions(batch_size=batch_size, schedule=schedule),
        "recipe": Recipe(**{name: make for name, make in made.items() if make is not None}),
        **others,
    }
