"""Chains in GDMM: tokens are variables, pairs of neighbours are factors that share one table of weights."""

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
from torchssvm.core.threads import run_in_chunks
from torchssvm.dual.state import DualState
from torchssvm.kinds.adapter import find_adapter
from torchssvm.solvers.compiled.packing import pack
from torchssvm.solvers.gdmm.blocks import Options
from torchssvm.solvers.gdmm.chain_bounds import BEST, columns_of, exact_hinges, round_chains
from torchssvm.solvers.gdmm.chain_pass import (
    make_duals,
    make_scratch,
    update_multipliers,
    visit_chains,
    with_room,
)
from torchssvm.solvers.gdmm.pairs import as_list, make_pairs
from torchssvm.solvers.gdmm.problem import DualPoint, Hinges, Problem, Rounded
from torchssvm.solvers.gdmm.ragged import repacked
from torchssvm.solvers.gdmm.rules import BruteForce, SortedOracle
from torchssvm.solvers.gdmm.training_set import make_training_set
from torchssvm.structures.chain.head import LinearChain, SparseLinearChain
from torchssvm.structures.chain.structure import Chain

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
        tokens = make_training_set(examples, self.num_features, has_bias, has_boundary)
        if self.head.emission.dtype == torch.float32 and tokens.value.dtype != np.float32:
            tokens = tokens._replace(value=tokens.value.astype(np.float32))
        self.data = tokens
        self.weights = np.zeros((self.num_features + 3, self.num_states), tokens.value.dtype)
        large = self.num_states**2 > _SMALL
        ordered = large if oracle is None else isinstance(oracle, SortedOracle)
        self.pairs = make_pairs(self.num_states, ordered=ordered)
        self.duals = make_duals(self.data, self.num_states)
        self.default_penalty = 2.0 * float(self.data.cost.mean())
        self.num_sides = int(2 * (len(self.data.y) - dual.num_examples))
        self._longest = int(np.diff(self.data.start).max())

    @classmethod
    def check_head(cls, head: Any) -> None:
        """Raise TypeError for transitions that depend on the place, or that are forbidden."""
        if head.positions is not None:
            raise TypeError(f"head={head} has transitions by position: use shared ones, or train it with BCFW")
        if head.structure.transitions is not None:
            raise TypeError(f"head.structure={head.structure} forbids transitions: train it with BCFW")

    @override
    def begin(self, order: np.ndarray, greedy: bool) -> tuple[Any, int]:
        blocks = 2 * self._longest
        most = int(np.bincount(order).max()) * (blocks if greedy else 1) if len(order) else 0
        self.duals = with_room(self.duals, visits=most)
        return make_scratch(self.duals, self.num_states), blocks * (blocks if greedy else 1)

    @override
    def visit_some(self, order: np.ndarray, done: int, passes: int, options: Options, scratch: Any) -> int:
        data, pairs, duals = map(self.in_memory, ("data", "pairs", "duals"))
        return int(visit_chains(order, done, data, self.weights, pairs, duals, options, scratch))

    @override
    def update_multipliers(self, step: float) -> np.ndarray:
        totals = np.zeros(5)
        self.duals = with_room(self.duals, visits=0)
        update_multipliers(self.in_memory("data"), self.in_memory("duals"), step, self.num_states, totals)
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
        sum_features(self.data, self.duals.variables, self.dual.lam * self.dual.num_examples, total)
        drift = float(np.square(total - self.weights).sum()) ** 0.5
        self.weights[:] = total
        return drift

    def rounded(self) -> Rounded:
        """A feasible dual point near the iterate, as both points; see ``round_chains``."""
        scale = self.dual.lam * self.dual.num_examples
        total = np.zeros(self.weights.shape)
        loss = sum_features(self.data, self.duals.variables, scale, total)
        keys, masses, _ = self._rounded_pairs()
        true = self._true_pairs()
        columns = columns_of(
            np.concatenate([true, keys]), np.concatenate([np.ones(len(true)), -masses]) / scale, self.num_states
        )
        squared = float(np.square(total).sum() + np.square(columns.value).sum())
        point = DualPoint(float(loss) / self.dual.num_examples, squared)
        return Rounded(mean=point, relaxed=point)

    def _true_pairs(self) -> np.ndarray:
        y = self.data.y
        inside = np.ones(len(y), bool)
        inside[self.data.start[1:] - 1] = False
        return (y * self.num_states + np.append(y[1:], 0))[inside]

    def _rounded_pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Keys and masses of consistent pairs, and the token that each begins at."""
        pairs = repacked(round_chains(self.duals, self.num_states), 0)
        return pairs.key, pairs.mass, np.repeat(np.arange(len(pairs.size)), pairs.size)

    def hinges(self, parameters: list[Tensor]) -> Hinges:
        """Exact hinges by Viterbi over the pairs with nonzero weights."""
        weights, transition = self._from_parameters(parameters)
        key = transition.flatten().nonzero().flatten()
        columns = columns_of(key.numpy(), transition.flatten()[key].double().numpy(), self.num_states)
        hinges = np.zeros(self.dual.num_examples)

        def decode(begin: int, end: int, thread: int) -> None:
            scratch = np.zeros((3, self.num_states)), np.zeros(BEST, np.int64), np.zeros(self.num_states, np.int64)
            exact_hinges(begin, end, self.data, weights, columns, *scratch, hinges)

        run_in_chunks(decode, np.diff(self.data.start))
        return Hinges(value=hinges, relaxed=hinges, exact=True)

    def blocks(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Any, Parts, Tensor]]:
        """Index, potentials, psi and losses of every batch, for the rounded duals."""
        keys, masses, tokens = self._rounded_pairs()
        offset = np.searchsorted(tokens, self.data.start)
        variables, start = self.duals.variables, self.data.start
        scale = 1.0 / self.dual.num_examples
        for index, potentials in self.examples(batches):
            psi = {name: torch.zeros_like(t, requires_grad=False) for name, t in potentials.tensors.items()}
            psi = {name: t.contiguous() for name, t in psi.items()}
            losses = torch.zeros(len(index), dtype=torch.float64)
            emission, transition = psi["emission"].numpy(), psi["transition"].numpy().reshape(len(index), -1)
            for row, i in enumerate(index.tolist()):
                pairs = slice(offset[i], offset[i + 1])
                np.subtract.at(transition[row], keys[pairs], masses[pairs])
                y = self.data.y[start[i] : start[i + 1]]
                np.add.at(transition[row], y[:-1] * self.num_states + y[1:], 1.0)
                for t in range(start[i], start[i + 1]):
                    at = slice(variables.start[t], variables.start[t] + variables.size[t])
                    labels, mass = variables.key[at], variables.mass[at]
                    emission[row, t - start[i], self.data.y[t]] += 1.0
                    np.subtract.at(emission[row, t - start[i]], labels, mass)
                    losses[row] += scale * self.data.cost[t] * float(mass[labels != self.data.y[t]].sum())
            yield index, potentials, psi, losses


@njit
def sum_features(tokens, variables, scale, total):
    """``total += (1/(lam n)) sum_t x_t (e_y - pi_t)^T``; returns the sum of the costs, ``sum_t <delta_t, pi_t>``."""
    loss = 0.0
    for t in range(len(tokens.y)):
        target_mass = 0.0
        for c in range(variables.start[t], variables.start[t] + variables.size[t]):
            mass = variables.mass[c]
            if variables.key[c] == tokens.y[t]:
                target_mass = mass
                continue
            loss += tokens.cost[t] * mass
            for p in range(tokens.row[t], tokens.row[t + 1]):
                total[tokens.column[p], variables.key[c]] -= tokens.value[p] * (mass / scale)
        for p in range(tokens.row[t], tokens.row[t + 1]):
            total[tokens.column[p], tokens.y[t]] += tokens.value[p] * ((1.0 - target_mass) / scale)
    return loss
