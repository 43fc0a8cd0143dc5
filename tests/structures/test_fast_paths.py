"""Compiled kernels and shortcuts of the training loop give what the plain torch operations give."""

import pytest
import torch

from torchssvm import BCFW, BlockGap, Chain, DualState, LinearChain, LinearMulticlass, certify
from torchssvm.core.batch import Batch
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import inner
from torchssvm.core.structure import Structure
from torchssvm.dual import mean_parts
from torchssvm.steps import box_qp
from torchssvm.steps.box_qp import gram, solve_batch, solve_box_qp
from torchssvm.structures.chain import head as linear_chain
from torchssvm.structures.chain import structure as chain
from torchssvm.structures.common import WeightedLabels

USERS = ("torchssvm.core.potentials", box_qp.__name__, mean_parts.__name__, chain.__name__, linear_chain.__name__)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.fixture
def plain(monkeypatch):
    """Calls a function with torch operations only."""

    def call(function):
        with monkeypatch.context() as patch:
            for name in USERS:
                patch.setattr(f"{name}.fits_numba", lambda *_: False)
            return function()

    return call


def close(a, b, dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def words(dtype, *, n=7, longest=5, states=4, features=3, seed=0):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=random)
    lengths[0], lengths[1] = longest, 1
    x = torch.randn(n, longest, features, generator=random, dtype=dtype)
    y = torch.randint(states, (n, longest), generator=random)
    return Batch(x, y.masked_fill(torch.arange(longest) >= lengths.unsqueeze(1), -1), torch.arange(n), lengths)


def head_with_weights(dtype, *, positions=None, **options):
    head = LinearChain(3, 4, positions=positions, **options).to(dtype)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(torch.randn(p.shape, generator=random, dtype=dtype))
    return head


@DTYPES
@pytest.mark.parametrize("sweeps", [1, 5])
def test_the_box_qp_without_its_matrix(dtype, sweeps, plain):
    random = torch.Generator().manual_seed(2)
    gradients = [torch.randn(9, *shape, generator=random, dtype=dtype) for shape in ((4, 3), (2,), (0,))]
    for gradient in gradients:
        gradient[3] = 0.0  # a block along which no weight moves
    values = torch.rand(9, generator=random, dtype=torch.float64) * 4 - 0.5
    values[3] = 0.25
    solution = solve_batch(gradients, values, 0.7, sweeps, factor=0.5)
    other = plain(lambda: solve_batch(gradients, values, 0.7, sweeps, factor=0.5))
    matrix = 0.7 * gram(gradients, torch.arange(9))
    close(solution.gammas, solve_box_qp(matrix, values, sweeps), dtype)
    close(solution.gammas, other.gammas, dtype)
    for gradient, mine, others in zip(gradients, solution.combined, other.combined, strict=True):
        close(mine, 0.5 * torch.einsum("r,r...->...", solution.gammas.to(dtype), gradient), dtype)
        close(mine, others, dtype)
    expected = sum(float(part.double().square().sum()) for part in solution.combined)
    assert solution.squared_norm == pytest.approx(expected, rel=1e-5)
    assert solution.squared_norm == pytest.approx(other.squared_norm, rel=1e-4)


@DTYPES
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"boundary": False}, {"bias": False, "boundary": False}])
@pytest.mark.parametrize("positions", [None, 6])
def test_the_linear_chain(dtype, options, positions, plain):
    batch, head = words(dtype), head_with_weights(dtype, positions=positions, **options)
    x = batch.x.clone().requires_grad_()

    def run():
        potentials = head(x, batch.lengths)
        random = torch.Generator().manual_seed(3)
        parts = {k: torch.randn(t.shape, generator=random, dtype=dtype) for k, t in potentials.tensors.items()}
        inputs = [x, *head.parameters()]
        total = sum((parts[k] * t).sum() for k, t in potentials.tensors.items())
        return potentials, parts, torch.autograd.grad(total, inputs), potentials.adjoint(parts)

    (ours, _, gradients, each), (theirs, _, others, every) = run(), plain(run)
    for name, tensor in ours.tensors.items():
        close(tensor, theirs[name], dtype)
    for a, b in zip([*gradients, *each], [*others, *every], strict=True):
        close(a, b, dtype)
    for total, result in zip(gradients[1:], each, strict=True):
        close(total, result.sum(0), dtype)
    assert torch.autograd.gradcheck(
        lambda e: head.double()(e, batch.lengths)["emission"], x.detach().double().requires_grad_()
    )


@DTYPES
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["hamming", "plain", "tokens", "classes"])
def test_chains_label_by_label(dtype, shared, kind, plain):
    weight = torch.tensor([1.0, 0.5, 2.0, 0.0]) if kind == "classes" else None
    structure = Chain(4, shared=shared, normalize=kind != "plain", class_weight=weight)
    batch = words(dtype)
    potentials = head_with_weights(dtype, positions=None if shared else 5, structure=structure)(batch.x, batch.lengths)
    target = WeightedLabels(batch.y, batch.y.double().abs()) if kind == "tokens" else batch.y

    def run():
        checked = structure.check_target(target, potentials)
        corner = find_corner(structure, potentials, checked)
        start = {name: torch.full_like(t, 0.5).detach().contiguous() for name, t in potentials.tensors.items()}
        added = structure._add_difference(start, corner.labeling, checked, potentials.detach())
        return corner, added

    (ours, added), (theirs, others) = run(), plain(run)
    assert torch.equal(ours.labeling, theirs.labeling)
    for name in ("score", "loss", "hinge", "bound"):
        close(getattr(ours, name), getattr(theirs, name), dtype)
    for name, tensor in ours.parts.items():
        assert torch.equal(tensor, theirs.parts[name])
        assert torch.equal(added[name], tensor + 0.5)
        assert torch.equal(added[name], others[name])
    default = Structure._examine(
        structure, ours.labeling, structure.check_target(target, potentials), potentials.detach()
    )
    close(ours.score, default.score, dtype)
    close(ours.loss, default.loss.double(), dtype)


@DTYPES
def test_inner_products(dtype, plain):
    random = torch.Generator().manual_seed(4)
    a = {
        "u": torch.randn(5, 3, 2, generator=random, dtype=dtype),
        "v": torch.randn(5, 4, generator=random, dtype=dtype),
    }
    b = {"u": torch.randn(3, 2, generator=random, dtype=dtype).expand(5, 3, 2), "v": torch.ones(5, 4, dtype=dtype)}
    expected = sum((a[name].double() * b[name].double()).flatten(1).sum(1) for name in a)
    for products in (inner(a, b), plain(lambda: inner(a, b))):
        torch.testing.assert_close(products, expected, rtol=1e-6, atol=1e-6)
    leaf = b["v"].clone().requires_grad_()
    inner({"v": a["v"]}, {"v": leaf}).sum().backward()  # still differentiable
    close(leaf.grad, a["v"], dtype)


@DTYPES
def test_whole_steps(dtype, plain):
    def train():
        batch, head = words(dtype, n=12), LinearChain(3, 4).to(dtype)
        dual = DualState.for_head(head, 12, lam=0.1)
        loss, optimizer = BlockGap(dual), BCFW(head.parameters(), dual)
        for step in range(8):
            rows = torch.randperm(12, generator=torch.Generator().manual_seed(step))[:5]
            part = Batch(*(t[rows] for t in batch))
            optimizer.zero_grad()
            loss(head(part.x, part.lengths), part.y, part.index).backward()
            optimizer.step()
        return certify(head, dual, [batch]), head

    (ours, head), (theirs, other) = train(), plain(train)
    assert ours.dual == pytest.approx(theirs.dual, rel=1e-4)
    assert ours.primal == pytest.approx(theirs.primal, rel=1e-4)
    for a, b in zip(head.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [lambda: LinearChain(3, 4), lambda: LinearMulticlass(3, 4)])
def test_the_gradient_of_the_head_is_that_of_its_backward_pass(make):
    """The shortcut past the head's graph, for both heads, and where it must not be taken."""
    torch.manual_seed(5)
    head = make().double()
    if isinstance(head, LinearChain):
        batch = words(torch.float64)
    else:
        batch = Batch(torch.randn(7, 3).double(), torch.randint(4, (7,)), torch.arange(7))
    args = (batch.x,) if batch.lengths is None else (batch.x, batch.lengths)
    dual = DualState.for_head(head, 7, lam=0.1)
    loss, optimizer = BlockGap(dual), BCFW(head.parameters(), dual)
    for _ in range(3):
        optimizer.zero_grad()
        loss(head(*args), batch.y, batch.index).backward()
        optimizer.step()
    optimizer.zero_grad()
    potentials = head(*args)
    assert all(a is b for a, b in zip(potentials.weights, head.parameters(), strict=True))
    loss(potentials, batch.y, batch.index).backward()
    direct = [p.grad.clone() for p in head.parameters()]
    optimizer.zero_grad()
    x = batch.x.clone().requires_grad_()  # features that are trained: the gradient must reach them
    through = head(x, *args[1:])
    assert through.weights is None
    loss(through, batch.y, batch.index).backward()
    assert x.grad is not None
    for a, b in zip(direct, [p.grad for p in head.parameters()], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
