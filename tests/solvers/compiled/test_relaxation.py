"""Over-relaxed corrective steps: which visits they are, that the dual does not fall, and that a run resumes."""

from __future__ import annotations

import pytest
import torch

from torchssvm import CacheOracle, CompiledBCFW, Corrective, DualState, Labelings, LinearChain
from torchssvm.core.batch import in_order
from torchssvm.datasets import OCR
from torchssvm.solvers.compiled.relaxation import left_of_cycle, phase
from torchssvm.steps.numba import left_of, relaxed_step

N = 60


def loop() -> CompiledBCFW:
    head = LinearChain(128, 26).double()
    dual = DualState.for_head(head, num_examples=N, lam=0.01, storage=Labelings(4))
    data = torch.utils.data.Subset(OCR("train", "small"), range(N))
    batches = in_order(data, collate_fn=OCR("train", "small").collate)
    return CompiledBCFW(head, dual, batches, direction=Corrective(), oracle=CacheOracle())


def test_a_cycle_begins_late_and_ends_with_exact_steps():
    assert phase(0, N) == (40 * N, 1.0, 1.0)
    assert left_of_cycle(40 * N - 1, N) is None
    moved, found = 40 * N, []
    while moved < 44 * N:
        visits, relaxation, power = phase(moved, N)
        found.append((visits, relaxation > 1.0, power))
        assert phase(moved + visits - 1, N)[:2] == (1, relaxation)
        moved += visits
    assert found == [(90, True, 0.5), (30, False, 0.5)] * 2


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
    found = [one.certify() for one in (first, second)]
    assert found[0].primal == found[1].primal
    assert found[0].dual == found[1].dual
    assert found[0].gap == found[0].primal - found[0].dual >= 0.0
    assert found[0].drift < 1e-10
