"""Graphs with K labels for the compiled loop: a row of emissions for each node, and a matrix for each edge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit
from torchssvm.core.decoding import Labeling
from torchssvm.core.potentials import Potentials
from torchssvm.kinds import block
from torchssvm.kinds.block import loss_of, score
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.links import LinkAdapter, Links, with_links
from torchssvm.structures.pairwise_graph.oracle import make_room, solve
from torchssvm.structures.pairwise_graph.plan import Plan, join_plans
from torchssvm.structures.pairwise_graph.structure import GraphLabels


@with_links
class LabelledGraphs(NamedTuple):
    """Graphs with their :class:`~torchssvm.structures.pairwise_graph.plan.Plans`.

    ``limits`` ``[3]`` of the oracle: rounds of messages, rounds with cycles, and branches.
    """

    links: Any
    plans: Any
    limits: Any


@block.decode.of(LabelledGraphs)
@njit
def decode(kind, examples, i, length, scratch, transition, labels):
    arrays, place, room, states = kind.plans.arrays, kind.plans.of[i], scratch.room.decoder, kind.links.states
    begin, end = kind.plans.start[place], kind.plans.start[place + 1]
    ahead, behind = begin[0] + place, end[0] + place + 1  # one entry more than nodes
    plan = Plan(
        arrays.order[begin[0] : end[0]],
        arrays.slot[begin[1] : end[1]],
        arrays.turn[begin[1] : end[1]],
        arrays.first[begin[2] : end[2]],
        arrays.second[begin[2] : end[2]],
        arrays.begin[ahead:behind],
        arrays.end[ahead:behind],
        arrays.incoming[begin[2] : end[2]],
        arrays.tree[place],
        arrays.cycles[begin[3] : end[3]],
        arrays.turned[begin[3] : end[3]],
    )
    target = examples.y[examples.start[i] : examples.start[i + 1]]
    for p in range(length):
        v = plan.order[p]
        for k in range(states):
            cost = 0.0 if k == target[v] else examples.cost[examples.start[i] + v]
            room.node_scores[p, k] = scratch.emission[v, k] + cost
    edges = transition[: len(plan.slot) * states].reshape(len(plan.slot), states, states)
    rounds, cycle_rounds, branches = kind.limits[0], kind.limits[1], kind.limits[2]
    value, bound = solve(plan, room, edges, rounds, cycle_rounds, branches, labels)
    if not bound <= value:
        true_value = score(kind, examples, i, target, length, scratch.emission, transition)
        if value < true_value:
            value = true_value
            for v in range(length):
                labels[v] = target[v]
        slack = bound - value
        scratch.slack[0] = 0.0 if slack < 0.0 else slack  # NaN stays
    return loss_of(kind, examples, i, labels)


class GraphAdapter(LinkAdapter):
    """:class:`LinearPairwiseGraph`."""

    def __init__(self, head: Any) -> None:
        oracle = head.structure.oracle
        super().__init__(head, not head.directed, (oracle.max_rounds, oracle.cycle_rounds, oracle.branches))

    @override
    def labeling(self, labels: Tensor, pairs: Tensor) -> Labeling:
        return GraphLabels(labels, pairs)

    @override
    def edges_of(self, x: Any, potentials: Potentials) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ends, z = potentials.edges, x[1]  # type: ignore[attr-defined]
        real = ends[..., 0] >= 0
        counts = (real.flip(1).cumsum(1) > 0).sum(1)
        return counts, ends, z if self.head.edge_features else z.new_ones(*real.shape, 1), torch.zeros_like(real)

    @override
    def linked(self, links: Links, examples: Examples) -> LabelledGraphs:
        edges = np.split(links.ends, links.start[1:-1])
        sizes = np.diff(examples.start).tolist()
        plans = join_plans((size, pairs.tobytes()) for size, pairs in zip(sizes, edges, strict=True))
        return LabelledGraphs(links, plans, self.limits)

    @override
    def decoder_room(self, examples: Examples) -> Callable[[], Any]:
        nodes, _, edges, cycles = np.diff(examples.kind.plans.start, axis=0).max(0).tolist()
        return partial(make_room, nodes, self.num_states, edges, cycles)
