"""Checkpoints of several processes: the same bits with as many, and certificates with other numbers of them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from cases.compiled_kinds import ARCS, lists, matchings
from cases.problems import PROBLEMS, assert_same, flat
from cases.processes import in_processes, refused

from torchssvm import (
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    GapBatchSampler,
    Labelings,
    MeanParts,
    Pairwise,
    Weights,
    certify,
    load_checkpoint,
    save_checkpoint,
)

pytestmark = pytest.mark.slow

STORAGES = {
    "mean parts": lambda: {"storage": MeanParts()},
    "labelings": lambda: {"storage": Labelings(capacity=2), "direction": Pairwise(), "oracle": CacheOracle()},
    "weights": lambda: {"storage": Weights()},
}


def blocks_of(dual):
    """All that training depends on, wherever the rows of blocks lie in memory and whatever their clock shows."""
    state = {name: value for name, value in dual.own_state().items() if name not in ("storage", "seal")}
    stored = dual.storage
    if isinstance(stored, Labelings):
        state["mass"], state["rest"], state["count"] = (
            stored.sets.mass.clone(),
            stored.rest_mass.clone(),
            stored.sets.count.clone(),
        )
    return state, dual.value(), dual.gap_estimate


class Loop:
    """A torch loop with a sampler, whose epochs can be left and continued anywhere."""

    def __init__(self, problem, options, seed=0):
        self.training = problem.copy().train(sweeps=50, **options)
        self.dual, self.optim = self.training.dual, self.training.optim
        self.sampler = GapBatchSampler(self.dual, batch_size=2, seed=seed)
        self.steps = self.begin()

    def begin(self):
        while True:
            for rows in self.sampler:
                self.training.step(rows)
                yield rows

    def run(self, steps):
        for _ in range(steps):
            next(self.steps)
        return self

    def objects(self):
        return {"optim": self.optim, "sampler": self.sampler}

    def now(self):
        return blocks_of(self.dual)

    def certificate(self):
        proof = certify(self.training.head, self.dual, self.training.problem.everything(1), refresh=False)
        return proof.primal, proof.dual


@pytest.mark.parametrize("storage", STORAGES)
def test_the_torch_loop_goes_on_with_the_same_bits(storage, tmp_path):
    problem = PROBLEMS["chain"](4, n=15, lam=0.03)

    def train(rank):
        loop = Loop(problem, STORAGES[storage]()).run(17)
        torch.manual_seed(rank)
        save_checkpoint(tmp_path / "run.pt", **loop.objects(), number=3)
        after = loop.run(10).now(), torch.rand(2)
        again = Loop(problem, STORAGES[storage](), seed=9)
        values = load_checkpoint(tmp_path / "run.pt", **again.objects())
        again.steps = again.begin()
        assert values == {"number": 3}
        assert_same((again.run(10).now(), torch.rand(2)), after)

    Loop(problem, STORAGES[storage]()).run(17)
    in_processes(3, train)


@pytest.mark.parametrize("storage", [MeanParts, lambda: Labelings(2)], ids=["mean parts", "labelings"])
@pytest.mark.parametrize("kind", [matchings, ARCS["arcs, projective"]], ids=["edges", "arcs"])
def test_rows_that_are_longer_in_one_process_are_saved(kind, storage, tmp_path):
    problem = kind()
    longest = [problem.batch([i]) for i in problem.lengths.argsort().tolist()]  # in the last process

    def make():
        made = problem.copy()
        dual = DualState.for_head(made.head, problem.n, problem.lam, storage=storage())
        batches = [batch.replace(index=torch.tensor([i])) for i, batch in enumerate(longest)]
        return CompiledBCFW(made.head, dual, batches, round_visits=2)

    def train(rank):
        loop = make()
        loop.step(30)
        save_checkpoint(tmp_path / "run.pt", loop=loop, dual=loop.dual)
        again = make()
        load_checkpoint(tmp_path / "run.pt", loop=again, dual=again.dual)
        for each in (loop, again):
            each.step(20)
        assert torch.equal(flat(again.dual.parameters), flat(loop.dual.parameters))
        assert again.certify().gap == loop.certify().gap

    in_processes(2, train)


@pytest.mark.parametrize("kind", ["labelings", "mean parts", "lists"])
def test_the_compiled_loop_goes_on_with_the_same_bits(kind, tmp_path):
    problem = lists() if kind == "lists" else PROBLEMS["chain"](4, n=15, lam=0.03)

    def make(size=3):
        training = problem.copy().train(storage=MeanParts() if kind == "mean parts" else Labelings(capacity=2))
        rules = {} if kind == "mean parts" else {"direction": Corrective(), "oracle": CacheOracle()}
        visits = {"round_visits": 2} if size > 1 else {}
        return CompiledBCFW(training.head, training.dual, problem.everything(1), **rules, **visits)

    def train(rank):
        loop = make()
        loop.step(50)
        save_checkpoint(tmp_path / "run.pt", loop=loop, dual=loop.dual)
        loop.step(40)
        again = make()
        load_checkpoint(tmp_path / "run.pt", loop=again, dual=again.dual)
        again.step(40)
        assert_same(blocks_of(again.dual), blocks_of(loop.dual))
        assert again.certify().primal == loop.certify().primal
        loop.consolidate_state_dict()
        again.consolidate_state_dict()
        if rank == 0:
            assert_same(again.state_dict(), loop.state_dict())

    make(1).step(50)
    in_processes(3, train)


@pytest.mark.parametrize("storage", STORAGES)
def test_other_numbers_of_processes_certify_the_same(storage, tmp_path):
    problem = PROBLEMS["chain"](4, n=15, lam=0.03)
    proofs = []

    def train(size, first):
        def job(rank):
            loop = Loop(problem, STORAGES[storage]())
            before = None
            if not first:
                load_checkpoint(tmp_path / "run.pt", **loop.objects())
                loop.steps = loop.begin()
                before = loop.certificate()
            loop.run(8)
            save_checkpoint(tmp_path / "run.pt", **loop.objects())
            return before, loop.certificate(), flat(loop.dual.parameters)

        return in_processes(size, job)

    for place, size in enumerate((2, 4, 1, 2)):
        every = train(size, place == 0)
        before, after, weights = every[0]
        assert all(torch.equal(weights, other[2]) for other in every)
        if place:
            assert before == pytest.approx(proofs[-1], rel=1e-10)
            assert after[1] > proofs[-1][1]
        proofs.append(after)


def test_the_state_of_all_is_collected_first(tmp_path):
    problem = PROBLEMS["multiclass"](4, n=9, lam=0.1)

    def train(rank):
        loop = Loop(problem, {}).run(4)
        for each in (loop.optim, loop.sampler, loop.dual):
            kind, text = refused(each.state_dict)
            assert kind == "RuntimeError"
            assert "consolidate_state_dict" in text
        loop.optim.consolidate_state_dict()
        loop.run(1)
        assert refused(loop.optim.state_dict)[0] == "RuntimeError"  # it was collected before the step
        loop.optim.consolidate_state_dict()
        whole = loop.optim.state_dict() if rank == 0 else None
        assert refused(loop.optim.state_dict)[0] == "RuntimeError"  # it holds once
        for wrong in ({}, {"ranks": [{}]}, {"ranks": [1, 2, 3]}):
            kind, text = refused(lambda state=wrong: loop.sampler.load_state_dict(state))
            assert kind == "ValueError", text
        return whole

    whole = in_processes(2, train)[0]
    alone = Loop(problem, {})
    alone.optim.load_state_dict(whole)
    assert len(alone.dual.loss) == 9
    assert math.isclose(alone.certificate()[1], alone.dual.value(), rel_tol=1e-12)


def test_a_damaged_file_is_refused_by_all(tmp_path):
    problem = PROBLEMS["multiclass"](4, n=9, lam=0.1)

    def train(rank):
        loop = Loop(problem, {}).run(4)
        before = copy.deepcopy(loop.now())
        result = refused(lambda: load_checkpoint(tmp_path / f"{rank}.pt", **loop.objects()))
        assert_same(loop.now(), before)
        loop.run(4)
        return result

    def save(rank):
        for name in range(2):
            save_checkpoint(tmp_path / f"{name}.pt", **Loop(problem, {}).run(2).objects())

    in_processes(2, save)
    stored = bytearray((tmp_path / "1.pt").read_bytes())
    stored[len(stored) // 2] ^= 1
    (tmp_path / "1.pt").write_bytes(bytes(stored))
    (_, text), (kind, other) = in_processes(2, train)
    assert kind == "ValueError"
    assert "rank 1 of 2 refuses" in text
    assert other in text or "1.pt" in text
