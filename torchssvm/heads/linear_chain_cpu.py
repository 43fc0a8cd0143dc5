"""What the linear head of chains does token by token on a CPU, compiled by Numba."""

from __future__ import annotations

from typing import Any

from torchssvm.oracles.compiled import compiled


@compiled
def add_everywhere(emission: Any, last: Any, bias: Any, at_first: Any, at_last: Any) -> None:
    """Add ``bias [K]`` to every token ``[B, N, K]``, and the two others to the first and the last of each example."""
    batch, longest, states = emission.shape
    for b in range(batch):
        for t in range(longest):
            row = emission[b, t]
            for k in range(states):
                row[k] += bias[k]
        for k in range(states):
            emission[b, 0, k] += at_first[k]
            emission[b, last[b], k] += at_last[k]


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
