"""The operations of :mod:`.vectors` for Numba: LLVM is told the vectors and does not have to find them.

Left to itself, LLVM runs a loop over 26 states mostly one number at a time. See :mod:`.vector_panels`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, errors
from numba.extending import intrinsic

from torchssvm.core.vector_panels import INT, Array, Panel, by_length, by_turns, call_once, sum_of

_FUSED = ("contract",)  # a product and a sum may be rounded once


@intrinsic
def set_row(typing: Any, out: Any, row: Any, factor: Any, shift: Any) -> Any:
    """See :func:`torchssvm.core.vectors.set_row`."""
    _check(out, *(() if row == types.none else (row,)))

    def write(builder: Any, out: Array, row: Array | None, factor: Any, shift: Any) -> None:
        def emit(lanes: int, panels: Iterator[Panel]) -> None:
            for panel in panels:
                parts = panel.filled(0.0, out.number) if row is None else panel.load(row)
                if factor is not None:
                    parts = [builder.fmul(part, panel.splat(factor), flags=_FUSED) for part in parts]
                if shift is not None:
                    parts = [builder.fadd(part, panel.splat(shift), flags=_FUSED) for part in parts]
                panel.store(out, panel.fresh(parts, panel.load(out)))

        by_length(builder, out.length if row is None else _shorter(builder, out, row), emit)

    return _signed(types.void(out, row, *_numbers(out, factor, shift)), "set_row", write, flat=True)


@intrinsic
def add_row(typing: Any, out: Any, row: Any, factor: Any) -> Any:
    """See :func:`torchssvm.core.vectors.add_row`."""
    _check(out)
    _check(row)

    def write(builder: Any, out: Array, row: Array, factor: Any) -> None:
        def emit(lanes: int, panels: Iterator[Panel]) -> None:
            for panel in panels:
                parts = _wide(builder, panel.load(row), out.number)
                if factor is not None:
                    parts = [builder.fmul(part, panel.splat(factor), flags=_FUSED) for part in parts]
                held = panel.load(out)
                sums = [builder.fadd(*pair, flags=_FUSED) for pair in zip(held, parts, strict=True)]
                panel.store(out, panel.fresh(sums, held))

        by_length(builder, _shorter(builder, out, row), emit)

    return _signed(types.void(out, row, *_numbers(out, factor)), "add_row", write, flat=True)


@intrinsic
def add_rows(typing: Any, total: Any, rows: Any, chosen: Any, weights: Any, begin: Any, end: Any) -> Any:
    """See :func:`torchssvm.core.vectors.add_rows`."""
    _check(total, rows, *(() if weights == types.none else (weights,)))

    def write(
        builder: Any, out: Array, table: Array, chosen: Array | None, weights: Array | None, begin: Any, end: Any
    ) -> None:
        def term(panel: Panel, place: Any, sums: list[Any]) -> None:
            row = place if chosen is None else chosen.at(builder, place)
            weight = None if weights is None else panel.splat(weights.at(builder, place))
            for part, held in zip(panel.load(table, row), sums, strict=True):
                value = part if weight is None else builder.fmul(part, weight, flags=_FUSED)
                builder.store(builder.fadd(builder.load(held), value, flags=_FUSED), held)

        def emit(lanes: int, panels: Iterator[Panel]) -> None:
            for panel in panels:
                first = panel.load(out)
                sums = panel.rooms(first), panel.rooms(panel.filled(0.0, out.number))
                for place, turn in by_turns(builder, begin, end):
                    term(panel, place, sums[turn])
                pairs = zip(*(map(builder.load, rooms) for rooms in sums), strict=True)
                panel.store(out, panel.fresh([builder.fadd(a, b) for a, b in pairs], first))

        by_length(builder, out.length, emit)

    return _signed(types.void(total, rows, chosen, weights, types.intp, types.intp), "add_rows", write)


@intrinsic
def add_to_rows(typing: Any, rows: Any, chosen: Any, weights: Any, begin: Any, end: Any, row: Any, factor: Any) -> Any:
    """See :func:`torchssvm.core.vectors.add_to_rows`."""
    _check(row, rows, *(() if weights == types.none else (weights,)))

    def write(
        builder: Any,
        table: Array,
        chosen: Array | None,
        weights: Array | None,
        begin: Any,
        end: Any,
        own: Array,
        factor: Any,
    ) -> None:
        def emit(lanes: int, panels: Iterator[Panel]) -> None:
            for panel in panels:
                scale = panel.splat(factor)
                scaled = [builder.fmul(part, scale, flags=_FUSED) for part in panel.load(own)]
                added = panel.fresh(scaled, panel.filled(0.0, own.number))
                with cgutils.for_range_slice(builder, begin, end, INT(1)) as (place, _):
                    where = place if chosen is None else chosen.at(builder, place)
                    each = added
                    if weights is not None:
                        weight = panel.splat(weights.at(builder, place))
                        each = [builder.fmul(part, weight, flags=_FUSED) for part in added]
                    held = zip(panel.load(table, where), each, strict=True)
                    panel.store(table, [builder.fadd(a, b, flags=_FUSED) for a, b in held], where)

        by_length(builder, own.length, emit)

    kinds = (rows, chosen, weights, types.intp, types.intp, row, row.dtype)
    return _signed(types.void(*kinds), "add_to_rows", write)


@intrinsic
def max_rows(typing: Any, maxima: Any, scores: Any, rows: Any, count: Any, fresh: Any) -> Any:
    """See :func:`torchssvm.core.vectors.max_rows`."""
    _check(maxima, rows, scores)

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

    return _signed(types.void(maxima, scores, rows, types.intp, types.boolean), "max_rows", write)


@intrinsic
def dot(typing: Any, a: Any, b: Any) -> Any:
    """See :func:`torchssvm.core.vectors.dot`."""
    _check(a, b)
    return _sums("dot", (a, b), a.dtype, lambda builder, a, b: [builder.fmul(a, b, flags=_FUSED)])


@intrinsic
def exact_dot(typing: Any, a: Any, b: Any) -> Any:
    """See :func:`torchssvm.core.vectors.exact_dot`."""
    _check(a)
    _check(b)
    return _sums("exact_dot", (a, b), types.float64, lambda builder, a, b: [builder.fmul(a, b, flags=_FUSED)])


@intrinsic
def exact_sums(typing: Any, a: Any, b: Any) -> Any:
    """See :func:`torchssvm.core.vectors.exact_sums`."""
    _check(a)
    _check(b)

    def terms(builder: Any, a: Any, b: Any) -> list[Any]:
        name = f"llvm.fabs.v{a.type.count}f64"
        absolute = cgutils.get_or_insert_function(builder.module, ir.FunctionType(a.type, [a.type]), name)
        return [builder.fmul(a, b, flags=_FUSED), a, builder.call(absolute, [a])]

    return _sums("exact_sums", (a, b), types.UniTuple(types.float64, 3), terms)


def _sums(name: str, kinds: tuple[Any, Any], result: Any, terms: Callable[..., list[Any]]) -> Any:
    """The sums of some terms of the numbers of two rows, in the dtype of ``result``."""
    count, dtype = (result.count, result.dtype) if isinstance(result, types.UniTuple) else (1, result)
    number = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}[dtype]
    returned = number if count == 1 else ir.ArrayType(number, count)

    def write(builder: Any, a: Array, b: Array) -> Any:
        totals = [cgutils.alloca_once_value(builder, number(0.0)) for _ in range(count)]

        def emit(lanes: int, panels: Iterator[Panel]) -> None:
            nothing = ir.Constant(ir.VectorType(number, lanes), None)
            sums = [[cgutils.alloca_once(builder, nothing.type) for _ in range(2)] for _ in range(count)]
            for rooms in sums:
                for room in rooms:
                    builder.store(nothing, room)
            for panel in panels:
                own = panel.once(panel.load(a), panel.filled(0.0, a.number))
                pairs = zip(_wide(builder, own, number), _wide(builder, panel.load(b), number), strict=True)
                for side, pair in enumerate(pairs):
                    for rooms, term in zip(sums, terms(builder, *pair), strict=True):
                        builder.store(builder.fadd(builder.load(rooms[side]), term, flags=_FUSED), rooms[side])
            for rooms, total in zip(sums, totals, strict=True):
                builder.store(sum_of(builder, builder.fadd(*map(builder.load, rooms))), total)

        by_length(builder, a.length, emit)
        if count == 1:
            return builder.load(totals[0])
        found = ir.Constant(returned, ir.Undefined)
        for place, total in enumerate(totals):
            found = builder.insert_value(found, builder.load(total), place)
        return found

    return _signed(result(*kinds), name, write, returned, flat=True)


def _signed(signature: Any, name: str, write: Callable[..., Any], result: Any = None, flat: bool = False) -> Any:
    """What an intrinsic returns: its signature and its code."""

    def generate(*intrinsic: Any) -> Any:
        return call_once(intrinsic, name, write, result, flat)

    return signature, generate


def _check(*arrays: Any) -> None:
    """Refuse, when a kernel is compiled, what is not a contiguous array, or of another dtype than the first."""
    for array in arrays:
        if not isinstance(array, types.Array) or array.layout != "C" or array.dtype != arrays[0].dtype:
            raise errors.TypingError(f"vectors take contiguous arrays of one dtype, got {arrays}")


def _numbers(out: Any, *given: Any) -> list[Any]:
    """The types of numbers for an array; None stays None."""
    return [kind if kind == types.none else out.dtype for kind in given]


def _shorter(builder: Any, a: Array, b: Array) -> Any:
    return builder.select(builder.icmp_signed("<", a.length, b.length), a.length, b.length)


def _wide(builder: Any, parts: list[Any], number: Any) -> list[Any]:
    """Vectors of a type of number that is as wide or wider."""
    kind = ir.VectorType(number, parts[0].type.count)
    return [part if part.type == kind else builder.fpext(part, kind) for part in parts]


def _larger(builder: Any, value: Any, held: Any) -> Any:
    """``value if value > held else held``, number by number."""
    return builder.select(builder.fcmp_ordered(">", value, held), value, held)
