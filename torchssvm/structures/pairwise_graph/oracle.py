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
from torchssvm.structures.pairwise_graph.plan import make_plan

_TINY = 1e-9  # relative gap that is rounding


def solve_graph(
    node: np.ndarray, edge: np.ndarray, ends: np.ndarray, rounds: int, cycle_rounds: int, branches: int
) -> tuple[np.ndarray, float, float]:
    """Labels, score and bound of one graph: ``node`` ``[N, K]``, ``edge`` ``[E, K, K]``, ``ends`` ``[E, 2]``."""
    size, states = node.shape
    plan = make_plan(size, ends.tobytes())
    links = len(plan.first)
    scores = np.zeros((links, states, states))
    for turned in (False, True):
        own = edge[plan.turn == turned]
        np.add.at(scores, plan.slot[plan.turn == turned], own.swapaxes(1, 2) if turned else own)
    labels = np.zeros(size, np.int64)
    if not (np.isfinite(node).all() and np.isfinite(scores).all()):
        return labels, np.nan, np.nan
    node = node[plan.order]
    count = len(plan.cycles) if cycle_rounds else 0
    graph = kernels.Graph(
        node=node.copy(),
        table=scores.copy(),
        node_scores=node,
        edge_scores=scores,
        first=plan.first,
        second=plan.second,
        begin=plan.begin,
        incoming=plan.incoming,
        end=plan.end,
        cycles=plan.cycles[:count],
        turned=plan.turned[:count],
        ahead=np.zeros((links, states)),
        back=np.zeros((links, states)),
        moved=np.zeros((count, 4, states, states)),
        below=np.zeros((size, states)),
        level=np.full((size, states), -1),
        trial=np.zeros(size, np.int64),
        best=np.zeros(size, np.int64),
        decided=np.zeros((size + 1, 2), np.int64),
        bounds=np.zeros(size + 1),
        total=np.zeros(states),
        room=np.zeros((10, states, states)),
    )
    value, bound = kernels.search(graph, plan.tree, rounds, cycle_rounds, branches, _TINY)
    labels[plan.order] = graph.best
    tight = plan.tree or bound - value <= _TINY * (1.0 + abs(value))
    return labels, value, value if tight else bound


def best_labels(
    node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None = None, *, rounds: int = 100, cycle_rounds: int = 0, branches: int = 0
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
            found = solve_graph(
                nodes[row, :size], tables[row, real], ends[row, real], rounds, cycle_rounds, branches
            )
            labels[row, :size], value[row], bound[row] = found

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
        cycle_rounds: Most further rounds in which short cycles are tightened; 0 is none.
        branches: Most branches.
    """

    max_rounds: int = 100
    cycle_rounds: int = 20
    branches: int = 100

    def __post_init__(self) -> None:
        for name, least in (("max_rounds", 1), ("cycle_rounds", 0), ("branches", 0)):
            object.__setattr__(self, name, check_whole(getattr(self, name), name, least))

    def solve(
        self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Labels, scores and bounds."""
        return best_labels(
            node,
            edge,
            edges,
            lengths,
            rounds=self.max_rounds,
            cycle_rounds=self.cycle_rounds,
            branches=self.branches,
        )
