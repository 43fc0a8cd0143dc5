"""Labels of graphs with a high score, and upper bounds of all scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.threads import run_in_chunks
from torchssvm.structures.arguments import check_edges, own_lengths
from torchssvm.structures.pairwise_graph import numba as kernels
from torchssvm.structures.pairwise_graph.plan import make_plan


class GraphOracle(Protocol):
    """A method that finds labels with a high score, and an upper bound of all scores."""

    def solve(self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Labels ``[B, N]`` int64, scores and bounds ``[B]`` float64, of potentials as they come."""


@dataclass(frozen=True)
class TreeReweighted:
    """Messages, cycles, and branch and bound; each begins where the one before leaves a gap.

    Graphs without cycles are solved by one round of messages. For others, TRW-S (V. Kolmogorov, Convergent
    tree-reweighted message passing for energy minimization, TPAMI 2006) minimises the dual of the linear program over
    the local polytope; labels are read off in the order of the messages, and single ones are changed as long as the
    score rises. If a gap remains, the max-marginals of triangles and of cycles of four edges are shared out between the
    rounds (D. Sontag et al., Tightening LP relaxations for MAP using message passing, UAI 2008), and at last branch and
    bound begins from the same messages. Training may do with less than a certificate: ``head.structure.oracle`` can be
    another one before the last ``certify``.

    Args:
        max_rounds: Most rounds of messages along an example's edges.
        cycle_rounds: Most further rounds in which triangles and cycles of four edges are tightened; 0 is none.
        branches: Most branches for an example; 0 is none. One takes up to 10 further rounds.

    Raises:
        ValueError: A number is negative, or ``max_rounds`` is 0.

    Example:
        >>> potentials = PairwisePotentials(torch.zeros(1, 3, 2), -torch.eye(2).expand(1, 3, 2, 2),
        ...     torch.tensor([[[0, 1], [1, 2], [2, 0]]]))  # a triangle of nodes that should all differ
        >>> PairwiseGraph(2, TreeReweighted(cycle_rounds=0, branches=0)).argmax(potentials).bound
        tensor([0.], dtype=torch.float64)
        >>> PairwiseGraph(2, TreeReweighted()).argmax(potentials).value
        tensor([-1.], dtype=torch.float64)
    """

    max_rounds: int = 100
    cycle_rounds: int = 20
    branches: int = 100

    def __post_init__(self) -> None:
        for name, least in (("max_rounds", 1), ("cycle_rounds", 0), ("branches", 0)):
            object.__setattr__(self, name, check_whole(getattr(self, name), name, least))

    def solve(self, node: Tensor, edge: Tensor, edges: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Labels, scores and bounds, on the CPU, in threads over the examples.

        Args:
            node: ``[B, N, K]``, float32 or float64; computed in float64.
            edge: ``[B, E, K, K]``.
            edges: ``[B, E, 2]`` int64, 0 to the example's length - 1; (-1, -1) is padding.
            lengths: ``[B]`` int64, the number of nodes of each example; None means N for all.

        Returns:
            Labels ``[B, N]`` int64, -1 beyond an example's nodes; their scores ``[B]`` float64; bounds ``[B]`` float64,
            equal to the score if the labels are optimal up to rounding. Scores that are not finite give NaN.

        Raises:
            ValueError: A shape, a length or an edge does not fit.
        """
        if node.ndim != 3 or edge.ndim != 4 or edge.shape != (len(node), edge.shape[1], node.shape[2], node.shape[2]):
            raise ValueError(f"node must be [B, N, K], edge [B, E, K, K]; got {list(node.shape)}, {list(edge.shape)}")
        lengths = own_lengths(lengths, *node.shape[:2])
        edges = check_edges(edges, edge.shape[1], node.shape, lengths)
        batch, longest, states = node.shape
        nodes, tables = (t.detach().cpu().to(torch.float64).numpy() for t in (node, edge))
        ends = edges.cpu().numpy()
        sizes = np.full(batch, longest) if lengths is None else lengths.cpu().numpy()
        labels = np.full((batch, longest), -1)
        value, bound = np.empty((2, batch))

        def solve(begin: int, end: int, _: int) -> None:
            for row in range(begin, end):
                size, real = sizes[row], ends[row, :, 0] >= 0
                plan = make_plan(size, ends[row, real].tobytes())
                room = kernels.make_room(size, states, len(plan.first), len(plan.cycles) if self.cycle_rounds else 0)
                room.node_scores[...] = nodes[row, :size][plan.order]
                limits = self.max_rounds, self.cycle_rounds, self.branches
                value[row], bound[row] = kernels.solve(plan, room, tables[row, real], *limits, labels[row])

        run_in_chunks(solve, sizes)
        return tuple(torch.from_numpy(t).to(node.device) for t in (labels, value, bound))  # type: ignore[return-value]
