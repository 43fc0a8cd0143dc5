"""Chains in GDMM: tokens are variables, pairs of neighbours are factors that share one table of weights.

Transitions are zero except for pairs that some dual contains. Viterbi looks at these pairs, and at the best previous
label without such a pair: O(pairs + K) for each token instead of K^2. Pair distributions with common marginals are the
marginals of a distribution over labelings, so that rounding gives a feasible dual point of the structural SVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit
from torchssvm.core.batch import Batch
from torchssvm.core.potentials import Parts
from torchssvm.core.states import Numbers, check_entries
from torchssvm.core.threads import run_in_chunks
from torchssvm.dual.state import DualState
from torchssvm.kinds.adapter import find_adapter
from torchssvm.solvers.compiled.packing import pack
from torchssvm.solvers.gdmm.chain_pass import (
    AWAY,
    PROJECT,
    Duals,
    Options,
    fill_scores,
    make_duals,
    make_scratch,
    make_tokens,
    update_multipliers,
    visit_chains,
    with_room,
)
from torchssvm.solvers.gdmm.problem import DualPoint, Hinges, Problem, Rounded, digest_features
from torchssvm.solvers.gdmm.ragged import Ragged, as_tensors, from_tensors, offsets, repacked
from torchssvm.solvers.gdmm.rules import BlockRule, BruteForce, SortedOracle
from torchssvm.solvers.gdmm.sorted_entries import from_state, grown
from torchssvm.solvers.gdmm.sorted_entries import state as state_of_entries
from torchssvm.solvers.gdmm.walks import as_list, make_pairs
from torchssvm.structures.chain.head import LinearChain, SparseLinearChain
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.maxplus import first_of_largest

_LISTS = ("variables", "factors", "sides")
_SMALL = 4096  # brute force is the default up to this many configurations of a factor


class ChainProblem(Problem, heads=(LinearChain, SparseLinearChain)):
    """GDMM's state for a :class:`LinearChain` or :class:`SparseLinearChain` with fixed features.

    A sorted oracle keeps label pairs sorted by weight, and is sublinear.
    """

    structure = Chain
    kind = "chains"
    matrix, rows, table = "emission", ("bias", "start_transitions", "end_transitions"), "transition"
    has_relaxation = False

    def __init__(
        self, head: Any, dual: DualState, batches: Iterable[Batch], oracle: SortedOracle | BruteForce | None
    ) -> None:
        self.head = head
        self.dual = dual
        examples, piece = pack(find_adapter(head), dual, batches)
        self.targets = piece.targets
        self.num_states: int = self.head.structure.num_states
        self.num_features = self.head.in_features
        has_bias, has_boundary = self.head.bias is not None, self.head.start_transitions is not None
        self.tokens = make_tokens(examples, self.num_features, has_bias, has_boundary)
        if self.head.emission.dtype == torch.float32 and self.tokens.value.dtype != np.float32:
            self.tokens = self.tokens._replace(value=self.tokens.value.astype(np.float32))
        self.features = digest_features(self.tokens.column, self.tokens.value, self.tokens.row)
        self.weights = np.zeros((self.num_features + 3, self.num_states), self.tokens.value.dtype)
        large = self.num_states**2 > _SMALL
        ordered = large if oracle is None else isinstance(oracle, SortedOracle)
        self.pairs = make_pairs(self.num_states, ordered=ordered)
        self.duals = make_duals(self.tokens, self.num_states)
        self.default_penalty = 2.0 * float(self.tokens.cost.mean())
        self.num_sides = int(2 * (len(self.tokens.y) - dual.num_examples))
        self._longest = int(np.diff(self.tokens.start).max())

    @classmethod
    def check_head(cls, head: Any) -> None:
        """Raise TypeError for transitions that depend on the place, or that are forbidden."""
        if head.positions is not None:
            raise TypeError(f"head={head} has transitions by position: use shared ones, or train it with BCFW")
        if head.structure.transitions is not None:
            raise TypeError(f"head.structure={head.structure} forbids transitions: train it with BCFW")

    @override
    def visit(self, order: np.ndarray, rule: BlockRule, rho: float) -> np.ndarray:
        blocks = 2 * self._longest
        most = int(np.bincount(order).max()) * (blocks if rule.greedy else 1) if len(order) else 0
        self.duals = with_room(self.duals, visits=most)
        scratch = make_scratch(self.duals, self.num_states)
        scale = self.dual.lam * self.dual.num_examples
        options = Options(scale, rho, AWAY if rule.away else PROJECT, rule.greedy)
        done, entries = 0, self.pairs.entries
        before = int(entries.counters[2])
        while done < len(order):
            done = visit_chains(order, done, self.tokens, self.weights, self.pairs, self.duals, options, scratch)
            if done < len(order):
                needed = blocks * (blocks if rule.greedy else 1)
                entries = grown(entries, max(2 * len(entries.value), int(entries.counters[0]) + needed))
                self.pairs = self.pairs._replace(entries=entries)
        scratch.totals[1] += int(entries.counters[2]) - before
        return scratch.totals

    @override
    def update_multipliers(self, step: float) -> np.ndarray:
        totals = np.zeros(5)
        self.duals = with_room(self.duals, visits=0)
        update_multipliers(0, self.dual.num_examples, self.tokens, self.duals, step, self.num_states, totals)
        return totals

    @override
    def current_weights(self) -> list[Tensor]:
        key, value = as_list(self.pairs)
        transition = np.zeros((self.num_states, self.num_states))
        transition.reshape(-1)[key] = value
        return self._as_parameters(torch.from_numpy(transition))

    def refresh(self) -> float:
        """Recompute the weights in float64, as rounding makes the current ones drift."""
        total = np.zeros(self.weights.shape)
        sum_features(self.tokens, self.duals.variables, self.dual.lam * self.dual.num_examples, total)
        drift = float(np.square(total - self.weights).sum()) ** 0.5
        self.weights[:] = total
        return drift

    def rounded(self) -> Rounded:
        """A feasible dual point near the iterate, as both points; see ``round_chains``."""
        scale = self.dual.lam * self.dual.num_examples
        total = np.zeros(self.weights.shape)
        loss = sum_features(self.tokens, self.duals.variables, scale, total)
        keys, masses, _ = self._rounded_pairs()
        true = self._true_pairs()
        columns = columns_of(
            np.concatenate([true, keys]), np.concatenate([np.ones(len(true)), -masses]) / scale, self.num_states
        )
        squared = float(np.square(total).sum() + np.square(columns.value).sum())
        point = DualPoint(float(loss) / self.dual.num_examples, squared)
        return Rounded(mean=point, relaxed=point)

    def _true_pairs(self) -> np.ndarray:
        y = self.tokens.y
        inside = np.ones(len(y), bool)
        inside[self.tokens.start[1:] - 1] = False
        return (y * self.num_states + np.append(y[1:], 0))[inside]

    def _rounded_pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Keys and masses of consistent pairs, and the token that each begins at."""
        pairs = repacked(round_chains(self.duals, self.num_states), 0)
        return pairs.key, pairs.x, np.repeat(np.arange(len(pairs.size)), pairs.size)

    def hinges(self, parameters: list[Tensor]) -> Hinges:
        """Exact hinges by Viterbi over the pairs with nonzero weights."""
        weights, transition = self._from_parameters(parameters)
        key = transition.flatten().nonzero().flatten()
        columns = columns_of(key.numpy(), transition.flatten()[key].double().numpy(), self.num_states)
        hinges = np.zeros(self.dual.num_examples)

        def decode(begin: int, end: int, thread: int) -> None:
            scratch = np.zeros((3, self.num_states)), np.zeros(BEST, np.int64), np.zeros(self.num_states, np.int64)
            exact_hinges(begin, end, self.tokens, weights, columns, *scratch, hinges)

        run_in_chunks(decode, np.diff(self.tokens.start))
        return Hinges(value=hinges, relaxed=hinges, exact=True)

    def blocks(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Any, Parts, Tensor]]:
        """Index, potentials, psi and losses of every batch, for the rounded duals."""
        keys, masses, tokens = self._rounded_pairs()
        offset = np.searchsorted(tokens, self.tokens.start)
        variables, start = self.duals.variables, self.tokens.start
        scale = 1.0 / self.dual.num_examples
        for index, potentials in self.examples(batches):
            psi = {name: torch.zeros_like(t, requires_grad=False) for name, t in potentials.tensors.items()}
            psi = {name: t.contiguous() for name, t in psi.items()}
            losses = torch.zeros(len(index), dtype=torch.float64)
            emission, transition = psi["emission"].numpy(), psi["transition"].numpy().reshape(len(index), -1)
            for row, i in enumerate(index.tolist()):
                pairs = slice(offset[i], offset[i + 1])
                np.subtract.at(transition[row], keys[pairs], masses[pairs])
                y = self.tokens.y[start[i] : start[i + 1]]
                np.add.at(transition[row], y[:-1] * self.num_states + y[1:], 1.0)
                for t in range(start[i], start[i + 1]):
                    at = slice(variables.start[t], variables.start[t] + variables.size[t])
                    labels, mass = variables.key[at], variables.x[at]
                    emission[row, t - start[i], self.tokens.y[t]] += 1.0
                    np.subtract.at(emission[row, t - start[i]], labels, mass)
                    losses[row] += scale * self.tokens.cost[t] * float(mass[labels != self.tokens.y[t]].sum())
            yield index, potentials, psi, losses

    def _entries(self) -> dict[str, Any]:
        lists = {name: as_tensors(getattr(self.duals, name)) for name in _LISTS}
        dense, ordered = torch.from_numpy(self.pairs.dense.copy()), state_of_entries(self.pairs.entries)
        return {**self._identity(), "dense": dense, "entries": ordered, **lists}

    def _check_own(self, state: dict[str, Any]) -> None:
        self._check_identity(state)
        dense = torch.from_numpy(self.pairs.dense)
        check_entries({"dense": state["dense"]}, {"dense": Numbers(dense.dtype, dense.shape)}, "problem")

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"].numpy().copy()
        dense, ordered = state["dense"].numpy().copy(), from_state(state["entries"])
        self.pairs = self.pairs._replace(dense=dense, entries=ordered)
        self.duals = self.duals._replace(**{name: from_tensors(state[name]) for name in _LISTS})


BEST = 32  # number of best previous labels that are kept sorted


class Columns(NamedTuple):
    """A sparse matrix of transitions by its columns, the next labels."""

    start: Any  # [K + 1] int64
    row: Any  # [pairs] int32, ascending in every column
    value: Any  # [pairs] float64


def columns_of(key: np.ndarray, value: np.ndarray, num_states: int) -> Columns:
    """Sums of values ``[M]`` float64 by their keys ``a K + b``, ``[M]`` int64, which may repeat."""
    by_column = (key % num_states) * num_states + key // num_states
    pairs, place = np.unique(by_column, return_inverse=True)
    sums = np.bincount(place, weights=value, minlength=len(pairs))
    start = np.searchsorted(pairs, np.arange(num_states + 1) * num_states)
    return Columns(start.astype(np.int64), (pairs % num_states).astype(np.int32), sums)


@njit
def sum_features(tokens, variables, scale, total):
    """``total += (1/(lam n)) sum_t x_t (e_y - pi_t)^T``; returns the sum of the costs, ``sum_t <delta_t, pi_t>``."""
    loss = 0.0
    for t in range(len(tokens.y)):
        target_mass = 0.0
        for c in range(variables.start[t], variables.start[t] + variables.size[t]):
            mass = variables.x[c]
            if variables.key[c] == tokens.y[t]:
                target_mass = mass
                continue
            loss += tokens.cost[t] * mass
            for p in range(tokens.row[t], tokens.row[t + 1]):
                total[tokens.column[p], variables.key[c]] -= tokens.value[p] * (mass / scale)
        for p in range(tokens.row[t], tokens.row[t + 1]):
            total[tokens.column[p], tokens.y[t]] += tokens.value[p] * ((1.0 - target_mass) / scale)
    return loss


@njit
def exact_hinges(begin, end, tokens, weights, columns, tables, best, stamps, hinges):
    """Structured hinges of the chains ``begin`` to ``end - 1``, at ``weights`` ``[F, K]``, into ``hinges`` ``[n]``.

    Scratch: ``tables`` ``[3, K]``; ``best`` ``[BEST]`` int64; ``stamps`` ``[K]`` int64, zero.
    """
    states = len(columns.start) - 1
    scores, previous, following = tables[0], tables[1], tables[2]
    clock = 0
    for i in range(begin, end):
        true = 0.0
        for t in range(tokens.start[i], tokens.start[i + 1]):
            fill_scores(t, tokens, weights, scores)
            true += scores[tokens.y[t]]
            if t == tokens.start[i]:
                for k in range(states):
                    previous[k] = scores[k]
                continue
            true += _value(columns, tokens.y[t - 1], tokens.y[t])
            many = _order_best(previous, best)
            for b in range(states):
                clock += 1
                following[b] = scores[b] + _best_before(b, previous, columns, best, many, stamps, clock)
            for k in range(states):
                previous[k] = following[k]
        hinges[i] = previous[first_of_largest(previous, states)] - true


@njit
def _best_before(b, previous, columns, best, many, stamps, clock):
    """``max_a previous[a] + transition[a, b]``."""
    first, largest, met = best[0], -1.0e300, False
    for q in range(columns.start[b], columns.start[b + 1]):
        a = columns.row[q]
        met |= a == first
        value = previous[a] + columns.value[q]
        if value > largest:
            largest = value
    if not met:
        return max(largest, previous[first])
    for q in range(columns.start[b], columns.start[b + 1]):
        stamps[columns.row[q]] = clock
    for c in range(many):
        if stamps[best[c]] != clock:
            return max(largest, previous[best[c]])
    for a in range(len(previous)):
        if stamps[a] != clock:
            largest = max(largest, previous[a])
    return largest


@njit
def _order_best(values, best):
    """Write the positions of the largest values, sorted, to ``best``; returns their number."""
    size = 0
    for k in range(len(values)):
        if size == len(best) and values[k] <= values[best[size - 1]]:
            continue
        p = size if size < len(best) else size - 1
        while p > 0 and values[best[p - 1]] < values[k]:
            best[p] = best[p - 1]
            p -= 1
        best[p] = k
        size = min(size + 1, len(best))
    return size


@njit
def _value(columns, a, b):
    for q in range(columns.start[b], columns.start[b + 1]):
        if columns.row[q] == a:
            return columns.value[q]
    return 0.0


def round_chains(duals: Duals, num_states: int) -> Ragged:
    """Pairs with their mass for every factor; marginals are those of ``duals.variables``.

    Rows and columns with too much mass are scaled down, and the missing mass is added as a product (Altschuler, Weed,
    Rigollet 2017, Algorithm 2). This moves at most twice the total variation between the marginals.
    """
    variables, factors, _ = duals
    room = np.where(factors.size > 0, factors.size + variables.size * np.append(variables.size[1:], 0), 0)
    start = offsets(room)
    total, widest = int(start[-1]), int(variables.size.max())
    rounded = Ragged(start, np.zeros(len(room), np.int64), np.zeros(total, np.int64), np.zeros(total), np.zeros(0))
    _round(variables, factors, num_states, np.zeros((2, widest)), np.zeros((2, widest)), rounded)
    return rounded


@njit
def _round(variables, factors, states, sums, scale, rounded):
    for t in range(len(factors.size)):
        if factors.size[t] == 0:
            continue
        begin, size = rounded.start[t], 0
        for p in range(factors.start[t], factors.start[t] + factors.size[t]):
            key = factors.key[p]
            if _place(variables, t, key // states) >= 0 and _place(variables, t + 1, key % states) >= 0:
                rounded.key[begin + size], rounded.x[begin + size] = key, factors.x[p]
                size += 1
        for s in range(2):
            _sum_side(variables, t + s, s, states, rounded, begin, size, sums[s])
            for c in range(variables.size[t + s]):
                total, wanted = sums[s, c], variables.x[variables.start[t + s] + c]
                scale[s, c] = wanted / total if total > wanted else 1.0
            for p in range(begin, begin + size):
                label = rounded.key[p] // states if s == 0 else rounded.key[p] % states
                rounded.x[p] *= scale[s, _place(variables, t + s, label)]
        missing = 0.0
        for s in range(2):
            _sum_side(variables, t + s, s, states, rounded, begin, size, sums[s])
            for c in range(variables.size[t + s]):
                short = variables.x[variables.start[t + s] + c] - sums[s, c]
                sums[s, c] = short if short > 0.0 else 0.0
                if s == 1:
                    missing += sums[s, c]
        if missing > 0.0:
            for c in range(variables.size[t]):
                for d in range(variables.size[t + 1]):
                    mass = sums[0, c] * sums[1, d] / missing
                    if mass > 0.0:
                        key = variables.key[variables.start[t] + c] * states
                        rounded.key[begin + size] = key + variables.key[variables.start[t + 1] + d]
                        rounded.x[begin + size] = mass
                        size += 1
        rounded.size[t] = size


@njit
def _place(lists, i, key):
    """The column of the key in list ``i``; -1 if it has none."""
    for c in range(lists.size[i]):
        if lists.key[lists.start[i] + c] == key:
            return c
    return -1


@njit
def _sum_side(variables, t, s, states, rounded, begin, size, sums):
    """Mass of the pairs by the label of one side."""
    sums[: variables.size[t]] = 0.0
    for p in range(begin, begin + size):
        label = rounded.key[p] // states if s == 0 else rounded.key[p] % states
        sums[_place(variables, t, label)] += rounded.x[p]
