"""Training of heads that do what users do: inherit ``OwnHeadCase``, say how to make the head and its inputs."""

import copy
import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cases.problems import rng
from torch import Tensor, nn

from torchssvm import BCFW, BlockGap, DualState, Labelings, Multiclass, Potentials
from torchssvm.core import gradients
from torchssvm.core.gradients import gram_product, per_example_adjoint
from torchssvm.core.potentials import as_potentials
from torchssvm.steps import Hybrid

F, K, N = 5, 4, 24
X, Y = torch.randn(N, F, generator=rng(0)), torch.randint(0, K, (N,), generator=rng(1))
SHARED = torch.eye(K) + 0.1 * torch.randn(K, K, generator=rng(2))
BIAS = torch.randn(K, generator=rng(3))


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(K, F))

    def forward(self, x: Tensor) -> Any:
        return x @ self.weight.T


class Run:
    """A training loop of a head."""

    def __init__(self, head: nn.Module, **options: Any) -> None:
        self.head = head
        self.dual = DualState.for_head(head, N, 0.1, structure=Multiclass(K), **options)
        self.loss = BlockGap(self.dual, Hybrid() if options else None)
        self.optim = BCFW(head.parameters(), self.dual)
        self.own_steps: list[bool] = []

    def step(self, *batches: tuple[Tensor, tuple[Any, ...]]) -> None:
        self.optim.zero_grad()
        for rows, inputs in batches:
            self.loss(self.head(*inputs), Y[rows], rows).backward()
        self.own_steps = [step.gradients is not None for step in self.dual.mailbox.waiting]
        self.optim.step()


@pytest.mark.filterwarnings("ignore:.*gives no gradients of single examples")
class OwnHeadCase:
    """The last batch of an epoch has as many examples as there are classes, another one has one."""

    sizes = (10, 9, K, 1)
    without = 0  # batches of an epoch that take a common step

    Head: type[nn.Module]

    def make(self) -> nn.Module:
        return self.Head()

    def inputs(self, rows: Tensor) -> tuple[Any, ...]:
        return (X[rows],)

    def before(self, number: int, head: Any) -> None:
        """What the user does to the head before a step."""

    def batches(self) -> list[Tensor]:
        random = rng(4)
        return [rows for _ in range(2) for rows in torch.randperm(N, generator=random).split(self.sizes)]

    def test_a_resumed_run_has_the_same_bits(self):
        run, states = Run(self.make()), []
        for number, rows in enumerate(self.batches()):
            states.append(copy.deepcopy(run.optim.state_dict()))
            self.before(number, run.head)
            run.step((rows, self.inputs(rows)))
        for start, state in enumerate(states):
            resumed = Run(self.make())
            resumed.optim.load_state_dict(state)
            for number, rows in enumerate(self.batches()[start:], start):
                self.before(number, resumed.head)
                resumed.step((rows, self.inputs(rows)))
            assert torch.equal(run.head.weight, resumed.head.weight)
            assert run.dual.value() == resumed.dual.value()

    def test_every_batch_gets_the_steps_that_it_can(self):
        run, result = Run(self.make()), []
        for number, rows in enumerate(self.batches()):
            self.before(number, run.head)
            run.step((rows, self.inputs(rows)))
            result += run.own_steps
        assert result.count(False) == self.without

    def test_gradients_and_products_are_those_of_the_loop(self):
        head = self.make()
        DualState.for_head(head, N, 0.1, structure=Multiclass(K))
        for number, rows in enumerate(self.batches()):
            self.before(number, head)
            potentials, parameters = as_potentials(head(*self.inputs(rows))), list(head.parameters())
            parts = {"potentials": torch.randn(len(rows), K, generator=rng(5))}
            loop = Potentials(1.0 * potentials.single)
            for mine, true in zip(
                per_example_adjoint(potentials, parts, parameters),
                per_example_adjoint(loop, parts, parameters),
                strict=True,
            ):
                torch.testing.assert_close(mine, true)
            mine, true = (gram_product(p, parts, parameters)["potentials"] for p in (potentials, loop))
            torch.testing.assert_close(mine, true, atol=1e-5, rtol=1e-4)

    @pytest.mark.parametrize("used", [True, False])
    def test_the_head_is_freed(self, used):
        def alive() -> tuple[Any, Any]:
            run = Run(self.make())
            rows = torch.arange(9)
            run.step((rows, self.inputs(rows)))
            potentials = run.head(*self.inputs(rows))
            if used:
                run.loss(potentials, Y[rows], rows)
            return weakref.ref(run.head), weakref.ref(run.dual)

        result = alive()
        gc.collect()
        assert [each() for each in result] == [None, None]


class TestSharedTensors(OwnHeadCase):
    """Two of them; one could be an example's number by its shape."""

    class Head(Linear):
        def forward(self, x: Tensor, shared: Tensor, *, factors: Tensor) -> Any:
            return (x @ self.weight.T @ shared) * factors

    class ByKeyword(nn.Module):
        def __init__(self, head: nn.Module) -> None:
            super().__init__()
            self.head = head

        @property
        def weight(self) -> Tensor:
            return self.head.weight

        def forward(self, x: Tensor, more: dict[str, Tensor]) -> Any:
            return self.head(x, more["shared"], factors=more["factors"])

    def make(self) -> nn.Module:
        return self.ByKeyword(self.Head())

    def inputs(self, rows: Tensor) -> tuple[Any, ...]:
        return X[rows], {"shared": SHARED, "factors": BIAS}


@dataclass
class Inputs:
    x: Tensor
    scores: Any = None


class TestOpaqueInput(OwnHeadCase):
    """An input of a class that nobody can look into, which keeps what the head made of it."""

    without = 6  # all but those of one example

    class Head(Linear):
        def forward(self, inputs: Inputs) -> Any:
            inputs.scores = inputs.x @ self.weight.T
            return inputs.scores

    def inputs(self, rows: Tensor) -> tuple[Any, ...]:
        return (Inputs(X[rows]),)


class TestDebugFlag(OwnHeadCase):
    """Numbers are looked at in some steps."""

    without = 3

    class Head(Linear):
        debug = False

        def forward(self, x: Tensor) -> Any:
            scores = x @ self.weight.T
            if self.debug:
                self.seen = float(scores.detach().abs().max())
            return scores

    def before(self, number: int, head: Any) -> None:
        head.debug = number in (0, 4, 5)


class TestHooks(OwnHeadCase):
    """Forward hooks look at numbers and keep tensors; a pre-hook makes the weight, as pruning does."""

    class Masked(Linear):
        def forward(self, x: Tensor) -> Any:
            return x @ self.masked.T

    def make(self) -> nn.Module:
        head, random = self.Masked(), rng(6)
        mask = (torch.rand(K, F, generator=random) > 0.2).float()
        head.register_forward_pre_hook(lambda module, _: setattr(module, "masked", mask * module.weight))
        return head

    def before(self, number: int, head: Any) -> None:
        if number == 2:
            head.log = []
            head.register_forward_hook(lambda module, _, out: module.log.append((float(out.detach().abs().max()), out)))


class TestKeepsOutput(OwnHeadCase):
    """In an attribute, in a list and in a buffer."""

    class Head(Linear):
        def __init__(self) -> None:
            super().__init__()
            self.history: list[Tensor] = []
            self.named: dict[str, Tensor] = {}
            self.register_buffer("mean", torch.zeros(K), persistent=False)

        def forward(self, x: Tensor) -> Any:
            self.last = self.named["last"] = x @ self.weight.T
            self.history.append(self.last)
            self.mean = self.last.detach().mean(0)
            return self.last

    def test_the_linearity_check_leaves_the_output(self):
        run = Run(self.Head())
        scores = run.head(X)
        assert run.head.last is scores
        assert len(run.head.history) == 1


class TestInPlace(OwnHeadCase):
    without = 8

    class Head(Linear):
        def forward(self, x: Tensor) -> Any:
            total = torch.zeros(len(x), K)
            total += x @ self.weight.T
            return total


@pytest.mark.parametrize("direction", [False, True])
def test_the_gradients_that_wait_for_a_step_are_counted(direction, monkeypatch):
    """Those of accumulated batches share the bytes; batches beyond take a common step."""
    each = 8 * K * F * 4
    monkeypatch.setattr(gradients, "_MOST", 2 * each)
    run = Run(Linear(), **({"storage": Labelings()} if direction else {}))
    batches = [(rows, (X[rows],)) for rows in torch.arange(N).split(8)]
    with pytest.warns(UserWarning, match="single examples"):
        run.step(*batches)
    assert run.own_steps == [True, True, False]
    for several in (batches[:2], batches[2:]):
        run.step(*several)
        assert all(run.own_steps)
    assert run.dual.value() > 0


def test_a_call_is_forgotten_with_its_potentials():
    """Also of a head that writes its potentials into an argument, which would keep them alive."""
    head, before = torch.nn.Linear(3, 2), len(gradients._calls)

    def call(*args: Any) -> None:
        potentials = head(args[0])
        for cache in args[1:]:
            cache["last"] = potentials
        gradients.remember_call(head, args, {}, potentials)

    call(torch.ones(4, 3))
    call(torch.ones(4, 3), {})
    gc.collect()
    assert len(gradients._calls) == before
