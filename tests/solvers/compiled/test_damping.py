"""Damped weights: when they begin, what their certificates prove, how a run resumes, and who goes on from them."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from cases.compiled_kinds import KINDS
from cases.optima import enclose
from cases.problems import reference

from torchssvm import (
    BCFW,
    BlockGap,
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    Labelings,
    LinearChain,
    MeanParts,
    Relative,
    make_trainer,
    solve,
)
from torchssvm.core.batch import in_order
from torchssvm.datasets import OCR
from torchssvm.kinds.adapter import find_adapter
from torchssvm.solvers import EveryPasses, TorchLoop, certify
from torchssvm.solvers.compiled import damping
from torchssvm.steps import MaxOracle

N = 60
WORDS = OCR("train", "small")
DATA = torch.utils.data.Subset(WORDS, range(N))


def batches():
    return in_order(DATA, collate_fn=WORDS.collate)


def loop(lam: float = 1.0 / N, dtype: torch.dtype = torch.float64) -> CompiledBCFW:
    head = LinearChain(128, 26).to(dtype)
    dual = DualState.for_head(head, num_examples=N, lam=lam, storage=Labelings(4))
    return CompiledBCFW(head, dual, batches(), direction=Corrective(), oracle=CacheOracle())


@pytest.fixture(autouse=True)
def few_examples(monkeypatch):
    """Weights are damped though examples are few."""
    monkeypatch.setattr(damping, "MOST_PER_EXAMPLE", 1e9)


def test_few_examples_are_not_damped(monkeypatch):
    monkeypatch.setattr(damping, "MOST_PER_EXAMPLE", 0.01)
    run = loop()
    run.solve(Relative(0.5), progress=False)
    assert not run.dual.damped


def test_they_begin_after_an_epoch_where_lam_is_small():
    stiff = loop()
    assert stiff._damping.factor == 1.0  # nothing is known yet
    stiff.step(N)
    assert not stiff.dual.damped
    factor = stiff._damping.factor
    assert factor > 5.0
    stiff.step(10)
    assert stiff.dual.damped
    stiff.dual.rescale(0.5)
    assert stiff._damping.factor == pytest.approx(2.0 * factor, rel=0.1)
    off = loop(1.0)
    off.solve(Relative(0.1), progress=False)
    assert not off.dual.damped


def test_they_stay_away_where_copies_of_blocks_would_not_fit():
    tight, usual = loop(), loop()
    usual.step(N)
    assert usual._damping.factor > 1.0
    tight.dual.storage.memory_limit = usual.dual.storage.nbytes()
    tight.solve(Relative(0.5), progress=False)
    assert not tight.dual.damped


@pytest.mark.parametrize("kind", KINDS)
def test_the_dual_of_every_kind_never_falls_and_its_certificates_hold(kind):
    problem = KINDS[kind]()
    lam = 0.01 * problem.lam
    whole = find_adapter(problem.head).whole() is not None
    storage, oracle = (MeanParts(), MaxOracle()) if whole else (Labelings(3), CacheOracle())
    dual = DualState.for_head(problem.head, problem.n, lam, storage=storage)
    run = CompiledBCFW(problem.head, dual, problem.everything(3), direction=Corrective(), oracle=oracle)
    run.step(problem.n)
    damped, value = False, run.certify().dual
    for _ in range(30):
        run.step()
        damped |= dual.damped
        proof = run.certify()
        assert proof.dual >= value - 1e-9
        assert proof.gap == proof.primal - proof.dual >= -1e-12
        assert proof.drift < 1e-9
        value = proof.dual
    assert damped or whole
    outside = certify(problem.head, dual, problem.everything(3))
    assert outside.primal == pytest.approx(proof.primal, rel=1e-9)
    assert outside.dual == pytest.approx(proof.dual, rel=1e-9)


@pytest.mark.parametrize("kind", ["chain", "multiclass"])
def test_the_certificate_encloses_the_optimum_of_a_qp_solver(kind):
    pytest.importorskip("clarabel")
    problem = KINDS[kind]()
    problem.lam *= 0.02
    bounds = enclose(reference(problem))
    dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=Labelings(3))
    run = CompiledBCFW(problem.head, dual, problem.everything(3), direction=Corrective(), oracle=CacheOracle())
    proofs = []
    last = run.solve(Relative(0.01), max_passes=500, on_check=proofs.append, progress=False)
    assert dual.damped
    assert last.relative_gap <= 0.01
    assert all(proof.dual <= bounds.high + 1e-9 and proof.primal >= bounds.low - 1e-9 for proof in proofs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_certified_dual_never_falls_and_proves_the_optimum(dtype):
    run, proofs = loop(dtype=dtype), []
    run.solve(Relative(0.05), schedule=EveryPasses(1), on_check=proofs.append, progress=False)
    assert run.dual.damped
    assert len(proofs) > 5
    rounding = 1e-12 if dtype is torch.float64 else 1e-6
    for before, after in itertools.pairwise(proofs):
        assert after.dual >= before.dual - rounding
    best = min(proof.primal for proof in proofs)
    for proof in proofs:
        assert proof.gap == proof.primal - proof.dual >= 0.0
        assert proof.dual <= best
        assert proof.drift < (1e-10 if dtype is torch.float64 else 1e-3)
    outside = certify(run.head, run.dual, batches())
    assert outside.primal == pytest.approx(proofs[-1].primal, rel=1e-6)
    assert outside.dual == pytest.approx(proofs[-1].dual, rel=1e-6)


def test_a_run_resumes_to_the_bit():
    first = loop(dtype=torch.float32)
    first.solve(Relative(0.3), progress=False)
    second = loop(dtype=torch.float32)
    second.dual.load_state_dict(copy.deepcopy(first.dual.state_dict()))
    second.load_state_dict(first.state_dict())
    assert second.dual.damped
    a, b = (one.solve(Relative(0.02), progress=False) for one in (first, second))
    assert (a.primal, a.dual) == (b.primal, b.dual)
    assert all(map(torch.equal, first.head.parameters(), second.head.parameters()))


@pytest.mark.parametrize("by", ["visit", "torch", "lam"])
def test_others_go_on_from_the_dual(by):
    run = loop()
    proof = run.solve(Relative(0.05), progress=False)
    dual = run.dual
    if by == "lam":
        dual.change_lam(2.0 / N)
        assert not dual.damped
        assert run.certify().gap >= 0.0
        return
    if by == "visit":
        run.visit(torch.arange(5))
        after = run.certify()
    else:
        other = TorchLoop(run.head, BlockGap(dual), DATA, batch_size=8, optimizer=BCFW(run.head.parameters(), dual))
        other.step()
        after = other.certify()
    assert not dual.damped
    assert after.dual >= proof.dual - 1e-12
    assert after.drift < 1e-10
    again = run.solve(Relative(0.05), progress=False)
    assert again.relative_gap <= 0.05
    assert again.dual >= after.dual - 1e-12


def test_masses_below_the_range_of_float32_are_dropped():
    """Psi of such a mass would stay at the smallest float32 while the mass shrinks, and their ratio would explode."""
    run = loop(dtype=torch.float32)
    run.step(3 * N)
    storage = run.dual.storage
    run.memory.make_rest()
    storage.mixed[:], storage.rest_mass[:] = True, 1e-35
    for buffer in storage.rest.buffers.values():
        buffer.values.fill_(1e-35)
    run.memory.changed()
    for _ in range(3):
        run.blend(run.copy_blocks(torch.arange(N).numpy()), 0.5)
    assert bool((storage.rest_mass == 1e-35).all())
    kept = run.copy_blocks(torch.arange(N).numpy())
    storage.rest_mass[:] = 0.0
    run.blend(kept, 0.99)
    assert not bool(storage.rest_mass.any())
    last = run.copy_blocks(torch.arange(N).numpy())
    assert not last.emission.any()
    assert not last.pairs.any()


def test_a_start_keeps_the_damped_weights():
    first = make_trainer(LinearChain(128, 26), DATA, 1.0 / N, progress=False)
    first.solve(Relative(0.02), progress=False)
    assert first.dual.damped
    same = solve(LinearChain(128, 26), DATA, 1.0 / N, start=first, max_passes=0.1, progress=False)
    assert same.relative_gap <= 0.03  # a tenth of a pass may raise it a little
    more = torch.utils.data.Subset(WORDS, range(N + 10))
    again = solve(LinearChain(128, 26), more, 1.0 / N, start=first, progress=False)
    assert again.relative_gap <= 0.01
