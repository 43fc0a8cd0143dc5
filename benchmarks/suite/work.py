"""How much work the OCR model is: operations and bytes of a step and of an exact pass, by formula.

T is a word's length, nz the number of its pixels that are not zero (F T where features are dense, the bias and the
boundaries among them), K = 26 states. A multiply-add is two operations. What is counted is what the algorithm needs,
not what some program does.
"""

from __future__ import annotations

from typing import NamedTuple

FLOAT = 4  # bytes of a weight or of a potential


class Work(NamedTuple):
    """Operations of multiply-adds and of max-plus, and bytes that come from beyond the caches or go there."""

    multiply_add: float
    max_plus: float
    traffic: float

    def __add__(self, other: object) -> Work:
        if not isinstance(other, Work):
            return NotImplemented
        return Work(*(one + two for one, two in zip(self, other, strict=True)))

    def times(self, factor: float) -> Work:
        """So many of it."""
        return Work(*(factor * one for one in self))


class Shape(NamedTuple):
    """Sums over the training set: examples, tokens, squared lengths, nonzero features; and F, K."""

    examples: int
    tokens: int
    squares: int
    nonzeros: int
    features: int
    states: int

    @property
    def dense(self) -> Shape:
        """The same with every feature nonzero."""
        return self._replace(nonzeros=self.tokens * self.features)


FORMULAS = {
    "potentials": "2 nz K",
    "Viterbi": "2 (T - 1) K^2 max-plus, 2 T K for the losses, 2 (T - 1) K back",
    "scores of the block": "4 T",
    "length of the direction": "3 T (T + 1) + 4 T",
    "weights": "2 nz' K', with nz' nonzeros of the tokens that change and K' = 2 states each: 4 nz at most",
    "bytes": "8 nz (value and column; 4 where dense) + 17 T (label, cost, row) + 2 T for the labelings + 40",
}


def potentials(shape: Shape) -> Work:
    """``x W`` and the features' way from the memory."""
    each = FLOAT if shape.nonzeros == shape.tokens * shape.features else 2 * FLOAT
    traffic = each * shape.nonzeros + 17.0 * shape.tokens
    return Work(2.0 * shape.nonzeros * shape.states, 0.0, traffic)


def viterbi(shape: Shape) -> Work:
    """Loss-augmented decoding; prefixes and weights stay in the cache."""
    steps = shape.tokens - shape.examples
    forward = 2.0 * steps * shape.states**2 + 2.0 * shape.tokens * shape.states
    return Work(0.0, forward + 2.0 * steps * shape.states, 0.0)


def step(shape: Shape) -> Work:
    """As many steps as there are examples: a corner, its gap, the exact step, the new weights.

    A corner and the point of the block differ in a few states of each token: the direction is at least that sparse.
    """
    block = 4.0 * shape.tokens + 3.0 * (shape.squares + shape.tokens) + 4.0 * shape.tokens
    weights = 4.0 * shape.nonzeros
    blocks = 2.0 * shape.tokens + 40.0 * shape.examples  # labelings, losses, gaps
    return potentials(shape) + viterbi(shape) + Work(block + weights, 0.0, blocks)


def exact_pass(shape: Shape) -> Work:
    """Every corner, the scores of every block, and w(alpha) again from the blocks."""
    block = 4.0 * shape.tokens + 4.0 * shape.nonzeros
    return potentials(shape) + viterbi(shape) + Work(block, 0.0, 2.0 * shape.tokens + 40.0 * shape.examples)
