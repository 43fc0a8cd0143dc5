"""Per-example gradients of heads as users write them, made by ``torch.func``."""

from typing import Any

import pytest
import torch
from cases.problems import rng
from torch import Tensor, nn

from torchssvm import DualState, Multiclass, Potentials, Structure
from torchssvm.core import gradients
from torchssvm.core.gradients import cheap_adjoint, gram_product, per_example_adjoint
from torchssvm.core.potentials import Parts, as_potentials

F, K, N = 3, 4, 5
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


class Bare(nn.Module):
    """A tensor, by modules inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(F, K).double()

    def forward(self, x: Tensor) -> Any:
        return self.inside(x)


class Named(Bare):
    """A dict of tensors, one of which has the same weights for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Parameter(torch.zeros(K, K, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        return {"emission": self.inside(x), "transition": self.pairs.expand(len(x), K, K)}


class Padded(Named):
    """Potentials with lengths, and a padded last position."""

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        last = torch.arange(x.shape[1]) == (lengths - 1).unsqueeze(1)
        tensors = super().forward(x)
        tensors["emission"] = tensors["emission"] + last.unsqueeze(2) * self.inside.bias
        return Potentials(tensors, lengths, ragged={"emission": 0})


class Shared(Bare):
    """One of the inputs is the same for all examples; another comes by keyword, in a tuple."""

    def forward(self, x: Tensor, basis: Tensor, *, more: tuple[Tensor, str]) -> Any:
        return self.inside(x @ basis) + more[0] * self.inside.weight.sum()


class Moving(Bare):
    """Looks at numbers."""

    def forward(self, x: Tensor) -> Any:
        return self.inside(x if float(x.sum()) > -1e9 else -x)


class InPlace(Bare):
    """Writes to a tensor that is not an example's."""

    def forward(self, x: Tensor) -> Any:
        total = torch.zeros(len(x), K, dtype=torch.float64)
        for f in range(F):
            total[:] += x[:, f : f + 1] * self.inside.weight[:, f]
        return total


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        return 2 * v


class OwnFunction(Bare):
    """A custom autograd function without rules for ``vmap``."""

    def forward(self, x: Tensor) -> Any:
        return Doubled.apply(self.inside(x))


class OverTheBatch(Bare):
    """No example is scored alone: ``vmap`` would find other numbers, and says nothing."""

    def forward(self, x: Tensor) -> Any:
        return self.inside(x - x.mean(0))


def inputs_of(head: nn.Module, batch: int = 6, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    random = rng(seed)
    tokens = isinstance(head, Named)
    x = torch.randn(batch, *([N] if tokens else []), F, generator=random, dtype=torch.float64)
    if isinstance(head, Padded):
        return (x, torch.randint(1, N + 1, (batch,), generator=random)), {}
    if isinstance(head, Shared):
        basis = torch.randn(F, F, generator=random, dtype=torch.float64)
        return (x, basis), {"more": (torch.randn(batch, 1, generator=random, dtype=torch.float64), "more")}
    return (x,), {}


def called(head: nn.Module, structure: Structure | None = None, **options: Any) -> tuple[Potentials, Parts]:
    """The potentials of a head that a dual was made for, and parts to be mapped."""
    DualState.for_head(head, 9, 0.1, structure=structure or Multiclass(K))
    args, kwargs = inputs_of(head, **options)
    potentials = as_potentials(head(*args, **kwargs))
    random = rng(1)
    return potentials, {
        name: torch.randn(t.shape, generator=random, dtype=t.dtype) for name, t in potentials.tensors.items()
    }


def by_loop(potentials: Potentials) -> Potentials:
    """The same potentials, of which nobody knows the call."""
    return Potentials({name: 1.0 * tensor for name, tensor in potentials.tensors.items()}, potentials.lengths)


@pytest.fixture
def without_loop(monkeypatch):
    """Calls it to forbid backward passes for single examples."""

    def forbid() -> None:
        monkeypatch.setattr(gradients, "_only", None)

    return forbid


def assert_same(result: Any, expected: Any) -> None:
    for mine, other in zip(result, expected, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    ("make", "moved"),  # potentials that are views of weights get a new graph when these are written to
    [(Bare, False), (Bare, True), (Named, False), (Padded, False), (Shared, False), (Shared, True)],
)
@pytest.mark.parametrize("batch", [1, 6])
def test_any_head_gets_per_example_gradients(make, batch, moved, without_loop):
    head = make()
    potentials, parts = called(head, batch=batch)
    if moved:  # gradients do not depend on the weights
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(1.0)
    parameters = list(head.parameters())
    loop = by_loop(potentials)
    expected = per_example_adjoint(loop, parts, parameters), gram_product(loop, parts, parameters)
    assert cheap_adjoint(loop, parts, parameters) is None
    without_loop()
    for _ in range(2):
        assert_same(per_example_adjoint(potentials, parts, parameters), expected[0])
        assert_same(cheap_adjoint(potentials, parts, parameters), expected[0])
        result = gram_product(potentials, parts, parameters)
        assert result.keys() == expected[1].keys()
        assert_same(result.values(), expected[1].values())
    again = as_potentials(head(*inputs_of(head, 4, 3)[0], **inputs_of(head, 4, 3)[1]))  # another size of batch
    parts = {name: tensor[:1].expand(4, *tensor.shape[1:]) for name, tensor in parts.items()}
    assert [g.shape for g in cheap_adjoint(again, parts, parameters)] == [(4, *p.shape) for p in parameters]


@pytest.mark.parametrize("make", [Moving, InPlace, OwnFunction, OverTheBatch])
def test_heads_that_torch_func_cannot_do_take_the_loop(make):
    head = make()
    potentials, parts = called(head)
    parameters, loop = list(head.parameters()), by_loop(potentials)
    assert cheap_adjoint(potentials, parts, parameters) is None
    assert_same(per_example_adjoint(potentials, parts, parameters), per_example_adjoint(loop, parts, parameters))
    result, expected = (gram_product(p, parts, parameters) for p in (potentials, loop))
    assert_same(result.values(), expected.values())


def test_a_call_is_known_only_as_it_was_made():
    """Whatever is done to the potentials or to the inputs afterwards."""
    head = Bare()
    parameters = list(head.parameters())
    potentials, parts = called(head)
    assert cheap_adjoint(potentials, parts, parameters) is not None
    assert cheap_adjoint(potentials, parts, parameters[::-1]) is None
    assert cheap_adjoint(potentials, parts, [*parameters, nn.Parameter(torch.zeros(1))]) is None
    (x,), _ = inputs_of(head)
    scores = head(x)
    assert cheap_adjoint(Potentials(2.0 * scores), parts, parameters) is None
    assert cheap_adjoint(Potentials({"one": scores, "two": head(x)}), {}, parameters) is None
    scores = head(x)
    scores.mul_(2.0)
    assert cheap_adjoint(Potentials(scores), parts, parameters) is None
    scores = head(x)
    x.mul_(2.0)
    assert cheap_adjoint(Potentials(scores), parts, parameters) is None
    with torch.no_grad():
        scores = head(x)
    assert scores.grad_fn is None


@pytest.mark.parametrize("before", [True, False])
def test_the_head_can_be_compiled_and_exported(before):
    head, x = Bare(), inputs_of(Bare())[0][0]
    DualState.for_head(head, 9, 0.1, structure=Multiclass(K))
    if before:
        head(x)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(head, backend="eager", fullgraph=True)(x), head.inside(x))
    # Before torch 2.8, the strict export takes no module with a hook.
    for strict in (True, False) if TORCH >= (2, 8) else (False,):
        assert torch.equal(torch.export.export(head, (x,), strict=strict).module()(x), head.inside(x))
