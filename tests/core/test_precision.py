"""Heads and certificates multiply in full precision, and leave what the process has set as it was."""

import copy

import pytest
import torch
from cases.kernel_problems import kernel_svm
from cases.lowered_precision import SETTINGS, is_rounded, lowered
from cases.problems import PROBLEMS, assert_same, rng
from torch import nn

from torchssvm import (
    Batch,
    Corrective,
    Labelings,
    MeanParts,
    Multiclass,
    Weights,
    certify,
    recompute_weights,
)
from torchssvm.core.linearity import linearity_error
from torchssvm.core.precision import full_precision, is_lowered, product
from torchssvm.solvers import primal
from torchssvm.solvers.kernel import RBF

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_context_is_full_and_leaves_the_process_as_it_was(setting):
    with lowered(setting):  # which compares all settings before and after
        assert is_lowered(CPU) or is_lowered(CUDA)
        for devices in ((CPU, CUDA), (CUDA, CPU)):
            with full_precision(devices[0]), full_precision(devices[1]):
                assert not is_lowered(CPU)
                assert not is_lowered(CUDA)
                assert not is_rounded()
                if setting in ("high", "medium", "allow_tf32"):  # torch refuses to tell where names differ
                    assert not torch.backends.cuda.matmul.allow_tf32
                    assert torch.get_float32_matmul_precision() == "highest"
            assert is_rounded()


def test_the_context_switches_autocast_off_too():
    with lowered("high"), torch.autocast("cpu", dtype=torch.bfloat16):
        with full_precision(CPU):
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("shape", [(6, 40), (2, 3, 40), (2, 3, 4, 40), (2, 3, 0), (0, 40)])
@pytest.mark.parametrize("columns", [(), (5,)])
def test_a_product_and_its_gradients_are_full(shape, columns):
    x = torch.randn(shape, generator=rng(0), requires_grad=True)
    weight = torch.randn(*columns, shape[-1], generator=rng(1), requires_grad=True)

    def everything(multiply):
        value = multiply(x, weight)
        once = torch.autograd.grad(value.square().sum(), (x, weight), create_graph=True)
        return [value, *once, *torch.autograd.grad(once[0].square().sum() + once[1].square().sum(), (x, weight))]

    expected = everything(nn.functional.linear)
    with lowered("high") as seen:
        result = everything(product)
        assert seen.products >= 3
        assert not seen.rounded
        everything(nn.functional.linear)
        assert seen.rounded  # the setting is on
    for mine, plain in zip(result, expected, strict=True):
        largest = float(plain.detach().abs().max()) if plain.numel() else 0.0  # sums in another order, which cancel
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5 * (1 + largest))


def test_a_product_goes_with_transforms_and_forward_mode():
    x, weight = torch.randn(3, 4, generator=rng(0)), torch.randn(2, 4, generator=rng(1), requires_grad=True)
    tangent = torch.randn(2, 4, generator=rng(2))
    with lowered("high"):
        with full_precision(CPU):
            expected = x @ weight.t(), x @ tangent.t(), x.sum(0).expand(2, 4)
        torch.testing.assert_close(torch.vmap(product, (0, None))(x, weight), expected[0])
        torch.testing.assert_close(torch.func.jvp(lambda w: product(x, w), (weight,), (tangent,))[1], expected[1])
        with full_precision(CPU):
            torch.testing.assert_close(torch.func.grad(lambda w: product(x, w).sum())(weight), expected[2])
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(weight, tangent)
            torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(product(x, dual)).tangent, expected[1])


def wide(kind, **options):
    sizes = {"multiclass": {"classes": 4, "n": 12}, "chain": {"states": 3, "n": 8, "longest": 5}}[kind]
    return PROBLEMS[kind](3, features=40, dtype=torch.float32, lam=0.05, **sizes, **options)


def history(problem, **options):
    training = problem.train(**options)
    gaps = [training.step(rows.tolist()) for _ in range(3) for rows in torch.arange(problem.n).split(4)]
    certificate = certify(training.head, training.dual, problem.everything(3))
    training.step([0, 1, 2])
    change = 0.0
    if not training.dual.storage.needs_gradients:
        change = recompute_weights(training.head, training.dual, problem.everything(3))
    objective = primal(training.head, problem.structure, problem.everything(3), problem.lam)
    return (
        gaps,
        [certificate.primal, certificate.dual, certificate.gap, certificate.drift, change, objective.value],
        training.snapshot(),
    )


@pytest.mark.parametrize("setting", ["high", "medium"])
@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize(
    "options",
    [
        {"storage": MeanParts},
        {"storage": Weights},
        {"storage": Labelings, "direction": Corrective},
        {"storage": MeanParts, "sweeps": lambda: 0},
    ],
)
def test_training_and_certificates_are_the_same_to_the_bit(kind, options, setting):
    problem = wide(kind)
    expected = history(problem.copy(), **{name: make() for name, make in options.items()})
    with lowered(setting) as seen:
        result = history(problem.copy(), **{name: make() for name, make in options.items()})
    assert not seen.rounded
    assert seen.products > 10
    assert_same(result, expected)


def test_the_box_qp_of_a_device_is_the_same_to_the_bit(monkeypatch):
    """There its Gram matrix is one product."""
    monkeypatch.setattr("torchssvm.steps.box_qp.fits_numba", lambda *tensors: False)
    problem = wide("chain")
    expected = history(problem.copy())
    with lowered("high") as seen:
        result = history(problem.copy())
    assert not seen.rounded
    assert_same(result, expected)


@pytest.mark.parametrize("batched", [True, False])
def test_heads_without_an_adjoint_are_certified_in_full_precision(batched):
    """The user's head, and the user's loop: their backward passes are those of a head of this library."""
    problem = wide("chain", adjoint=False)
    expected = history(problem.copy(), sweeps=5 if batched else 0)
    with lowered("high") as seen:
        result = history(problem.copy(), sweeps=5 if batched else 0)
    assert not seen.rounded
    assert_same(result, expected)


class UsersHead(nn.Module):
    """A user's head: nothing protects its products."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(40, 4, bias=False)
        nn.init.zeros_(self.weights.weight)
        self.structure = Multiclass(4)

    def forward(self, x):
        return self.weights(x)


def own_problem():
    made = wide("multiclass")
    made.head = UsersHead()
    return made


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_a_head_that_the_process_rounds_is_refused_with_the_reason(setting):
    problem = own_problem()
    with lowered(setting):
        if not is_lowered(CPU):
            pytest.skip("this setting does not reach the CPU")
        with pytest.raises(ValueError, match="rounding"):
            problem.train().step([0, 1])
        assert linearity_error(problem.head, (problem.x,)) is not None
    assert linearity_error(problem.head, (problem.x,)) is None
    problem.train().step([0, 1])


def test_a_users_head_is_certified_in_full_precision():
    problem = own_problem()
    training = problem.train().run([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    other = copy.deepcopy(training.dual.state_dict())
    expected = certify(training.head, training.dual, problem.everything(4), refresh=False)
    value = primal(training.head, problem.structure, problem.everything(4), problem.lam).value
    training.dual.load_state_dict(other)
    with lowered("high") as seen:
        certificate = certify(training.head, training.dual, problem.everything(4), refresh=False)
        again = primal(training.head, problem.structure, problem.everything(4), problem.lam).value
    assert not seen.rounded
    assert (certificate.primal, certificate.dual, certificate.drift) == (expected.primal, expected.dual, expected.drift)
    assert again == value


def test_features_below_a_head_stay_in_the_precision_of_the_process():
    """Training sees them so; other ones would be another problem."""
    problem = wide("multiclass")
    below = nn.Linear(40, 40)
    model = nn.Sequential(below, problem.head)
    training = problem.train()
    with lowered("high") as seen:
        x = below(problem.x).detach()
        assert seen.rounded
        training.step(Batch(x[:4], problem.y[:4], torch.arange(4)))
        seen.rounded.clear()
        seen.products = 0
        certificate = certify(model, training.dual, problem.everything())
        assert len(seen.rounded) == 1  # the one product of the features
        alone = certify(training.head, training.dual, [Batch(x, problem.y, torch.arange(len(x)))])
    assert certificate.primal == alone.primal


def by_kernels(problem):
    model = kernel_svm(problem, RBF(0.02))
    steps = [model.visit(rows) for rows in torch.arange(problem.n).split(4)]
    certificate = model.certify()
    return steps, certificate.primal, certificate.dual, model.update_head().state_dict()


@pytest.mark.parametrize("kind", PROBLEMS)
def test_kernels_give_the_same_bits_too(kind):
    problem = wide(kind)
    expected = by_kernels(problem.copy())
    with lowered("high") as seen:
        result = by_kernels(problem.copy())
    assert not seen.rounded
    assert seen.products
    assert_same(result, expected)
