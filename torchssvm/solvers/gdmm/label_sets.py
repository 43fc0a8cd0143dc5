"""Label sets in GDMM: labels are binary variables, and every pair of labels is a factor with one weight.

Names and signs are those of ``label_set_pass``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit, njit_fastmath
from torchssvm.core.batch import Batch
from torchssvm.core.potentials import Parts
from torchssvm.core.states import damaged
from torchssvm.dual.state import DualState
from torchssvm.solvers.compiled.packing import pack
from torchssvm.solvers.gdmm.chain_pass import AWAY, PROJECT, Options, add_row, make_tokens
from torchssvm.solvers.gdmm.label_set_pass import (
    LabelSets,
    PairTable,
    as_tensors,
    from_tensors,
    make_room,
    visit_label_sets,
)
from torchssvm.solvers.gdmm.problem import DualPoint, Hinges, Problem, Rounded, digest_features, squares_of
from torchssvm.solvers.gdmm.ragged import Interactions, empty, repacked
from torchssvm.solvers.gdmm.rules import BlockRule, BruteForce, ResidualBalancing, SortedOracle
from torchssvm.solvers.gdmm.sorted_entries import change, from_state, grown, make_entries
from torchssvm.solvers.gdmm.sorted_entries import state as state_of_entries
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
        self.dual, self.ordered = dual, isinstance(oracle, SortedOracle)
        self.num_labels: int = self.head.structure.num_labels
        self.num_features = self.head.in_features
        from torchssvm.structures.multilabel.kind import LabelSetAdapter

        examples, piece = pack(LabelSetAdapter(head, 0, 0), dual, batches)
        self.targets = piece.targets
        column, value, row, *_ = make_tokens(examples, self.num_features, head.bias is not None, False)
        y = examples.y.reshape(dual.num_examples, self.num_labels).astype(bool)
        square = np.add.reduceat(np.append(squares_of(value), 0.0), row[:-1]) * (np.diff(row) > 0)
        cost = self.head.structure.costs.numpy().copy()
        self.sets = LabelSets(column, value, row, y, cost, square)
        self.features = digest_features(column, value, row)
        self.weights = np.zeros((self.num_features + 1, self.num_labels), value.dtype)
        self.pairs = PairTable(np.zeros((self.num_labels, self.num_labels)), np.zeros(self.num_labels))
        self.entries = make_entries(self.num_labels, self.num_labels, symmetric=True)
        self.q = y.astype(np.float64)
        self.factors = empty(dual.num_examples, Interactions)
        self.default_penalty = float(cost.mean()) / 3.0
        self.passes = 0
        self.factors = repacked(self.factors, _EXTRA + self.factors.size // 2)  # those that a pass may add

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
        return 2 * int(self.factors.size.sum())

    @override
    def visit(self, order: np.ndarray, rule: BlockRule, rho: float) -> np.ndarray:
        largest = int(np.diff(self.factors.start).max())
        scratch = make_room(self.num_labels, largest)
        scale = self.dual.lam * self.dual.num_examples
        options = Options(scale, rho, AWAY if rule.away else PROJECT, rule.greedy)
        explore = (self.passes + 1) % _EXPLORE == 0
        done, before = 0, int(self.entries.counters[2])
        while done < len(order):
            arrays = self.sets, self.weights, self.pairs, self.entries, self.q, self.factors
            done = visit_label_sets(order, done, *arrays, options, self.ordered, explore, scratch)
            if done < len(order):
                wanted = max(2 * len(self.entries.value), int(self.entries.counters[0]) + largest)
                self.entries = grown(self.entries, wanted)
        scratch.totals[1] += int(self.entries.counters[2]) - before
        return scratch.totals

    @override
    def update_multipliers(self, step: float) -> np.ndarray:
        totals = np.zeros(5)
        update_multipliers(self.q, self.factors, step, totals)
        sum_gains(self.pairs)
        self.passes += 1
        self.factors = repacked(self.factors, _EXTRA + self.factors.size // 2)
        return totals

    @override
    def current_weights(self) -> list[Tensor]:
        return self._as_parameters(torch.from_numpy(self.pairs.value[np.triu_indices(self.num_labels, 1)]))

    def refresh(self) -> float:
        """Recompute the weights in float64."""
        scale = self.dual.lam * self.dual.num_examples
        total, pairs = np.zeros(self.weights.shape), np.zeros(self.pairs.value.shape)
        sum_features(self.sets, self.q, scale, total)
        sum_factors(self.sets, self.q, self.factors, scale, pairs)
        pairs += pairs.T
        drift = np.square(total - self.weights).sum() + np.square(pairs - self.pairs.value).sum() / 2
        self.weights[:], self.pairs.value[:] = total, pairs
        sum_gains(self.pairs)
        for number in range(int(self.entries.counters[0])):  # of sorted pairs
            a, b = self.entries.row[number], self.entries.col[number]
            change(self.entries, number, self.pairs.value[a, b])
        return float(drift) ** 0.5

    def rounded(self) -> Rounded:
        """Two points with the current labels: a mean of label sets, and the nearest consistent pairs."""
        n, size = self.dual.num_examples, self.num_labels
        scale = self.dual.lam * n
        total, pairs = np.zeros(self.weights.shape), np.zeros((size, size))
        loss = sum_features(self.sets, self.q, scale, total)
        both = np.full((size, size), -1.0)
        sum_all_consistent(self.sets, self.q, self.factors, np.zeros(size, np.int64), both, 1.0 / scale, pairs)
        alone, rest = float(np.square(total).sum()), choose_means(self.q, self.sets.y).rest / scale
        mean, near = (DualPoint(float(loss) / n, alone + float(np.square(its).sum())) for its in (rest, pairs))
        return Rounded(mean=mean, relaxed=near)

    def hinges(self, parameters: list[Tensor]) -> Hinges:
        """Hinges by message passing on the linear program; the structure's decoder solves the examples left open."""
        weights, pairwise = self._from_parameters(parameters)
        pairwise = pairwise.double()
        matrix = symmetric(pairwise, self.num_labels).numpy()
        n, cost, exact = self.dual.num_examples, self.sets.cost, True
        hinges, relaxed = np.zeros(n), np.zeros(n)
        for begin in range(0, n, _PORTION):
            end = min(begin + _PORTION, n)
            y = self.sets.y[begin:end].astype(np.float64)
            scores = np.zeros((end - begin, self.num_labels))
            score_sets(begin, end, self.sets, weights, scores)
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
        means = choose_means(self.q, self.sets.y)
        for index, potentials in self.examples(batches):
            rows = index.numpy()
            q, y = self.q[rows], self.sets.y[rows].astype(np.float64)
            both = means.pairs(rows)
            psi = {
                "unary": torch.from_numpy(y - q).to(dtype),
                "pairwise": torch.from_numpy(y[:, i] * y[:, j] - both).to(dtype),
            }
            yield index, potentials, psi, torch.from_numpy(np.abs(y - q) @ self.sets.cost * share)

    def _entries(self) -> dict[str, Any]:
        arrays = {"pairs": self.pairs.value, "gain": self.pairs.gain, "q": self.q}
        return {
            **self._identity(),
            **{name: torch.from_numpy(array.copy()) for name, array in arrays.items()},
            "entries": state_of_entries(self.entries),
            "passes": self.passes,
            "factors": as_tensors(self.factors),
        }

    def _check_own(self, state: dict[str, Any]) -> None:
        self._check_identity(state)
        if tuple(state["q"].shape) != self.q.shape:
            raise damaged("problem['q']")
        ordered = bool(len(state["entries"]["value"]))
        if ordered if not self.ordered else not ordered and bool(state["pairs"].any()):
            name = "SortedOracle" if self.ordered else "BruteForce"
            raise ValueError(f"the checkpoint is not of oracle={name}(): make GDMM with the oracle that wrote it")

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.weights, self.q = state["weights"].numpy().copy(), state["q"].numpy().copy()
        self.pairs = PairTable(state["pairs"].numpy().copy(), state["gain"].numpy().copy())
        self.entries, self.passes = from_state(state["entries"]), state["passes"]
        self.factors = from_tensors(state["factors"])


@njit
def update_multipliers(q, factors, step, totals):
    """``multiplier += step e``; totals as in ``chain_pass``."""
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
        out[i - begin, :] = 0.0
        for p in range(sets.row[i], sets.row[i + 1]):
            add_row(out[i - begin], weights[sets.column[p]], sets.value[p])


@njit
def sum_factors(sets, q, factors, scale, total):
    """``total += (1/(lam n)) sum_i (y y^T - both)`` over the pairs i < j: the weights that the factors stand for."""
    states = q.shape[1]
    for i in range(len(q)):
        for f in range(factors.start[i], factors.start[i] + factors.size[i]):
            a, b = factors.key[f] // states, factors.key[f] % states
            target = 1.0 if sets.y[i, a] and sets.y[i, b] else 0.0
            total[a, b] += (target - factors.mass[f, 0]) / scale


@njit
def sum_consistent(i, sets, q, factors, labels, both, share, total):
    """``total += share (y y^T - both)`` for one example, with ``both`` the nearest mass consistent with q.

    The nearest mass to that of a made factor, else to the target's, within the Frechet bounds ``max(0, q_i + q_j - 1)``
    and ``min(q_i, q_j)``, the only constraints of the local polytope. ``labels`` ``[K]`` int64 and ``both`` ``[K, K]``,
    -1 before and after, are scratch; ``share`` is ``1 / (lam n)``.
    """
    states, many = q.shape[1], 0
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
def sum_all_consistent(sets, q, factors, labels, both, share, total):
    """:func:`sum_consistent` for all examples."""
    for i in range(len(q)):
        sum_consistent(i, sets, q, factors, labels, both, share, total)


@njit
def sum_gains(pairs):
    """Recompute ``pairs.gain``."""
    for k in range(len(pairs.gain)):
        total = 0.0
        for j in range(len(pairs.gain)):
            total += max(pairs.value[k, j], 0.0)
        pairs.gain[k] = total


_ROUNDS = 3
_TINY = 1e-12  # a decrease that may be rounding


class Means(NamedTuple):
    """Distributions over label sets, one for each example, with label marginals ``q``.

    A point of the local polytope need not be a mean of label sets; these always are. A number u, uniform on a circle of
    length 1, decides all labels of an example: label k is on where u lies in an arc of length ``q_k``. Two labels are
    on together where their arcs overlap.
    """

    q: np.ndarray  # [n, K], 0 to 1
    begin: np.ndarray  # [n, K], where each arc begins
    rest: np.ndarray  # [K, K], ``sum_i (y_i y_i^T - pairs_i)`` above the diagonal: the weights of pairs times ``lam n``

    def pairs(self, rows: np.ndarray) -> np.ndarray:
        """Probabilities that two labels are on together, ``[B, P]`` for the pairs i < j of the examples ``rows``."""
        labels = self.q.shape[1]
        masses = np.zeros((len(rows), labels * (labels - 1) // 2))
        _list_pairs(rows, self.q, self.begin, masses)
        return masses


def choose_means(q: np.ndarray, y: np.ndarray) -> Means:
    """Choose arcs with small pair weights, which make the dual large.

    Losses and feature weights depend on ``q`` only, not on the arcs. Initially labels are wrong together as far as
    possible. Then one arc after another moves to the least sum of squared pair weights among the candidates: the ends
    of the other arcs, and the minimum along the circle from the best of them.
    """
    labels = q.shape[1]
    begin, rest = np.where(y, 0.0, 1.0 - q), np.zeros((labels, labels))
    _sum_rest(q, y, begin, rest)
    others, near = np.zeros(labels, np.int64), np.zeros((3, labels))
    for _ in range(_ROUNDS):
        _move_arcs(q, begin, rest, others, near)
    rest[:] = 0.0
    _sum_rest(q, y, begin, rest)  # recomputed, to remove the rounding of the moves
    return Means(q, begin, rest)


@njit
def _overlap(first, length, second, other_length):
    """The overlap of two arcs; ``first`` and ``second`` in [0, 1] are their beginnings."""
    ahead = second - first
    ahead = ahead + 1.0 if ahead < 0.0 else ahead
    return max(min(length, ahead + other_length) - ahead, 0.0) + max(min(length, ahead + other_length - 1.0), 0.0)


@njit
def _list_pairs(rows, q, begin, masses):
    labels = q.shape[1]
    for r in range(len(rows)):
        i, place = rows[r], 0
        for a in range(labels):
            for b in range(a + 1, labels):
                if q[i, a] > 0.0 and q[i, b] > 0.0:
                    masses[r, place] = _overlap(begin[i, a], q[i, a], begin[i, b], q[i, b])
                place += 1


@njit
def _sum_rest(q, y, begin, rest):
    """``rest += sum_i (y_i y_i^T - pairs_i)``."""
    labels = q.shape[1]
    for i in range(len(q)):
        for a in range(labels):
            if not (q[i, a] > 0.0 or y[i, a]):
                continue
            for b in range(a + 1, labels):
                if q[i, b] > 0.0 or y[i, b]:
                    target = 1.0 if y[i, a] and y[i, b] else 0.0
                    rest[a, b] += target - _overlap(begin[i, a], q[i, a], begin[i, b], q[i, b])


@njit
def _move_arcs(q, begin, rest, others, near):
    """Move every arc once, except empty and full ones, whose overlaps do not depend on their place.

    Scratch: ``others`` ``[K]`` int64; ``near`` ``[3, K]`` gets where their arcs begin, their lengths, and the overlaps
    with the moving arc at which the pair weights are 0.
    """
    for i in range(len(q)):
        for k in range(q.shape[1]):
            length, place = q[i, k], begin[i, k]
            if not 0.0 < length < 1.0:
                continue
            many = 0
            for j in range(q.shape[1]):
                if j != k and 0.0 < q[i, j] < 1.0:
                    others[many] = j
                    near[0, many], near[1, many] = begin[i, j], q[i, j]
                    near[2, many] = rest[min(j, k), max(j, k)] + _overlap(place, length, begin[i, j], q[i, j])
                    many += 1
            cost = _cost(place, length, near, many)
            for d in range(many):
                end = near[0, d] + near[1, d]
                trial = end - np.floor(end)
                trial_cost = _cost(trial, length, near, many)
                if trial_cost < cost - _TINY:
                    place, cost = trial, trial_cost
            for sign in (1.0, -1.0):
                trial = place + sign * _way(place, length, sign, near, many)
                trial -= np.floor(trial)
                trial_cost = _cost(trial, length, near, many)
                if trial_cost < cost - _TINY:
                    place, cost = trial, trial_cost
            if place != begin[i, k]:
                begin[i, k] = place
                for d in range(many):
                    j = others[d]
                    rest[min(j, k), max(j, k)] = near[2, d] - _overlap(place, length, near[0, d], near[1, d])


@njit_fastmath
def _cost(place, length, near, many):
    """The sum of squared pair weights of a label with its arc at ``place``."""
    total = 0.0
    for d in range(many):
        left = near[2, d] - _overlap(place, length, near[0, d], near[1, d])
        total += left * left
    return total


@njit
def _way(place, length, sign, near, many):
    """Distance forward (back for ``sign`` -1) to the minimum, if no other end comes in between."""
    slope, curvature = 0.0, 0.0
    for d in range(many):
        change = _is_in(place + length, sign, near[0, d], near[1, d]) - _is_in(place, sign, near[0, d], near[1, d])
        slope += sign * change * (near[2, d] - _overlap(place, length, near[0, d], near[1, d]))
        curvature += change * change
    return max(slope, 0.0) / curvature if curvature > 0.0 else 0.0


@njit
def _is_in(point, sign, begin, length):
    """1 if the arc contains what comes right after the point (before it for ``sign`` -1), else 0."""
    after = point - begin
    after -= np.floor(after)
    if sign > 0.0:
        return 1.0 if after < length else 0.0
    return 1.0 if 0.0 < after <= length else 0.0
