"""Operations on rows of numbers, for kernels; :mod:`.vector_code` says what they compute, and has their code."""

from __future__ import annotations

from typing import Any

from torchssvm.compiler.jit import Vectorised, njit

add_each: Any = Vectorised("add_each")
add_row: Any = Vectorised("add_row")
add_rows: Any = Vectorised("add_rows")
add_to_listed: Any = Vectorised("add_to_listed")
add_to_rows: Any = Vectorised("add_to_rows")
dot: Any = Vectorised("dot")
exact_dot: Any = Vectorised("exact_dot")
exact_dots: Any = Vectorised("exact_dots")
exact_sums: Any = Vectorised("exact_sums")
first_equal: Any = Vectorised("first_equal")
largest_sum: Any = Vectorised("largest_sum")
max_rows: Any = Vectorised("max_rows")
max_rows_of_two: Any = Vectorised("max_rows_of_two")
quadratic: Any = Vectorised("quadratic")
set_row: Any = Vectorised("set_row")
set_rows: Any = Vectorised("set_rows")
sum_listed: Any = Vectorised("sum_listed")

_RUN = 12  # numbers that are sorted by insertion


@njit
def sort_falling(keys, order, count, room):
    """Sort ``order[:count]``, places in ``keys``, by falling ``keys[order]``; of equal keys the first stays first.

    NaN may stand anywhere. ``order`` and ``room`` are ``[at least count]`` integers.
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
