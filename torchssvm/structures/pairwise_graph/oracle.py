"""Labels of graphs with a high score, and upper bounds of all scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.threads import run_in_chunks
from torchssvm.structures.pairwise_graph import numba as kernels
from torchssvm.structures.pairwise_graph.plan import Plan, make_plan

_TINY = 1e-9  # relative gap that is rounding


class Problem:
    """One graph with its scores and messages."""

    def __init__(self, node: np.ndarray, edge: np.ndarray, ends: np.ndarray) -> None:
        size, states = node.shape
        self.plan: Plan = make_plan(size, ends.tobytes())
        plan = self.plan
        self.node = node[plan.order]
        self.table = np.zeros((len(plan.first), states, states))
        for own, turned in ((edge[~plan.turn], False), (edge[plan.turn], True)):
            np.add.at(self.table, plan.slot[plan.turn == turned], own.swapaxes(1, 2) if turned else own)
        self.ahead, self.back = np.zeros((2, len(plan.first), states))
        self.labels = np.zeros(size, np.int64)
        self.value = self.bound = np.nan

    def pass_messages(self, rounds: int, tighten: int) -> None:
        """Fill labels, value and bound."""
        plan, states = self.plan, self.node.shape[1]
        if not (np.isfinite(self.node).all() and np.isfinite(self.table).all()):
            return
        cycles = plan.cycles if tighten else plan.cycles[:0]
        self.value, self.bound = kernels.pass_messages(
            self.node, self.table.copy(), plan.second, plan.begin, plan.end, plan.incoming, plan.first, plan.tree,
            cycles, plan.turned, np.array([rounds, tighten]), _TINY, self.ahead, self.back,
            np.zeros((len(cycles), 4, states, states)), self.table, np.empty((2, states)),
            np.empty((12, states, states)), np.empty_like(self.labels), self.labels,
        )  # fmt: skip
        if plan.tree or self.bound - self.value <= _TINY * (1.0 + abs(self.value)):
            self.bound = self.value


def best_labels(
    node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None, *, rounds: int = 100, tighten: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, scores, bounds."""
    batch, longest, _ = node.shape
    nodes, tables = (t.detach().cpu().to(torch.float64).numpy() for t in (node, edge))
    ends = edges.cpu().numpy()
    sizes = np.full(batch, longest) if lengths is None else lengths.cpu().numpy()
    labels = np.full((batch, longest), -1)
    value, bound = np.empty((2, batch))

    def solve(begin: int, end: int, _: int) -> None:
        for row in range(begin, end):
            size, real = sizes[row], ends[row, :, 0] >= 0
            problem = Problem(nodes[row, :size], tables[row, real], ends[row, real])
            problem.pass_messages(rounds, tighten)
            labels[row, problem.plan.order] = problem.labels
            value[row], bound[row] = problem.value, problem.bound

    run_in_chunks(solve, sizes)
    return tuple(torch.from_numpy(t).to(node.device) for t in (labels, value, bound))  # type: ignore[return-value]


class GraphOracle(Protocol):
    """A method that finds labels with a high score, and an upper bound of all scores."""

    def solve(self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Labels ``[B, N]`` int64, scores and bounds ``[B]`` float64, of potentials as they come."""


@dataclass(frozen=True)
class TreeReweighted:
    """TRW-S.

    Args:
        max_rounds: Most rounds over an example's edges.
        max_cycle_rounds: Most further rounds in which short cycles are tightened; 0 is none.
    """

    max_rounds: int = 100
    max_cycle_rounds: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_rounds", check_whole(self.max_rounds, "max_rounds"))
        object.__setattr__(self, "max_cycle_rounds", check_whole(self.max_cycle_rounds, "max_cycle_rounds", 0))

    def solve(self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Labels, scores and bounds."""
        return best_labels(node, edge, edges, lengths, rounds=self.max_rounds, tighten=self.max_cycle_rounds)
