"""Memory prefetching for Numba.

Blocks are visited in random order, so the data of the next block is not in the cache; fetching it during the current
visit hides the latency.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from torchssvm.core.jit import njit

_LINE = 64  # bytes


@intrinsic
def _fetch(typing_context: Any, array: Any, position: Any) -> Any:
    """Fetch the cache line of ``array[position]`` of a contiguous 1-D array; safe beyond the array's end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        pointer = cgutils.get_item_pointer(context, builder, kind, view, [arguments[1]], wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, word, word, word]), "llvm.prefetch.p0"
        )
        # arguments: read access, all cache levels, data cache
        builder.call(hint, [builder.bitcast(pointer, byte), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, position), generate


@njit
def fetch(array, begin, end):
    """Fetch ``array[begin:end]`` of a 1-D array."""
    stride = _LINE // array.itemsize
    for position in range(begin, end, stride):
        _fetch(array, position)  # type: ignore[call-arg]
    if end > begin:
        _fetch(array, end - 1)  # type: ignore[call-arg]


@njit
def fetch_block(i, examples, arcs, blocks):
    """Fetch the data that a visit of block i reads."""
    start, end = examples.start[i], examples.start[i + 1]
    if arcs is not None:
        fetch(arcs.known, arcs.known_start[i], arcs.known_start[i + 1])
    elif examples.dense:
        for t in range(start, end):
            fetch(examples.x[t], 0, examples.x.shape[1])
    else:
        fetch(examples.value, examples.row[start], examples.row[end])
        fetch(examples.column, examples.row[start], examples.row[end])
    fetch(examples.y, start, end)
    fetch(examples.cost, start, end)
    fetch(examples.added, start, end)
    place, length = examples.inner_start[i], end - start
    fetch(examples.inner, place, place + length * (length + 1) // 2)
    count = blocks.count[i]
    for c in range(count):
        fetch(blocks.labelings[i, c], 0, length)
        if len(blocks.gram) > 1:
            fetch(blocks.gram[i, c], 0, count)
    fetch(blocks.mass[i], 0, count)
    fetch(blocks.loss[i], 0, count)
    fetch(blocks.used[i], 0, count)
    if blocks.rest_emission_start[i] > 0 and blocks.mixed[i]:
        begin = blocks.rest_emission_start[i]
        for t in range(begin, begin + length):
            fetch(blocks.rest_emission[t], 0, blocks.rest_emission.shape[1])
        pairs = blocks.rest_transition[blocks.rest_transition_start[i]]
        fetch(pairs.reshape(pairs.size), 0, pairs.size)
