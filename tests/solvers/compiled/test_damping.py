"""Damped weights: when they begin, what their certificates prove, how a run resumes, and who goes on from them."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from torchssvm import BCFW, BlockGap, CacheOracle, CompiledBCFW, Corrective, DualState, Labelings, LinearChain, Relative
from torchssvm.core.batch import in_order
from torchssvm.datasets import OCR
from torchssvm.solvers import EveryPasses, TorchLoop, certify

N = 60
WORDS = OCR("train", "small")
DATA = torch.utils.data.Subset(WORDS, range(N))


def batches():
    return in_order(DATA, collate_fn=WORDS.collate)


def loop(lam: float = 1.0 / N, dtype: torch.dtype = torch.float64) -> CompiledBCFW:
    head = LinearChain(128, 26).to(dtype)
    dual = DualState.for_head(head, num_examples=N, lam=lam, storage=Labelings(4))
    return CompiledBCFW(head, dual, batches(), direction=Corrective(), oracle=CacheOracle())


def test_they_begin_where_lam_is_small():
    assert loop(1.0)._damping.factor == 1.0
    stiff = loop()
    assert stiff._damping.factor > 10.0
    assert stiff._damping.factor == pytest.approx(2.0 * loop(2.0 / N)._damping.factor)
    off = loop(1.0)
    off.solve(Relative(0.1), progress=False)
    assert not off.dual.damped


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


@pytest.mark.parametrize("by", ["step", "torch", "lam"])
def test_others_go_on_from_the_dual(by):
    run = loop()
    proof = run.solve(Relative(0.05), progress=False)
    dual = run.dual
    if by == "lam":
        dual.change_lam(2.0 / N)
        assert not dual.damped
        assert run.certify().gap >= 0.0
        return
    if by == "step":
        run.step(5)
        after = run.certify()
    else:
        other = TorchLoop(
            run.head, BlockGap(dual), DATA_WITH_COLLATE, batch_size=8, optimizer=BCFW(run.head.parameters(), dual)
        )
        other.step()
        after = other.certify()
    assert not dual.damped
    assert after.dual >= proof.dual - 1e-12
    assert after.drift < 1e-10
    again = run.solve(Relative(0.05), progress=False)
    assert again.relative_gap <= 0.05
    assert again.dual >= after.dual - 1e-12


class _Part(torch.utils.data.Subset):
    def collate(self, items):
        return WORDS.collate(items)


DATA_WITH_COLLATE = _Part(WORDS, range(N))
