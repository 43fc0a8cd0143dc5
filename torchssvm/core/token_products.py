"""Inner products of the tokens of an example with each other."""

from __future__ import annotations

from torch import Tensor

STORED = 256
"""The length up to which products of all pairs of tokens are made: above, they take more time than going through the
weights, and memory with the square of the length."""


def respond(x: Tensor, v: Tensor) -> Tensor:
    """``x x^T v`` of every example, ``[B, N, K]``, of features ``[B, N, F]`` and v ``[B, N, K]``."""
    if x.shape[1] > STORED:
        return x @ (x.transpose(1, 2) @ v)
    return (x @ x.transpose(1, 2)) @ v
