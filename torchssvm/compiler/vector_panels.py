"""Vector code for rows of any length: the frame in which :mod:`.vector_code` writes its operations.

A row is covered by pairs of vectors of 1 to 16 numbers; the last pair ends where the row ends and may overlap what is
before it, so that rows need no padding and nothing is read beyond them. LLVM splits vectors that the
machine does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, errors

INT, SHORT = ir.IntType(64), ir.IntType(32)
FUSED = ("contract",)  # a product and a sum may be rounded once
LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
WIDEST = 16  # numbers of a vector: two of float32 fill four registers of AVX2, or two of AVX-512


class Array(NamedTuple):
    """A contiguous array: where its numbers are, the type of a number, and the length of its last axis."""

    data: Any
    number: Any
    length: Any

    def at(self, builder: Any, index: Any) -> Any:
        """A number of an array of one axis; integers become 64 bits wide."""
        number = builder.load(builder.gep(self.data, [index]))
        return builder.sext(number, INT) if isinstance(number.type, ir.IntType) else number


def call_once(intrinsic: Any, name: str, write: Callable[..., Any], result: Any = None, flat: bool = False) -> Any:
    """Call the function of this name, which the module has once for all calls with arguments of the same types.

    Args:
        intrinsic: What Numba hands to the code of an intrinsic: context, builder, signature and arguments.
        write: ``write(builder, *operands)`` writes the code and returns the result's value; an operand is an
            ``Array``, a value, or None for None.
        result: Its type; None returns nothing.
        flat: Whether an array of several axes is taken as one row.
    """
    context, builder, signature, arguments = intrinsic
    values, shapes, names = [], [], [f"torchssvm.{name}"]
    for kind, argument in zip(signature.args, arguments, strict=True):
        names.append(str(getattr(kind, "dtype", kind)))
        if isinstance(kind, types.Array):
            view = context.make_array(kind)(context, builder, argument)
            *others, length = cgutils.unpack_tuple(builder, view.shape)
            for axis in others if flat else ():
                length = builder.mul(length, axis)
            values += [view.data, length]
            shapes.append(context.get_value_type(kind.dtype))
        elif kind != types.none:
            values.append(argument)
            shapes.append(1)
        else:
            shapes.append(0)
    returned = ir.VoidType() if result is None else result
    of_values = ir.FunctionType(returned, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, of_values, ".".join(names))
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        inner = ir.IRBuilder(function.append_basic_block())
        given = iter(function.args)
        operands = [
            None if shape == 0 else next(given) if shape == 1 else Array(next(given), shape, next(given))
            for shape in shapes
        ]
        value = write(inner, *operands)
        if result is None:
            inner.ret_void()
        else:
            inner.ret(value)
    value = builder.call(function, values)
    return context.get_dummy_value() if result is None else value


class Panel:
    """A pair of vectors within a row: ``lanes`` numbers from the first of ``places`` on, and from the second on.

    Numbers before ``seen`` belong to earlier panels, if any. ``whole``: the vectors overlap neither each other nor
    these.
    """

    def __init__(self, builder: Any, lanes: int, places: tuple[Any, Any], seen: Any, whole: bool) -> None:
        self._builder, self.lanes, self._places, self._seen, self._whole = builder, lanes, places, seen, whole

    def load(self, array: Array, row: Any = None) -> list[Any]:
        """Both vectors of an array, or of a row of it."""
        return [self._builder.load(address, align=1) for address in self._addresses(array, row)]

    def store(self, array: Array, parts: list[Any], row: Any = None) -> None:
        """Write both vectors to an array, or to a row of it."""
        for address, part in zip(self._addresses(array, row), parts, strict=True):
            self._builder.store(part, address, align=1)

    def _addresses(self, array: Array, row: Any) -> list[Any]:
        base = INT(0) if row is None else self._builder.mul(row, array.length)
        places = (self._builder.gep(array.data, [self._builder.add(base, place)]) for place in self._places)
        kind = ir.VectorType(array.number, self.lanes)
        return [self._builder.bitcast(place, kind.as_pointer()) for place in places]

    def column(self, array: Array, column: Any) -> list[Any]:
        """The numbers of a column of an array, in the rows of both vectors."""
        kind, parts = ir.VectorType(array.number, self.lanes), []
        steps = [self._builder.mul(INT(lane), array.length) for lane in range(self.lanes)]
        for place in self._places:
            # Each address is two steps from the column, which may be known last.
            part, top = ir.Constant(kind, ir.Undefined), self._builder.mul(place, array.length)
            first = self._builder.gep(self._builder.gep(array.data, [top]), [column])
            for lane, step in enumerate(steps):
                number = self._builder.load(self._builder.gep(first, [step]))
                part = self._builder.insert_element(part, number, SHORT(lane))
            parts.append(part)
        return parts

    def first_true(self, truths: list[Any]) -> tuple[Any, Any]:
        """The first place where one of two vectors is true, and whether there is one."""
        bits = []
        for truth in truths:
            number = self._builder.bitcast(truth, ir.IntType(self.lanes))
            bits.append(self._builder.zext(number, INT))
        apart = self._builder.sub(self._places[1], self._places[0])
        every = self._builder.or_(bits[0], self._builder.shl(bits[1], apart))
        place = self._builder.add(self._places[0], self._builder.cttz(every, ir.IntType(1)(0)))
        return place, self._builder.icmp_unsigned("!=", every, INT(0))

    def splat(self, number: Any) -> Any:
        """A vector that repeats a number."""
        nothing = ir.Constant(ir.VectorType(number.type, self.lanes), ir.Undefined)
        one = self._builder.insert_element(nothing, number, SHORT(0))
        return self._builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(SHORT, self.lanes), None))

    def filled(self, number: float, kind: Any) -> list[Any]:
        """Two vectors of a constant of a type."""
        return [ir.Constant(ir.VectorType(kind, self.lanes), [number] * self.lanes)] * 2

    def rooms(self, parts: list[Any]) -> list[Any]:
        """Room for two vectors, with their first values."""
        return [cgutils.alloca_once_value(self._builder, part) for part in parts]

    def fresh(self, parts: list[Any], others: list[Any]) -> list[Any]:
        """``parts``; ``others`` where an earlier panel has the number."""
        if self._seen is None:
            return parts
        starts = (self._builder.sub(self._seen, place) for place in self._places)
        return [self._from(start, *pair) for start, *pair in zip(starts, parts, others, strict=True)]

    def once(self, parts: list[Any], others: list[Any]) -> list[Any]:
        """:meth:`fresh`; ``others`` also where the second vector repeats a number of the first."""
        if self._whole or self._seen is not None:
            return self.fresh(parts, others)
        start = self._builder.sub(INT(self.lanes), self._places[1])
        return [parts[0], self._from(start, parts[1], others[1])]

    def first(self) -> Any:
        """Whether no earlier panel was seen."""
        return self._builder.icmp_signed("==", self._places[0], INT(0))

    def _from(self, start: Any, part: Any, other: Any) -> Any:
        """``part`` from a lane on, ``other`` before."""
        lanes = ir.Constant(ir.VectorType(SHORT, self.lanes), list(range(self.lanes)))
        fresh = self._builder.icmp_signed(">=", lanes, self.splat(self._builder.trunc(start, SHORT)))
        return self._builder.select(fresh, part, other)


def by_length(builder: Any, length: Any, emit: Callable[[int, Iterator[Panel]], None]) -> None:
    """Write the code of ``emit(lanes, panels)`` for rows of every length: one pair of vectors up to 32, else many.

    The code that ``emit`` writes for each of the ``panels`` is run for it.
    """
    _one_pair(builder, length, emit, WIDEST)


def _one_pair(builder: Any, length: Any, emit: Callable[[int, Iterator[Panel]], None], lanes: int) -> None:
    """The code for one pair of vectors of ``lanes`` where the row fits, else for others."""
    least = lanes + 1 if lanes > 1 else 1
    fits = builder.icmp_unsigned("<", builder.sub(length, INT(least)), INT(2 * lanes + 1 - least))
    with builder.if_else(fits) as (then, otherwise):
        with then:
            emit(lanes, iter([Panel(builder, lanes, (INT(0), builder.sub(length, INT(lanes))), None, False)]))
        with otherwise:
            if lanes > 1:
                _one_pair(builder, length, emit, lanes // 2)
            else:
                with builder.if_then(builder.icmp_signed(">", length, INT(0))):
                    emit(WIDEST, _many_pairs(builder, length))


def _many_pairs(builder: Any, length: Any) -> Iterator[Panel]:
    """Pairs one after another; the last one ends where the row ends."""
    end = builder.and_(length, INT(-2 * WIDEST))
    with cgutils.for_range_slice(builder, INT(0), end, INT(2 * WIDEST)) as (begin, _):
        yield Panel(builder, WIDEST, (begin, builder.add(begin, INT(WIDEST))), None, True)
    with builder.if_then(builder.icmp_signed("<", end, length)):
        places = builder.sub(length, INT(2 * WIDEST)), builder.sub(length, INT(WIDEST))
        yield Panel(builder, WIDEST, places, end, False)


def by_turns(builder: Any, begin: Any, end: Any) -> Iterator[tuple[Any, int]]:
    """Places from ``begin`` on, with 0 and 1 by turns, so that two sums run side by side: the code written for them."""
    pairs = builder.and_(builder.sub(end, begin), INT(-2))
    middle = builder.add(begin, builder.select(builder.icmp_signed(">", pairs, INT(0)), pairs, INT(0)))
    with cgutils.for_range_slice(builder, begin, middle, INT(2)) as (place, _):
        yield place, 0
        yield builder.add(place, INT(1)), 1
    with builder.if_then(builder.icmp_signed("<", middle, end)):
        yield middle, 0


def sum_of(builder: Any, part: Any) -> Any:
    """The sum of the numbers of a vector, by halves."""
    return folded(builder, part, builder.fadd)


def folded(builder: Any, part: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """The numbers of a vector combined to one, by halves."""
    width = part.type.count
    while width > 1:
        width //= 2
        halves = (ir.Constant(ir.VectorType(SHORT, width), list(range(at, at + width))) for at in (0, width))
        part = combine(*(builder.shuffle_vector(part, part, half) for half in halves))
    return builder.extract_element(part, SHORT(0))


def signed(signature: Any, name: str, write: Callable[..., Any], result: Any = None, flat: bool = False) -> Any:
    """What an intrinsic returns: its signature and its code."""

    def generate(*intrinsic: Any) -> Any:
        return call_once(intrinsic, name, write, result, flat)

    return signature, generate


def check(*arrays: Any) -> None:
    """Refuse, when a kernel is compiled, what is not a contiguous array, or of another dtype than the first."""
    for array in arrays:
        if not isinstance(array, types.Array) or array.layout != "C" or array.dtype != arrays[0].dtype:
            raise errors.TypingError(f"vectors take contiguous arrays of one dtype, got {arrays}")


def numbers(out: Any, *given: Any) -> list[Any]:
    """The types of numbers for an array; None stays None."""
    return [kind if kind == types.none else out.dtype for kind in given]


def shorter(builder: Any, a: Array, b: Array) -> Any:
    """The length of the shorter rows."""
    return builder.select(builder.icmp_signed("<", a.length, b.length), a.length, b.length)


def wide(builder: Any, parts: list[Any], number: Any) -> list[Any]:
    """Vectors of a type of number that is as wide or wider."""
    kind = ir.VectorType(number, parts[0].type.count)
    return [part if part.type == kind else builder.fpext(part, kind) for part in parts]
