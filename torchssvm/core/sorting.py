"""A stable sort for kernels, which make no arrays."""

from __future__ import annotations

from torchssvm.core.jit import njit

_RUN = 12  # numbers that are sorted by insertion


@njit
def sort_falling(keys, order, count, room):
    """Sort ``order[:count]`` by falling ``keys[order]``; of equal keys the first stays first. NaN may stand anywhere.

    Args:
        keys: Numbers.
        order: ``[at least count]`` integers, places in ``keys``.
        count: Integer.
        room: ``[at least count]`` integers.
    """
    for begin in range(0, count, _RUN):
        for p in range(begin + 1, min(begin + _RUN, count)):
            own, q = order[p], p
            while q > begin and keys[order[q - 1]] < keys[own]:
                order[q] = order[q - 1]
                q -= 1
            order[q] = own
    width = _RUN
    while width < count:
        for begin in range(0, count - width, 2 * width):
            middle, end = begin + width, min(begin + 2 * width, count)
            for p in range(begin, middle):
                room[p] = order[p]
            p, q, place = begin, middle, begin
            while p < middle and q < end:
                if keys[room[p]] < keys[order[q]]:
                    order[place] = order[q]
                    q += 1
                else:
                    order[place] = room[p]
                    p += 1
                place += 1
            while p < middle:
                order[place] = room[p]
                p += 1
                place += 1
        width *= 2
