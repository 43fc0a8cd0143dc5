"""Chains on lists of features: the same as on dense features in every loop, and no work in all the weights."""

import copy

import pytest
import torch
from cases.head_cases import HeadTestCase
from cases.problems import rng

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    CacheOracle,
    Chain,
    CompiledBCFW,
    Corrective,
    DualState,
    Labelings,
    LinearChain,
    MeanParts,
    Pairwise,
    SparseFeatures,
    SparseLinearChain,
    Weights,
    certify,
)
from torchssvm.core import row_sparse
from torchssvm.dual import state as dual_state
from torchssvm.solvers import bcfw
from torchssvm.steps import BoxQP, CommonStep, box_qp
from torchssvm.steps.box_qp import solve_batch

F, K, N, P, EXAMPLES, LAM = 40, 4, 6, 5, 24, 0.02


class Packed(SparseLinearChain):
    """Takes columns and values in one tensor ``[B, N, 2 P]``, whatever numbers they are."""

    with_values = True

    def forward(self, x, lengths=None):
        columns = x[..., :2].abs().round().remainder(len(self.emission) + 1).long() - 1
        return super().forward(SparseFeatures(columns, x[..., 2:] if self.with_values else None), lengths)


class TestSparseLinearChain(HeadTestCase):
    bias = boundary = any_features = True

    def make_head(self):
        return Packed(3, 2, bias=self.bias, boundary=self.boundary, sparse_gradient=False)

    def make_input(self, random, batch):
        columns = torch.randint(-1, 3, (batch, 4, 2), generator=random) + 1.0
        x = torch.cat([columns, torch.randn(batch, 4, 2, generator=random)], 2).double()
        return x, torch.randint(1, 5, (batch,), generator=random)

    def reference(self, head, x):
        dense = torch.zeros(len(x), 3, dtype=x.dtype)
        for t in range(len(x)):
            for p in range(2):
                column = round(abs(float(x[t, p]))) % 4 - 1
                if column >= 0:
                    dense[t, column] += x[t, 2 + p] if head.with_values else 1.0
        plain = LinearChain(3, 2, bias=self.bias, boundary=self.boundary).double()
        plain.load_state_dict({**head.state_dict(), "emission": head.emission.detach().t()})
        potentials = plain(dense.unsqueeze(0))
        return {"emission": potentials["emission"][0], "transition": potentials["transition"][0]}


@pytest.mark.variant
class TestWithoutBiases(TestSparseLinearChain):
    bias = boundary = False


class Ones(Packed):
    with_values = False


@pytest.mark.variant
class TestWithoutValues(TestSparseLinearChain):
    def make_head(self):
        return Ones(3, 2, sparse_gradient=False)


def problem(seed=0, values=True):
    random = rng(seed)
    lengths = torch.randint(1, N + 1, (EXAMPLES,), generator=random)
    outside = torch.arange(N) >= lengths.unsqueeze(1)
    columns = torch.randint(-1, F, (EXAMPLES, N, P), generator=random)  # some come twice in a list
    columns[:, :, 1] = torch.where(columns[:, :, 0] > F // 2, columns[:, :, 0], columns[:, :, 1])
    y = torch.randint(0, K, (EXAMPLES, N), generator=random)
    y[outside], columns[outside] = -1, -1
    numbers = torch.randn(EXAMPLES, N, P, generator=random, dtype=torch.float64) if values else None
    return SparseFeatures(columns, numbers), y, lengths


def batch_of(sparse, data, rows):
    x, y, lengths = data
    features = SparseFeatures(x.columns[rows], None if x.values is None else x.values[rows])
    return Batch(features if sparse else features.dense(F, torch.float64), y[rows], rows, lengths[rows])


def make(sparse, storage, dtype=torch.float64):
    head = (SparseLinearChain if sparse else LinearChain)(F, K, structure=Chain(K)).to(dtype)
    return head, DualState.for_head(head, EXAMPLES, LAM, storage=storage)


def visit(head, loss, optimizer, data, batches, sparse=True, accumulate=1):
    for place, rows in enumerate(batches):
        if place % accumulate == 0:
            optimizer.zero_grad()
        batch = batch_of(sparse, data, rows)
        loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
        if place % accumulate == accumulate - 1:
            optimizer.step()


def everything_of(data, sparse=True):
    return [batch_of(sparse, data, torch.arange(EXAMPLES))]


def train(sparse, data, storage=None, direction=None, oracle=None, epochs=4, accumulate=1, **options):
    head, dual = make(sparse, storage)
    loss, optimizer = BlockGap(dual, direction, oracle=oracle, **options), BCFW(head.parameters(), dual)
    random, certificates = rng(5), []
    for _ in range(epochs):
        visit(head, loss, optimizer, data, torch.randperm(EXAMPLES, generator=random).split(5), sparse, accumulate)
        certificates.append(certify(head, dual, everything_of(data, sparse)))
    return head, dual, certificates


SETTINGS = {
    "box QP": {},
    "one step": {"block_steps": CommonStep()},
    "accumulated": {"accumulate": 3},
    "weights": {"storage": Weights},
    "pairwise": {"storage": Labelings, "direction": Pairwise()},
    "cache": {"storage": Labelings, "oracle": CacheOracle()},
    "corrective": {"storage": Labelings, "direction": Corrective(steps=1)},  # more of them follow the rounding
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("values", [True, False])
def test_the_torch_loop_is_that_of_dense_features(name, values):
    options = dict(SETTINGS[name])
    storage = options.pop("storage", MeanParts)
    data = problem(1, values)  # where no two steps of the corrective direction are as good as each other
    ours, dual, mine = train(True, data, storage(), **options)
    plain, _, theirs = train(False, data, storage(), **options)
    assert mine[-1].gap < mine[0].gap
    assert dual.steps > 0
    for a, b in zip(mine, theirs, strict=True):
        assert a.gap == pytest.approx(b.gap, abs=1e-10)
        assert a.dual == pytest.approx(b.dual, abs=1e-10)
        assert a.drift < 1e-10
    for (name, p), q in zip(ours.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q.t() if name == "emission" else q)


@pytest.mark.parametrize(("storage", "direction"), [(MeanParts, None), (Labelings, Pairwise()), (Labelings, None)])
def test_the_compiled_loop_is_that_of_dense_features(storage, direction):
    data = problem()
    results = []
    for sparse in (True, False):
        head, dual = make(sparse, storage())
        everything = [batch_of(sparse, data, rows) for rows in torch.arange(EXAMPLES).split(7)]
        loop = CompiledBCFW(head, dual, everything, direction=direction)
        loop.step(3 * EXAMPLES)
        first = loop.certify()
        loop.visit(torch.arange(EXAMPLES))
        results.append((first, loop.certify(), certify(head, dual, everything)))
    for a, b in zip(*results, strict=True):
        assert a.gap == pytest.approx(b.gap, abs=1e-10)
        assert a.dual == pytest.approx(b.dual, abs=1e-10)
    assert results[0][1].gap == pytest.approx(results[0][2].gap, abs=1e-12)


@pytest.mark.parametrize("sweeps", [0, 5])
def test_a_step_reads_and_writes_the_rows_of_its_batch_only(monkeypatch, sweeps):
    monkeypatch.setattr("torchssvm.dual.state._LARGE", 1)
    monkeypatch.setattr("torchssvm.dual.state._PER_BLOCK", 0)
    data = problem()
    head, dual, _ = train(True, data, epochs=1)
    block_steps = BoxQP(sweeps) if sweeps else CommonStep()
    optimizer, loss = BCFW(head.parameters(), dual), BlockGap(dual, block_steps=block_steps)
    batch = batch_of(True, data, torch.arange(2))
    optimizer.zero_grad()
    loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
    optimizer.step()  # after an exact pass all weights are new

    def refuse_weights(function):
        def call(tensors):
            tensors = list(tensors)
            assert not any(t is weights for t in tensors for weights in head.parameters()), "all weights were read"
            return function(tensors)

        return call

    for module in (dual_state, bcfw, row_sparse):
        for name in ("squared_norm", "flat"):
            monkeypatch.setattr(module, name, refuse_weights(getattr(row_sparse, name)), raising=False)
    before = head.emission.detach().clone()
    optimizer.zero_grad()
    loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
    assert head.emission.grad.is_sparse
    assert not head.transition.grad.is_sparse
    optimizer.step()
    named = torch.zeros(F, dtype=torch.bool)
    named[batch.x.columns[batch.x.columns >= 0]] = True
    assert torch.equal(head.emission[~named], before[~named])
    assert not torch.equal(head.emission[named], before[named])


def test_weights_and_gradients_changed_by_others_are_noticed(monkeypatch):
    monkeypatch.setattr("torchssvm.dual.state._LARGE", 1)
    data = problem()
    head, dual, _ = train(True, data, epochs=2)
    optimizer, loss, batch = BCFW(head.parameters(), dual), BlockGap(dual), batch_of(True, data, torch.arange(4))

    def propose():
        optimizer.zero_grad()
        loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()

    propose()
    optimizer.step()
    for change in (lambda gradient: gradient * 1.001, lambda gradient: gradient.to_dense() * 0.5):
        propose()
        head.emission.grad = change(head.emission.grad)
        with pytest.raises(RuntimeError, match="gradient"):
            optimizer.step()
    loop = CompiledBCFW(head, dual, [batch_of(True, data, torch.arange(EXAMPLES))])
    with torch.no_grad():
        head.emission[0] += 1.0
    propose()
    with pytest.raises(RuntimeError, match="weights"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="weights"):
        loop.step(5)


def test_resume_gives_the_same_bits():
    data = problem()
    head, dual, _ = train(True, data, epochs=2)
    optimizer = BCFW(head.parameters(), dual)
    state = copy.deepcopy(optimizer.state_dict())
    other, other_dual = make(True, None)
    other_optimizer = BCFW(other.parameters(), other_dual)
    other_optimizer.load_state_dict(state)
    for h, d, o in ((head, dual, optimizer), (other, other_dual, other_optimizer)):
        visit(h, BlockGap(d), o, data, torch.arange(EXAMPLES).split(5))
    assert all(map(torch.equal, head.parameters(), other.parameters()))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", ["emission", "transition"])
def test_bounds(name, accumulate):
    data = problem()
    results = []
    for sparse in (True, False):
        head, dual = make(sparse, None)
        bounded, everything = getattr(head, name), everything_of(data, sparse)
        rest = [p for p in head.parameters() if p is not bounded]
        optimizer = BCFW([{"params": [bounded], "lower": -0.05}, {"params": rest}], dual)
        for epochs in (1, 2):
            batches = torch.arange(EXAMPLES).split(6) * epochs
            visit(head, BlockGap(dual), optimizer, data, batches, sparse, accumulate)
            results.append(certify(head, dual, everything))
        assert float(bounded.detach().min()) == pytest.approx(-0.05)
        assert dual.held_norm**2 == pytest.approx(sum(float(p.detach().square().sum()) for p in head.parameters()))
    assert results[1].gap == pytest.approx(results[3].gap, abs=1e-10)
    assert results[1].dual == pytest.approx(results[3].dual, abs=1e-10)


def test_the_box_qp_without_its_kernel(monkeypatch):
    data = problem()
    head, _dual, _ = train(True, data, epochs=1)
    batch = batch_of(True, data, torch.arange(9))
    potentials = head(batch.x, batch.lengths)
    random = rng(3)
    inside = (torch.arange(potentials["emission"].shape[1]) < batch.lengths.unsqueeze(1)).unsqueeze(2)
    parts = {name: torch.randn(t.shape, generator=random, dtype=t.dtype) for name, t in potentials.tensors.items()}
    parts["emission"] *= inside
    gradients = potentials.adjoint(parts)
    assert gradients[0].is_sparse
    values = torch.rand(9, generator=random, dtype=torch.float64)
    quick = solve_batch(gradients, values, 1e-2, 100)
    monkeypatch.setattr(box_qp, "fits_numba", lambda *_: False)
    monkeypatch.setattr("torchssvm.core.row_sparse._NUMBERS", 50)
    slow = solve_batch(gradients, values, 1e-2, 100)
    dense = solve_batch([g.to_dense() if g.is_sparse else g for g in gradients], values, 1e-2, 100)
    for other in (slow, dense):
        torch.testing.assert_close(quick.gammas, other.gammas, atol=1e-6, rtol=1e-6)
        assert quick.squared_norm == pytest.approx(other.squared_norm, rel=1e-5)
        for a, b in zip(quick.combined, other.combined, strict=True):
            a, b = (t.to_dense() if t.is_sparse else t for t in (a, b))
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
def test_values_beyond_the_lists_do_not_matter(compiled):
    data = problem()
    data[0].values[data[0].columns < 0] = torch.nan
    head, dual = make(True, None)
    batch = batch_of(True, data, torch.arange(EXAMPLES))
    if compiled:
        CompiledBCFW(head, dual, [batch]).step(EXAMPLES)
    else:
        BlockGap(dual)(head(batch.x, batch.lengths), batch.y, batch.index).backward()
    assert torch.isfinite(certify(head, dual, [batch]).gap * torch.ones(1))
