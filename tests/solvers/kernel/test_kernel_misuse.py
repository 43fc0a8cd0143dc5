"""Kernel models: bad input is refused with an error that names it, before anything changes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from cases.kernel_problems import kernel_head, kernel_svm
from cases.problems import Problem, assert_same, chain

from torchssvm.solvers.kernel import RBF, KernelChain, KernelMulticlass, KernelSSVM, Linear, Polynomial


class Wrong:
    """A kernel that changes its mind after the model was made."""

    def __init__(self) -> None:
        self.result: Any = None

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return a @ b.T if self.result is None else self.result(a @ b.T)


def spoiled(problem: Problem) -> torch.Tensor:
    x = problem.x.clone()
    x[1, 0, 0] = math.nan
    return x


def made(**options: Any) -> KernelSSVM:
    problem = chain(0)
    given = {"x": problem.x, "y": problem.y, "lengths": problem.lengths, "lam": 0.1}
    changes = {name: change(problem) if callable(change) else change for name, change in options.items()}
    return KernelSSVM(kernel_head(problem, RBF()), **given | changes)


def trained() -> KernelSSVM:
    svm = kernel_svm(chain(0), RBF())
    svm.visit([0])
    return svm


DOORS = [
    (lambda: kernel_svm(chain(0), lambda a, b: (a @ b.T)[:, :-1]), ValueError, "kernel"),
    (lambda: kernel_svm(chain(0), lambda a, b: (a @ b.T) * math.nan), ValueError, "kernel"),
    (lambda: kernel_svm(chain(0), lambda a, b: a @ b.T + a[:, :1]), ValueError, "kernel"),
    (lambda: kernel_svm(chain(0), lambda a, b: -(a @ b.T)), ValueError, "kernel"),
    (lambda: kernel_svm(chain(0), lambda a, b: (a @ b.T).float()), ValueError, "kernel"),
    (lambda: kernel_svm(chain(0), "rbf"), TypeError, "kernel"),
    (lambda: RBF(0.0), ValueError, "gamma"),
    (lambda: Polynomial(0), ValueError, "degree"),
    (lambda: Polynomial(2, -1.0), ValueError, "constant"),
    (lambda: Polynomial(2, 1.0, 0.0), ValueError, "scale"),
    (lambda: KernelChain(RBF(), 0, 3), ValueError, "in_features"),
    (lambda: KernelMulticlass(RBF(), 2, 0), ValueError, "num_classes"),
    (lambda: made(x=lambda problem: problem.x[..., :1]), ValueError, "x must be"),
    (lambda: made(x=spoiled), ValueError, "not finite"),
    (lambda: made(x=lambda problem: problem.x.tolist()), TypeError, "x must be"),
    (lambda: made(y=lambda problem: problem.y[:2]), ValueError, "target"),
    (lambda: made(y=lambda problem: problem.y + 1), ValueError, "label"),
    (lambda: made(lengths=lambda problem: problem.lengths[:2]), ValueError, "lengths"),
    (lambda: made(lengths=lambda problem: problem.lengths + 5), ValueError, "lengths"),
    (lambda: made(lam=0.0), ValueError, "lam"),
    (lambda: made(sweeps=-1), ValueError, "sweeps"),
    (lambda: trained().visit([]), ValueError, "index"),
    (lambda: trained().visit([5]), ValueError, "index"),
    (lambda: trained().visit([0.5]), ValueError, "index"),
    (lambda: trained().decode(torch.zeros(1, 3, 5, dtype=torch.float64)), ValueError, "x must be"),
    (lambda: trained().decode(torch.zeros(1, 3, 2, dtype=torch.float64), torch.tensor([4])), ValueError, "lengths"),
]


@pytest.mark.parametrize(("call", "error", "argument"), DOORS)
def test_doors(call: Any, error: type[Exception], argument: str) -> None:
    with pytest.raises(error, match=argument):
        call()


@pytest.mark.parametrize("result", [lambda values: values * math.inf, lambda values: values[:1, :1]])
def test_a_kernel_that_goes_wrong_later_changes_nothing(result: Any) -> None:
    kernel = Wrong()
    svm = kernel_svm(chain(0), kernel)
    svm.visit([0])
    before = copy.deepcopy(svm.state_dict())
    kernel.result = result
    for use in (lambda: svm.visit([0, 1]), svm.certify):
        with pytest.raises(ValueError, match="kernel="):
            use()
    assert_same(before, svm.state_dict())
    kernel.result = None
    svm.visit([0, 1])


def test_an_example_drawn_twice_counts_once() -> None:
    once, twice = kernel_svm(chain(0), RBF()), kernel_svm(chain(0), RBF())
    once.visit([2, 0])
    twice.visit([2, 0, 2])
    assert_same(once.state_dict(), twice.state_dict())


class TestTraining:
    def test_explicit_weights_changed_by_others(self) -> None:
        svm = kernel_svm(chain(0), Linear())
        svm.visit([0, 1, 2])
        before = [p.detach().clone() for p in svm.dual.parameters]
        with torch.no_grad():
            svm.head.linear.transition += 1.0
        with pytest.raises(RuntimeError, match="explicit weights"):
            svm.visit([0])
        with pytest.warns(UserWarning, match="changed by others"):
            svm.certify()
        for parameter, old in zip(svm.dual.parameters, before, strict=True):
            assert torch.allclose(parameter, old, atol=1e-12)
        svm.visit([0])

    def test_weights_of_a_head_that_was_used_before_start_at_zero(self) -> None:
        problem = chain(0)
        head = kernel_head(problem, RBF())
        first = KernelSSVM(head, problem.x, problem.y, problem.lengths, lam=0.1)
        first.visit(range(5))
        first.update_head()
        again = KernelSSVM(head, problem.x, problem.y, problem.lengths, lam=0.1)
        assert not any(bool(p.any()) for p in head.parameters())
        assert len(head.support) == 0
        assert again.certify().dual == 0.0
