"""Kernel models: bad input is refused with an error that names it, before anything changes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from cases.kernel_problems import kernel_head, kernel_svm
from cases.problems import assert_same, chain, multiclass

from torchssvm import LinearChain
from torchssvm.solvers.kernel import RBF, KernelChain, KernelHead, KernelMulticlass, KernelSSVM, Linear, Polynomial


class Wrong:
    """A kernel that changes its mind after the model was made."""

    def __init__(self) -> None:
        self.result: Any = None

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return a @ b.T if self.result is None else self.result(a @ b.T)


@pytest.mark.parametrize(
    "kernel, message",
    [
        (lambda a, b: (a @ b.T)[:, :-1], "kernel="),
        (lambda a, b: b @ a.T, "kernel="),
        (lambda a, b: (a @ b.T) * math.nan, "kernel="),
        (lambda a, b: a @ b.T + a[:, :1], "kernel="),
        (lambda a, b: -(a @ b.T), "kernel="),
        (lambda a, b: torch.cdist(a, b), "kernel="),
    ],
)
def test_wrong_kernels(kernel: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel_svm(chain(0), kernel)


def test_kernels_of_a_wrong_type() -> None:
    for kernel in (lambda a, b: (a @ b.T).float(), lambda a, b: (a @ b.T).numpy()):
        with pytest.raises(ValueError, match="kernel="):
            kernel_svm(chain(0), kernel)
    with pytest.raises(TypeError, match="kernel="):
        kernel_svm(chain(0), "rbf")


@pytest.mark.parametrize(
    "result, message",
    [(lambda values: values * math.inf, "kernel="), (lambda values: values[:1, :1], "kernel=")],
)
def test_a_kernel_that_goes_wrong_later_changes_nothing(result: Any, message: str) -> None:
    kernel = Wrong()
    svm = kernel_svm(chain(0), kernel)
    svm.visit([0])
    before = copy.deepcopy(svm.state_dict())
    kernel.result = result
    with pytest.raises(ValueError, match=message):
        svm.visit([0, 1])
    assert_same(before, svm.state_dict())
    with pytest.raises(ValueError, match=message):
        svm.certify()
    kernel.result = None
    svm.visit([0, 1])


def test_a_kernel_that_turns_indefinite_is_refused() -> None:
    kernel = Wrong()
    svm = kernel_svm(multiclass(0, bias=False), kernel)
    kernel.result = lambda values: -values
    with pytest.raises(ValueError, match="kernel="):
        svm.visit([0])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: RBF(0.0), "gamma=0.0"),
        (lambda: RBF(math.nan), "gamma=nan"),
        (lambda: Polynomial(0), "degree=0"),
        (lambda: Polynomial(1.5), "degree=1.5"),  # type: ignore[arg-type]
        (lambda: Polynomial(2, -1.0), "constant=-1.0"),
        (lambda: Polynomial(2, 1.0, 0.0), "scale=0.0"),
        (lambda: KernelChain(RBF(), 0, 3), "in_features=0"),
        (lambda: KernelMulticlass(RBF(), 2, 0), "num_classes"),
    ],
)
def test_wrong_parameters(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class TestData:
    def test_shapes_and_numbers(self) -> None:
        problem = chain(0)
        head = kernel_head(problem, RBF())
        n = problem.n

        def made(x: Any = problem.x, y: Any = problem.y, lengths: Any = problem.lengths, **options: Any) -> KernelSSVM:
            return KernelSSVM(head, x, y, lengths, **{"lam": 0.1, **options})

        spoiled = problem.x.clone()
        spoiled[1, 0, 0] = math.nan
        for options, message in [
            ({"x": problem.x[:0], "y": problem.y[:0], "lengths": problem.lengths[:0]}, "x="),
            ({"x": problem.x[..., :1]}, r"x must be \[B, N, 2\]"),
            ({"x": spoiled}, r"not finite in 1 examples, \[1\]"),
            ({"y": problem.y[:2]}, "target must be int64"),
            ({"y": problem.y + 1}, "labels are 0 to 1"),
            ({"lengths": problem.lengths[:2]}, "lengths must be"),
            ({"lengths": problem.lengths + 5}, "lengths must"),
            ({"lam": 0.0}, "lam=0.0"),
            ({"lam": math.nan}, "lam=nan"),
            ({"sweeps": -1}, "sweeps=-1"),
        ]:
            with pytest.raises(ValueError, match=message):
                made(**options)
        with pytest.raises(TypeError, match="x must be"):
            made(x=problem.x.tolist())
        with pytest.raises(TypeError, match="y must be"):
            made(y=problem.y.tolist())
        assert made().dual.num_examples == n

    def test_lengths_of_inputs_without_tokens(self) -> None:
        problem = multiclass(0)
        with pytest.raises((TypeError, ValueError)):
            KernelSSVM(kernel_head(problem, RBF()), problem.x, problem.y, torch.ones(problem.n).long(), lam=0.1)

    def test_a_linear_head_that_does_not_fit(self) -> None:
        problem = chain(0)
        linear = LinearChain(0, 2).double()
        options: dict[str, Any] = {"num_states": 2, "structure": linear.structure}
        for unary in ("transition", "emissions"):
            head = KernelHead(RBF(), 2, linear, unary=unary, **options).double()
            with pytest.raises(ValueError, match="unary="):
                KernelSSVM(head, problem.x, problem.y, problem.lengths, lam=0.1)

    @pytest.mark.parametrize("index", [[], [5], [-1], [0.5], torch.zeros(2, 2, dtype=torch.int64), [True]])
    def test_index(self, index: Any) -> None:
        svm = kernel_svm(chain(0), RBF())
        svm.visit([0])
        before = copy.deepcopy(svm.state_dict())
        with pytest.raises(ValueError, match="index"):
            svm.visit(index)
        assert_same(before, svm.state_dict())

    def test_an_example_drawn_twice_counts_once(self) -> None:
        once, twice = kernel_svm(chain(0), RBF()), kernel_svm(chain(0), RBF())
        once.visit([2, 0])
        twice.visit([2, 0, 2])
        assert_same(once.state_dict(), twice.state_dict())

    def test_new_inputs(self) -> None:
        svm = kernel_svm(chain(0), RBF())
        svm.visit([0, 1])
        with pytest.raises(ValueError, match=r"x must be \[B, N, 2\]"):
            svm.decode(torch.zeros(1, 3, 5, dtype=torch.float64))
        with pytest.raises(ValueError, match="lengths"):
            svm.decode(torch.zeros(1, 3, 2, dtype=torch.float64), torch.tensor([4]))
        with pytest.raises(ValueError, match="kernel="):
            svm.decode(torch.full((1, 3, 2), math.nan, dtype=torch.float64))


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
