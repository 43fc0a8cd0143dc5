"""The operations of :mod:`.vectors`, on rows of numbers: LLVM is told the vectors.

All arrays are contiguous, and those of numbers have one dtype, float32 or float64, where nothing else is said; sums
may be taken in another order.

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
    """``maxima[k] = max(maxima[k], scores[j] + rows[j, k])`` over the first ``count`` rows, exactly.

    Args:
        maxima: ``[at least K]``.
        scores: ``[at least count]``.
        rows: ``[at least count, K]``.
        fresh: Whether the old ``maxima`` are ignored.
        sums: ``[at least K]``.
        finish: Whether ``sums += maxima`` at the end.
    """
    check(maxima, scores, rows, sums)

    def write(builder, out, scores, table, count, fresh, sums, finish):
        _max_rows(builder, [(out, scores, sums)], table, count, fresh, finish)

    kinds = (maxima, scores, rows, types.intp, types.boolean, sums, types.boolean)
    return signed(types.void(*kinds), "max_rows", write)


@intrinsic
def max_rows_of_two(typing, maxima, scores, sums, others, other_scores, other_sums, rows, count, fresh, finish):
    """:func:`max_rows` for two rows of scores with the same ``rows``, which are read once for both."""
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
    """The smallest j below ``count`` with ``scores[j] + rows[j, column] == value``; 0 if there is none.

    Args:
        scores: ``[at least count]``.
        rows: ``[at least count, more than column]``; None is 0.
    """
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
    """The largest ``a[k] + b[k]``, exactly; each array is taken as one row, and ``b`` is at least as long as ``a``.

    No numbers have -inf.
    """
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


@intrinsic
def add_rows(typing, total, rows, chosen, weights, begin, end):
    """``total += sum_p weights[p] rows[chosen[p]]`` over p in ``begin`` to ``end - 1``.

    Args:
        total: ``[K]``.
        rows: ``[*, at least K]``.
        chosen: Integers; None is p itself.
        weights: Numbers; None is 1.
    """
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
    """``rows[chosen[p]] += weights[p] factor row`` for p in ``begin`` to ``end - 1``; see :func:`add_rows`."""
    check(row, rows, *(() if weights == types.none else (weights,)))

    def write(builder, table, chosen, weights, begin, end, own, factor):
        def emit(lanes, panels):
            for panel in panels:
                _add_to(builder, panel, panel.load(own), factor, table, chosen, weights, begin, end)

        by_length(builder, own.length, emit)

    kinds = (rows, chosen, weights, types.intp, types.intp, row, row.dtype)
    return signed(types.void(*kinds), "add_to_rows", write)


@intrinsic
def set_rows(typing, out, rows, chosen, count, factor, shifts):
    """``out[t] = factor rows[t] + shifts[t]`` for some t, over the shorter of the two widths.

    Args:
        out: ``[*, *]``.
        rows: ``[*, *]``, and may be ``out``; None is 0.
        chosen: Integers, of which the first ``count`` are the t; None takes 0 to ``count - 1``.
        factor: A number; None is 1.
        shifts: ``[*]``; None is 0.
    """
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


@intrinsic
def add_each(typing, out, rows, chosen, count, factor):
    """``out[t] += factor rows[t]`` for some t; see :func:`set_rows`."""
    check(out, rows)

    def write(builder, out, rows, chosen, count, factor):
        def emit(lanes, panels):
            for panel in panels:
                scale = panel.splat(factor)
                with each_place(builder, chosen, count) as place:
                    held = panel.load(out, place)
                    parts = [builder.fmul(part, scale, flags=FUSED) for part in panel.load(rows, place)]
                    sums = [builder.fadd(*pair, flags=FUSED) for pair in zip(held, parts, strict=True)]
                    panel.store(out, panel.fresh(sums, held), place)

        by_length(builder, shorter(builder, out, rows), emit)

    return signed(types.void(out, rows, chosen, types.intp, out.dtype), "add_each", write)


@contextmanager
def each_place(builder, chosen, count):
    """The code for each of the first ``count`` places of a list; without a list, for each of the first places."""
    with cgutils.for_range_slice(builder, INT(0), count, INT(1)) as (place, _):
        yield place if chosen is None else chosen.at(builder, place)


@intrinsic
def sum_listed(typing, out, initial, rows, chosen, weights, starts, count):
    """``out[t] = initial + sum_p weights[p] rows[chosen[p]]`` over the places p of list t, for the first lists.

    Args:
        out: ``[at least count, K]``.
        initial: ``[at least K]``.
        rows: ``[*, at least K]``.
        chosen: Integers.
        weights: Numbers; None is 1.
        starts: ``[at least count + 1]`` integers, where each list begins.
    """
    check(out, initial, rows, *(() if weights == types.none else (weights,)))

    def write(builder, out, initial, table, chosen, weights, starts, count):
        def emit(lanes, panels):
            for panel in panels:
                first = panel.load(initial)
                with each_place(builder, None, count) as line:
                    places = starts.at(builder, line), starts.at(builder, builder.add(line, INT(1)))
                    panel.store(out, sum_rows(builder, panel, first, table, chosen, weights, *places), line)

        by_length(builder, out.length, emit)

    kinds = (out, initial, rows, chosen, weights, starts, types.intp)
    return signed(types.void(*kinds), "sum_listed", write)


def sum_rows(builder, panel, first, table, chosen, weights, begin, end):
    """``first`` plus the sum of rows of a table, times weights."""
    sums = panel.rooms(first), panel.rooms(panel.filled(0.0, table.number))
    for place, turn in by_turns(builder, begin, end):
        row = place if chosen is None else chosen.at(builder, place)
        weight = None if weights is None else panel.splat(weights.at(builder, place))
        for part, held in zip(panel.load(table, row), sums[turn], strict=True):
            value = part if weight is None else builder.fmul(part, weight, flags=FUSED)
            builder.store(builder.fadd(builder.load(held), value, flags=FUSED), held)
    pairs = zip(*(map(builder.load, rooms) for rooms in sums), strict=True)
    return [builder.fadd(a, b) for a, b in pairs]


@intrinsic
def add_to_listed(typing, rows, chosen, weights, starts, added, used, count, factor):
    """``rows[chosen[p]] += weights[p] factor added[t]`` for the places p of list t, for the first lists.

    Args:
        rows, chosen, weights, starts, count: See :func:`sum_listed`.
        added: ``[at least count, K]``.
        used: ``[at least count]``; lists for which it is 0 are left out.
        factor: A number.
    """
    check(rows, added, *(() if weights == types.none else (weights,)))

    def write(builder, table, chosen, weights, starts, added, used, count, factor):
        def emit(lanes, panels):
            for panel in panels:
                with each_place(builder, None, count) as line:
                    use = builder.fcmp_unordered("!=", used.at(builder, line), used.number(0.0))
                    with builder.if_then(use):
                        places = starts.at(builder, line), starts.at(builder, builder.add(line, INT(1)))
                        _add_to(builder, panel, panel.load(added, line), factor, table, chosen, weights, *places)

        by_length(builder, added.length, emit)

    kinds = (rows, chosen, weights, starts, added, used, types.intp, rows.dtype)
    return signed(types.void(*kinds), "add_to_listed", write)


def _add_to(builder, panel, own, factor, table, chosen, weights, begin, end):
    """Add a row, times a factor and weights, to rows of a table."""
    scale = panel.splat(factor)
    scaled = [builder.fmul(part, scale, flags=FUSED) for part in own]
    added = panel.fresh(scaled, panel.filled(0.0, table.number))
    with cgutils.for_range_slice(builder, begin, end, INT(1)) as (place, _):
        where = place if chosen is None else chosen.at(builder, place)
        each = added
        if weights is not None:
            weight = panel.splat(weights.at(builder, place))
            each = [builder.fmul(part, weight, flags=FUSED) for part in added]
        held = zip(panel.load(table, where), each, strict=True)
        panel.store(table, [builder.fadd(a, b, flags=FUSED) for a, b in held], where)


@intrinsic
def set_row(typing, out, row, factor, shift):
    """``out = factor row + shift``, over the shorter of the two; each array is taken as one row.

    Args:
        out: Any shape.
        row: Any shape, and may be ``out``; None is 0.
        factor, shift: Numbers; None is 1, and nothing.
    """
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
    """``out += factor row``, over the shorter of the two; see :func:`set_row`. ``out`` may have a wider dtype."""
    check(out)
    check(row)

    def write(builder, out, row, factor):
        def emit(lanes, panels):
            for panel in panels:
                parts = wide(builder, panel.load(row), out.number)
                if factor is not None:
                    parts = [builder.fmul(part, panel.splat(factor), flags=FUSED) for part in parts]
                held = panel.load(out)
                sums = [builder.fadd(*pair, flags=FUSED) for pair in zip(held, parts, strict=True)]
                panel.store(out, panel.fresh(sums, held))

        by_length(builder, shorter(builder, out, row), emit)

    return signed(types.void(out, row, *numbers(out, factor)), "add_row", write, flat=True)


@intrinsic
def dot(typing, a, b):
    """``<a, b>`` in their dtype; each array is taken as one row, and ``b`` is at least as long as ``a``."""
    check(a, b)
    return _product("dot", (a, b), a.dtype)


@intrinsic
def exact_dot(typing, a, b):
    """:func:`dot` in float64; each array may have its own dtype."""
    check(a)
    check(b)
    return _product("exact_dot", (a, b), types.float64)


@intrinsic
def exact_sums(typing, a, b, count, sums):
    """:func:`exact_dot`, the sum of ``a`` and the sum of its absolute values, for the first ``count`` rows.

    Args:
        a, b: Matrices; the shorter of the two widths counts.
        sums: ``[at least count, 3]`` float64, to be filled.
    """
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
                    own = wide(builder, panel.once(panel.load(a, t), panel.filled(0.0, a.number)), number)
                    other = wide(builder, panel.load(b, t), number)
                    along = [builder.fmul(*pair, flags=FUSED) for pair in zip(own, other, strict=True)]
                    sizes = [builder.call(absolute, [part]) for part in own]
                    for place, parts in enumerate((along, own, sizes)):
                        slot = builder.gep(sums.data, [builder.add(builder.mul(t, INT(3)), INT(place))])
                        held = builder.select(panel.first(), number(0.0), builder.load(slot))
                        builder.store(builder.fadd(held, sum_of(builder, builder.fadd(*parts))), slot)

        by_length(builder, shorter(builder, a, b), emit)

    return signed(types.void(a, b, types.intp, sums), "exact_sums", write)


@intrinsic
def exact_dots(typing, a, b, chosen, count):
    """The sum of ``<a[t], b[t]>`` in float64 for some t, over the shorter of the two widths; see :func:`set_rows`."""
    check(a)
    check(b)
    return _product("exact_dots", (a, b, chosen, types.intp), types.float64)


@intrinsic
def quadratic(typing, rows, count, products, squares):
    """``sum_tu products[t, u] <rows[t], rows[u]>`` over the first ``count`` rows.

    Args:
        rows: ``[at least count, K]``.
        products: The lower triangle of a symmetric matrix, row after row.
        squares: ``[at least count]`` float64, gets ``|rows[t]|^2``.
    """
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
                    held = builder.select(panel.first(), number(0.0), builder.load(slot))
                    builder.store(builder.fadd(held, square), slot)
                    with builder.if_then(builder.fcmp_ordered(">", square, number(0.0))):  # rows of zeros add nothing
                        low = builder.load(begin)
                        low = builder.select(builder.icmp_signed("<", low, t), low, t)
                        builder.store(low, begin)
                        line = builder.udiv(builder.mul(t, builder.add(t, INT(1))), INT(2))
                        others = Array(builder.gep(products.data, [line]), products.number, t)
                        nothing = panel.filled(0.0, rows.number)
                        both = _along(builder, row, sum_rows(builder, panel, nothing, rows, None, others, low, t))
                        own = _exact(builder, others.at(builder, t))
                        term = builder.fadd(builder.fmul(own, square), builder.fmul(number(2.0), both))
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
    own = wide(builder, panel.once(panel.load(a, row), panel.filled(0.0, a.number)), number)
    for held, pair in zip(sums, zip(own, wide(builder, panel.load(b, row), number), strict=True), strict=True):
        term = builder.fmul(*pair, flags=FUSED)
        builder.store(builder.fadd(builder.load(held), term, flags=FUSED), held)
