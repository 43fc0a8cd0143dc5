"""The operations of :mod:`.vectors` on several rows, for Numba; see :mod:`.vector_code`.

One call for all tokens of a sequence: a call for each of them took as long as what it did.
"""

from __future__ import annotations

from contextlib import contextmanager

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from torchssvm.core.vector_panels import FUSED, INT, by_length, by_turns, check, numbers, shorter, signed


@intrinsic
def add_rows(typing, total, rows, chosen, weights, begin, end):
    """See :func:`torchssvm.core.vectors.add_rows`."""
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
    """See :func:`torchssvm.core.vectors.add_to_rows`."""
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
    """See :func:`torchssvm.core.vectors.set_rows`."""
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
    """See :func:`torchssvm.core.vectors.add_each`."""
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
    """See :func:`torchssvm.core.vectors.sum_listed`."""
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
    """See :func:`torchssvm.core.vectors.add_to_listed`."""
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
