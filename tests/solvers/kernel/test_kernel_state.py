"""Kernel models: padding, bounded kernel rows, support, checkpoints and prediction without the model."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from cases.kernel_problems import circles, kernel_head, kernel_svm
from cases.problems import PROBLEMS, Problem, WithoutAdjoint, assert_same, chain, multiclass, rng, through_a_file
from torch import Tensor

from torchssvm import (
    Batch,
    GapBatchSampler,
    LinearChain,
    LinearMulticlass,
    Permutation,
    Proportional,
    Uniform,
    evaluate,
)
from torchssvm.solvers.kernel import RBF, KernelChain, KernelHead, KernelMulticlass, KernelSSVM, Polynomial


class Counting:
    """A kernel that knows what it was asked for."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        self.shapes.append((len(a), len(b)))
        return RBF(0.5)(a, b)


def trained(problem: Problem, steps: int = 30, kernel: Any = None, **options: Any) -> KernelSSVM:
    svm = kernel_svm(problem, kernel or RBF(0.5), **options)
    random = rng(1)
    for step in range(steps):
        svm.visit(torch.randperm(problem.n, generator=random)[: 1 + step % 3])
    return svm


class TestPadding:
    def test_what_stands_in_the_padding_never_matters(self) -> None:
        problem = chain(0, n=6)
        wide = torch.full((6, 7, 2), math.nan, dtype=torch.float64)
        labels = torch.full((6, 7), 99)
        for i, length in enumerate(problem.lengths.tolist()):
            wide[i, :length], labels[i, :length] = problem.x[i, :length], problem.y[i, :length]
        padded = Problem(problem.head, wide, labels, problem.lengths, problem.lam)
        plain, other = trained(problem), trained(padded)
        assert plain.dual.value() == pytest.approx(other.dual.value(), abs=1e-12)
        assert plain.certify().gap == pytest.approx(other.certify().gap, abs=1e-12)
        assert plain.support_counts() == other.support_counts()
        decoded = other.decode(wide, problem.lengths)
        assert torch.equal(decoded[:, :3], plain.decode(problem.x, problem.lengths))
        assert bool((decoded[:, 3:] == -1).all())


class TestKernelRows:
    def test_a_small_cache_changes_no_bit(self) -> None:
        problem = chain(0, n=8, longest=4)
        large = trained(problem)
        row = 8 * len(large.data.tokens)
        limit = 14 * row  # 3 examples of 4 tokens, and hardly more
        small = trained(problem, memory_limit=10**6)
        small.gram.memory_limit = limit
        assert_same(large.state_dict(), small.state_dict())
        before = small.gram.computed
        for rows in ([0, 1, 2], [3, 4, 5], [6, 7], [0, 1, 2]):
            large.visit(rows)
            small.visit(rows)
            assert small.gram.nbytes() <= limit
        assert_same(large.state_dict(), small.state_dict())
        assert small.gram.computed > before  # rows had to go, and were computed again
        assert large.gram.computed == len(large.data.tokens)  # each once
        assert large.gram.nbytes() == len(large.data.tokens) * row
        assert small.certify().gap == pytest.approx(large.certify().gap, abs=1e-12)

    def test_rows_that_do_not_fit_are_refused_before_anything_changes(self) -> None:
        problem = chain(0, n=8, longest=4)
        svm = trained(problem)
        svm.gram.memory_limit = 8 * len(svm.data.tokens) * 4
        before = copy.deepcopy(svm.state_dict())
        with pytest.raises(MemoryError, match="memory_limit="):
            svm.visit(range(8))
        assert_same(before, svm.state_dict())
        svm.visit([0])  # four rows fit
        assert svm.nbytes()["kernel rows"] <= svm.gram.memory_limit

    def test_only_support_tokens_are_used_for_prediction(self) -> None:
        kernel = Counting()
        x, y = circles(30)
        svm = trained(Problem(LinearMulticlass(2, 2).double(), x, y, None, 0.05), 60, kernel)
        counts = svm.support_counts()
        assert 0 < counts.tokens < 30
        assert counts.tokens == counts.examples
        kernel.shapes.clear()
        svm.decode(circles(17, seed=2)[0])
        assert kernel.shapes == [(17, counts.tokens)]


class TestResume:
    @pytest.mark.parametrize("order", [Proportional(), Uniform(), Permutation()], ids=repr)
    @pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS)
    def test_to_the_bit_in_the_middle_of_an_epoch(self, make: Any, order: Any) -> None:
        def fresh() -> tuple[KernelSSVM, GapBatchSampler]:
            svm = kernel_svm(make(0, n=9, dtype=torch.float32), RBF(0.5))
            return svm, GapBatchSampler(svm.dual, batch_size=2, order=order, seed=3, chunk=2)

        def run(svm: KernelSSVM, sampler: GapBatchSampler, steps: int) -> None:
            taken = 0
            while taken < steps:
                for index in sampler:
                    svm.visit(index)
                    taken += 1
                    if taken == steps:
                        break
                if taken == 10:
                    svm.certify()

        straight, order_straight = fresh()
        run(straight, order_straight, 13)
        state = through_a_file({"svm": straight.state_dict(), "sampler": order_straight.state_dict()})
        resumed, order_resumed = fresh()
        resumed.visit([0])  # what was there before must not shine through
        resumed.load_state_dict(state["svm"])
        order_resumed.load_state_dict(state["sampler"])
        order_straight.load_state_dict(state["sampler"])
        run(straight, order_straight, 11)
        run(resumed, order_resumed, 11)
        assert_same(straight.state_dict(), resumed.state_dict())
        ours, theirs = straight.certify(), resumed.certify()
        assert (ours.primal, ours.dual, ours.gap) == (theirs.primal, theirs.dual, theirs.gap)
        x = straight.data.tokens if make is multiclass else straight.data.tokens.unsqueeze(1)
        assert torch.equal(straight.decode(x), resumed.decode(x))

    def test_states_of_other_problems_and_damaged_ones_are_refused(self) -> None:
        problem = chain(0, n=6)
        svm = trained(problem)
        good = svm.state_dict()
        others = {
            "kernel": kernel_svm(problem, RBF(0.6)),
            "tokens": kernel_svm(chain(1, n=6), RBF(0.5)),
            "lam": kernel_svm(problem, RBF(0.5), lam=0.7),
        }
        for word, other in others.items():
            before = copy.deepcopy(other.state_dict())
            with pytest.raises(ValueError, match=word):
                other.load_state_dict(good)
            assert_same(before, other.state_dict())
        flipped = Problem(problem.head, problem.x, torch.where(problem.y < 0, -1, 1 - problem.y), problem.lengths, 0.5)
        with pytest.raises(ValueError, match="other targets"):
            kernel_svm(flipped, RBF(0.5)).load_state_dict(good)


class TestOtherHeadsAndDevices:
    def test_a_linear_head_without_adjoint(self) -> None:
        problem = chain(0, n=6)
        linear = WithoutAdjoint(LinearChain(0, 2))
        assert next(linear.parameters()).numel() == 0  # no features: kernels stand for them
        head = KernelHead(RBF(0.5), 2, linear, unary="emission", num_states=2, structure=linear.structure).double()
        other = KernelSSVM(head, problem.x, problem.y, problem.lengths, lam=problem.lam)
        svm = kernel_svm(problem, RBF(0.5))
        for rows in ([0, 1, 2], [3], [4, 5], [0, 5]):
            assert svm.visit(rows) == pytest.approx(other.visit(rows), abs=1e-12)
        assert svm.dual.value() == pytest.approx(other.dual.value(), abs=1e-12)

    @pytest.mark.slow
    def test_on_every_device_the_same(self, device: torch.device) -> None:
        """From the same state; on the way there, rounding may decide ties otherwise on another device."""
        problem = chain(0, n=8, features=4)
        here = kernel_svm(problem, RBF(0.5))
        x, y, lengths = (t.to(device) for t in (problem.x, problem.y, problem.lengths))
        head = kernel_head(problem, RBF(0.5)).to(device)
        there = KernelSSVM(head, x, y, lengths, lam=problem.lam)
        random = rng(1)
        for step in range(30):
            there.visit(torch.randperm(8, generator=random)[: 1 + step % 3])
        here.load_state_dict(there.state_dict())
        assert there.dual.value() == pytest.approx(here.dual.value(), abs=1e-9)
        assert there.certify().gap == pytest.approx(here.certify().gap, abs=1e-9)
        assert there.decode(x, lengths).device == x.device
        assert torch.equal(there.decode(x, lengths).cpu(), here.decode(problem.x, problem.lengths))


class TestTrainedHead:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_its_state_dict_predicts_without_the_training_set(self, dtype: torch.dtype) -> None:
        problem = chain(0, n=6, dtype=dtype)
        svm = trained(problem)
        head = svm.update_head()
        alone = KernelChain(RBF(0.5), 2, 2).to(dtype)
        alone.load_state_dict(through_a_file(head.state_dict()))
        ours, theirs = head(problem.x, problem.lengths), alone(problem.x, problem.lengths)
        assert torch.equal(ours["emission"], theirs["emission"])
        assert ours["emission"].dtype == dtype
        assert len(alone.support) == svm.support_counts().tokens
        with pytest.raises(RuntimeError, match="size mismatch"):
            KernelChain(RBF(0.5), 3, 2).to(dtype).load_state_dict(head.state_dict())

    def test_it_follows_training_and_is_evaluated_as_any_head(self) -> None:
        x, y = circles(20)
        head = KernelMulticlass(RBF(1.0), 2, 2).double()
        svm = KernelSSVM(head, x, y, lam=0.01, batch_size=4)
        assert svm.update_head() is head
        assert len(head.support) == 0
        certificate = svm.solve(tolerance=0.02, max_passes=500)
        assert certificate.gap <= 0.02
        assert evaluate(svm.update_head(), head.structure, [Batch(x, y, torch.arange(20))]).loss == 0.0
        assert len(head.support) > 0
        assert svm.solve(tolerance=1e-12, max_passes=svm.dual.passes + 2).gap > 1e-12  # stopped by the passes


def test_float32_stays_near_float64() -> None:
    values = []
    for dtype in (torch.float32, torch.float64):
        svm = trained(chain(0, n=8, features=4, dtype=dtype), 60, Polynomial(2, 1.0, 0.3))
        certificate = svm.certify()
        assert certificate.drift < 1e-5
        values.append(certificate.gap)
    assert values[0] == pytest.approx(values[1], abs=0.05)  # a tie may fall the other way
