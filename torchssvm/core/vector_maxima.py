"""Vector operations for largest sums, for Numba: see :mod:`.vector_code`."""

from __future__ import annotations

import functools
import math

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from torchssvm.core.vector_panels import INT, LLVM, by_length, by_turns, check, folded, signed


@intrinsic
def max_rows(typing, maxima, scores, rows, count, fresh, sums, finish):
    """See :func:`torchssvm.core.vectors.max_rows`."""
    check(maxima, scores, rows, sums)

    def write(builder, out, scores, table, count, fresh, sums, finish):
        _max_rows(builder, [(out, scores, sums)], table, count, fresh, finish)

    kinds = (maxima, scores, rows, types.intp, types.boolean, sums, types.boolean)
    return signed(types.void(*kinds), "max_rows", write)


@intrinsic
def max_rows_of_two(typing, maxima, scores, sums, others, other_scores, other_sums, rows, count, fresh, finish):
    """See :func:`torchssvm.core.vectors.max_rows_of_two`."""
    kinds = (maxima, scores, sums, others, other_scores, other_sums, rows)
    check(*kinds)

    def write(builder, *given):
        _max_rows(builder, [given[:3], given[3:6]], *given[6:])

    return signed(types.void(*kinds, types.intp, types.boolean, types.boolean), "max_rows_of_two", write)


def _max_rows(builder, sides, table, count, fresh, finish):
    """The code of :func:`max_rows` for one or two of ``maxima``, ``scores`` and ``sums``."""

    def term(panel, place, best):
        parts = panel.load(table, place)
        for (_, scores, _), rooms in zip(sides, best, strict=True):
            score = panel.splat(scores.at(builder, place))
            for part, held in zip(parts, rooms, strict=True):
                builder.store(_larger(builder, builder.fadd(score, part), builder.load(held)), held)

    def emit(lanes, panels):
        for panel in panels:
            lowest = panel.filled(-math.inf, table.number)
            held = [panel.load(out) for out, _, _ in sides]
            old = [[builder.select(fresh, *pair) for pair in zip(lowest, parts, strict=True)] for parts in held]
            if len(sides) == 1:  # two by turns, so that maxima do not wait for each other
                best = panel.rooms(old[0]), panel.rooms(lowest)
                for place, turn in by_turns(builder, INT(0), count):
                    term(panel, place, [best[turn]])
                pairs = zip(*(map(builder.load, rooms) for rooms in best), strict=True)
                found = [[_larger(builder, b, a) for a, b in pairs]]
            else:
                both = [panel.rooms(parts) for parts in old]
                with cgutils.for_range_slice(builder, INT(0), count, INT(1)) as (place, _):
                    term(panel, place, both)
                found = [[builder.load(room) for room in rooms] for rooms in both]
            for (out, _, _), parts in zip(sides, found, strict=True):
                panel.store(out, parts)
            with builder.if_then(finish):
                for (_, _, sums), parts in zip(sides, found, strict=True):
                    before = panel.load(sums)
                    after = [builder.fadd(*pair) for pair in zip(before, parts, strict=True)]
                    panel.store(sums, panel.fresh(after, before))

    by_length(builder, table.length, emit)


@intrinsic
def first_equal(typing, scores, rows, column, count, value):
    """See :func:`torchssvm.core.vectors.first_equal`."""
    check(scores, *(() if rows == types.none else (rows,)))

    def write(builder, scores, table, column, count, value):
        def emit(lanes, panels):
            for panel in panels:
                parts = panel.load(scores)
                if table is not None:
                    parts = [builder.fadd(*pair) for pair in zip(parts, panel.column(table, column), strict=True)]
                wanted = panel.splat(value)
                place, any_ = panel.first_true([builder.fcmp_ordered("==", part, wanted) for part in parts])
                with builder.if_then(any_):
                    builder.ret(place)

        by_length(builder, count, emit)
        return INT(0)

    kinds = (scores, rows, types.intp, types.intp, scores.dtype)
    return signed(types.intp(*kinds), "first_equal", write, INT)


@intrinsic
def largest_sum(typing, a, b):
    """See :func:`torchssvm.core.vectors.largest_sum`."""
    check(a, b)
    number = LLVM[a.dtype]

    def write(builder, a, b):
        largest = cgutils.alloca_once_value(builder, number(-math.inf))

        def emit(lanes, panels):
            lowest = ir.Constant(ir.VectorType(number, lanes), [-math.inf] * lanes)
            best = [cgutils.alloca_once_value(builder, lowest) for _ in range(2)]
            for panel in panels:
                for one, two, held in zip(panel.load(a), panel.load(b), best, strict=True):
                    builder.store(_larger(builder, builder.fadd(one, two), builder.load(held)), held)
            both = _larger(builder, *map(builder.load, best))
            builder.store(folded(builder, both, functools.partial(_larger, builder)), largest)

        by_length(builder, a.length, emit)
        return builder.load(largest)

    return signed(a.dtype(a, b), "largest_sum", write, number, flat=True)


def _larger(builder, value, held):
    """``value if value > held else held``, number by number."""
    return builder.select(builder.fcmp_ordered(">", value, held), value, held)
