"""Classes whose blocks the compiled loop solves whole."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cases.compiled_kinds import KINDS
from cases.problems import THOROUGH, assert_same

from torchssvm import (
    Batch,
    CompiledBCFW,
    Corrective,
    DualState,
    Labelings,
    LinearMulticlass,
    MeanParts,
    Multiclass,
    Permutation,
    Proportional,
    Relative,
    Solver,
    SparseFeatures,
    Uniform,
    certify,
    make_trainer,
)
from torchssvm.datasets import PaddedDataset
from torchssvm.solvers.compiled.whole import shuffle

CLASSES = [name for name in KINDS if name.startswith("multiclass")]


def loop_of(problem, **rules) -> CompiledBCFW:
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=MeanParts())
    return CompiledBCFW(problem.head, dual, problem.everything(3), direction=Corrective(), **rules)


def random_loop(seed: int) -> tuple[CompiledBCFW, torch.Tensor, torch.Tensor]:
    """A tiny problem with features that may be zero, costs that may be absent, and either dtype."""
    random = np.random.default_rng(seed)
    n, features, classes = int(random.integers(1, 5)), int(random.integers(1, 4)), int(random.integers(1, 6))
    cost = torch.from_numpy(random.exponential(size=(classes, classes)) * (1.0 - np.eye(classes)))
    structure = Multiclass(classes, cost=cost if random.random() < 0.6 else None)
    head = LinearMulticlass(features, classes, bias=bool(random.random() < 0.5), structure=structure)
    head = head.double() if seed % 2 else head
    x = torch.from_numpy(random.normal(size=(n, features)) * (random.random((n, features)) < 0.6)).to(head.weight.dtype)
    y = torch.from_numpy(random.integers(classes, size=n))
    dual = DualState.for_head(head, n, float(10.0 ** random.uniform(-3, 1)), storage=MeanParts())
    batch = [Batch(x, y, torch.arange(n))]
    return CompiledBCFW(head, dual, batch, direction=Corrective(), order=Permutation(), seed=seed), x, y


def test_a_visit_leaves_no_gap_in_its_block_and_never_lowers_the_dual():
    for seed in range(200 if THOROUGH else 25):
        loop, x, y = random_loop(seed)
        head, dual = loop.head, loop.dual
        loop.step(2 * len(y))
        before = dual.value()
        i = seed % len(y)
        loop.visit(torch.tensor([i]))
        rounding = 1e-9 if head.weight.dtype == torch.float64 else 2e-4
        assert dual.value() >= before - rounding * abs(before), seed
        hinges = head(x).single.detach().double()[i] + head.structure.cost[y[i]]
        hinges -= hinges[y[i]].clone()
        (buffer,) = dual.storage.buffers.values()
        psi = buffer.values[buffer.start[i]].double()
        mass = torch.nn.functional.one_hot(y[i], head.structure.num_classes) - psi
        assert float(mass.min()) >= -rounding, seed
        assert float(mass.sum()) == pytest.approx(1.0, abs=1e-5), seed
        assert float(hinges.max() - mass @ hinges) <= rounding * (1.0 + float(hinges.abs().max())), seed


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("order", [None, Proportional(), Uniform(), Permutation()], ids=repr)
def test_certificates_are_those_of_the_torch_loop(name, order):
    problem = KINDS[name]()
    loop = loop_of(problem, order=order)
    certificate = loop.solve(1e-6, max_passes=2000.0, progress=False)
    assert certificate.gap <= 1e-6
    told = certify(problem.head, loop.dual, problem.everything(3))
    assert (told.primal, told.dual) == pytest.approx((certificate.primal, certificate.dual), rel=1e-9, abs=1e-12)


def test_a_run_goes_on_in_the_middle_of_a_sweep():
    def steps(loop: CompiledBCFW, visits: list[int | None]) -> None:
        for count in visits:
            loop.step(count)

    alone, first, second = (loop_of(KINDS["multiclass"](), seed=3) for _ in range(3))
    steps(alone, [5, 30, None, None, 3, None, 9])
    steps(first, [5, 30, None, None])
    second.dual.load_state_dict(first.dual.state_dict())
    second.load_state_dict(first.state_dict())
    steps(second, [3, None, 9])
    assert_same(second.dual.state_dict(), alone.dual.state_dict())
    assert_same(second.state_dict(), alone.state_dict())


def test_no_round_of_a_cycle_lowers_the_dual_and_each_shuffles_all_blocks():
    loop = loop_of(KINDS["multiclass"](), seed=3)
    values = []
    for _ in range(12):
        loop.step()
        values.append(loop.dual.value())
    assert all(after >= before - 1e-12 for before, after in itertools.pairwise(values))
    results = {tuple(shuffled(point)) for point in torch.rand(50, dtype=torch.float64).tolist()}
    assert len(results) == 50
    assert all(sorted(order) == list(range(40)) for order in results)


@pytest.mark.parametrize("passes", [0.5, 1, 2, 3, 7.5])
def test_a_run_ends_in_the_pass_that_is_the_last_one_allowed(passes):
    problem = KINDS["multiclass"]()
    loop = loop_of(problem)
    certificate = loop.solve(1e-12, max_passes=passes, progress=False)
    assert certificate.passes - 1.0 < passes + 1.0, "the certificate takes a pass of its own"
    assert certificate.gap == pytest.approx(certify(problem.head, loop.dual, problem.everything(3)).gap, abs=1e-12)
    assert loop.solve(1e-6, max_passes=2000.0, progress=False).gap <= 1e-6


def shuffled(point: float) -> list[int]:
    order = np.arange(40)
    shuffle(order, point)
    return order.tolist()


def test_all_blocks_are_visited_where_an_exact_pass_finds_smaller_gaps_than_the_sweep_left():
    loop = loop_of(KINDS["multiclass"]())
    loop.step()
    loop.draws.gap = 1e6
    before = loop.dual.oracle_calls
    assert loop.step() >= loop.dual.num_examples
    assert loop.dual.oracle_calls >= before + loop.dual.num_examples


def test_they_are_the_choice_for_classes():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 4, generator=generator), torch.randint(3, (30,), generator=generator)
    for given in (None, Solver(storage=MeanParts()), Solver(direction=Corrective(), storage=MeanParts())):
        trainer = make_trainer(LinearMulticlass(4, 3), PaddedDataset(x, y), 0.1, solver=given, progress=False)
        assert isinstance(trainer, CompiledBCFW)
        assert isinstance(trainer.direction, Corrective)
        assert isinstance(trainer.dual.storage, MeanParts)
        assert trainer.solve(Relative(0.001), progress=False).relative_gap <= 0.001
    kept = make_trainer(LinearMulticlass(4, 3), PaddedDataset(x, y), 0.1, solver=Solver(storage=Labelings()))
    assert isinstance(kept.dual.storage, Labelings)


def test_lists_of_classes_are_their_dense_features():
    columns = torch.tensor([[0, 4, 4], [2, -1, -1], [-1, -1, -1]])
    values = torch.tensor([[1.0, 2.0, 3.0], [0.5, 9.0, 9.0], [1.0, 1.0, 1.0]])
    dense = SparseFeatures(columns.unsqueeze(1), values.unsqueeze(1)).dense(5).squeeze(1)
    head = LinearMulticlass(5, 3)
    torch.nn.init.normal_(head.weight)
    torch.testing.assert_close(head(SparseFeatures(columns, values)).single, head(dense).single)
    with pytest.raises(ValueError, match=r"x\.columns"):
        head(SparseFeatures(columns.unsqueeze(1)))
    weights = []
    for x in (SparseFeatures(columns, values), dense):
        head = LinearMulticlass(5, 3)
        dual = DualState.for_head(head, 3, 0.1, storage=MeanParts())
        batch = [Batch(x, torch.tensor([0, 2, 1]), torch.arange(3))]
        CompiledBCFW(head, dual, batch, direction=Corrective()).solve(1e-6, progress=False)
        weights.append(head.weight.detach())
    torch.testing.assert_close(*weights, atol=1e-3, rtol=1e-3)
