"""What the linear head of chains does token by token on a CPU, compiled by Numba."""

from __future__ import annotations

from typing import Any

from torchssvm.core.jit import compiled


@compiled
def add_everywhere(emission: Any, last: Any, bias: Any, at_first: Any, at_last: Any) -> None:
    """``(row + [t last] at_last) + (bias + [t first] at_first)`` for every row ``[K]`` of ``emission [B, N, K]``.

    In this order: the compiled loop rounds in the same way, so that both decide ties alike.
    """
    batch, longest, states = emission.shape
    for b in range(batch):
        for k in range(states):
            emission[b, last[b], k] += at_last[k]
            emission[b, 0, k] += bias[k] + at_first[k]
        for t in range(1, longest):
            row = emission[b, t]
            for k in range(states):
                row[k] += bias[k]


@compiled
def sum_everywhere(parts: Any, last: Any, sums: Any) -> None:
    """The adjoint: sums ``[3, B, K]`` over all tokens, the first and the last one."""
    batch, longest, states = parts.shape
    for b in range(batch):
        for k in range(states):
            sums[0, b, k] = 0.0
            sums[1, b, k] = parts[b, 0, k]
            sums[2, b, k] = parts[b, last[b], k]
        for t in range(longest):
            for k in range(states):
                sums[0, b, k] += parts[b, t, k]
