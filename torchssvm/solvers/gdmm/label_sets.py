"""Label sets in GDMM: labels are binary variables, and every pair of labels is a factor with one weight.

Names and signs are as in ``label_set_pass``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit
from torchssvm.core.batch import Batch
from torchssvm.core.potentials import Parts
from torchssvm.dual.state import DualState
from torchssvm.solvers.compiled.packing import pack
from torchssvm.solvers.gdmm.blocks import Options
from torchssvm.solvers.gdmm.label_set_means import choose_means
from torchssvm.solvers.gdmm.label_set_pass import SetDuals, make_set_scratch, visit_label_sets
from torchssvm.solvers.gdmm.pairs import make_pairs
from torchssvm.solvers.gdmm.problem import DualPoint, Hinges, Problem, Rounded
from torchssvm.solvers.gdmm.ragged import Ragged, empty, repacked
from torchssvm.solvers.gdmm.rules import BruteForce, ResidualBalancing, SortedOracle
from torchssvm.solvers.gdmm.sorted_entries import change
from torchssvm.solvers.gdmm.training_set import make_training_set, score_row, squares_of
from torchssvm.structures.multilabel.head import LinearMultilabel, SparseLinearMultilabel
from torchssvm.structures.multilabel.oracle import best_label_sets, symmetric
from torchssvm.structures.multilabel.structure import Multilabel

_PORTION = 1024  # examples decoded at a time
_EXPLORE = 10  # every so many passes, a factor is added to every example
_MESSAGES = 200  # rounds of message passing, for the bounds of the relaxation in certificates
_EXTRA = 32  # new factors of an example in a pass, beyond half of its current ones


class LabelSetProblem(Problem, heads=(LinearMultilabel, SparseLinearMultilabel)):
    """GDMM's state for a :class:`LinearMultilabel` or :class:`SparseLinearMultilabel` with pairs and fixed features.

    A sorted oracle walks the pairs in descending order of weights.
    """

    structure = Multilabel
    kind = "label sets"
    matrix, rows, table = "unary", ("bias",), "pairwise"
    has_relaxation = True
    default_rule = ResidualBalancing

    def __init__(
        self, head: Any, dual: DualState, batches: Iterable[Batch], oracle: SortedOracle | BruteForce | None
    ) -> None:
        self.head = head
        self.dual = dual
        self.num_labels: int = self.head.structure.num_labels
        self.num_features = self.head.in_features
        from torchssvm.structures.multilabel.kind import LabelSetAdapter

        examples, piece = pack(LabelSetAdapter(head, 0, 0), dual, batches)
        self.targets = piece.targets
        rows = make_training_set(examples, self.num_features, head.bias is not None, False)
        y = examples.y.reshape(dual.num_examples, self.num_labels).astype(bool)
        square = np.add.reduceat(np.append(squares_of(rows.value), 0.0), rows.row[:-1]) * (np.diff(rows.row) > 0)
        self.data = rows._replace(y=y, cost=self.head.structure.costs.numpy().copy(), square=square)
        self.weights = np.zeros((self.num_features + 1, self.num_labels), rows.value.dtype)
        self.pairs = make_pairs(self.num_labels, ordered=isinstance(oracle, SortedOracle), symmetric=True)
        factors = empty(dual.num_examples, (3,), (2,))
        self.duals = SetDuals(y.astype(np.float64), np.zeros(self.num_labels), _with_room(factors))
        self.default_penalty = float(self.data.cost.mean()) / 3.0

    @classmethod
    def check_head(cls, head: Any) -> None:
        """Raise TypeError for a head without interactions."""
        if head.pairwise is None:
            raise TypeError(f"head={head} has no interactions: make it with pairwise=True, or train it with BCFW")
        if head.structure.pairs is not None:
            raise TypeError(f"head={head} has chosen pairs: use Multilabel without pairs, or train it with BCFW")

    @property
    def num_sides(self) -> int:  # type: ignore[override]
        """Number of sides of the factors that were made."""
        return 2 * int(self.duals.factors.size.sum())

    @override
    def begin(self, order: np.ndarray, greedy: bool) -> tuple[Any, int]:
        largest = int(np.diff(self.duals.factors.start).max())
        return make_set_scratch(self.num_labels, largest), largest

    @override
    def visit_some(self, order: np.ndarray, done: int, passes: int, options: Options, scratch: Any) -> int:
        explore = (passes + 1) % _EXPLORE == 0
        data, pairs, duals = map(self.in_memory, ("data", "pairs", "duals"))
        return int(visit_label_sets(order, done, data, self.weights, pairs, duals, options, explore, scratch))

    @override
    def update_multipliers(self, step: float) -> np.ndarray:
        totals = np.zeros(5)
        update_multipliers(self.in_memory("duals"), step, totals)
        self._sum_gains()
        self.duals = self.duals._replace(factors=_with_room(self.duals.factors))
        return totals

    @override
    def current_weights(self) -> list[Tensor]:
        return self._as_parameters(torch.from_numpy(self.pairs.dense[np.triu_indices(self.num_labels, 1)]))

    def refresh(self) -> float:
        """Recompute the weights in float64."""
        scale = self.dual.lam * self.dual.num_examples
        total, pairs = np.zeros(self.weights.shape), np.zeros(self.pairs.dense.shape)
        sum_features(self.data, self.duals.q, scale, total)
        sum_factors(self.data, self.duals.factors, scale, pairs)
        pairs += pairs.T
        drift = np.square(total - self.weights).sum() + np.square(pairs - self.pairs.dense).sum() / 2
        self.weights[:], self.pairs.dense[:] = total, pairs
        self._sum_gains()
        entries = self.pairs.entries
        for number in range(int(entries.counters[0])):
            change(entries, number, pairs[entries.row[number], entries.col[number]])
        return float(drift) ** 0.5

    def rounded(self) -> Rounded:
        """Two points with the current labels: a mean of label sets, and the nearest consistent pairs."""
        n, size = self.dual.num_examples, self.num_labels
        scale = self.dual.lam * n
        total, pairs = np.zeros(self.weights.shape), np.zeros((size, size))
        loss = sum_features(self.data, self.duals.q, scale, total)
        both = np.full((size, size), -1.0)
        sum_consistent(0, n, self.data, self.duals, np.zeros(size, np.int64), both, 1.0 / scale, pairs)
        alone, rest = float(np.square(total).sum()), choose_means(self.duals.q, self.data.y).rest / scale
        mean, near = (DualPoint(float(loss) / n, alone + float(np.square(its).sum())) for its in (rest, pairs))
        return Rounded(mean=mean, relaxed=near)

    def hinges(self, parameters: list[Tensor]) -> Hinges:
        """Hinges by message passing on the linear program; the structure's decoder solves the examples left open."""
        weights, pairwise = self._from_parameters(parameters)
        pairwise = pairwise.double()
        matrix = symmetric(pairwise, self.num_labels).numpy()
        n, cost, exact = self.dual.num_examples, self.data.cost, True
        hinges, relaxed = np.zeros(n), np.zeros(n)
        for begin in range(0, n, _PORTION):
            end = min(begin + _PORTION, n)
            y = self.data.y[begin:end].astype(np.float64)
            scores = np.zeros((end - begin, self.num_labels))
            score_sets(begin, end, self.data, weights, scores)
            true = (scores * y).sum(1) + 0.5 * np.einsum("bk,kj,bj->b", y, matrix, y)
            augmented = torch.from_numpy(scores + cost * (1.0 - 2.0 * y))
            _, value, bound = best_label_sets(augmented, pairwise, max_rounds=_MESSAGES)
            relaxed[begin:end] = np.maximum(bound.numpy() + y @ cost - true, 0.0)
            rows = (~(bound <= value)).nonzero().flatten()
            if len(rows):
                _, better, least = self.head.structure.decoder.solve(augmented[rows], pairwise)
                bound[rows] = torch.minimum(bound[rows], least)
                exact &= bool((bound[rows] <= torch.maximum(value[rows], better)).all())
            hinges[begin:end] = np.maximum(bound.numpy() + y @ cost - true, 0.0)
        return Hinges(hinges, relaxed, exact)

    def blocks(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Any, Parts, Tensor]]:
        """Index, potentials, psi and losses of every batch, for distributions over label sets."""
        i, j = np.triu_indices(self.num_labels, 1)
        share, dtype = 1.0 / self.dual.num_examples, self.head.unary.dtype
        means = choose_means(self.duals.q, self.data.y)
        for index, potentials in self.examples(batches):
            rows = index.numpy()
            q, y = self.duals.q[rows], self.data.y[rows].astype(np.float64)
            both = means.pairs(rows)
            psi = {
                "unary": torch.from_numpy(y - q).to(dtype),
                "pairwise": torch.from_numpy(y[:, i] * y[:, j] - both).to(dtype),
            }
            yield index, potentials, psi, torch.from_numpy(np.abs(y - q) @ self.data.cost * share)

    def _sum_gains(self) -> None:
        sum_gains(self.pairs.dense, self.duals.gain)


def _with_room(factors: Ragged) -> Ragged:
    """The same factors, with room for those that a pass may add."""
    return repacked(factors, _EXTRA + factors.size // 2)


@njit
def update_multipliers(duals, step, totals):
    """``multiplier += step e``; totals as in ``chain_pass``."""
    q, factors = duals.q, duals.factors
    states = q.shape[1]
    for i in range(len(q)):
        for f in range(factors.start[i], factors.start[i] + factors.size[i]):
            for s in range(2):
                label = factors.key[f] // states if s == 0 else factors.key[f] % states
                excess = factors.mass[f, 0] + factors.mass[f, 1 + s] - q[i, label]
                factors.multiplier[f, s] += step * excess
                totals[0] += excess * excess
                totals[1] += abs(excess)
                totals[2] = max(totals[2], abs(excess))
                totals[3] += q[i, label] * q[i, label]
                totals[4] += factors.multiplier[f, s] * factors.multiplier[f, s]


@njit
def sum_features(sets, q, scale, total):
    """``total += (1/(lam n)) sum_i x_i (y_i - q_i)^T``; returns ``sum_i <delta_i, q_i>`` with its constants."""
    loss = 0.0
    states = q.shape[1]
    for i in range(len(q)):
        for k in range(states):
            gap = (1.0 if sets.y[i, k] else 0.0) - q[i, k]
            if gap != 0.0:
                loss += sets.cost[k] * abs(gap)
                for p in range(sets.row[i], sets.row[i + 1]):
                    total[sets.column[p], k] += sets.value[p] * (gap / scale)
    return loss


@njit
def score_sets(begin, end, sets, weights, out):
    """Scores of the labels of examples ``begin`` to ``end - 1``, ``[end - begin, K]``."""
    for i in range(begin, end):
        score_row(i, sets, weights, out[i - begin])


@njit
def sum_factors(sets, factors, scale, total):
    """``total += (1/(lam n)) sum_i (y y^T - both)`` over the pairs i < j: the weights that the factors stand for."""
    states = sets.y.shape[1]
    for i in range(len(sets.y)):
        for f in range(factors.start[i], factors.start[i] + factors.size[i]):
            a, b = factors.key[f] // states, factors.key[f] % states
            target = 1.0 if sets.y[i, a] and sets.y[i, b] else 0.0
            total[a, b] += (target - factors.mass[f, 0]) / scale


@njit
def sum_consistent(begin, end, sets, duals, labels, both, share, total):
    """``total += share sum_i (y_i y_i^T - both_i)`` over the examples ``begin`` to ``end - 1``.

    ``both_i`` are the nearest masses to those of made factors, else of the target, within the Frechet bounds
    ``max(0, q_i + q_j - 1)`` and ``min(q_i, q_j)``, the only constraints of the local polytope. ``labels`` ``[K]``
    int64 and ``both`` ``[K, K]``, -1 before and after, are scratch; ``share`` is ``1 / (lam n)``.
    """
    q, factors = duals.q, duals.factors
    states = q.shape[1]
    for i in range(begin, end):
        many = 0
        for k in range(states):
            if q[i, k] > 0.0 or sets.y[i, k]:
                labels[many] = k
                many += 1
        for f in range(factors.start[i], factors.start[i] + factors.size[i]):
            both[factors.key[f] // states, factors.key[f] % states] = factors.mass[f, 0]
        for c in range(many):
            for d in range(c + 1, many):
                a, b = labels[c], labels[d]
                target = 1.0 if sets.y[i, a] and sets.y[i, b] else 0.0
                mass = both[a, b] if both[a, b] >= 0.0 else target
                mass = min(max(mass, q[i, a] + q[i, b] - 1.0, 0.0), q[i, a], q[i, b])
                total[a, b] += share * (target - mass)
        for f in range(factors.start[i], factors.start[i] + factors.size[i]):
            both[factors.key[f] // states, factors.key[f] % states] = -1.0


@njit
def sum_gains(weights, gain):
    """``gain[k] = sum_j max(0, weights[k, j])``."""
    for k in range(len(gain)):
        total = 0.0
        for j in range(len(gain)):
            total += max(weights[k, j], 0.0)
        gain[k] = total
