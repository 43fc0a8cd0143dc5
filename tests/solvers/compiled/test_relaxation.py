"""Over-relaxed corrective steps: which visits they are, that the dual does not fall, and that a run resumes."""

from __future__ import annotations

import pytest
import torch

from torchssvm import CacheOracle, CompiledBCFW, Corrective, DualState, Labelings, LinearChain
from torchssvm.core.batch import in_order
from torchssvm.datasets import OCR
from torchssvm.solvers.compiled.draws import left_of_cycle, phase
from torchssvm.steps.numba import left_of, relaxed_step

N = 60


def loop(capacity: int = 4, dtype: torch.dtype = torch.float64) -> CompiledBCFW:
    head = LinearChain(128, 26).to(dtype)
    dual = DualState.for_head(head, num_examples=N, lam=0.01, storage=Labelings(capacity))
    data = torch.utils.data.Subset(OCR("train", "small"), range(N))
    batches = in_order(data, collate_fn=OCR("train", "small").collate)
    return CompiledBCFW(head, dual, batches, direction=Corrective(), oracle=CacheOracle())


def test_a_cycle_begins_late_and_ends_with_exact_steps():
    assert phase(0, N) == (40 * N, 1.0, 1.0)
    assert left_of_cycle(40 * N - 1, N) is None
    moved, results = 40 * N, []
    while moved < 44 * N:
        visits, relaxation, power = phase(moved, N)
        results.append((visits, relaxation > 1.0, power))
        assert phase(moved + visits - 1, N)[:2] == (1, relaxation)
        moved += visits
    assert results == [(90, True, 0.5), (30, False, 0.5)] * 2


def test_a_relaxed_step_keeps_masses():
    mass, change = torch.tensor([0.3, 0.7]).double().numpy(), torch.tensor([-0.25, 0.25]).double().numpy()
    assert relaxed_step(0.5, 1.8, 2, mass, change) == pytest.approx(0.9)
    assert relaxed_step(1.0, 1.8, 2, mass, change) == pytest.approx(1.2)
    assert left_of(0.3, 1.2 * -0.25) == 0.0
    assert left_of(0.3, -0.25) == pytest.approx(0.05)


def test_the_dual_never_falls_and_the_run_resumes_to_the_bit():
    first = loop()
    first.step(39 * N)
    value = first.dual.value()
    for _ in range(30):  # through two cycles
        first.step(11)
        assert first.dual.value() >= value - 1e-12
        value = first.dual.value()
    second = loop()
    second.head.load_state_dict(first.head.state_dict())
    second.dual.load_state_dict(first.dual.state_dict())
    second.load_state_dict(first.state_dict())
    for one in (first, second):
        one.step()
        one.step(50)
    results = [one.certify() for one in (first, second)]
    assert results[0].primal == results[1].primal
    assert results[0].dual == results[1].dual
    assert results[0].gap == results[0].primal - results[0].dual >= 0.0
    assert results[0].drift < 1e-10


def test_a_rest_that_a_relaxed_step_empties_is_whole():
    """Psi and its loss keep the sign of the mass, and a checkpoint is not refused."""
    result = loop(2, torch.float32)
    result.step(55 * N)
    for _ in range(200):
        result.step(2)
        assert bool((result.dual.storage.rest_loss >= 0.0).all())
    result.dual.load_state_dict(result.dual.state_dict())


def test_every_cycle_ends_with_exact_steps_even_of_one_example():
    assert [phase(moved, 1)[1] for moved in range(39, 44)] == [1.0, 1.8, 1.0, 1.8, 1.0]
