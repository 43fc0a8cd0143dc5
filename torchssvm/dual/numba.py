"""Which slot of an active set a new labeling takes, compiled by Numba: for both loops."""

from __future__ import annotations

from torchssvm.core.jit import njit


@njit
def victim(count, mass, used):
    """A free slot of ``[C]``, or the least recent without mass, or the one with the least mass."""
    if count < len(mass):
        return count
    slot = 0
    for c in range(1, len(mass)):
        held, least = mass[c], mass[slot]
        if held == 0.0:
            if least > 0.0 or used[c] < used[slot]:
                slot = c
        elif least > 0.0 and held < least:
            slot = c
    return slot


@njit
def victims(count, mass, used, slots):
    """:func:`victim` for the examples of a batch, ``[B]`` and ``[B, C]``, written to ``slots`` ``[B]``."""
    for b in range(len(slots)):
        slots[b] = victim(count[b], mass[b], used[b])
