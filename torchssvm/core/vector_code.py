"""The operations of :mod:`.vectors` for Numba: LLVM is told the vectors and does not have to find them.

Left to itself, LLVM runs a loop over 26 states mostly one number at a time. Here a row is covered by pairs of vectors
of 1 to 16 numbers; the last pair ends where the row ends and may overlap the one before, so that rows need no padding
and nothing is read beyond them. LLVM splits the vectors where those of the machine are shorter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, errors
from numba.extending import intrinsic

_INT, _SHORT = ir.IntType(64), ir.IntType(32)
_WIDEST = 16  # numbers of a vector: two of float32 fill four registers of AVX2, or two of AVX-512
_FUSED = ("contract",)  # a product and a sum may be rounded once


@intrinsic
def add_rows(typing: Any, total: Any, rows: Any, chosen: Any, weights: Any, begin: Any, end: Any) -> Any:
    """See :func:`torchssvm.core.vectors.add_rows`."""
    _check(total, rows, *(() if weights == types.none else (weights,)))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call = _Call(context, builder, signature, arguments)
        out, table = call.array(0), call.array(1)

        def term(panel: _Panel, place: Any, sums: list[Any]) -> None:
            row = call.item(2, place) if chosen != types.none else place
            weight = call.item(3, place) if weights != types.none else None
            for part, held in zip(panel.load(table, row), sums, strict=True):
                value = part if weight is None else builder.fmul(part, panel.splat(weight), flags=_FUSED)
                builder.store(builder.fadd(builder.load(held), value, flags=_FUSED), held)

        def emit(panels: _Panels) -> None:
            with panels.each() as panel:
                sums = panel.rooms(panel.load(out)), panel.rooms(panel.filled(0.0))
                _by_turns(builder, arguments[4], arguments[5], lambda place, turn: term(panel, place, sums[turn]))
                pairs = zip(*(map(builder.load, rooms) for rooms in sums), strict=True)
                panel.store(out, panel.keep([builder.fadd(a, b) for a, b in pairs], panel.load(out)))

        _by_length(builder, out, emit)
        return context.get_dummy_value()

    return types.void(total, rows, chosen, weights, types.intp, types.intp), generate


@intrinsic
def add_to_rows(typing: Any, rows: Any, chosen: Any, weights: Any, begin: Any, end: Any, row: Any) -> Any:
    """See :func:`torchssvm.core.vectors.add_to_rows`."""
    _check(row, rows, *(() if weights == types.none else (weights,)))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call = _Call(context, builder, signature, arguments)
        table, own = call.array(0), call.array(5)

        def emit(panels: _Panels) -> None:
            with panels.each() as panel:
                added = panel.keep(panel.load(own), panel.filled(0.0))
                with cgutils.for_range_slice(builder, arguments[3], arguments[4], _INT(1)) as (place, _):
                    where = call.item(1, place) if chosen != types.none else place
                    each = added
                    if weights != types.none:
                        weight = panel.splat(call.item(2, place))
                        each = [builder.fmul(part, weight, flags=_FUSED) for part in added]
                    held = zip(panel.load(table, where), each, strict=True)
                    panel.store(table, [builder.fadd(a, b, flags=_FUSED) for a, b in held], where)

        _by_length(builder, own, emit)
        return context.get_dummy_value()

    return types.void(rows, chosen, weights, types.intp, types.intp, row), generate


@intrinsic
def max_rows(typing: Any, maxima: Any, scores: Any, rows: Any, count: Any, fresh: Any) -> Any:
    """See :func:`torchssvm.core.vectors.max_rows`."""
    _check(maxima, rows, scores)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call = _Call(context, builder, signature, arguments)
        out, table = call.array(0), call.array(2)

        def term(panel: _Panel, place: Any, best: list[Any]) -> None:
            score = panel.splat(call.item(1, place))
            for part, held in zip(panel.load(table, place), best, strict=True):
                builder.store(_larger(builder, builder.fadd(score, part), builder.load(held)), held)

        def emit(panels: _Panels) -> None:
            with panels.each() as panel:
                lowest = panel.filled(-math.inf)
                old = [builder.select(arguments[4], *pair) for pair in zip(lowest, panel.load(out), strict=True)]
                best = panel.rooms(old), panel.rooms(lowest)
                _by_turns(builder, _INT(0), arguments[3], lambda place, turn: term(panel, place, best[turn]))
                pairs = zip(*(map(builder.load, rooms) for rooms in best), strict=True)
                panel.store(out, [_larger(builder, b, a) for a, b in pairs])

        _by_length(builder, table, emit)
        return context.get_dummy_value()

    return types.void(maxima, scores, rows, types.intp, types.boolean), generate


@intrinsic
def dot(typing: Any, a: Any, b: Any) -> Any:
    """See :func:`torchssvm.core.vectors.dot`."""
    return _total((a, b), a.dtype, lambda builder, a, b: builder.fmul(a, b, flags=_FUSED))


@intrinsic
def exact_dot(typing: Any, a: Any, b: Any) -> Any:
    """See :func:`torchssvm.core.vectors.exact_dot`."""
    return _total((a, b), types.float64, lambda builder, a, b: builder.fmul(a, b, flags=_FUSED))


@intrinsic
def exact_sum(typing: Any, row: Any) -> Any:
    """See :func:`torchssvm.core.vectors.exact_sum`."""
    return _total((row,), types.float64, lambda builder, part: part)


@intrinsic
def exact_size(typing: Any, row: Any) -> Any:
    """See :func:`torchssvm.core.vectors.exact_size`."""
    return _total((row,), types.float64, lambda builder, part: builder.call(_absolute(builder, part.type), [part]))


def _total(arrays: tuple[Any, ...], dtype: Any, term: Callable[..., Any]) -> Any:
    """The sum in a dtype of a term of the vectors of several rows."""
    for array in arrays:
        _check(array, *(() if dtype == types.float64 else arrays))  # in float64, each may have its own dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call = _Call(context, builder, signature, arguments)
        rows = [call.array(place, flat=True) for place in range(len(arrays))]
        number = context.get_value_type(dtype)
        total = cgutils.alloca_once_value(builder, number(0.0))

        def emit(panels: _Panels) -> None:
            kind = panels.vector(number)
            sums = [cgutils.alloca_once_value(builder, ir.Constant(kind, None)) for _ in range(2)]
            with panels.each() as panel:
                first, *others = map(panel.load, rows)
                own = panel.keep(first, panel.filled(0.0), once=True)
                for room, *parts in zip(sums, own, *others, strict=True):
                    found = term(builder, *(_widen(builder, part, kind) for part in parts))
                    builder.store(builder.fadd(builder.load(room), found, flags=_FUSED), room)
            builder.store(_sum(builder, builder.fadd(*map(builder.load, sums))), total)

        _by_length(builder, rows[0], emit)
        return builder.load(total)

    return dtype(*arrays), generate


def _absolute(builder: Any, kind: Any) -> Any:
    """LLVM's function for the absolute values of a vector."""
    name = f"llvm.fabs.v{kind.count}f64"
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)


def _check(*arrays: Any) -> None:
    """Refuse, when a kernel is compiled, what is not a contiguous array, or of another dtype than the first."""
    for array in arrays:
        if not isinstance(array, types.Array) or array.layout != "C" or array.dtype != arrays[0].dtype:
            raise errors.TypingError(f"vectors take contiguous arrays of one dtype, got {arrays}")


class _Array(NamedTuple):
    """A contiguous array: where its numbers are, the type of a number, and the length of its last axis."""

    data: Any
    number: Any
    length: Any


class _Call:
    """The arguments of an intrinsic."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._context, self._builder, self._kinds, self._arguments = context, builder, signature.args, arguments

    def array(self, place: int, flat: bool = False) -> _Array:
        """An array; ``flat`` takes all of it as one row."""
        kind = self._kinds[place]
        view = self._context.make_array(kind)(self._context, self._builder, self._arguments[place])
        number = self._context.get_value_type(kind.dtype)
        *others, length = cgutils.unpack_tuple(self._builder, view.shape)
        for axis in others if flat else ():
            length = self._builder.mul(length, axis)
        return _Array(view.data, number, length)

    def item(self, place: int, index: Any) -> Any:
        """A number of an array of one axis; integers become 64 bits wide."""
        found = self._builder.load(self._builder.gep(self.array(place).data, [index]))
        return found if not isinstance(found.type, ir.IntType) else self._builder.sext(found, _INT)


class _Panel:
    """A pair of vectors within a row: ``lanes`` numbers from ``first`` on, and from ``second`` on.

    Numbers before ``begin`` belong to an earlier panel.
    """

    def __init__(self, builder: Any, row: _Array, lanes: int, places: tuple[Any, Any, Any]) -> None:
        self._builder, self._lanes = builder, lanes
        self._begin, *self._places = places
        self._kind = ir.VectorType(row.number, lanes)

    def load(self, array: _Array, row: Any = None) -> list[Any]:
        """Both vectors of an array, or of a row of it."""
        return [self._builder.load(address, align=1) for address in self._addresses(array, row)]

    def store(self, array: _Array, parts: list[Any], row: Any = None) -> None:
        """Write both vectors to an array, or to a row of it."""
        for address, part in zip(self._addresses(array, row), parts, strict=True):
            self._builder.store(part, address, align=1)

    def _addresses(self, array: _Array, row: Any) -> list[Any]:
        base = _INT(0) if row is None else self._builder.mul(row, array.length)
        places = (self._builder.gep(array.data, [self._builder.add(base, place)]) for place in self._places)
        kind = ir.VectorType(array.number, self._lanes)
        return [self._builder.bitcast(place, kind.as_pointer()) for place in places]

    def splat(self, number: Any) -> Any:
        """A vector that repeats a number."""
        nothing = ir.Constant(ir.VectorType(number.type, self._lanes), ir.Undefined)
        one = self._builder.insert_element(nothing, number, _SHORT(0))
        return self._builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(_SHORT, self._lanes), None))

    def filled(self, number: float) -> list[Any]:
        """Two vectors of a constant."""
        return [ir.Constant(self._kind, [number] * self._lanes)] * 2

    def rooms(self, parts: list[Any]) -> list[Any]:
        """Room for two vectors, with their first values."""
        return [cgutils.alloca_once_value(self._builder, part) for part in parts]

    def keep(self, parts: list[Any], others: list[Any], once: bool = False) -> list[Any]:
        """``parts``; ``others`` where an earlier panel has the number, or, with ``once``, the first vector."""
        begin, first = self._begin, self._builder.add(self._places[0], _INT(self._lanes))
        starts = [begin, _largest(self._builder, begin, first) if once else begin]
        lanes = ir.Constant(ir.VectorType(_INT, self._lanes), list(range(self._lanes)))
        found = []
        for part, other, place, start in zip(parts, others, self._places, starts, strict=True):
            own = self._builder.icmp_signed(">=", lanes, self.splat(self._builder.sub(start, place)))
            found.append(self._builder.select(own, part, other))
        return found


class _Panels:
    """The panels of a row, with vectors of ``lanes`` numbers."""

    def __init__(self, builder: Any, row: _Array, lanes: int) -> None:
        self._builder, self._row, self._lanes = builder, row, lanes

    def vector(self, number: Any) -> Any:
        """The type of a vector."""
        return ir.VectorType(number, self._lanes)

    @contextmanager
    def each(self) -> Iterator[_Panel]:
        """What is written inside is run for each panel: one, or several of the widest."""
        builder, length, lanes = self._builder, self._row.length, self._lanes
        end = builder.sub(length, _INT(lanes))
        if lanes < _WIDEST:
            yield _Panel(builder, self._row, lanes, (_INT(0), _INT(0), end))
            return
        last = _largest(builder, builder.sub(end, _INT(lanes)), _INT(0))
        with cgutils.for_range_slice(builder, _INT(0), length, _INT(2 * lanes)) as (begin, _):
            places = begin, builder.add(begin, _INT(lanes))
            first, second = (_smallest(builder, p, most) for p, most in zip(places, (last, end), strict=True))
            yield _Panel(builder, self._row, lanes, (begin, first, second))


def _by_length(builder: Any, row: _Array, emit: Callable[[_Panels], None]) -> None:
    """Write the code of ``emit`` once for each width of vectors; the widest that fits twice is run, or the widest."""
    lanes = _WIDEST
    while lanes:
        fits = builder.icmp_signed(">" if lanes > 1 else ">=", row.length, _INT(lanes))
        if lanes < _WIDEST:
            fits = builder.and_(fits, builder.icmp_signed("<=", row.length, _INT(2 * lanes)))
        with builder.if_then(fits):
            emit(_Panels(builder, row, lanes))
        lanes //= 2


def _widen(builder: Any, part: Any, kind: Any) -> Any:
    """A vector of another type of number."""
    return part if part.type == kind else builder.fpext(part, kind)


def _sum(builder: Any, part: Any) -> Any:
    """The sum of the numbers of a vector, by halves."""
    width = part.type.count
    while width > 1:
        width //= 2
        halves = (ir.Constant(ir.VectorType(_SHORT, width), list(range(at, at + width))) for at in (0, width))
        part = builder.fadd(*(builder.shuffle_vector(part, part, half) for half in halves))
    return builder.extract_element(part, _SHORT(0))


def _by_turns(builder: Any, begin: Any, end: Any, emit: Callable[[Any, int], None]) -> None:
    """Write the code of ``emit`` for the places from ``begin`` on, with 0 and 1 by turns: two sums run side by side."""
    pairs = builder.and_(builder.sub(end, begin), _INT(-2))
    middle = builder.add(begin, _largest(builder, pairs, _INT(0)))
    with cgutils.for_range_slice(builder, begin, middle, _INT(2)) as (place, _):
        emit(place, 0)
        emit(builder.add(place, _INT(1)), 1)
    with builder.if_then(builder.icmp_signed("<", middle, end)):
        emit(middle, 0)


def _larger(builder: Any, value: Any, held: Any) -> Any:
    """``value if value > held else held``, number by number."""
    return builder.select(builder.fcmp_ordered(">", value, held), value, held)


def _largest(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def _smallest(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)
