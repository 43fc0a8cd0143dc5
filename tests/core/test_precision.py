"""Heads and certificates multiply in full precision, and leave what the process has set as it was."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from cases.kernel_problems import kernel_svm
from cases.lowered_precision import SETTINGS, is_rounded, lowered
from cases.problems import PROBLEMS, assert_same, multiclass, rng
from torch import nn

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    Corrective,
    DualState,
    Labelings,
    MeanParts,
    Multiclass,
    Weights,
    certify,
    recompute_weights,
)
from torchssvm.core.gradients import linearity_error
from torchssvm.core.operators import full_precision, is_lowered, product
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


@pytest.mark.parametrize("setting", ["high", "all tf32"])
def test_an_error_in_the_context_leaves_the_process_as_it_was(setting):
    if setting not in SETTINGS:
        pytest.skip("this torch has one setting only")
    with lowered(setting):
        with pytest.raises(KeyboardInterrupt), full_precision(CPU), full_precision(CUDA):
            raise KeyboardInterrupt
        assert is_rounded()


def test_the_last_of_several_threads_puts_the_setting_back():
    entered, leave, done = threading.Event(), threading.Event(), threading.Event()

    def other():
        with full_precision(CUDA):
            entered.set()
            leave.wait(10)
        done.set()

    with lowered("high"):
        with full_precision(CUDA):
            thread = threading.Thread(target=other)
            thread.start()
            assert entered.wait(10)
        assert not is_rounded()  # the other one is still at work
        with full_precision(CUDA):
            leave.set()
            assert done.wait(10)
            assert not is_rounded()
        assert is_rounded()
        thread.join()


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
        found = everything(product)
        assert seen.products >= 3
        assert not seen.rounded
        everything(nn.functional.linear)
        assert seen.rounded  # the setting is on
    for mine, plain in zip(found, expected, strict=True):
        largest = (
            float(plain.detach().abs().max()) if plain.numel() else 0.0
        )  # sums in another order, with cancellation
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
    found = certify(training.head, training.dual, problem.everything(3))
    training.step([0, 1, 2])
    change = 0.0
    if not training.dual.storage.needs_gradients:
        change = recompute_weights(training.head, training.dual, problem.everything(3))
    objective = primal(training.head, problem.structure, problem.everything(3), problem.lam)
    return gaps, [found.primal, found.dual, found.gap, found.drift, change, objective.value], training.snapshot()


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
        found = history(problem.copy(), **{name: make() for name, make in options.items()})
    assert not seen.rounded
    assert seen.products > 10
    assert_same(found, expected)


def test_the_box_qp_of_a_device_is_the_same_to_the_bit(monkeypatch):
    """There its Gram matrix is one product."""
    monkeypatch.setattr("torchssvm.steps.box_qp.fits_numba", lambda *tensors: False)
    problem = wide("chain")
    expected = history(problem.copy())
    with lowered("high") as seen:
        found = history(problem.copy())
    assert not seen.rounded
    assert_same(found, expected)


@pytest.mark.parametrize("batched", [True, False])
def test_heads_without_an_adjoint_are_certified_in_full_precision(batched):
    """The user's head, and the user's loop: their backward passes are those of a head of this library."""
    problem = wide("chain", adjoint=False)
    expected = history(problem.copy(), sweeps=5 if batched else 0)
    with lowered("high") as seen:
        found = history(problem.copy(), sweeps=5 if batched else 0)
    assert not seen.rounded
    assert_same(found, expected)


class Own(nn.Module):
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
    made.head = Own()
    return made


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_a_head_that_the_process_rounds_is_refused_with_the_reason(setting):
    problem = own_problem()
    with lowered(setting):
        if not is_lowered(CPU):
            pytest.skip("this setting does not reach the CPU")
        with pytest.raises(ValueError, match=r"only up to the rounding.*(tf32|bf16).*set_float32_matmul_precision"):
            problem.train().step([0, 1])
        assert "torchssvm.core.operators.product" in linearity_error(problem.head, (problem.x,))
    assert linearity_error(problem.head, (problem.x,)) is None
    problem.train().step([0, 1])


def test_a_head_is_looked_at_again_where_the_precision_falls_later():
    problem = own_problem()
    training = problem.train()
    training.step([0, 1])
    with lowered("medium"), pytest.raises(ValueError, match="only up to the rounding"):
        training.step([2, 3])
    training.step([2, 3])


def test_a_gradient_that_does_not_fit_is_told_of_the_precision():
    """Without the look at the head, its backward pass is the first to be wrong."""
    problem = own_problem()
    dual = DualState(problem.n, problem.lam, problem.structure, problem.head.parameters())
    loss, optim = BlockGap(dual), BCFW(problem.head.parameters(), dual)

    def step(rows, factor=1.0):
        batch = problem.batch(rows)
        optim.zero_grad()
        loss(problem.head(batch.x), batch.y, batch.index).backward()
        for p in problem.head.parameters():
            p.grad *= factor
        optim.step()

    step([0, 1, 2])
    with pytest.raises(RuntimeError, match="gradient differs") as plain:
        step([3, 4, 5], factor=1.01)
    assert "rounded" not in str(plain.value)
    with lowered("medium"), pytest.raises(RuntimeError, match=r"rounded to bf16.*set_float32_matmul_precision"):
        step([3, 4, 5], factor=1.01)


def test_a_users_head_is_certified_in_full_precision():
    problem = own_problem()
    training = problem.train().run([[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    other = copy.deepcopy(training.dual.state_dict())
    expected = certify(training.head, training.dual, problem.everything(4), refresh=False)
    value = primal(training.head, problem.structure, problem.everything(4), problem.lam).value
    training.dual.load_state_dict(other)
    with lowered("high") as seen:
        found = certify(training.head, training.dual, problem.everything(4), refresh=False)
        again = primal(training.head, problem.structure, problem.everything(4), problem.lam).value
    assert not seen.rounded
    assert (found.primal, found.dual, found.drift) == (expected.primal, expected.dual, expected.drift)
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
        found = certify(model, training.dual, problem.everything())
        assert len(seen.rounded) == 1  # the one product of the features
        alone = certify(training.head, training.dual, [Batch(x, problem.y, torch.arange(len(x)))])
    assert found.primal == alone.primal


def test_lightning_trains_a_users_head_in_full_precision():
    pytest.importorskip("lightning")
    from cases.lightning_chains import trainer

    from torchssvm.lightning import StructuredSVM

    problem = own_problem()
    data = torch.utils.data.DataLoader(range(problem.n), batch_size=4, collate_fn=problem.batch)

    def fit() -> tuple[list[torch.Tensor], float]:
        model = StructuredSVM(Own(), lam=problem.lam)
        trainer(max_epochs=3, enable_checkpointing=False).fit(model, data)
        gap = certify(model.head, model.dual, problem.everything()).gap
        return [p.detach().clone() for p in model.head.parameters()], gap

    expected = fit()
    assert expected[0][0].abs().sum() > 0
    with lowered("high") as seen:
        found = fit()
    assert seen.products
    assert not seen.rounded
    assert_same(found, expected)


def test_looking_at_a_head_starts_no_device(monkeypatch):
    taken = []
    fork = torch.random.fork_rng

    def remember(devices=None, **options):
        taken.append(devices)
        return fork(devices, **options)

    monkeypatch.setattr(torch.random, "fork_rng", remember)
    problem = multiclass(dtype=torch.float32)
    noisy = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3, bias=False))
    before = torch.get_rng_state()
    assert linearity_error(nn.Sequential(problem.head), (problem.x,)) is None
    assert "not linear" in linearity_error(noisy, (problem.x,))
    assert taken == [[], []]
    assert torch.equal(torch.get_rng_state(), before)


def by_kernels(problem):
    model = kernel_svm(problem, RBF(0.02))
    steps = [model.visit(rows) for rows in torch.arange(problem.n).split(4)]
    found = model.certify()
    return steps, found.primal, found.dual, model.update_head().state_dict()


@pytest.mark.parametrize("kind", PROBLEMS)
def test_kernels_give_the_same_bits_too(kind):
    problem = wide(kind)
    expected = by_kernels(problem.copy())
    with lowered("high") as seen:
        found = by_kernels(problem.copy())
    assert not seen.rounded
    assert seen.products
    assert_same(found, expected)
