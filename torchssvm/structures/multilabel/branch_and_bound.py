"""Branch and bound for what messages leave undecided: a depth-first search over labels that are fixed one by one."""

from __future__ import annotations

from torchssvm.core.jit import njit
from torchssvm.structures.multilabel.message_passing import TINY, decode_beliefs, dual_value, restrict, sweep

_SWEEPS = 2  # of each subproblem, which begins with the messages that the one before it left


@njit
def branch(memory, best, bound, effort):
    """Close the gap between ``best`` and ``bound`` until ``effort`` updates of pairs are spent; returns both.

    Any messages give a bound for any subproblem, so nothing but the fixed labels is undone on the way back.
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
            # Up to a label whose other side may hold something better.
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
    # What is open lies below a label whose other side was not tried, or is the side that comes next.
    left = best
    for d in range(depth):
        if memory.tried[d] == 0 or d == depth - 1:
            left = max(left, memory.above[d])
    return best, min(bound, left)


@njit
def _examine(memory, best, length):
    """Bound the labels that agree with what is fixed, and fix those whose other side cannot be better than ``best``."""
    tiny, spent = TINY * memory.scale[0], 0
    while True:
        active, base = restrict(memory)
        above = dual_value(memory, active, base)
        spent += memory.sizes[0] + memory.sizes[1]
        for _ in range(_SWEEPS):
            if above - best <= tiny:
                return above, best, length, spent
            sweep(memory, active)
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
    """The label that is least sure, for the weight that it has in pairs."""
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
