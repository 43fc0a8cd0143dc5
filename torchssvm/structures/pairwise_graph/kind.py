"""Graphs with K labels for the compiled loop: a row of emissions for each node, and a matrix for each edge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Labeling
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.link_adapter import LinkAdapter
from torchssvm.kinds.links import Links
from torchssvm.structures.pairwise_graph.kind_numba import LabelledGraphs
from torchssvm.structures.pairwise_graph.numba import make_room
from torchssvm.structures.pairwise_graph.plan import join_plans
from torchssvm.structures.pairwise_graph.structure import GraphLabels


class GraphAdapter(LinkAdapter):
    """:class:`LinearPairwiseGraph`."""

    def __init__(self, head: Any) -> None:
        oracle = head.structure.oracle
        super().__init__(head, not head.directed, (oracle.max_rounds, oracle.cycle_rounds, oracle.branches))

    def labeling(self, labels: Tensor, pairs: Tensor) -> Labeling:
        """``GraphLabels``."""
        return GraphLabels(labels, pairs)

    def edges_of(self, x: Any, potentials: Potentials) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Up to the last edge; features are 1 where edges have none."""
        ends, z = potentials.edges, x[1]  # type: ignore[attr-defined]
        real = ends[..., 0] >= 0
        counts = (real.flip(1).cumsum(1) > 0).sum(1)
        return counts, ends, z if self.head.edge_features else z.new_ones(*real.shape, 1), torch.zeros_like(real)

    def linked(self, links: Links, examples: Examples) -> LabelledGraphs:
        """``LabelledGraphs``."""
        edges = np.split(links.ends, links.start[1:-1])
        sizes = np.diff(examples.start).tolist()
        plans = join_plans((size, own.tobytes()) for size, own in zip(sizes, edges, strict=True))
        return LabelledGraphs(links, plans, self.limits)

    def decoder_room(self, examples: Examples) -> Callable[[], Any]:
        """That of the oracle."""
        nodes, _, edges, cycles = np.diff(examples.kind.plans.start, axis=0).max(0).tolist()
        return partial(make_room, nodes, self.num_states, edges, cycles)
