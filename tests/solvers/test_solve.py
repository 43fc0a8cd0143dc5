from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from cases.problem_data import Items
from cases.problems import PROBLEMS, chain, multiclass, reference
from torch.utils.data import DataLoader

from torchssvm import (
    ByLength,
    CacheOracle,
    CompiledBCFW,
    Labelings,
    MeanParts,
    Pairwise,
    Relative,
    Solver,
    TorchLoop,
    Uniform,
    Weights,
    load_checkpoint,
    make_trainer,
    save_checkpoint,
    solve,
)
from torchssvm.datasets import PaddedDataset
from torchssvm.solvers import Certificate, choice


@pytest.fixture(autouse=True)
def nothing_is_told_yet(monkeypatch):
    monkeypatch.setattr(choice, "_told", set())


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_a_head_and_data_are_enough(kind, capsys):
    """Any head is trained to 1 % of its primal, by a solver that is told once."""
    problem = PROBLEMS[kind](1, lam=0.3)
    certificate = solve(problem.head, Items(problem), problem.lam)
    assert certificate.gap <= 0.01 * certificate.primal
    assert certificate.primal - certificate.dual == pytest.approx(certificate.gap, abs=1e-12)
    optimum = reference(problem).optimum()
    assert certificate.dual - 1e-6 <= optimum <= certificate.primal + 1e-6
    solve(problem.head, Items(problem), problem.lam)
    assert capsys.readouterr().err.count("torchssvm: solver: ") == 1


def test_the_compiled_loop_is_chosen_where_it_applies(capsys):
    problem = chain(1, n=8)
    trainer = make_trainer(problem.head, Items(problem), problem.lam)
    assert isinstance(trainer, CompiledBCFW)
    assert "Corrective" in repr(trainer.direction)
    assert "CacheOracle" in repr(trainer.oracle)
    assert isinstance(trainer.dual.storage, Labelings)
    assert "compiled loop, Corrective" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        (Solver(compiled=False), "compiled=False"),
        (Solver(bounds={"transition": (0.0, None)}), "the weights have bounds"),
        (Solver(storage=Weights()), "storage=Weights"),
    ],
)
def test_the_torch_loop_says_why_it_is_chosen(solver, words, capsys):
    problem = chain(2, n=8, lam=0.3)
    trainer = make_trainer(problem.head, Items(problem), problem.lam, solver=solver)
    assert isinstance(trainer, TorchLoop)
    told = capsys.readouterr().err
    assert "torch loop" in told
    assert words in told
    assert trainer.solve(Relative(0.05), max_passes=400).relative_gap <= 0.05
    if "bounds" in words:
        assert bool((problem.head.transition >= 0).all())


def test_what_is_given_overrides():
    problem = chain(3, n=8)
    storage = MeanParts()
    solver = Solver(storage=storage, compiled=False, batch_size=3, order=Uniform(), seed=5)
    loop = make_trainer(problem.head, Items(problem), problem.lam, solver=solver)
    assert isinstance(loop, TorchLoop)
    assert (loop.sampler.batch_size, loop.sampler.seed) == (3, 5)
    assert isinstance(loop.dual.storage, MeanParts)
    assert loop.dual.storage is not storage
    compiled = make_trainer(problem.copy().head, Items(problem), problem.lam, solver=Solver(Pairwise()))
    assert isinstance(compiled, CompiledBCFW)
    assert isinstance(compiled.direction, Pairwise)
    assert isinstance(compiled.oracle, CacheOracle)
    assert isinstance(compiled.dual.storage, Labelings)


def test_memory_chooses_the_storage(capsys):
    """Labelings where they fit, then mean parts, then weights; what nothing fits is refused as before."""
    kept = {}
    for limit in (10**6, 3000, 600):
        problem = chain(4, n=8)
        trainer = make_trainer(problem.head, Items(problem), problem.lam, solver=Solver(memory_limit=limit))
        kept[limit] = type(trainer.dual.storage)
    assert next(iter(kept.values())) is Labelings
    assert Labelings not in list(kept.values())[1:]
    with pytest.raises(MemoryError, match="Labelings"):
        solve(chain(4, n=8).head, Items(chain(4, n=8)), 0.3, solver=Solver(memory_limit=10))


def test_features_that_do_not_fit_leave_the_compiled_loop(monkeypatch, capsys):

    monkeypatch.setattr("torchssvm.solvers.choice.SHARE", 1e-15)
    problem = chain(5, n=8)
    solver = Solver(memory_limit=10**6)
    assert isinstance(make_trainer(problem.head, Items(problem), problem.lam, solver=solver), TorchLoop)
    assert "features of 8 examples would take" in capsys.readouterr().err
    with pytest.raises(MemoryError, match="use compiled=False"):
        make_trainer(problem.head, Items(problem), problem.lam, solver=replace(solver, compiled=True))


def test_a_run_that_stops_far_from_its_optimum_warns():
    problem = multiclass(6, lam=1e-6)
    asked = "max_passes=2 with a gap of .* % of the primal, far from the optimum; tolerance asks for 1 % of the primal"
    with pytest.warns(UserWarning, match=asked):
        certificate = solve(problem.head, Items(problem), problem.lam, max_passes=2)
    assert certificate.relative_gap > 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        solve(multiclass(6, lam=1.0).head, Items(problem), 1.0)


def test_the_tolerance_is_relative_or_absolute():
    problem = chain(7, n=8, lam=0.3)
    seen: list[Certificate] = []
    certificate = solve(problem.head, Items(problem), problem.lam, tolerance=Relative(0.2), on_check=seen.append)
    assert certificate.gap <= 0.2 * certificate.primal
    assert all(c.gap > 0.2 * c.primal for c in seen[:-1])
    assert solve(problem.head, Items(problem), problem.lam, tolerance=1e-4).gap <= 1e-4
    assert f"{Relative(0.025)}" == "2.5 % of the primal"
    assert "% of the primal)" in str(certificate)
    for share in (0.0, 1.0, math.nan, -0.1):
        with pytest.raises(ValueError, match="share="):
            Relative(share)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_second_run_of_a_head_trains_it_anew(compiled):
    """Without a warning; a dataset that is refused only when it is packed leaves the weights alone."""
    problem = chain(1, n=8, lam=0.3)
    first, second = (
        solve(problem.head, Items(problem), 0.3, tolerance=0.05, solver=Solver(compiled=compiled)) for _ in range(2)
    )
    assert (first.primal, first.passes) == (second.primal, second.passes)
    before = problem.head.emission.detach().clone()
    problem.x[7] = math.nan
    if compiled:
        with pytest.raises(ValueError, match="not finite"):
            make_trainer(problem.head, Items(problem), 0.3, solver=Solver(compiled=True))
        assert torch.equal(problem.head.emission, before)


def solved(*, head=None, data=None, lam=0.1, **options):
    problem = chain(8, n=8)
    return solve(problem.head if head is None else head, Items(problem) if data is None else data, lam, **options)


DOORS = [
    (lambda: solved(tolerance=-1.0), ValueError, "tolerance"),
    (lambda: solved(max_passes=0), ValueError, "max_passes"),
    (lambda: solved(lam=-1.0), ValueError, "lam"),
    (lambda: solved(solver="fast"), TypeError, "solver"),
    (lambda: solved(solver=Solver(bounds={"edges": (0, 1)})), ValueError, "edges"),
    (lambda: solved(solver=Solver(compiled=True, bounds={"transition": (0.0, None)})), ValueError, "bounds"),
    (lambda: solved(data=list(range(8))), ValueError, "collate"),
    (lambda: solved(data=[]), ValueError, "dataset"),
    (lambda: solved(data=DataLoader(Items(chain(8, n=8)))), ValueError, "dataset"),
    (lambda: Solver(compiled="yes"), TypeError, "compiled"),
    (lambda: Solver(direction=Pairwise), TypeError, "direction"),
    (lambda: Solver(direction=Pairwise(), storage=MeanParts()), ValueError, "storage"),
    (lambda: Solver(storage="labelings"), TypeError, "storage"),
    (lambda: Solver(batch_size=8, compiled=True), ValueError, "batch_size"),
    (lambda: Solver(batch_size=2.5), ValueError, "batch_size"),
    (lambda: Solver(round_visits=8, compiled=False), ValueError, "round_visits"),
    (lambda: Solver(seed="a"), TypeError, "seed"),
    (lambda: Solver(order="gaps"), TypeError, "order"),
    (lambda: Solver(schedule=3), TypeError, "schedule"),
    (lambda: Solver(memory_limit=-1), ValueError, "memory_limit"),
]


@pytest.mark.parametrize(("call", "error", "argument"), DOORS)
def test_doors(call, error, argument):
    with pytest.raises(error, match=argument):
        call()


def test_a_seed_leaves_size_and_order_of_batches_alone():
    problem = chain(9, n=8)
    data = PaddedDataset(problem.x, problem.y, problem.lengths)
    loop = make_trainer(problem.head, data, 0.3, solver=Solver(compiled=False, seed=3))
    assert isinstance(loop.sampler.order, ByLength)
    assert (loop.sampler.batch_size, loop.sampler.seed) == (8, 3)
    other = make_trainer(problem.copy().head, data, 0.3, solver=Solver(order=ByLength(problem.lengths)))
    assert isinstance(other, TorchLoop)  # the compiled loop has no batches
    assert solve(problem.copy().head, data, 0.3, solver=Solver(seed=1)).relative_gap <= 0.01


@pytest.mark.slow
def test_a_trainer_of_either_kind_is_saved_with_its_dual(tmp_path):
    for compiled in (True, False):
        trainers = []
        for _ in range(2):
            problem = chain(10, n=8)
            data = Items(problem)
            trainers.append(make_trainer(problem.head, data, 0.3, solver=Solver(compiled=compiled)))
        first, second = trainers
        first.step()
        save_checkpoint(tmp_path / "run.pt", trainer=first, dual=first.dual)
        load_checkpoint(tmp_path / "run.pt", trainer=second, dual=second.dual)
        assert first.solve(1e-3).gap == second.solve(1e-3).gap
