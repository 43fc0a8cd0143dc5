"""One graph with K labels, compiled by Numba: its versions of what :mod:`torchssvm.kinds.block` has."""

from __future__ import annotations

from typing import Any, NamedTuple

from torchssvm.core.jit import njit
from torchssvm.kinds import block
from torchssvm.kinds.block import loss_of
from torchssvm.kinds.links import score, with_links
from torchssvm.structures.pairwise_graph.numba import solve
from torchssvm.structures.pairwise_graph.plan import Plan


@with_links
class LabelledGraphs(NamedTuple):
    """Graphs with their :class:`~torchssvm.structures.pairwise_graph.plan.Plans`.

    ``limits`` ``[3]`` are those of the oracle: rounds of messages, rounds with cycles, and branches.
    """

    links: Any
    plans: Any
    limits: Any


@block.decode.of(LabelledGraphs)
@njit
def decode(kind, examples, i, length, scratch, transition, labels):
    """By the oracle; the target where approximate labels are worse."""
    held, place, room, states = kind.plans.held, kind.plans.of[i], scratch.room.decoder, kind.links.states
    here, there = kind.plans.start[place], kind.plans.start[place + 1]
    ahead, behind = here[0] + place, there[0] + place + 1  # one entry more than there are nodes
    plan = Plan(
        held.order[here[0] : there[0]],
        held.slot[here[1] : there[1]],
        held.turn[here[1] : there[1]],
        held.first[here[2] : there[2]],
        held.second[here[2] : there[2]],
        held.begin[ahead:behind],
        held.end[ahead:behind],
        held.incoming[here[2] : there[2]],
        held.tree[place],
        held.cycles[here[3] : there[3]],
        held.turned[here[3] : there[3]],
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
        own = score(kind, examples, i, target, length, scratch.emission, transition)
        if value < own:
            value = own
            for v in range(length):
                labels[v] = target[v]
        slack = bound - value
        scratch.slack[0] = 0.0 if slack < 0.0 else slack  # NaN stays
    return loss_of(kind, examples, i, labels)
