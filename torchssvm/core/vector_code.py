"""The operations of :mod:`.vectors` for Numba, on one row, and products: LLVM is told the vectors.

Left to itself, LLVM runs a loop over 26 states mostly one number at a time. See :mod:`.vector_panels`.
"""

from __future__ import annotations

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from torchssvm.core.vector_maxima import (  # noqa: F401  # the other operations of ``vectors``
    first_equal,
    largest_sum,
    max_rows,
    max_rows_of_two,
)
from torchssvm.core.vector_panels import (
    FUSED,
    INT,
    LLVM,
    Array,
    by_length,
    check,
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


@intrinsic
def set_row(typing, out, row, factor, shift):
    """See :func:`torchssvm.core.vectors.set_row`."""
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
    """See :func:`torchssvm.core.vectors.add_row`."""
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
    """See :func:`torchssvm.core.vectors.dot`."""
    check(a, b)
    return _product("dot", (a, b), a.dtype)


@intrinsic
def exact_dot(typing, a, b):
    """See :func:`torchssvm.core.vectors.exact_dot`."""
    check(a)
    check(b)
    return _product("exact_dot", (a, b), types.float64)


@intrinsic
def exact_sums(typing, a, b, count, sums):
    """See :func:`torchssvm.core.vectors.exact_sums`."""
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
    """See :func:`torchssvm.core.vectors.exact_dots`."""
    check(a)
    check(b)
    number = ir.DoubleType()

    def write(builder, a, b, chosen, count):
        total = cgutils.alloca_once_value(builder, number(0.0))

        def emit(lanes, panels):
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
def quadratic(typing, rows, count, products, squares):
    """See :func:`torchssvm.core.vectors.quadratic`."""
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
    """The inner product of two rows, in the dtype of ``result``."""
    number = LLVM[result]

    def write(builder, a, b):
        total = cgutils.alloca_once_value(builder, number(0.0))

        def emit(lanes, panels):
            nothing = ir.Constant(ir.VectorType(number, lanes), None)
            sums = [cgutils.alloca_once_value(builder, nothing) for _ in range(2)]
            for panel in panels:
                _add_products(builder, panel, a, b, None, sums)
            builder.store(sum_of(builder, builder.fadd(*map(builder.load, sums))), total)

        by_length(builder, a.length, emit)
        return builder.load(total)

    return signed(result(*kinds), name, write, number, flat=True)


def _add_products(builder, panel, a, b, row, sums):
    """Add the products of the numbers of two rows to two vectors of sums."""
    number = sums[0].type.pointee.element
    own = wide(builder, panel.once(panel.load(a, row), panel.filled(0.0, a.number)), number)
    for held, pair in zip(sums, zip(own, wide(builder, panel.load(b, row), number), strict=True), strict=True):
        term = builder.fmul(*pair, flags=FUSED)
        builder.store(builder.fadd(builder.load(held), term, flags=FUSED), held)
