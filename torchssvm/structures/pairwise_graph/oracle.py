"""Labels of graphs with a high score, and upper bounds of all scores.

The score of labels y is ``sum_p node[p, y_p] + sum_e table[e, y_first, y_second]``. Messages move scores from edges to
nodes, ``ahead[e]`` to the edge's later end and ``back[e]`` to the earlier one; cycles move scores from edge to edge. No
move changes the score of any labels. A label is closed, -inf in ``node``, where no better labels have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import add_row, largest_sum, max_rows, set_row
from torchssvm.core.arguments import check_whole
from torchssvm.core.threads import run_in_chunks
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
            equal to the score if the labels are optimal up to rounding. Scores of -inf forbid, and NaN or inf give
            NaN.
        """
        batch, longest, states = node.shape
        nodes, tables = (t.detach().cpu().to(torch.float64).numpy() for t in (node, edge))
        ends = edges.cpu().numpy()
        sizes = np.full(batch, longest) if lengths is None else lengths.cpu().numpy()
        labels = np.full((batch, longest), -1)
        value, bound = np.empty((2, batch))

        def solve_rows(begin: int, end: int, _: int) -> None:
            for row in range(begin, end):
                size, real = sizes[row], ends[row, :, 0] >= 0
                plan = make_plan(size, ends[row, real].tobytes())
                room = make_room(size, states, len(plan.first), len(plan.cycles) if self.cycle_rounds else 0)
                scores = nodes[row, :size][plan.order], tables[row, real]
                usual = sum(float(np.abs(each[each != -np.inf]).sum()) for each in scores)
                # Scores of -inf become so low that no others make up for them.
                room.node_scores[...], table = (np.maximum(each, -3.0 * usual or -1.0) for each in scores)
                limits = self.max_rounds, self.cycle_rounds, self.branches
                ends_of_gap = solve(plan, room, table, *limits, labels[row])
                value[row], bound[row] = (-np.inf if each < -usual else each for each in ends_of_gap)

        run_in_chunks(solve_rows, sizes)
        return tuple(torch.from_numpy(t).to(node.device) for t in (labels, value, bound))  # type: ignore[return-value]


_EPS = float(np.finfo(np.float64).eps)

_MASK, _RAISED = 2.0**20, 8.0
"""A score forbids if ``_MASK`` times lower than the usual ones together; it is raised to ``_RAISED`` times these."""


class Graph(NamedTuple):
    """One graph of N nodes, E edges and C cycles with its scores, all float64 and int64."""

    node: np.ndarray  # ``[N, K]``, the scores of labels that are open, else -inf
    table: np.ndarray  # ``[E, K, K]``, scores of pairs, after the moves of cycles
    node_scores: np.ndarray  # ``[N, K]``, as given
    edge_scores: np.ndarray  # ``[E, K, K]``, as given
    first: np.ndarray  # ``[E]``, the earlier end of each edge, ascending
    second: np.ndarray  # ``[E]``, the later end
    begin: np.ndarray  # ``[N + 1]``: node p is the earlier end of the edges ``begin[p]`` to ``begin[p + 1] - 1``
    incoming: np.ndarray  # ``[E]``, the edges sorted by their later end
    end: np.ndarray  # ``[N + 1]``: where the edges of each later end begin in ``incoming``
    cycles: np.ndarray  # ``[C, 4]``, the edges of each cycle, in order; -1 at the fourth place of a triangle
    turned: np.ndarray  # ``[C, 4]`` bool, whether the edge's later end comes first on the cycle
    ahead: np.ndarray  # ``[E, K]``
    back: np.ndarray  # ``[E, K]``
    moved: np.ndarray  # ``[C, 4, K, K]``, the scores that each cycle has taken from its edges
    below: np.ndarray  # ``[N, K]``, by how much labels are worse than the node's best
    level: np.ndarray  # ``[N, K]``, the depth at which a label was closed; -1 where it is open
    kept: np.ndarray  # ``[N, K]``, room for the scores of nodes
    trial: np.ndarray  # ``[N]``, labels
    best: np.ndarray  # ``[N]``, the best labels so far
    decided: np.ndarray  # ``[N + 1, 2]``, the node and the label of each branch
    bounds: np.ndarray  # ``[N + 1]``, of each branch
    total: np.ndarray  # room for K numbers
    given: np.ndarray  # likewise
    room: np.ndarray  # room for ``[10, K, K]``


def make_room(nodes: int, states: int, edges: int, cycles: int) -> Graph:
    """Arrays for graphs of up to these sizes, without a plan; :func:`solve` takes as much of them as it needs."""
    node, table, message = np.zeros((nodes, states)), np.zeros((edges, states, states)), np.zeros((edges, states))
    numbers, marks = np.zeros(0, np.int64), np.zeros((0, 4), np.bool_)
    return Graph(
        node=node,
        table=table,
        node_scores=node.copy(),
        edge_scores=table.copy(),
        first=numbers,
        second=numbers,
        begin=numbers,
        incoming=numbers,
        end=numbers,
        cycles=marks.astype(np.int64),
        turned=marks,
        ahead=message,
        back=message.copy(),
        moved=np.zeros((cycles, 4, states, states)),
        below=node.copy(),
        level=node.astype(np.int64),
        kept=node.copy(),
        trial=np.zeros(nodes, np.int64),
        best=np.zeros(nodes, np.int64),
        decided=np.zeros((nodes + 1, 2), np.int64),
        bounds=np.zeros(nodes + 1),
        total=np.zeros(states),
        given=np.zeros(states),
        room=np.zeros((10, states, states)),
    )


@njit
def gather(g, p):
    """``g.total``: the scores of node p and all messages to it; returns the largest."""
    set_row(g.total, g.node[p], None, None)
    for e in range(g.begin[p], g.begin[p + 1]):
        add_row(g.total, g.back[e], None)
    for q in range(g.end[p], g.end[p + 1]):
        add_row(g.total, g.ahead[g.incoming[q]], None)
    top = -np.inf
    for total in g.total:
        top = max(top, total)
    return top


@njit
def share_of(g, p, tree):
    """The share of a node's scores that goes along each of its edges."""
    if tree:
        return 1.0
    return 1.0 / max(g.begin[p + 1] - g.begin[p], g.end[p + 1] - g.end[p], 1)


@njit
def sweep_back(g, tree):
    """Messages to earlier nodes; returns an upper bound of all scores."""
    states, bound = g.node.shape[1], 0.0
    for p in range(len(g.node) - 1, -1, -1):
        top = gather(g, p)
        bound += top
        share = share_of(g, p, tree)
        for q in range(g.end[p], g.end[p + 1]):
            e = g.incoming[q]
            high = -np.inf
            for k in range(states):
                g.given[k] = share * (g.total[k] - top) - g.ahead[e, k]
            for k in range(states):
                best = largest_sum(g.given, g.table[e, k])
                g.back[e, k] = best
                if g.node[g.first[e], k] > -np.inf:
                    high = max(high, best)
            set_row(g.back[e], g.back[e], None, -high)
            bound += high
    return bound


@njit
def sweep_ahead(g, tree, least, depth):
    """Messages to later nodes; ``g.trial`` takes each node's best label, given the labels of the nodes before it.

    Labels that are worse than their node's best by ``least`` or more are closed.
    """
    states = g.node.shape[1]
    for p in range(len(g.node)):
        top = gather(g, p)
        for k in range(states):
            g.below[p, k] = top - g.total[k]
            if g.below[p, k] >= least and g.level[p, k] < 0:
                g.level[p, k] = depth
                g.node[p, k] = g.total[k] = -np.inf
        best, high = 0, -np.inf
        for k in range(states):
            score = g.total[k]
            for q in range(g.end[p], g.end[p + 1]):
                e = g.incoming[q]
                score += g.table[e, g.trial[g.first[e]], k] - g.ahead[e, k]
            if score > high:
                best, high = k, score
        g.trial[p] = best
        share = share_of(g, p, tree)
        for e in range(g.begin[p], g.begin[p + 1]):
            for k in range(states):
                g.given[k] = share * g.total[k] - g.back[e, k]
            max_rows(g.ahead[e], g.given, g.table[e], states, True, g.ahead[e], False)
            high = -np.inf
            for k in range(states):
                if g.node[g.second[e], k] > -np.inf:
                    high = max(high, g.ahead[e, k])
            set_row(g.ahead[e], g.ahead[e], None, -high)


@njit
def climb(g):
    """Relabel single nodes of ``g.trial`` while the score rises; returns the score."""
    states, y = g.node.shape[1], g.trial
    for _ in range(len(y)):
        changed = False
        for p in range(len(y)):
            set_row(g.total, g.node_scores[p], None, None)
            for e in range(g.begin[p], g.begin[p + 1]):
                for k in range(states):
                    g.total[k] += g.edge_scores[e, k, y[g.second[e]]]
            for q in range(g.end[p], g.end[p + 1]):
                e = g.incoming[q]
                add_row(g.total, g.edge_scores[e, y[g.first[e]]], None)
            best = y[p]
            for k in range(states):
                if g.total[k] > g.total[best] + 1e-12 * abs(g.total[best]):
                    best = k
            changed |= best != y[p]
            y[p] = best
        if not changed:
            break
    return score_of(g, y)


@njit
def score_of(g, y):
    """The score of the labels ``y``."""
    value = 0.0
    for p in range(len(y)):
        value += g.node_scores[p, y[p]]
    for e in range(len(g.first)):
        value += g.edge_scores[e, y[g.first[e]], y[g.second[e]]]
    return value


@njit
def join(a, b, into):
    """The best way over the middle node: ``into[i, j] = max_k a[i, k] + b[k, j]``."""
    for i in range(len(a)):
        max_rows(into[i], a[i], b, len(a), True, into[i], False)


@njit
def tighten(g):
    """Each cycle of three or four edges takes what its edges have, and gives every edge its share of the max-marginals.

    A quarter of what the cycle's nodes have goes along. The sum of the maxima of nodes, edges and cycles does not rise,
    and the cycle itself is left with a maximum of 0.
    """
    states, way, rest = g.node.shape[1], g.room[:4], g.room[4:8]
    for c in range(len(g.cycles)):
        length = 3 if g.cycles[c, 3] < 0 else 4
        for s in range(length):
            e, turned = g.cycles[c, s], g.turned[c, s]
            gather(g, g.second[e] if turned else g.first[e])
            message = g.ahead[e] if turned else g.back[e]
            for k in range(states):
                if g.total[k] > -np.inf:
                    message[k] -= 0.25 * g.total[k]
            for j in range(states):
                for k in range(states):
                    score = g.table[e, j, k] - g.back[e, j] - g.ahead[e, k] + g.moved[c, s, j, k]
                    if g.level[g.first[e], j] >= 0 or g.level[g.second[e], k] >= 0:
                        score = -np.inf
                    if turned:
                        way[s, k, j] = score
                    else:
                        way[s, j, k] = score
        if length == 3:
            join(way[1], way[2], rest[0])
            join(way[2], way[0], rest[1])
            join(way[0], way[1], rest[2])
        else:
            join(way[0], way[1], g.room[8])
            join(way[2], way[3], g.room[9])
            join(way[1], g.room[9], rest[0])
            join(g.room[9], way[0], rest[1])
            join(way[3], g.room[8], rest[2])
            join(g.room[8], way[2], rest[3])
        for s in range(length):
            e = g.cycles[c, s]
            for j in range(states):
                for k in range(states):
                    a, b = (k, j) if g.turned[c, s] else (j, k)
                    fair = (way[s, a, b] + rest[s, b, a]) / length
                    if fair > -np.inf:
                        g.moved[c, s, j, k] = way[s, a, b] - fair
                        g.table[e, j, k] = fair + g.back[e, j] + g.ahead[e, k]


@njit
def settle(g, tree, rounds, cycle_rounds, small, best, depth):
    """Rounds of messages until the bound meets the best score, or stays where it is.

    Returns:
        The best score, whose labels ``g.best`` takes, and the bound of what is open.
    """
    bound, last, used, cycles = np.inf, np.inf, 0, rounds == 0
    while True:
        if cycles:
            tighten(g)
        above = sweep_back(g, tree)
        bound = min(bound, above)
        if bound - best <= small:
            return best, bound
        sweep_ahead(g, tree, above - best - small, depth)
        value = climb(g)
        if value > best:
            best = value
            for p in range(len(g.best)):
                g.best[p] = g.trial[p]
        if tree or bound - best <= small:
            return best, bound
        used += 1
        slow = last - bound <= 0.01 * (bound - best)
        last = bound
        if not cycles and (slow or used >= rounds):
            if cycle_rounds == 0 or len(g.cycles) == 0:
                return best, bound
            cycles, used = True, 0
        elif cycles and (used >= cycle_rounds or (slow and used > 2)):
            return best, bound


@njit
def choose(g):
    """The node and the label to branch on: the label is the best of the node with the closest second."""
    node, label, least = -1, -1, np.inf
    for p in range(len(g.node)):
        top, second, at = np.inf, np.inf, -1
        for k in range(g.node.shape[1]):
            if g.level[p, k] < 0:
                if g.below[p, k] < top:
                    top, second, at = g.below[p, k], top, k
                elif g.below[p, k] < second:
                    second = g.below[p, k]
        if second - top < least:
            node, label, least = p, at, second - top
    return node, label


@njit
def search(g, tree, rounds, cycle_rounds, branches, small):
    """Messages; then branch and bound, depth first, as long as a gap remains that is not ``small``.

    A branch gives a node a label. When it is done, the label is closed at the node, and the search goes on above it.
    Messages of one branch are good for every other, since they change the score of no labels. ``g.best`` is filled. A
    ``tree`` needs one round; else there are up to ``rounds`` along edges, ``cycle_rounds`` more with cycles, and
    ``branches``. Returns the score of the labels, and an upper bound of all scores.
    """
    best, g.bounds[0] = settle(g, tree, rounds, cycle_rounds, small, -np.inf, 0)
    depth, states = 0, g.node.shape[1]
    for _ in range(2 * branches):
        node, label = -1, -1
        if g.bounds[depth] - best > small:
            node, label = choose(g)
        if node >= 0:
            g.decided[depth, 0], g.decided[depth, 1] = node, label
            g.bounds[depth + 1] = g.bounds[depth]
            depth += 1
            for k in range(states):
                if k != label and g.level[node, k] < 0:
                    g.level[node, k] = depth
                    g.node[node, k] = -np.inf
        elif depth == 0:
            g.bounds[0] = best
            break
        else:
            for p in range(len(g.node)):
                for k in range(states):
                    if g.level[p, k] == depth:
                        g.level[p, k] = -1
                        g.node[p, k] = g.node_scores[p, k]
            depth -= 1
            node, label = g.decided[depth]
            g.level[node, label] = depth
            g.node[node, label] = -np.inf
            left = False
            for k in range(states):
                left |= g.level[node, k] < 0
            if not left:
                g.bounds[depth] = best
                continue
        best, bound = settle(g, tree, 0 if cycle_rounds else 5, 10, small, best, depth)
        g.bounds[depth] = min(g.bounds[depth], bound)
    return best, max(best, g.bounds[0])


@njit
def solve(plan, room, edge, rounds, cycle_rounds, branches, labels):
    """The labels of one graph, from the scores of its nodes in ``room.node_scores``, which are in the plan's order.

    ``edge`` ``[E', K, K]`` are the scores of the edges as they are given; ``labels`` ``[N]`` are filled.

    Returns:
        The score of the labels, and an upper bound of all scores, equal to it where only rounding may be between them.
        Both are NaN, and the labels 0, if a score is not finite.
    """
    size, links, count = len(plan.order), len(plan.first), len(plan.cycles) if cycle_rounds else 0
    g = Graph(
        room.node[:size],
        room.table[:links],
        room.node_scores[:size],
        room.edge_scores[:links],
        plan.first,
        plan.second,
        plan.begin,
        plan.incoming,
        plan.end,
        plan.cycles[:count],
        plan.turned[:count],
        room.ahead[:links],
        room.back[:links],
        room.moved[:count],
        room.below[:size],
        room.level[:size],
        room.kept[:size],
        room.trial[:size],
        room.best[:size],
        room.decided[: size + 1],
        room.bounds[: size + 1],
        room.total,
        room.given,
        room.room,
    )
    fill(g, plan, edge)
    small = rounding(g)
    if not np.isfinite(small):
        labels[:size] = 0
        return np.nan, np.nan
    mask = min(lowest(g.node_scores), lowest(g.edge_scores)) / _MASK
    usual = usual_scores(g.node_scores, mask) + usual_scores(g.edge_scores, mask)
    if usual < -mask:
        value, bound, small = search_without_masks(g, plan, edge, rounds, cycle_rounds, branches, mask, usual)
    else:
        value, bound = search(g, plan.tree, rounds, cycle_rounds, branches, small)
    for p in range(size):
        labels[plan.order[p]] = g.best[p]
    return value, value if plan.tree or bound - value <= small else bound


@njit
def search_without_masks(g, plan, edge, rounds, cycle_rounds, branches, mask, usual):
    """:func:`search` where scores such as -1e30 forbid: messages with them would round away all others.

    Those below ``mask`` are raised. Labels that use none of them score as before, at least -usual, and those that use
    one less. Where all labels use one, the scores are taken as they are.

    Returns:
        As :func:`search`, and the gap that counts as none.
    """
    set_row(g.kept, g.node_scores, None, None)
    for scores in (g.node_scores.reshape(-1), g.edge_scores.reshape(-1)):
        for place in range(len(scores)):
            if scores[place] < mask:
                scores[place] = -_RAISED * (usual if usual > 0.0 else 1.0)
    start(g)
    small = rounding(g)
    value, bound = search(g, plan.tree, rounds, cycle_rounds, branches, small)
    set_row(g.node_scores, g.kept, None, None)
    fill(g, plan, edge)
    if score_of(g, g.best) != value:
        small = rounding(g)
        value, bound = search(g, plan.tree, rounds, cycle_rounds, branches, small)
    return value, bound, small


@njit
def fill(g, plan, edge):
    """Scores of pairs, of which edges between the same two nodes have one sum."""
    states = edge.shape[2]
    set_row(g.edge_scores, None, None, 0.0)
    for turned in range(2):
        for e in range(len(plan.slot)):
            if plan.slot[e] >= 0 and plan.turn[e] == turned:
                table = g.edge_scores[plan.slot[e]]
                for j in range(states):
                    for k in range(states):
                        if turned:
                            table[k, j] += edge[e, j, k]
                        else:
                            table[j, k] += edge[e, j, k]
    start(g)


@njit
def start(g):
    """No messages, and all labels open."""
    set_row(g.node, g.node_scores, None, None)
    set_row(g.table, g.edge_scores, None, None)
    for messages in (g.ahead, g.back):
        set_row(messages, None, None, 0.0)
    set_row(g.moved, None, None, 0.0)
    for p in range(len(g.level)):
        for k in range(g.level.shape[1]):
            g.level[p, k] = -1


@njit
def lowest(scores):
    """The lowest score of all, or 0 if none is negative."""
    low = 0.0
    for score in scores.reshape(-1):
        low = min(low, score)
    return low


@njit
def usual_scores(scores, mask):
    """The sum of the largest absolute value of each entry of the first axis, without scores below ``mask``."""
    total = 0.0
    for place in range(len(scores)):
        high, top = 0.0, -np.inf
        for score in scores[place].reshape(-1):
            top = max(top, score)
            if score >= mask:
                high = max(high, abs(score))
        total += high if top >= mask else abs(top)
    return total


@njit
def rounding(g):
    """Rounding error of the sum of all scores: smaller gaps count as 0. Not finite if a score is not."""
    total = sum_of_largest(g.node_scores) + sum_of_largest(g.edge_scores)
    return 2.0 * _EPS * np.sqrt(len(g.node_scores) + len(g.edge_scores)) * total


@njit
def sum_of_largest(scores):
    """The sum of the largest absolute value of each entry of the first axis; not finite if a score is not."""
    total = 0.0
    for place in range(len(scores)):
        high = 0.0
        for score in scores[place].reshape(-1):
            high = max(high, abs(score))
            total += score - score
        total += high
    return total
