"""The operations of :mod:`.vectors` in vectors of LLVM; that module says what each computes.

Left to itself, LLVM runs a loop over 26 states mostly one number at a time. See :mod:`.vector_panels`.

One call for all tokens of a sequence: a call for each of them took as long as what it did.
"""

from __future__ import annotations

import functools
import math
from contextlib import contextmanager, nullcontext

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from torchssvm.compiler.vector_panels import (
    FUSED,
    INT,
    LLVM,
    SHORT,
    Array,
    by_length,
    by_turns,
    check,
    folded,
    numbers,
    shorter,
    signed,
    sum_of,
    wide,
)


@intrinsic
def max_rows(typing, maxima, scores, rows, count, fresh, sums, finish):
    check(maxima, scores, rows, sums)

    def write(builder, out, scores, table, count, fresh, sums, finish):
        _max_rows(builder, [(out, scores, sums)], table, count, fresh, finish)

    kinds = (maxima, scores, rows, types.intp, types.boolean, sums, types.boolean)
    return signed(types.void(*kinds), "max_rows", write)


@intrinsic
def max_rows_of_two(typing, maxima, scores, sums, others, other_scores, other_sums, rows, count, fresh, finish):
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
            for part, room in zip(parts, rooms, strict=True):
                builder.store(_larger(builder, builder.fadd(score, part), builder.load(room)), room)

    def emit(lanes, panels):
        for panel in panels:
            lowest = panel.filled(-math.inf, table.number)
            maxima = [panel.load(out) for out, _, _ in sides]
            old = [[builder.select(fresh, *pair) for pair in zip(lowest, parts, strict=True)] for parts in maxima]
            if len(sides) == 1:  # two by turns, so that maxima do not wait for each other
                best = panel.rooms(old[0]), panel.rooms(lowest)
                for place, turn in by_turns(builder, INT(0), count):
                    term(panel, place, [best[turn]])
                pairs = zip(*(map(builder.load, rooms) for rooms in best), strict=True)
                result = [[_larger(builder, b, a) for a, b in pairs]]
            else:
                both = [panel.rooms(parts) for parts in old]
                with cgutils.for_range_slice(builder, INT(0), count, INT(1)) as (place, _):
                    term(panel, place, both)
                result = [[builder.load(room) for room in rooms] for rooms in both]
            for (out, _, _), parts in zip(sides, result, strict=True):
                panel.store(out, parts)
            with builder.if_then(finish):
                for (_, _, sums), parts in zip(sides, result, strict=True):
                    before = panel.load(sums)
                    after = [builder.fadd(*pair) for pair in zip(before, parts, strict=True)]
                    panel.store(sums, panel.fresh(after, before))

    by_length(builder, table.length, emit)


@intrinsic
def prefetch(typing, array):
    def write(builder, array):
        begin, end = (builder.ptrtoint(builder.gep(array.data, [at]), INT) for at in (INT(0), array.length))
        most = builder.add(begin, INT(4096))
        end = builder.select(builder.icmp_unsigned("<", end, most), end, most)
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, SHORT, SHORT, SHORT])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        first = builder.and_(begin, INT(-64))  # lines of the cache
        with cgutils.for_range_slice(builder, first, end, INT(64)) as (place, _):
            read, often, data = SHORT(0), SHORT(3), SHORT(1)
            builder.call(ask, [builder.inttoptr(place, pointer), read, often, data])

    return signed(types.void(array), "prefetch", write, flat=True)


@intrinsic
def first_equal(typing, scores, rows, column, count, value):
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
    check(a, b)
    number = LLVM[a.dtype]

    def write(builder, a, b):
        largest = cgutils.alloca_once_value(builder, number(-math.inf))

        def emit(lanes, panels):
            lowest = ir.Constant(ir.VectorType(number, lanes), [-math.inf] * lanes)
            best = [cgutils.alloca_once_value(builder, lowest) for _ in range(2)]
            for panel in panels:
                for one, two, room in zip(panel.load(a), panel.load(b), best, strict=True):
                    builder.store(_larger(builder, builder.fadd(one, two), builder.load(room)), room)
            both = _larger(builder, *map(builder.load, best))
            builder.store(folded(builder, both, functools.partial(_larger, builder)), largest)

        by_length(builder, a.length, emit)
        return builder.load(largest)

    return signed(a.dtype(a, b), "largest_sum", write, number, flat=True)


def _larger(builder, value, other):
    """``value if value > other else other``, number by number."""
    return builder.select(builder.fcmp_ordered(">", value, other), value, other)


@intrinsic
def add_rows(typing, total, rows, chosen, weights, begin, end):
    check(total, rows, *(() if weights == types.none else (weights,)))

    def write(builder, out, table, chosen, weights, begin, end):
        def emit(lanes, panels):
            for panel in panels:
                first = panel.load(out)
                sums = sum_rows(builder, panel, first, table, chosen, weights, begin, end)
                panel.store(out, panel.fresh(sums, first))

        by_length(builder, out.length, emit)

    return signed(types.void(total, rows, chosen, weights, types.intp, types.intp), "add_rows", write)


@intrinsic
def add_to_rows(typing, rows, chosen, weights, begin, end, row, factor):
    check(row, rows, *(() if weights == types.none else (weights,)))

    def write(builder, table, chosen, weights, begin, end, row, factor):
        def emit(lanes, panels):
            for panel in panels:
                scale = panel.splat(factor)
                scaled = [builder.fmul(part, scale, flags=FUSED) for part in panel.load(row)]
                added = panel.fresh(scaled, panel.filled(0.0, table.number))
                with cgutils.for_range_slice(builder, begin, end, INT(1)) as (place, _):
                    line = place if chosen is None else chosen.at(builder, place)
                    each = added
                    if weights is not None:
                        weight = panel.splat(weights.at(builder, place))
                        each = [builder.fmul(part, weight, flags=FUSED) for part in added]
                    pairs = zip(panel.load(table, line), each, strict=True)
                    panel.store(table, [builder.fadd(a, b, flags=FUSED) for a, b in pairs], line)

        by_length(builder, row.length, emit)

    kinds = (rows, chosen, weights, types.intp, types.intp, row, row.dtype)
    return signed(types.void(*kinds), "add_to_rows", write)


@intrinsic
def set_rows(typing, out, rows, chosen, count, factor, shifts):
    check(out, *(kind for kind in (rows, shifts) if kind != types.none))

    def write(builder, out, rows, chosen, count, factor, shifts):
        def emit(lanes, panels):
            for panel in panels:
                with each_place(builder, chosen, count) as place:
                    parts = panel.filled(0.0, out.number) if rows is None else panel.load(rows, place)
                    if factor is not None:
                        parts = [builder.fmul(part, panel.splat(factor), flags=FUSED) for part in parts]
                    if shifts is not None:
                        shift = panel.splat(shifts.at(builder, place))
                        parts = [builder.fadd(part, shift, flags=FUSED) for part in parts]
                    panel.store(out, panel.fresh(parts, panel.load(out, place)), place)

        by_length(builder, out.length if rows is None else shorter(builder, out, rows), emit)

    return signed(types.void(out, rows, chosen, types.intp, *numbers(out, factor), shifts), "set_rows", write)


@contextmanager
def each_place(builder, chosen, count):
    """The code for each of the first ``count`` places of a list; without a list, for each of the first places."""
    with cgutils.for_range_slice(builder, INT(0), count, INT(1)) as (place, _):
        yield place if chosen is None else chosen.at(builder, place)


def sum_rows(builder, panel, first, table, chosen, weights, begin, end):
    """``first`` plus the sum of rows of a table, times weights."""
    sums = panel.rooms(first), panel.rooms(panel.filled(0.0, table.number))
    for place, turn in by_turns(builder, begin, end):
        row = place if chosen is None else chosen.at(builder, place)
        weight = None if weights is None else panel.splat(weights.at(builder, place))
        for part, room in zip(panel.load(table, row), sums[turn], strict=True):
            value = part if weight is None else builder.fmul(part, weight, flags=FUSED)
            builder.store(builder.fadd(builder.load(room), value, flags=FUSED), room)
    pairs = zip(*(map(builder.load, rooms) for rooms in sums), strict=True)
    return [builder.fadd(a, b) for a, b in pairs]


@intrinsic
def set_row(typing, out, row, factor, shift):
    check(out, *(() if row == types.none else (row,)))

    def write(builder, out, row, factor, shift):
        def emit(lanes, panels):
            for panel in panels:
                parts = panel.filled(0.0, out.number) if row is None else panel.load(row)
                if factor is not None:
                    parts = [builder.fmul(part, panel.splat(factor), flags=FUSED) for part in parts]
                if shift is not None:
                    parts = [builder.fadd(part, panel.splat(shift), flags=FUSED) for part in parts]
                panel.store(out, panel.fresh(parts, panel.load(out)))

        by_length(builder, out.length if row is None else shorter(builder, out, row), emit)

    return signed(types.void(out, row, *numbers(out, factor, shift)), "set_row", write, flat=True)


@intrinsic
def add_row(typing, out, row, factor):
    check(out)
    check(row)

    def write(builder, out, row, factor):
        def emit(lanes, panels):
            for panel in panels:
                parts = wide(builder, panel.load(row), out.number)
                if factor is not None:
                    parts = [builder.fmul(part, panel.splat(factor), flags=FUSED) for part in parts]
                before = panel.load(out)
                sums = [builder.fadd(*pair, flags=FUSED) for pair in zip(before, parts, strict=True)]
                panel.store(out, panel.fresh(sums, before))

        by_length(builder, shorter(builder, out, row), emit)

    return signed(types.void(out, row, *numbers(out, factor)), "add_row", write, flat=True)


@intrinsic
def dot(typing, a, b):
    check(a, b)
    return _product("dot", (a, b), a.dtype)


@intrinsic
def exact_dot(typing, a, b):
    check(a)
    check(b)
    return _product("exact_dot", (a, b), types.float64)


@intrinsic
def exact_sums(typing, a, b, count, sums):
    check(a)
    check(b)
    number = ir.DoubleType()

    def write(builder, a, b, count, sums):
        def emit(lanes, panels):
            name = f"llvm.fabs.v{lanes}f64"
            kind = ir.VectorType(number, lanes)
            absolute = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
            for panel in panels:
                with each_place(builder, None, count) as t:
                    row = wide(builder, panel.once(panel.load(a, t), panel.filled(0.0, a.number)), number)
                    other = wide(builder, panel.load(b, t), number)
                    along = [builder.fmul(*pair, flags=FUSED) for pair in zip(row, other, strict=True)]
                    sizes = [builder.call(absolute, [part]) for part in row]
                    for place, parts in enumerate((along, row, sizes)):
                        slot = builder.gep(sums.data, [builder.add(builder.mul(t, INT(3)), INT(place))])
                        before = builder.select(panel.first(), number(0.0), builder.load(slot))
                        builder.store(builder.fadd(before, sum_of(builder, builder.fadd(*parts))), slot)

        by_length(builder, shorter(builder, a, b), emit)

    return signed(types.void(a, b, types.intp, sums), "exact_sums", write)


@intrinsic
def exact_dots(typing, a, b, chosen, count):
    check(a)
    check(b)
    return _product("exact_dots", (a, b, chosen, types.intp), types.float64)


@intrinsic
def quadratic(typing, rows, count, products, squares):
    check(rows, products)
    number = ir.DoubleType()

    def write(builder, rows, count, products, squares):
        total, begin = cgutils.alloca_once_value(builder, number(0.0)), cgutils.alloca_once(builder, INT)

        def emit(lanes, panels):
            for panel in panels:
                builder.store(count, begin)
                with each_place(builder, None, count) as t:
                    row = panel.once(panel.load(rows, t), panel.filled(0.0, rows.number))
                    square, slot = _along(builder, row, row), builder.gep(squares.data, [t])
                    before = builder.select(panel.first(), number(0.0), builder.load(slot))
                    builder.store(builder.fadd(before, square), slot)
                    with builder.if_then(builder.fcmp_ordered(">", square, number(0.0))):  # rows of zeros add nothing
                        low = builder.load(begin)
                        low = builder.select(builder.icmp_signed("<", low, t), low, t)
                        builder.store(low, begin)
                        line = builder.udiv(builder.mul(t, builder.add(t, INT(1))), INT(2))
                        others = Array(builder.gep(products.data, [line]), products.number, t)
                        nothing = panel.filled(0.0, rows.number)
                        both = _along(builder, row, sum_rows(builder, panel, nothing, rows, None, others, low, t))
                        diagonal = _exact(builder, others.at(builder, t))
                        term = builder.fadd(builder.fmul(diagonal, square), builder.fmul(number(2.0), both))
                        builder.store(builder.fadd(builder.load(total), term), total)

        by_length(builder, rows.length, emit)
        return builder.load(total)

    return signed(types.float64(rows, types.intp, products, squares), "quadratic", write, number)


def _along(builder, a, b):
    """The inner product of two pairs of vectors, as a float64."""
    products = [builder.fmul(*pair, flags=FUSED) for pair in zip(a, b, strict=True)]
    return _exact(builder, sum_of(builder, builder.fadd(*products, flags=FUSED)))


def _exact(builder, number):
    return number if number.type == ir.DoubleType() else builder.fpext(number, ir.DoubleType())


def _product(name, kinds, result):
    """The inner product of two rows, in the dtype of ``result``; or of all rows of a list with a count."""
    number = LLVM[result]

    def write(builder, a, b, *listed):
        total = cgutils.alloca_once_value(builder, number(0.0))

        def emit(lanes, panels):
            nothing = ir.Constant(ir.VectorType(number, lanes), None)
            sums = [cgutils.alloca_once_value(builder, nothing) for _ in range(2)]
            for panel in panels:
                with each_place(builder, *listed) if listed else nullcontext() as place:
                    _add_products(builder, panel, a, b, place, sums)
            builder.store(sum_of(builder, builder.fadd(*map(builder.load, sums))), total)

        by_length(builder, shorter(builder, a, b) if listed else a.length, emit)
        return builder.load(total)

    return signed(result(*kinds), name, write, number, flat=len(kinds) == 2)


def _add_products(builder, panel, a, b, row, sums):
    """Add the products of the numbers of two rows to two vectors of sums."""
    number = sums[0].type.pointee.element
    numbers_of_a = wide(builder, panel.once(panel.load(a, row), panel.filled(0.0, a.number)), number)
    for room, pair in zip(sums, zip(numbers_of_a, wide(builder, panel.load(b, row), number), strict=True), strict=True):
        term = builder.fmul(*pair, flags=FUSED)
        builder.store(builder.fadd(builder.load(room), term, flags=FUSED), room)
