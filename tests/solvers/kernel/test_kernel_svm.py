"""Kernel models: the same as explicit features give."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from cases.kernel_problems import circles, gram_features, kernel_svm, monomials, with_features
from cases.problems import PROBLEMS, Problem, chain, flat, multiclass, reference, rng

from torchssvm import LinearMulticlass, Multiclass, certify
from torchssvm.solvers.kernel import RBF, KernelMulticlass, KernelSSVM, Linear, Polynomial

KERNELS = {"linear": Linear(), "polynomial": Polynomial(3, 0.5, 0.4), "rbf": RBF(0.7), "function": lambda a, b: a @ b.T}
VARIANTS = {
    **PROBLEMS,
    "cost": functools.partial(multiclass, cost=torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 0.5], [1.0, 1.0, 0.0]])),
    "no bias": functools.partial(multiclass, bias=False),
    "positions": functools.partial(chain, shared=False),
    "full length": functools.partial(chain, ragged=False),
    "bare chain": functools.partial(chain, bias=False, boundary=False),
}
PAIRS = [(variant, kernel) for variant in VARIANTS for kernel in ("polynomial", "rbf")]
PAIRS += [(variant, kernel) for variant in PROBLEMS for kernel in ("linear", "function")]


def visits(n: int, steps: int, seed: int = 0) -> list[list[int]]:
    random = rng(seed)
    return [torch.randperm(n, generator=random)[: 1 + step % 4].tolist() for step in range(steps)]


def prediction(problem: Problem) -> torch.Tensor:
    batch = problem.batch(range(problem.n))
    result = problem.head(batch.x) if batch.lengths is None else problem.head(batch.x, batch.lengths)
    return problem.structure.argmax(result.detach()).labeling


class TestAgainstExplicitFeatures:
    @pytest.mark.parametrize(
        "variant, kernel, sweeps", [*((*pair, 5) for pair in PAIRS), ("chain", "rbf", 0), ("multiclass", "linear", 0)]
    )
    def test_every_step_is_that_of_the_linear_head(self, variant: str, kernel: str, sweeps: int) -> None:
        problem = VARIANTS[variant](0, n=8, lam=0.1)
        explicit = gram_features(problem, KERNELS[kernel])
        listed = reference(explicit)
        training = explicit.train(sweeps=sweeps)
        svm = kernel_svm(problem, KERNELS[kernel], sweeps=sweeps)
        taken = 0
        for rows in visits(8, 16):
            if listed.tied(training.weights(), rows):
                continue  # rounding decides which of two best outputs is returned
            taken += 1
            assert svm.visit(rows) == pytest.approx(training.step(rows), abs=1e-9)
            assert svm.dual.value() == pytest.approx(training.dual.value(), abs=1e-9)
            assert torch.allclose(svm.dual.loss, training.dual.loss, atol=1e-9)
            assert torch.allclose(svm.dual.gap_estimates, training.dual.gap_estimates, atol=1e-9)
        assert taken >= 10
        assert svm.dual.oracle_calls == training.dual.oracle_calls
        learned = list(explicit.head.parameters())[1:]  # the first one is what the kernel stands for
        assert torch.allclose(
            flat(svm.head.linear.parameters()),
            flat([learned[0].new_zeros(0), *learned]) if learned else torch.zeros(0, dtype=torch.float64),
            atol=1e-9,
        )
        ours, theirs = svm.certify(), certify(explicit.head, training.dual, explicit.everything())
        assert ours.primal == pytest.approx(theirs.primal, abs=1e-9)
        assert ours.dual == pytest.approx(theirs.dual, abs=1e-9)
        assert torch.equal(svm.decode(problem.x, problem.lengths), prediction(explicit))

    @pytest.mark.parametrize("make", PROBLEMS.values(), ids=PROBLEMS)
    @pytest.mark.parametrize("kernel", [Polynomial(2, 1.0, 1.0), Polynomial(3, 0.3, 0.5)], ids=str)
    def test_polynomials_are_their_monomials_on_new_inputs_too(self, make: Any, kernel: Polynomial) -> None:
        problem = make(1, n=6, lam=0.2)
        assert torch.allclose(
            kernel(problem.x[0].view(-1, problem.x.shape[-1]), problem.x[1].view(-1, problem.x.shape[-1])),
            monomials(kernel, problem.x[0]).view(-1, monomials(kernel, problem.x).shape[-1])
            @ monomials(kernel, problem.x[1]).view(-1, monomials(kernel, problem.x).shape[-1]).T,
        )
        explicit = with_features(problem, monomials(kernel, problem.x))
        listed, training, svm = reference(explicit), explicit.train(), kernel_svm(problem, kernel)
        for rows in visits(6, 24):
            if not listed.tied(training.weights(), rows):
                training.step(rows)
                svm.visit(rows)
        assert svm.dual.value() == pytest.approx(training.dual.value(), abs=1e-9)
        new = torch.randn(40, *problem.x.shape[1:], generator=rng(5), dtype=torch.float64)
        lengths = None if problem.lengths is None else torch.randint(1, new.shape[1] + 1, (40,), generator=rng(6))
        theirs = explicit.head(monomials(kernel, new), *([] if lengths is None else [lengths])).detach()
        ours = svm.update_head()(new, lengths).detach()
        for name, tensor in theirs.tensors.items():
            real = (
                torch.ones(())
                if lengths is None or name != "emission"
                else (torch.arange(new.shape[1]) < lengths.unsqueeze(1)).unsqueeze(2)
            )
            assert torch.allclose(ours[name] * real, tensor * real, atol=1e-9)
        assert torch.equal(svm.decode(new, lengths), problem.structure.argmax(theirs).labeling)


def test_multiclass_cost_is_the_structures_own() -> None:
    cost = torch.tensor([[0.0, 2.0], [5.0, 0.0]])
    problem = Problem(LinearMulticlass(2, 2, structure=Multiclass(2, cost)).double(), *circles(6), None, 0.1)
    svm = kernel_svm(problem, RBF(1.0))
    assert svm.certify().primal == pytest.approx(3.5)  # at zero weights, the mean of the largest losses


def test_a_relaxation_is_not_certified_as_the_problem():
    class Loose(Multiclass):
        """Its outputs count as points outside of the hull."""

        def argmax(self, potentials):
            return super().argmax(potentials)._replace(relaxed=True)

    svm = KernelSSVM(
        KernelMulticlass(Linear(), 2, 3, structure=Loose(3)),
        torch.randn(4, 2, generator=rng(0)),
        torch.tensor([0, 1, 2, 0]),
        lam=0.1,
    )
    assert not svm.dual.relaxed
    svm.step()
    assert svm.dual.relaxed
    certificate = svm.certify()
    assert certificate.relaxed
    assert not certificate.exact
