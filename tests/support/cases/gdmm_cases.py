"""What GDMM must do on every kind of factor graph: inherit ``FactorGraphTestCase``, get the tests.

The reference is ``factor_graphs``: everything written out, in numpy.
"""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases.factor_graphs import Duals, FactorGraph, Task
from cases.problems import assert_same, examples, flat, through_a_file
from torchssvm import BCFW, GDMM, BlockGap, DualState, SparseFeatures, certify
from torchssvm.core.batch import apply_head
from torchssvm.solvers.gdmm import AwayStep, BlockGreedy, BruteForce, FullyCorrective, Penalty, SortedOracle

RULES = [FullyCorrective(), AwayStep(), BlockGreedy()]
ORACLES = [SortedOracle(), BruteForce()]
rules = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
oracles = pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: type(oracle).__name__)
SEEDS = st.integers(0, 2**31 - 1)


def saved(gdmm: GDMM) -> dict[str, Any]:
    return through_a_file(gdmm.state_dict())


def scaled(x: Any, factor: float) -> Any:
    return x._replace(values=x.values * factor) if isinstance(x, SparseFeatures) else x * factor


class FactorGraphTestCase(ABC):
    #: Options of ``make``: all kinds of heads and losses.
    VARIANTS: ClassVar[list[dict[str, Any]]]

    @abstractmethod
    def make(self, seed: int, **options: Any) -> Task:
        """A tiny task; the options are ``n``, ``lam``, ``dtype``, ``sparse``, ``bias`` and those of ``VARIANTS``."""

    @abstractmethod
    def graph(self, task: Task) -> FactorGraph:
        """The same, written out."""

    @abstractmethod
    def duals(self, gdmm: GDMM, graph: FactorGraph) -> Duals:
        """What the optimizer holds."""

    @abstractmethod
    def check_room(self, gdmm: GDMM) -> None:
        """No list is longer than its room."""

    @abstractmethod
    def rounded(self, gdmm: GDMM, graph: FactorGraph) -> Duals:
        """The consistent point that it makes of that."""

    def gdmm(self, task: Task, **options: Any) -> GDMM:
        return GDMM(task.head, task.everything(), num_examples=task.n, lam=task.lam, **options)

    def trained(self, number: int = 0, *, passes: int = 5, **options: Any) -> GDMM:
        gdmm = self.gdmm(self.make(number), **options)
        for _ in range(passes):
            gdmm.step()
        self.check_room(gdmm)
        return gdmm

    def check_optimum(self, task: Task, *, tolerance: float = 3e-6, **options: Any) -> None:
        best = self.graph(task).optimum()
        gdmm = self.gdmm(task, **{"penalty": Penalty(), **options})
        certificate = gdmm.solve(tolerance, violation=1e-3, max_passes=4000)
        assert certificate.relaxed_gap <= tolerance
        assert certificate.violation <= 1e-3
        assert certificate.relaxed_primal == pytest.approx(best, abs=1e-5)
        assert certificate.relaxed_dual == pytest.approx(best, abs=1e-5)
        assert certificate.relaxed_dual - 1e-6 <= best <= certificate.relaxed_primal + 1e-6

    @oracles
    @rules
    def test_the_optimum_is_that_of_a_qp_solver(self, rule, oracle):
        self.check_optimum(self.make(2), rule=rule, oracle=oracle)

    def test_the_optimum_of_all_kinds_of_heads_and_losses(self):
        for seed, options in enumerate(self.VARIANTS):
            self.check_optimum(self.make(seed + 10, **options))

    @pytest.mark.every_variant
    @examples(12)
    @given(
        seed=SEEDS,
        rule=st.sampled_from(RULES),
        oracle=st.sampled_from(ORACLES),
        variant=st.integers(0, 99),
        rho=st.floats(1e-3, 30.0),
        lam=st.floats(0.02, 2.0),
        passes=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    )
    def test_the_certificate_encloses_the_optimum(self, seed, rule, oracle, variant, rho, lam, passes):
        task = self.make(seed, lam=lam, **self.VARIANTS[variant % len(self.VARIANTS)])
        graph = self.graph(task)
        best, before = graph.optimum(), 0.0
        gdmm = self.gdmm(task, rule=rule, oracle=oracle, penalty=Penalty(rho), seed=seed)
        for count in passes:
            for _ in range(count):
                gdmm.step()
            certificate = gdmm.certify()
            assert certificate.dual <= certificate.relaxed_dual
            assert certificate.relaxed_dual - 2e-6 <= best <= certificate.relaxed_primal + 2e-6
            assert certificate.relaxed_primal - certificate.relaxed_dual == pytest.approx(
                certificate.relaxed_gap, abs=1e-12
            )
            assert certificate.relaxed_gap >= 0.0
            assert certificate.relaxed_dual >= before
            assert 0.0 <= certificate.violation <= certificate.worst_violation <= 1.0 + 1e-12
            assert certificate.drift <= 1e-9
            before = certificate.relaxed_dual
            primal = graph.primal(flat(task.head.parameters()).double().numpy())
            assert certificate.relaxed_primal >= primal - 1e-6
            if certificate.relaxed_primal == certificate.primal:
                assert certificate.primal == pytest.approx(primal, abs=1e-6)  # which a solver of linear programs gave
            if not certificate.has_relaxation:
                assert (certificate.primal, certificate.dual) == (certificate.relaxed_primal, certificate.relaxed_dual)
            self.check_rounded(gdmm, graph)

    def check_rounded(self, gdmm: GDMM, graph: FactorGraph) -> None:
        """The rounded points are in the polytope, and have the stated loss and length."""
        point = self.rounded(gdmm, graph)
        for mass in point.variables:
            assert mass.min() >= 0.0
            assert mass.sum() == pytest.approx(1.0, abs=1e-12)
        for place, factor in enumerate(graph.factors):
            mass = point.factors[place]
            assert mass is not None
            assert mass.min() >= -1e-15
            assert np.abs(mass.sum(1) - point.variables[factor.left]).max() <= 1e-12
            assert np.abs(mass.sum(0) - point.variables[factor.right]).max() <= 1e-12
        w, result = graph.weights(point), gdmm.problem.rounded().relaxed
        assert result.loss == pytest.approx(graph.loss(point), abs=1e-12)
        assert result.squared == pytest.approx(float(w @ w), rel=1e-9, abs=1e-12)

    @examples(12)
    @given(
        seed=SEEDS,
        rule=st.sampled_from(RULES),
        oracle=st.sampled_from(ORACLES),
        variant=st.integers(0, 99),
        rho=st.floats(1e-3, 30.0),
    )
    def test_no_visit_increases_the_augmented_lagrangian(self, seed, rule, oracle, variant, rho):
        task = self.make(seed, **self.VARIANTS[variant % len(self.VARIANTS)])
        graph = self.graph(task)
        gdmm = self.gdmm(task, rule=rule, oracle=oracle, penalty=Penalty(rho))
        order = torch.Generator().manual_seed(seed)
        for _ in range(4):
            for i in torch.randperm(task.n, generator=order).tolist():
                before = self.duals(gdmm, graph)
                start = graph.lagrangian(before, rho)
                gdmm.visit(torch.tensor([i]))
                after = self.duals(gdmm, graph)
                self.check_held(gdmm, graph, after)
                # A new factor starts near its labels, which is a term that was not there; without it:
                known = [a is not None and b is None for a, b in zip(after.factors, before.factors, strict=True)]
                for place, new in enumerate(known):
                    if new:
                        after.factors[place] = after.multipliers[place] = None
                assert graph.lagrangian(after, rho) <= start + 1e-9 * (1.0 + abs(start))
            gdmm.end_pass()
            self.check_held(gdmm, graph, self.duals(gdmm, graph))

    def check_held(self, gdmm: GDMM, graph: FactorGraph, duals: Duals) -> None:
        """Distributions are distributions, and the weights are theirs."""
        for mass in (*duals.variables, *(f for f in duals.factors if f is not None)):
            assert mass.min() >= -1e-15
            assert mass.sum() == pytest.approx(1.0, abs=1e-9)
        weights = flat(gdmm.problem.current_weights()).numpy()
        assert np.abs(weights - graph.weights(duals)).max() <= 1e-9

    @pytest.mark.every_variant
    @rules
    def test_the_violation_is_the_total_variation(self, rule):
        task = self.make(4)
        graph, gdmm = self.graph(task), self.gdmm(task, rule=rule)
        for _ in range(3):
            report = gdmm.step()
            duals, results = self.duals(gdmm, graph), []
            for place, mass in enumerate(duals.factors):
                if mass is not None:
                    scale = 0.5 if graph.factors[place].counted.all() else 1.0  # of two labels one counts
                    results += [scale * np.abs(e).sum() for e in graph.excesses(duals, place)]
            assert report.violation == pytest.approx(np.mean(results) if results else 0.0, abs=1e-12)
            assert report.worst_violation == pytest.approx(max(results, default=0.0), abs=1e-12)

    @oracles
    @rules
    def test_a_pass_may_be_made_in_any_portions(self, rule, oracle):
        whole, pieces = (self.trained(3, passes=0, rule=rule, oracle=oracle, seed=7) for _ in range(2))
        order = torch.Generator().manual_seed(7)
        for turn in range(12):
            whole.step()
            index = torch.randperm(pieces.num_examples, generator=order)
            for part in index.split(1 + turn % 3):
                pieces.visit(part)
            pieces.visit(index[:0])
            pieces.end_pass()
            if turn == 6:
                whole.certify(), pieces.certify()
        pieces._generator.set_state(order.get_state())
        assert_same(saved(pieces), saved(whole))

    @abstractmethod
    def compiled(self) -> Any:
        """The compiled loop over examples."""

    @rules
    def test_the_same_seed_makes_the_same_bits(self, rule):
        first, second, other = (self.trained(3, rule=rule, seed=seed) for seed in (5, 5, 6))
        assert_same(saved(first), saved(second))
        assert not torch.equal(flat(first.head.parameters()), flat(other.head.parameters()))

    @oracles
    @rules
    def test_a_resumed_run_is_the_one_left_alone_to_the_bit(self, rule, oracle):
        def second(gdmm: GDMM) -> GDMM:
            gdmm.end_pass()
            for _ in range(12):
                gdmm.step()
            gdmm.certify()
            gdmm.step()
            return gdmm

        def first() -> GDMM:
            gdmm = self.trained(1, rule=rule, oracle=oracle)
            gdmm.certify()
            gdmm.step()
            gdmm.visit(torch.tensor([0, 2]))  # in the middle of a pass
            return gdmm

        alone, before = second(first()), saved(first())
        again = self.trained(1, passes=3, rule=rule, oracle=oracle, seed=99)
        again.load_state_dict(before)
        assert_same(saved(again), before)
        second(again)
        assert_same(saved(again), saved(alone))
        for a, b in zip(again.head.parameters(), alone.head.parameters(), strict=True):
            assert torch.equal(a, b)

    def test_both_of_the_best_duals_travel_in_checkpoints(self):
        first, other = self.trained(1, passes=12), self.trained(1, passes=1)
        first.certify()
        assert 0.0 < first.best_dual <= first.best_relaxed_dual
        other.load_state_dict(saved(first))
        assert (other.best_dual, other.best_relaxed_dual) == (first.best_dual, first.best_relaxed_dual)
        task = self.make(1)
        task.x = scaled(task.x, 0.5)
        moved = self.gdmm(task)
        with pytest.warns(UserWarning, match="other features"):
            moved.load_state_dict(saved(first))
        assert (moved.best_dual, moved.best_relaxed_dual) == (0.0, 0.0)

    def test_checkpoints_of_others_change_nothing(self):
        gdmm = self.trained(1, passes=2)
        before = saved(gdmm)
        others = [self.make(1, **options) for options in ({"n": 5}, {"features": 3}, {"bias": False}, {"lam": 0.7})]
        for task in (*others, self.make(2)):  # the last one has other targets
            with pytest.raises(ValueError, match="checkpoint"):
                gdmm.load_state_dict(saved(self.gdmm(task)))
            assert_same(saved(gdmm), before)
        gdmm.step()

    def test_the_dual_goes_on_with_bcfw(self):
        for seed, options in itertools.product((1, 2), ({}, {"sparse": True})):
            task = self.make(seed, **options)
            best, gdmm = self.graph(task).optimum(), self.gdmm(task)
            for _ in range(8):
                gdmm.step()
            dual = gdmm.dual_state(task.everything(3))
            certificate = certify(task.head, dual, task.everything())
            assert certificate.drift <= 1e-9
            assert certificate.dual == pytest.approx(dual.value(), abs=1e-12)
            assert 0.0 < certificate.dual <= best + 1e-6  # which is that of the relaxation
            assert best - 1e-6 <= certificate.primal or not certificate.exact or self.is_loose
            loss = BlockGap(dual)
            optim = BCFW(task.head.parameters(), dual)
            before = certificate.dual
            for rows in torch.arange(task.n).repeat(3).split(2):
                batch = task.batch(rows)
                optim.zero_grad()
                loss(apply_head(task.head, batch), batch.y, batch.index).backward()
                optim.step()
                assert dual.value() >= before - 1e-12
                before = dual.value()
            self.check_means(task, dual)

    #: Whether the relaxed optimum may be above that of the problem itself.
    is_loose = False

    @abstractmethod
    def parts(self, task: Task, dual: DualState, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of one example mu ``[p]``; the parts ``[Y, p]`` of all labelings and their losses; and l_i."""

    def check_means(self, task: Task, dual: DualState) -> None:
        """Every block is the mean of labelings, and of their losses."""
        for i in range(task.n):
            mean, parts, losses = self.parts(task, dual, i)
            loss = float(dual.loss[i]) * task.n
            corners = np.concatenate([parts, losses[:, None], np.ones((len(parts), 1))], 1)
            wanted = np.concatenate([mean, [loss, 1.0]])
            _, distance = scipy.optimize.nnls(corners.T, wanted)
            assert distance <= 1e-9

    def test_a_dual_of_other_features_is_theirs(self):
        gdmm, task = self.trained(1), self.make(1)
        task.x = scaled(task.x, 3.0)
        dual = gdmm.dual_state(task.everything())
        task.head = gdmm.head
        certificate = certify(gdmm.head, dual, task.everything())
        assert certificate.drift <= 1e-9
        assert certificate.dual <= self.graph(task).optimum() + 1e-6
        self.check_means(task, dual)

    def test_the_weights_are_handed_over_and_may_be_taken_back(self):
        gdmm, task = self.trained(1), self.make(1)
        before, weights = saved(gdmm), flat(gdmm.head.parameters()).clone()
        for again in (before, None):
            gdmm.dual_state(task.everything())
            for use in (gdmm.step, gdmm.certify, lambda: gdmm.dual_state(task.everything())):
                with pytest.raises(RuntimeError, match="dual_state"):
                    use()
            gdmm.load_state_dict(gdmm.state_dict() if again is None else again)
            assert torch.equal(flat(gdmm.head.parameters()), weights)
            assert_same(saved(gdmm), before)
        gdmm.step()

    @pytest.mark.parametrize("factor", [0.25, 1.001, 4.0])  # what was certified is too low, or too high
    def test_duals_of_other_features_are_noticed(self, factor):
        good = self.trained(1, passes=30)
        good.certify()
        task = self.make(1)
        task.x = scaled(task.x, factor)
        other = self.gdmm(task)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="other features"):
                other.load_state_dict(saved(good))
        assert not any(bool(p.any()) for p in other.head.parameters())  # a warning that is an error changes nothing
        with pytest.warns(UserWarning, match="other features"):
            other.load_state_dict(saved(good))
        certificate = other.certify()
        best = self.graph(task).optimum()
        assert certificate.drift <= 1e-9
        assert certificate.relaxed_dual - 1e-6 <= best <= certificate.relaxed_primal + 1e-6
        same = self.gdmm(self.make(1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            same.load_state_dict(saved(good))
            again, before = same.certify(), good.certify()
            assert (again.dual, again.relaxed_dual) == (before.dual, before.relaxed_dual)
            other.certify()  # which has the weights of its features by now

    def test_weights_edited_by_hand_are_noticed(self):
        gdmm = self.trained(1)
        before = saved(gdmm)
        with torch.no_grad():
            next(gdmm.head.parameters()).add_(1.0)
        for use in (
            gdmm.step,
            gdmm.certify,
            gdmm.end_pass,
            lambda: gdmm.visit(torch.tensor([0])),
            lambda: gdmm.dual_state([]),
        ):
            with pytest.raises(RuntimeError, match="weights"):
                use()
        gdmm.load_state_dict(gdmm.state_dict())
        assert_same(saved(gdmm), before)
        gdmm.step()

    def test_float32(self):
        task = self.make(2, dtype=torch.float32)
        best, gdmm = self.graph(task).optimum(), self.gdmm(task)
        certificate = gdmm.solve(1e-4, max_passes=2000)
        assert all(p.dtype == torch.float32 for p in task.head.parameters())
        assert certificate.drift <= 1e-4
        assert certificate.relaxed_gap <= 1e-4
        assert certificate.relaxed_dual - 1e-6 <= best <= certificate.relaxed_primal + 1e-5
