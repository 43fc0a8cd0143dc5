"""Branch and bound for examples that message passing leaves open: a depth-first search that fixes label by label."""

from __future__ import annotations

from torchssvm.core.jit import njit
from torchssvm.structures.multilabel.message_passing import TINY, decode_beliefs, dual_value, one_round, restrict

_ROUNDS = 2  # for each subproblem, which starts from the messages of the previous one


@njit
def branch(memory, best, bound, effort):
    """Close the gap between ``best`` and ``bound`` with at most about ``effort`` pair updates; returns both.

    Any messages bound any subproblem, so backtracking only has to undo the fixed labels.
    """
    tiny = TINY * memory.scale[0]
    fixed, trail, mark = memory.fixed, memory.trail, memory.mark
    for a in range(memory.sizes[0]):
        fixed[a] = -1
    depth, length = 0, 0
    while effort > 0:
        above, best, length, spent = _examine(memory, best, length)
        effort -= spent
        if above - best > tiny:
            a = _choose(memory)
            mark[depth], memory.tried[depth], memory.above[depth] = length, 0, above
            fixed[a] = 1 if memory.belief[a] > 0.0 else 0
        else:
            # Backtrack to a label whose other value may be better.
            while depth > 0 and (memory.tried[depth - 1] == 1 or memory.above[depth - 1] - best <= tiny):
                depth -= 1
            if depth == 0:
                return best, best
            depth -= 1
            a = trail[mark[depth]]
            for place in range(mark[depth] + 1, length):
                fixed[trail[place]] = -1
            fixed[a] = 1 - fixed[a]
            memory.tried[depth] = 1
            length = mark[depth]
        trail[length] = a
        depth, length = depth + 1, length + 1
    # Open subproblems: the untried values of the labels on the trail, and the current one.
    left = best
    for d in range(depth):
        if memory.tried[d] == 0 or d == depth - 1:
            left = max(left, memory.above[d])
    return best, min(bound, left)


@njit
def _examine(memory, best, length):
    """Bound the current subproblem; fix the labels whose other value cannot be better than ``best``."""
    tiny, spent = TINY * memory.scale[0], 0
    while True:
        active, base = restrict(memory)
        above = dual_value(memory, active, base)
        spent += memory.sizes[0] + memory.sizes[1]
        for _ in range(_ROUNDS):
            if above - best <= tiny:
                return above, best, length, spent
            one_round(memory, active)
            spent += active
            above = dual_value(memory, active, base)
        best = decode_beliefs(memory, best)
        if above - best <= tiny:
            return above, best, length, spent
        before = length
        for a in range(memory.sizes[0]):
            if memory.fixed[a] < 0 and above - abs(memory.belief[a]) - best <= tiny:
                memory.fixed[a] = 1 if memory.belief[a] > 0.0 else 0
                memory.trail[length] = a
                length += 1
        if length == before:
            return above, best, length, spent


@njit
def _choose(memory):
    """The least certain label: the largest sum of its pairs' ``|w|`` less twice its ``|b|``."""
    gain = memory.gain
    for a in range(memory.sizes[0]):
        gain[a] = 0.0
    for e in range(memory.sizes[1]):
        i, j = memory.first[e], memory.second[e]
        if memory.fixed[i] < 0 and memory.fixed[j] < 0:
            gain[i] += abs(memory.weight[e])
            gain[j] += abs(memory.weight[e])
    chosen = -1
    for a in range(memory.sizes[0]):
        if memory.fixed[a] < 0:
            gain[a] -= 2.0 * abs(memory.belief[a])
            if chosen < 0 or gain[a] > gain[chosen]:
                chosen = a
    return chosen
