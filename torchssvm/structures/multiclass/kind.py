"""Classes for the compiled loop: sequences of one token.

The psi of a class block is ``e_y`` less the masses of all classes. The best masses for given scores are a projection on
the simplex: the sequential dual method of Keerthi et al. (2008), "A sequential dual method for large scale multi-class
linear SVMs".
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import ByKind, njit, njit_fastmath
from torchssvm.compiler.vectors import add_row, add_rows, add_to_rows, set_row
from torchssvm.core.batch import Batch
from torchssvm.core.potentials import SINGLE, Potentials
from torchssvm.core.sparse_features import SparseFeatures, one_token
from torchssvm.kinds import block
from torchssvm.kinds.adapter import Extra, Reading, rows_of_examples
from torchssvm.kinds.examples import Dense, Examples, Listed, squares_of_rows
from torchssvm.structures.chain import kind as sequences
from torchssvm.structures.chain.kind import SequenceAdapter

# What classes have beside ``Examples``: see :class:`~torchssvm.structures.chain.kind.Sequences`
Classes = namedtuple("Classes", "cost_matrix allowed")


for _name in ("list_parts", "decode", "loss_of", "add_labeling"):
    getattr(block, _name).of(Classes)(getattr(sequences, _name))


@block.potentials.of(Classes)
@njit_fastmath
def potentials(kind, examples, model, i, scratch):
    set_row(scratch.emission[0], model.bias, None, None)
    add_scores(examples.form, examples, model, i, scratch.emission[0])
    return False


@ByKind
def add_scores(form, examples, model, i, row):
    """``row += x_i W``."""


@add_scores.of(Dense)
@njit_fastmath
def add_scores_of_dense(form, examples, model, i, row):
    add_rows(row, model.emission, None, examples.x[i], 0, examples.x.shape[1])


@add_scores.of(Listed)
@njit_fastmath
def add_scores_of_lists(form, examples, model, i, row):
    add_rows(row, model.emission, examples.column, form.values, examples.row[i], examples.row[i + 1])


@block.add_to_weights.of(Classes)
@njit_fastmath
def add_to_weights(kind, examples, model, i, length, delta, pairs, rows, scratch, factor):
    move_weights(examples.form, examples, model, i, delta[0], factor)
    if model.has_bias:
        add_row(model.bias, delta[0], factor)


@ByKind
def move_weights(form, examples, model, i, delta, factor):
    """``W += factor x_i delta^T``."""


@move_weights.of(Dense)
@njit_fastmath
def move_weights_of_dense(form, examples, model, i, delta, factor):
    add_to_rows(model.emission, None, examples.x[i], 0, examples.x.shape[1], delta, factor)


@move_weights.of(Listed)
@njit_fastmath
def move_weights_of_lists(form, examples, model, i, delta, factor):
    add_to_rows(model.emission, examples.column, form.values, examples.row[i], examples.row[i + 1], delta, factor)


@njit
def cost_of(kind, examples, i, k):
    """The cost of class k for example i."""
    target = examples.y[i]
    if k == target:
        return 0.0
    return examples.cost[i] * kind.cost_matrix[target, k] if len(kind.cost_matrix) else examples.cost[i]


@block.solve_block.of(Classes)
@njit_fastmath
def solve_block(kind, examples, i, length, psi, curvature, scratch):
    scores, old, moved, new, delta = (
        scratch.emission[0],
        psi[0],
        scratch.response[0],
        scratch.into[0],
        scratch.delta[0],
    )
    target, base, top, best, mean = examples.y[i], np.float64(scores[examples.y[i]]), -np.inf, -np.inf, 0.0
    for k in range(len(old)):
        hinge = cost_of(kind, examples, i, k) + (scores[k] - base)
        mass = (1.0 if k == target else 0.0) - old[k]
        mean += mass * hinge
        best = max(best, hinge)
        moved[k] = curvature * mass + hinge
        top = max(top, moved[k])
    # The level t with sum_k max(moved_k - t, 0) = curvature, by Newton's method from below, which ends after few steps.
    level, above, total = top - curvature, len(old) + 1, 0.0
    for _ in range(len(old) + 1):
        count, total = 0, 0.0
        for k in range(len(old)):  # without a branch, which would be mispredicted
            is_above = moved[k] > level
            count += is_above
            total += moved[k] if is_above else 0.0
        if count >= above or count == 0:  # fewer and fewer are above it, but for rounding
            above = min(above, count)
            break
        above = count
        level = (total - curvature) / count
    total = 0.0
    for k in range(len(old)):
        moved[k] = (moved[k] == top) if above == 0 else max(moved[k] - level, 0.0)
        total += moved[k]
    value, square, loss_change, others = 0.0, 0.0, 0.0, 0.0
    for k in range(len(old)):
        new[k] = 0.0 if k == target else -moved[k] / total
        others -= new[k]
    new[target] = others  # what the others have, after their rounding
    for k in range(len(old)):
        change = old[k] - new[k]
        delta[k] = change
        cost = cost_of(kind, examples, i, k)
        value += change * (cost + (scores[k] - base))
        loss_change += change * cost
        square += np.float64(change) * change
    return best - mean, value, square, loss_change


@block.examine_block.of(Classes)
@njit_fastmath
def examine_block(kind, examples, i, length, psi, scratch):
    scores, old = scratch.emission[0], psi[0]
    base, hinge, inner, told, size, absolute = np.float64(scores[examples.y[i]]), -np.inf, 0.0, 0.0, 0.0, 0.0
    for k in range(min(len(old), scratch.response.shape[1])):
        cost, part = cost_of(kind, examples, i, k), np.float64(old[k])
        hinge = max(hinge, cost + (scores[k] - base))
        inner += part * scores[k]
        told -= part * cost
        size += abs(part) * cost
        absolute += abs(part)
    return hinge, inner, told, size, absolute


class MulticlassAdapter(SequenceAdapter):
    """:class:`LinearMulticlass`: a sequence of one token, without pairs."""

    emission, ragged = SINGLE, False

    def cost_matrix(self) -> Tensor:
        """The structure's; empty for the zero-one loss."""
        cost = self.structure.cost.cpu()  # type: ignore[attr-defined]
        if torch.equal(cost, 1.0 - torch.eye(len(cost), dtype=cost.dtype)):
            return super().cost_matrix()
        return cost

    @override
    def read(self, x: Any, target: Tensor, potentials: Potentials) -> Reading:
        ones = torch.ones_like(target)
        return Reading(target, ones.double(), ones, rows_of_examples(self.weights, x))

    @override
    def apply(self, batch: Batch) -> Any:
        if not isinstance(batch.x, SparseFeatures):
            return super().apply(batch)
        return self.weights.emission.detach().new_zeros(len(one_token(batch.x).columns), self.num_states)

    @override
    def as_sequences(self, labelings: Tensor) -> Tensor:
        return labelings.unsqueeze(2)

    @override
    def longest_labeling(self, longest: int) -> Tensor:
        return torch.full((1,), self.num_states - 1)

    @override
    def whole(self) -> MulticlassAdapter:
        return WholeClasses(self.head)


class WholeClasses(MulticlassAdapter):
    """Classes whose blocks are solved whole."""

    @override
    def kind(self, *_: Any) -> Any:
        return Classes(self.cost_matrix().numpy(), self.allowed().numpy())

    @override
    def complete(self, examples: Examples, extra: Extra) -> Examples:
        examples.inner[:] = squares_of_rows(examples, np.float64) + self.weights.has_bias
        return examples._replace(kind=self.kind())
