from __future__ import annotations

import pytest
import torch
from cases.problems import PROBLEMS, chain, examples, multiclass, reference
from cases.storage_cases import KINDS, SEEDS, StorageTestCase
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import Labelings, MeanParts, Weights, certify
from torchssvm.core.batch import apply_head


class TestMeanParts(StorageTestCase):
    alternative = r"storage=MeanParts\(\) takes about .* MiB allowed on cpu: storage=Weights\(\)"

    def make_storage(self):
        return MeanParts()

    def expected_bytes(self, problem):
        potentials = apply_head(problem.head, problem.batch([0]))
        return problem.n * sum(t.numel() * t.element_size() for t in potentials.tensors.values())

    def test_padding_is_not_stored(self):
        problem = chain(1, n=40, longest=8, states=2)
        problem.lengths = torch.ones(40, dtype=torch.int64)
        problem.lengths[0] = 8
        problem.y = problem.y.clamp(min=0).masked_fill(torch.arange(8) >= problem.lengths.unsqueeze(1), -1)
        training = self.train(problem).run([[i] for i in range(40)])
        rows = training.dual.storage.state_dict()["buffers"]["emission"]["values"]
        assert len(rows) == 1 + int(problem.lengths.sum())


class TestWeights(StorageTestCase):
    alternative = r"storage=Weights\(\) takes about .* MiB allowed on cpu: storage=MeanParts\(\)"

    def make_storage(self):
        return Weights()

    def expected_bytes(self, problem):
        return problem.n * sum(p.numel() * p.element_size() for p in problem.head.parameters())


class TestLabelings(StorageTestCase):
    """What only labelings do is in test_labelings.py."""

    alternative = r"storage=Labelings\(\) takes about .* MiB allowed on cpu: Labelings\(capacity=\.\.\.\)"
    capacity = 20

    def make_storage(self):
        return Labelings(self.capacity)

    def expected_bytes(self, problem):
        """Of each slot: mass, loss and time, whether its inner products are known, and one byte for each token."""
        tokens = 1 if problem.y.ndim == 1 else problem.y.shape[1]
        return problem.n * (2 * 8 + 2 * 8 + 1 + self.capacity * (3 * 8 + 1 + tokens))


@pytest.mark.variant
class TestLabelingsThatLeaveAllTheTime(TestLabelings):
    capacity = 2


@pytest.mark.variant
class TestOneLabeling(TestLabelings):
    capacity = 1


def test_without_a_limit_the_machine_decides(monkeypatch):
    monkeypatch.setattr("torchssvm.dual.storage.available_memory", lambda device: 10)
    with pytest.raises(MemoryError, match="MiB allowed"):
        multiclass(0).train().backward([0])
    monkeypatch.setattr("torchssvm.dual.storage.available_memory", lambda device: 2**40)
    assert multiclass(0).train().backward([0]) > 0


@examples(12)
@given(
    seed=SEEDS,
    kind=KINDS,
    sweeps=st.sampled_from([0, 1, 10]),
    adjoint=st.booleans(),
    other=st.sampled_from([Weights, Labelings, lambda: Labelings(2)]),
)
def test_the_storages_give_the_same_trajectory(seed, kind, sweeps, adjoint, other):
    problem = PROBLEMS[kind](seed, adjoint=adjoint)
    adjoint_or_one = adjoint or sweeps == 0
    case = TestMeanParts()
    truth = reference(problem)
    a, b = (problem.copy().train(storage=storage, sweeps=sweeps) for storage in (MeanParts(), other()))
    for step, rows in enumerate(case.schedule(problem, seed, 15)):
        rows = rows if adjoint_or_one else rows[:1]  # without an adjoint MeanParts has one step for a batch
        if truth.tied(a.weights(), rows):
            continue
        assert a.step(rows) == pytest.approx(b.step(rows), abs=1e-11)
        assert a.weights().tolist() == pytest.approx(b.weights().tolist(), abs=1e-10)
        assert a.dual.loss.tolist() == pytest.approx(b.dual.loss.tolist(), abs=1e-11)
        assert a.dual.gap_estimates.tolist() == pytest.approx(b.dual.gap_estimates.tolist(), abs=1e-11)
        if step % 5 == 0:
            first, second = (certify(t.head, t.dual, problem.everything(2)) for t in (a, b))
            assert (first.primal, first.dual) == pytest.approx((second.primal, second.dual), abs=1e-11)
