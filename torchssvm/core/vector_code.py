"""The operations of :mod:`.vectors` for Numba, on one row, and products: LLVM is told the vectors.

Left to itself, LLVM runs a loop over 26 states mostly one number at a time. See :mod:`.vector_panels`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from torchssvm.core.vector_panels import (
    FUSED,
    INT,
    Array,
    Panel,
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
from torchssvm.core.vector_rows import (  # noqa: F401  # the other operations of ``vectors``
    add_each,
    add_rows,
    add_to_listed,
    add_to_rows,
    each_place,
    set_rows,
    sum_listed,
    sum_rows,
)

_LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


@intrinsic
def set_row(typing: Any, out: Any, row: Any, factor: Any, shift: Any) -> Any:
    """See :func:`torchssvm.core.vectors.set_row`."""
    check(out, *(() if row == types.none else (row,)))

    def write(builder: Any, out: Array, row: Array | None, factor: Any, shift: Any) -> None:
        def emit(lanes: int, panels: Iterator[Panel]) -> None:
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
def add_row(typing: Any, out: Any, row: Any, factor: Any) -> Any:
    """See :func:`torchssvm.core.vectors.add_row`."""
    check(out)
    check(row)

    def write(builder: Any, out: Array, row: Array, factor: Any) -> None:
        def emit(lanes: int, panels: Iterator[Panel]) -> None:
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
def max_rows(typing: Any, maxima: Any, scores: Any, rows: Any, count: Any, fresh: Any) -> Any:
    """See :func:`torchssvm.core.vectors.max_rows`."""
    check(maxima, rows, scores)

    def write(builder: Any, out: Array, scores: Array, table: Array, count: Any, fresh: Any) -> None:
        def term(panel: Panel, place: Any, best: list[Any]) -> None:
            score = panel.splat(scores.at(builder, place))
            for part, held in zip(panel.load(table, place), best, strict=True):
                builder.store(_larger(builder, builder.fadd(score, part), builder.load(held)), held)

        def emit(lanes: int, panels: Iterator[Panel]) -> None:
            for panel in panels:
                lowest = panel.filled(-math.inf, out.number)
                old = [builder.select(fresh, *pair) for pair in zip(lowest, panel.load(out), strict=True)]
                best = panel.rooms(old), panel.rooms(lowest)
                for place, turn in by_turns(builder, INT(0), count):
                    term(panel, place, best[turn])
                pairs = zip(*(map(builder.load, rooms) for rooms in best), strict=True)
                panel.store(out, [_larger(builder, b, a) for a, b in pairs])

        by_length(builder, table.length, emit)

    return signed(types.void(maxima, scores, rows, types.intp, types.boolean), "max_rows", write)


@intrinsic
def largest_sum(typing: Any, a: Any, b: Any) -> Any:
    """See :func:`torchssvm.core.vectors.largest_sum`."""
    check(a, b)
    number = _LLVM[a.dtype]

    def write(builder: Any, a: Array, b: Array) -> Any:
        largest = cgutils.alloca_once_value(builder, number(-math.inf))

        def emit(lanes: int, panels: Iterator[Panel]) -> None:
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


@intrinsic
def dot(typing: Any, a: Any, b: Any) -> Any:
    """See :func:`torchssvm.core.vectors.dot`."""
    check(a, b)
    return _product("dot", (a, b), a.dtype)


@intrinsic
def exact_dot(typing: Any, a: Any, b: Any) -> Any:
    """See :func:`torchssvm.core.vectors.exact_dot`."""
    check(a)
    check(b)
    return _product("exact_dot", (a, b), types.float64)


@intrinsic
def exact_sums(typing: Any, a: Any, b: Any, count: Any, sums: Any) -> Any:
    """See :func:`torchssvm.core.vectors.exact_sums`."""
    check(a)
    check(b)
    number = ir.DoubleType()

    def write(builder: Any, a: Array, b: Array, count: Any, sums: Array) -> None:
        def emit(lanes: int, panels: Iterator[Panel]) -> None:
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
def exact_dots(typing: Any, a: Any, b: Any, chosen: Any, count: Any) -> Any:
    """See :func:`torchssvm.core.vectors.exact_dots`."""
    check(a)
    check(b)
    number = ir.DoubleType()

    def write(builder: Any, a: Array, b: Array, chosen: Array | None, count: Any) -> Any:
        total = cgutils.alloca_once_value(builder, number(0.0))

        def emit(lanes: int, panels: Iterator[Panel]) -> None:
            nothing = ir.Constant(ir.VectorType(number, lanes), None)
            sums = [cgutils.alloca_once_value(builder, nothing) for _ in range(2)]
            for panel in panels:
                with each_place(builder, chosen, count) as place:
                    _add_products(builder, panel, a, b, place, sums)
            builder.store(sum_of(builder, builder.fadd(*map(builder.load, sums))), total)

        by_length(builder, shorter(builder, a, b), emit)
        return builder.load(total)

    return signed(types.float64(a, b, chosen, types.intp), "exact_dots", write, number)


@intrinsic
def quadratic(typing: Any, rows: Any, count: Any, products: Any, squares: Any) -> Any:
    """See :func:`torchssvm.core.vectors.quadratic`."""
    check(rows, products)
    number = ir.DoubleType()

    def write(builder: Any, rows: Array, count: Any, products: Array, squares: Array) -> Any:
        total, begin = cgutils.alloca_once_value(builder, number(0.0)), cgutils.alloca_once(builder, INT)

        def emit(lanes: int, panels: Iterator[Panel]) -> None:
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


def _along(builder: Any, a: list[Any], b: list[Any]) -> Any:
    """The inner product of two pairs of vectors, as a float64."""
    products = [builder.fmul(*pair, flags=FUSED) for pair in zip(a, b, strict=True)]
    return _exact(builder, sum_of(builder, builder.fadd(*products, flags=FUSED)))


def _exact(builder: Any, number: Any) -> Any:
    return number if number.type == ir.DoubleType() else builder.fpext(number, ir.DoubleType())


def _product(name: str, kinds: tuple[Any, Any], result: Any) -> Any:
    """The inner product of two rows, in the dtype of ``result``."""
    number = _LLVM[result]

    def write(builder: Any, a: Array, b: Array) -> Any:
        total = cgutils.alloca_once_value(builder, number(0.0))

        def emit(lanes: int, panels: Iterator[Panel]) -> None:
            nothing = ir.Constant(ir.VectorType(number, lanes), None)
            sums = [cgutils.alloca_once_value(builder, nothing) for _ in range(2)]
            for panel in panels:
                _add_products(builder, panel, a, b, None, sums)
            builder.store(sum_of(builder, builder.fadd(*map(builder.load, sums))), total)

        by_length(builder, a.length, emit)
        return builder.load(total)

    return signed(result(*kinds), name, write, number, flat=True)


def _add_products(builder: Any, panel: Panel, a: Array, b: Array, row: Any, sums: list[Any]) -> None:
    """Add the products of the numbers of two rows to two vectors of sums."""
    number = sums[0].type.pointee.element
    own = wide(builder, panel.once(panel.load(a, row), panel.filled(0.0, a.number)), number)
    for held, pair in zip(sums, zip(own, wide(builder, panel.load(b, row), number), strict=True), strict=True):
        term = builder.fmul(*pair, flags=FUSED)
        builder.store(builder.fadd(builder.load(held), term, flags=FUSED), held)


def _larger(builder: Any, value: Any, held: Any) -> Any:
    """``value if value > held else held``, number by number."""
    return builder.select(builder.fcmp_ordered(">", value, held), value, held)
