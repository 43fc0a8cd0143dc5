"""GDMM's certificates of 500 tiny problems, against the optimum over all outputs and that over local polytopes.

Nothing here calls a head, a structure or an oracle of the package: features are written out, outputs are listed, and
QP solvers find both optima.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from cases.optima import Bounds, checked, enclose, solve_dual
from cases.problems import Reference, flat, rng

from torchssvm import BCFW, GDMM, Batch, BlockGap, LinearChain, LinearMultilabel, certify
from torchssvm.solvers.gdmm import (
    AwayStep,
    BlockGreedy,
    BruteForce,
    FactorwiseCertificate,
    FullyCorrective,
    Penalty,
    SortedOracle,
)

OPTIONS = list(itertools.product((FullyCorrective(), AwayStep(), BlockGreedy()), (SortedOracle(), BruteForce())))
LAMS = (0.03, 0.1, 0.5, 2.0)
RHOS = (None, 0.05, 1.0)


@dataclass
class Tiny:
    """A training set, its outputs, and the same for GDMM."""

    head: Any
    batch: Batch
    listed: Reference
    lam: float


# -- Label sets --------------------------------------------------------------------------------------------


def features(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """phi(x, y) in the order of the head's parameters; y may be a share, and its pairs are then independent."""
    i, j = np.triu_indices(len(y), 1)
    return np.concatenate([np.outer(y, x).ravel(), y, y[i] * y[j]])


def label_sets(seed: int, dtype: torch.dtype = torch.float64) -> Tiny:
    random = rng(seed)
    n, labels, lam = 1 + seed % 4, 2 + seed % 3, LAMS[seed // 3 % 4]
    x = torch.randn(n, 2, generator=random, dtype=dtype)
    y = torch.randint(0, 2, (n, labels), generator=random)
    listed = Reference([], [], [], lam)
    for its_x, its_y in zip(x.double().numpy(), y.numpy().astype(float), strict=True):
        sets = [np.array(s, float) for s in itertools.product((0, 1), repeat=labels)]
        listed.losses.append(np.array([np.abs(s - its_y).mean() for s in sets]))
        listed.changes.append(np.stack([features(its_x, s) - features(its_x, its_y) for s in sets]))
    return Tiny(LinearMultilabel(2, labels).to(dtype), Batch(x, y, torch.arange(n)), listed, lam)


class LocalPolytopes:
    """The relaxed problem of label sets: shares q of single labels, and of pairs what each two shares allow."""

    def __init__(self, tiny: Tiny) -> None:
        self.lam = tiny.lam
        self.x, self.y = tiny.batch.x.double().numpy(), tiny.batch.y.numpy().astype(float)
        self.n, self.labels = self.y.shape
        self.i, self.j = np.triu_indices(self.labels, 1)
        self.true = np.stack([features(x, y) for x, y in zip(self.x, self.y, strict=True)])

    def primal(self, w: np.ndarray) -> float:
        """By the vertices, which are half-integral: every share is 0, 1/2 or 1, and every pair is at an end."""
        k = self.labels
        total, unary, bias, pairwise = 0.0, w[: 2 * k].reshape(k, 2), w[2 * k : 3 * k], w[3 * k :]
        q = np.array(list(itertools.product((0.0, 0.5, 1.0), repeat=k)))
        least, most = np.maximum(q[:, self.i] + q[:, self.j] - 1.0, 0.0), np.minimum(q[:, self.i], q[:, self.j])
        pairs = np.maximum(least * pairwise, most * pairwise).sum(1)
        for x, y, true in zip(self.x, self.y, self.true, strict=True):
            total += (q @ (unary @ x + bias) + pairs + np.abs(q - y).mean(1)).max() - true @ w
        return self.lam / 2 * float(w @ w) + total / self.n

    def solve(self) -> Bounds:
        """By a QP solver; its point is moved into the polytope, where it is out by rounding."""
        k, pairs, n = self.labels, len(self.i), self.n
        size = k + pairs
        linear = [np.zeros((size, self.true.shape[1])) for _ in range(n)]  # from q and pairs to features
        for matrix, x in zip(linear, self.x, strict=True):
            matrix[np.arange(k)[:, None], np.arange(2) + 2 * np.arange(k)[:, None]] = x
            matrix[np.arange(size), 2 * k + np.arange(size)] = 1.0
        place, unit = k + np.arange(pairs), np.eye(size)
        rows = [unit[place] - unit[self.i], unit[place] - unit[self.j], unit[self.i] + unit[self.j] - unit[place]]
        limits = np.concatenate([np.zeros(2 * pairs), np.ones(pairs)])
        cost = np.concatenate([(1.0 - 2.0 * self.y) / k, np.zeros((n, pairs))], 1)
        matrix, true = np.concatenate(linear) / n, self.true.sum(0) / n
        point = solve_dual(
            matrix,
            cost.ravel() / n + matrix @ true / self.lam,
            self.lam,
            ub=np.ones(n * size),
            G=scipy.sparse.block_diag([np.concatenate(rows)] * n, format="csc"),
            h=np.tile(limits, n),
        ).reshape(n, size)
        q = np.clip(point[:, :k], 0.0, 1.0)
        least, most = np.maximum(q[:, self.i] + q[:, self.j] - 1.0, 0.0), np.minimum(q[:, self.i], q[:, self.j])
        mu = np.concatenate([q, np.clip(point[:, k:], least, most)], 1)
        w = (true - mu.ravel() @ matrix) / self.lam
        return checked(Bounds(float(np.abs(q - self.y).mean(1).mean()) - self.lam / 2 * float(w @ w), self.primal(w)))


# -- Chains ------------------------------------------------------------------------------------------------


def chains(seed: int, dtype: torch.dtype = torch.float64) -> Tiny:
    """Of 1 to 4 tokens and 2 or 3 states; three states have up to 3 tokens."""
    random = rng(seed)
    n, states, lam = 1 + seed % 3, 2 + seed % 2, LAMS[seed // 2 % 4]
    longest = 4 if states == 2 else 3
    lengths = torch.randint(1, longest + 1, (n,), generator=random)
    x = torch.randn(n, longest, 2, generator=random, dtype=dtype)
    y = torch.randint(0, states, (n, longest), generator=random)
    y = y.masked_fill(torch.arange(longest) >= lengths.unsqueeze(1), -1)
    listed = Reference([], [], [], lam)
    for its_x, its_y, length in zip(x.double().numpy(), y.tolist(), lengths.tolist(), strict=True):
        outputs = list(itertools.product(range(states), repeat=length))
        true = tuple(its_y[:length])
        correct = chain_features(its_x, true, states)
        listed.losses.append(np.array([np.mean([a != b for a, b in zip(o, true, strict=True)]) for o in outputs]))
        listed.changes.append(np.stack([chain_features(its_x, o, states) - correct for o in outputs]))
    x = x * (y >= 0).unsqueeze(2)
    return Tiny(LinearChain(2, states).to(dtype), Batch(x, y, torch.arange(n), lengths), listed, lam)


def chain_features(x: np.ndarray, output: tuple[int, ...], states: int) -> np.ndarray:
    """Emissions, transitions, bias, first and last, in the order of the head's parameters."""
    emission, bias, ends = np.zeros((states, 2)), np.zeros(states), np.zeros((2, states))
    transition = np.zeros((states, states))
    for t, state in enumerate(output):
        emission[state] += x[t]
        bias[state] += 1.0
    for a, b in itertools.pairwise(output):
        transition[a, b] += 1.0
    ends[0, output[0]] += 1.0
    ends[1, output[-1]] += 1.0
    return np.concatenate([t.ravel() for t in (emission, transition, bias, ends)])


# -- The problems ------------------------------------------------------------------------------------------


def check(tiny: Tiny, seed: int, tolerance: float) -> list[FactorwiseCertificate]:
    """Certificates between passes; every one must hold."""
    best = enclose(tiny.listed)
    polytopes = LocalPolytopes(tiny) if isinstance(tiny.head, LinearMultilabel) else None
    relaxed = best if polytopes is None else polytopes.solve()
    rule, oracle = OPTIONS[seed % len(OPTIONS)]
    penalty = Penalty(RHOS[seed // 5 % len(RHOS)])
    options = {"num_examples": tiny.listed.n, "lam": tiny.lam, "penalty": penalty, "seed": seed}
    gdmm = GDMM(tiny.head, [tiny.batch], rule=rule, oracle=oracle, **options)
    seen: list[FactorwiseCertificate] = []
    for passes in (0, 2, 4, 12, 30):
        for _ in range(passes):
            gdmm.step()
        proof = gdmm.certify()
        w = flat(tiny.head.parameters()).double().numpy()
        primal = tiny.listed.primal(w)
        within = tolerance * (1.0 + primal)
        # Of the problem itself:
        assert proof.dual <= best.high + within
        assert proof.primal >= best.low - within
        assert proof.primal >= primal - within
        assert proof.primal <= primal + within or not proof.exact
        # Of the relaxation:
        assert proof.relaxed_dual <= relaxed.high + within
        assert proof.relaxed_primal >= relaxed.low - within
        if polytopes is None:
            assert proof.exact
            assert not proof.has_relaxation
            assert (proof.primal, proof.dual) == (proof.relaxed_primal, proof.relaxed_dual)
        else:
            assert proof.has_relaxation
            assert proof.relaxed_primal >= polytopes.primal(w) - within
        # Of one and the other:
        assert proof.dual <= proof.relaxed_dual
        assert proof.primal <= proof.relaxed_primal
        assert proof.primal - proof.dual == pytest.approx(proof.gap, abs=within)
        assert proof.relaxed_primal - proof.relaxed_dual == pytest.approx(proof.relaxed_gap, abs=within)
        assert min(proof.gap, proof.relaxed_gap, proof.dual) >= 0.0
        assert all(proof.dual >= old.dual and proof.relaxed_dual >= old.relaxed_dual for old in seen)
        seen.append(proof)
    if seed % 5 == 0:
        check_handed_over(tiny, gdmm, best, tolerance)
    return seen


def check_handed_over(tiny: Tiny, gdmm: GDMM, best: Bounds, tolerance: float) -> None:
    """Blocks of BCFW in the hull of outputs, then and after some of its steps."""
    batch, head = tiny.batch, tiny.head
    dual = gdmm.dual_state([batch])
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    value = dual.value()
    for _ in range(4):
        proof = certify(head, dual, [batch])
        within = tolerance * (1.0 + proof.primal)
        assert value - within <= proof.dual <= best.high + within
        assert proof.primal >= best.low - within
        optim.zero_grad()
        args = (batch.x,) if batch.lengths is None else (batch.x, batch.lengths)
        loss(head(*args), batch.y, batch.index).backward()
        optim.step()


@pytest.mark.filterwarnings("ignore:the dual handed over")
@pytest.mark.parametrize("first", [0, pytest.param(50, marks=pytest.mark.slow)])
def test_label_sets(first):
    """What is certified of the problem is below its optimum, which that of the relaxation often is not."""
    runs = {seed: check(label_sets(seed), seed, 1e-6) for seed in range(first, first + 50)}
    last = [run[-1] for run in runs.values()]
    assert np.mean([proof.dual / proof.relaxed_dual for proof in last]) > 0.95
    assert all(proof.exact for proof in last)  # by branch and bound


@pytest.mark.filterwarnings("ignore:the dual handed over")
@pytest.mark.parametrize("first", [0, pytest.param(70, marks=pytest.mark.slow)])
def test_chains(first):
    runs = [check(chains(seed), seed, 1e-6) for seed in range(first, first + 70)]
    assert np.mean([run[-1].gap / run[-1].primal for run in runs]) < 0.2


@pytest.mark.filterwarnings("ignore:the dual handed over")
@pytest.mark.parametrize("make", [label_sets, chains])
def test_float32(make):
    for seed in range(1000, 1015):
        check(make(seed, torch.float32), seed, 1e-4)


def test_the_relaxation_has_another_optimum():
    """Else the problems would not tell one certificate from the other."""
    apart = [LocalPolytopes(tiny).solve().low - enclose(tiny.listed).high for tiny in map(label_sets, range(60))]
    assert sum(gap > 1e-4 for gap in apart) >= 5
