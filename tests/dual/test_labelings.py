"""Active sets, caches and the rest: every direction, every capacity, against a dual with one number for each output."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from cases.explicit_duals import ExplicitDuals, recorded_moves
from cases.problems import PROBLEMS, Training, assert_same, chain, examples, multiclass, reference, rng
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import CacheOracle, Corrective, FrankWolfe, Labelings, Pairwise, certify
from torchssvm.core.batch import apply_head
from torchssvm.dual.active_sets import ActiveSets
from torchssvm.dual.labelings import StoredLabelings
from torchssvm.steps import Away, Hybrid

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from(sorted(PROBLEMS))
DIRECTIONS = {rule.__name__: rule for rule in (FrankWolfe, Pairwise, Away, Hybrid, Corrective)}


class Watched:
    """A direction rule that remembers what it saw and said."""

    def __init__(self, rule):
        self.rule = rule
        self.needs_labelings, self.needs_curvature = rule.needs_labelings, rule.needs_curvature

    def __call__(self, blocks):
        self.blocks, self.curvature = blocks, blocks.curvature() if self.needs_curvature else None
        self.change = self.rule(blocks)
        return self.change


def schedule(n: int, seed: int, steps: int) -> list[list[int]]:
    """Batches of one to three, with duplicates."""
    random = rng(seed)
    sizes = torch.randint(1, 4, (steps,), generator=random).tolist()
    return [torch.randint(0, n, (size,), generator=random).tolist() for size in sizes]


def mass_is_1(training: Training) -> bool:
    storage = training.dual.storage
    return bool(((storage.rest_mass + storage.sets.mass.sum(1) - 1.0).abs() < 1e-12).all())


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("capacity", [20, 2])
@examples(8)
@given(
    seed=SEEDS,
    kind=KINDS,
    lam=st.sampled_from([0.02, 0.5]),
    cache=st.booleans(),
    sweeps=st.sampled_from([0, 1, 10]),
    adjoint=st.booleans(),
)
def test_trajectories_are_those_of_explicit_duals(direction, capacity, seed, kind, lam, cache, sweeps, adjoint):
    """Masses, scores, losses, inner products, corners, evictions, weights and duals, after every step and pass."""
    problem = PROBLEMS[kind](seed, lam=lam, adjoint=adjoint)
    truth = reference(problem)
    rule = Watched(DIRECTIONS[direction]())
    training = problem.train(
        storage=Labelings(capacity), direction=rule, oracle=CacheOracle(0.5, 0.0) if cache else None, sweeps=sweeps
    )
    storage = training.dual.storage
    explicit = ExplicitDuals(truth, capacity)
    for step, rows in enumerate(schedule(problem.n, seed, 14)):
        if step % 5 == 4:
            certificate = certify(training.head, training.dual, problem.everything(2), refresh=False)
            assert certificate.drift < 1e-9
            explicit.adopt_idle_slots(storage)
        w = training.weights().numpy()
        with recorded_moves(StoredLabelings) as moves:
            training.step(rows)
        ((stored, coefficients, moving, change),) = moves
        assert torch.equal(change, rule.change)
        blocks = rule.blocks
        for b in moving.tolist():
            i = rows[b]
            columns, masses = explicit.columns(i), explicit.masses(i)
            corner = explicit.output(i, stored._corner.labeling[b])
            width = len(columns)
            assert blocks.mass[b, :width].tolist() == pytest.approx(masses.tolist(), abs=1e-12)
            there = [c for c in range(width) if c > 0 or masses[0] > 0.0]
            new = corner not in explicit.outputs[i]
            assert int(blocks.corner[b]) == (blocks.mass.shape[1] - 1 if new else explicit.outputs[i].index(corner) + 1)
            shown = [*there, *([blocks.mass.shape[1] - 1] if new else [])]
            assert blocks.valid[b].nonzero().flatten().tolist() == shown
            atoms = np.concatenate([columns[there], np.eye(len(truth.losses[i]))[[corner] if new else []]])
            features, losses = atoms @ truth.changes[i], atoms @ truth.losses[i]
            assert blocks.scores[b, shown].tolist() == pytest.approx((features @ w).tolist(), abs=1e-7)
            assert blocks.losses[b, shown].tolist() == pytest.approx(losses.tolist(), abs=1e-7)
            hinges = truth.losses[i] + truth.changes[i] @ w
            decoded = stored._corner.decoded
            everything = decoded is None or bool(decoded[b])
            considered = hinges if everything else hinges[explicit.outputs[i]]
            assert hinges[corner] == pytest.approx(considered.max(), abs=1e-9)
            if rule.curvature is not None:
                gram = features @ features.T / (lam * truth.n**2)
                assert rule.curvature[b][shown][:, shown].numpy() == pytest.approx(gram, abs=1e-6 / lam)
            explicit.move(i, (coefficients[b] * change[b]).tolist(), corner)
        for i in range(truth.n):
            outputs, mass = explicit.slots(storage, i)
            assert outputs == explicit.outputs[i]
            assert mass == pytest.approx(explicit.mass[i], abs=1e-12)
            assert float(storage.rest_mass[i]) == pytest.approx(explicit.rest_mass[i], abs=1e-12)
        assert mass_is_1(training)
        assert training.dual.loss.tolist() == pytest.approx(explicit.losses(), abs=1e-11)
        scale = 1 + abs(explicit.weights()).max()
        assert training.weights().numpy() == pytest.approx(explicit.weights(), abs=1e-9 * scale)
        assert training.dual.value() == pytest.approx(truth.dual(explicit.alphas()), abs=1e-9 * scale**2)


@pytest.mark.parametrize("direction", [Pairwise, Away, Corrective])
def test_the_rest_is_an_atom_like_others(direction):
    """Labelings leave all the time; pairwise and away steps take the mass of the rest, and corrective gives it back."""
    rule = Watched(direction())
    problem = multiclass(4, n=3, classes=6, features=3, lam=0.05)
    training = problem.train(storage=Labelings(1), direction=rule)
    storage, taken, given_back = training.dual.storage, 0, 0
    for step in range(200):
        training.step([step % 3])
        if bool(storage.mixed[step % 3]):
            taken += float(rule.change[0, 0]) < 0.0
            given_back += float(rule.change[0, 0]) > 0.0
    assert bool(storage.mixed.all())
    assert taken > 3
    assert given_back > 0 or direction is Pairwise  # pairwise steps lead to the corner only


@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_a_labeling_that_leaves_changes_neither_block_nor_loss(kind):
    problem = PROBLEMS[kind](4, lam=0.02)
    training = problem.train(storage=Labelings(3), direction=Pairwise())
    training.run(schedule(problem.n, 4, 30))
    storage = training.dual.storage
    batch = problem.batch(range(problem.n))
    potentials = apply_head(training.head, batch)
    stored = storage.gather(batch.index, potentials, batch.y)
    before = stored.psi
    losses = (storage.sets.mass * storage.sets.loss).sum(1) / problem.n + storage.rest_loss
    has = storage.sets.mass[:, 0] > 0.0
    assert bool(has.any())
    rows = has.nonzero().flatten()
    stored._evict(rows, torch.zeros_like(rows))
    assert not bool(storage.sets.mass[rows, 0].any())
    after = storage.gather(batch.index, potentials, batch.y).psi
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-14)
    now = (storage.sets.mass * storage.sets.loss).sum(1) / problem.n + storage.rest_loss
    torch.testing.assert_close(now, losses, rtol=0, atol=1e-14)
    torch.testing.assert_close(training.dual.loss, losses, rtol=0, atol=1e-12)
    assert mass_is_1(training)


def test_the_rest_stays_in_the_polytope_when_nearly_all_its_mass_has_left():
    """In float32, what is left must be a small multiple of the same point, not the rounding of a large one."""
    problem = chain(4, lam=0.05, states=3, dtype=torch.float32)
    training = problem.train(storage=Labelings(1)).run(schedule(problem.n, 4, 40))
    storage = training.dual.storage
    batch = problem.batch(range(problem.n))
    potentials = apply_head(training.head, batch)
    assert bool(storage.mixed.all())

    def point() -> torch.Tensor:
        psi = storage.rest.gather(batch.index, potentials, batch.y).psi
        return torch.cat([t.flatten(1).double() / storage.rest_mass.unsqueeze(1) for t in psi.values()], 1)

    before, losses = point(), storage.rest_loss / storage.rest_mass
    assert before.abs().max() > 0.1
    everyone = torch.arange(problem.n)
    for share in (0.9, 1 - 1e-4, 1 - 1e-7, -1e6):  # the last multiplies the mass by a million
        stored = storage.gather(batch.index, potentials, batch.y)
        stored._move_rest(everyone, -share * storage.rest_mass)
    torch.testing.assert_close(point(), before, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(storage.rest_loss / storage.rest_mass, losses, rtol=1e-12, atol=0)


@examples(10)
@given(seed=SEEDS, kind=KINDS, capacity=st.sampled_from([1, 2, 20]))
def test_an_exact_pass_fills_the_cache_and_moves_no_mass(seed, kind, capacity):
    problem = PROBLEMS[kind](seed, lam=0.05)
    truth = reference(problem)
    training = problem.train(storage=Labelings(capacity), direction=Pairwise()).run(schedule(problem.n, seed, 8))
    storage = training.dual.storage
    explicit = ExplicitDuals(truth, capacity)
    before = [dict(zip(*explicit.slots(storage, i), strict=True)) for i in range(problem.n)]
    rest = storage.rest_mass.clone()
    w = training.weights().numpy()
    certify(training.head, training.dual, problem.everything(2))
    assert torch.equal(storage.rest_mass, rest)
    for i, stored in enumerate(before):
        outputs, mass = explicit.slots(storage, i)
        now = dict(zip(outputs, mass, strict=True))
        assert {o: m for o, m in now.items() if m > 0.0} == {o: m for o, m in stored.items() if m > 0.0}
        room = len(stored) < capacity or any(m == 0.0 for m in stored.values())
        if room and not truth.tied(w, [i]):
            assert int((truth.losses[i] + truth.changes[i] @ w).argmax()) in now
    assert mass_is_1(training)


def test_the_rest_needs_room_before_labelings_leave():
    """With room for the active sets and for nothing else, the error comes before a block is full and has to change."""
    problem = multiclass(2, n=4, classes=30, features=3, lam=0.01)
    probe = problem.copy().train(storage=Labelings(2))
    needed = probe.dual.storage.estimate(apply_head(probe.head, problem.batch([0])))
    training = problem.train(storage=Labelings(2), memory_limit=needed)
    step = 0
    with contextlib.suppress(MemoryError):
        for step in range(40):
            before = training.snapshot()
            training.step([step % 4])
    assert_same(training.snapshot(), before)
    with pytest.raises(MemoryError, match="a larger capacity"):
        training.step([step % 4])
    assert bool((training.dual.storage.sets.count == 2).any())
    assert not bool(training.dual.storage.mixed.any())


def test_a_slot_that_is_used_again_knows_no_inner_products_and_holds_larger_labels():
    sets, first, loss = (ActiveSets(1, 1, -1, torch.zeros(())), torch.tensor([0]), torch.zeros(1, dtype=torch.float64))
    for label, dtype in ((5, torch.int8), (300, torch.int16)):
        sets.insert(first, None, torch.tensor([[label]]), loss)
        assert sets.labelings[0].tolist() == [[[label]]]
        assert sets.labelings[0].dtype == dtype
        assert not sets.known.any()
        sets.known.fill_(True)
