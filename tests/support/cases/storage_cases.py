"""What every storage of the dual must do: inherit ``StorageTestCase``, say how to make one, get the tests."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases.any_order import on_a_device
from cases.explicit_duals import ExplicitDuals
from cases.problems import PROBLEMS, Problem, Training, assert_same, chain, examples, flat, multiclass, reference, rng
from torchssvm import Pairwise, certify
from torchssvm.core.batch import apply_head
from torchssvm.core.decoding import OracleResult
from torchssvm.core.potentials import inner
from torchssvm.dual.storage import Storage
from torchssvm.solvers import Certificate

SEEDS = st.integers(0, 2**31 - 1)
KINDS = st.sampled_from(sorted(PROBLEMS))


class StorageTestCase(ABC):
    #: What the error of too little memory must name.
    alternative: str
    #: Labelings of a block; 0 where none are kept.
    capacity = 0

    @abstractmethod
    def make_storage(self) -> Storage: ...

    @abstractmethod
    def expected_bytes(self, problem: Problem) -> int:
        """What all blocks of a problem of equally long examples take."""

    def train(self, problem: Problem, **options) -> Training:
        return problem.train(storage=self.make_storage(), **options)

    def schedule(self, problem: Problem, seed: int, steps: int) -> list[list[int]]:
        random = rng(seed)
        return [
            torch.randint(0, problem.n, (int(torch.randint(1, 4, (), generator=random)),), generator=random).tolist()
            for _ in range(steps)
        ]

    @pytest.mark.every_variant
    @examples(12)
    @given(seed=SEEDS, kind=KINDS, sweeps=st.sampled_from([0, 1, 10]), adjoint=st.booleans())
    def test_the_trajectory_is_that_of_explicit_duals(self, seed, kind, sweeps, adjoint):
        """Against a dual with one number for each output; the step sizes are taken over from the package."""
        problem = PROBLEMS[kind](seed, adjoint=adjoint)
        truth = reference(problem)
        alphas = [torch.zeros(len(losses), dtype=torch.float64).numpy() for losses in truth.losses]
        for alpha, parts in zip(alphas, truth.parts, strict=True):
            alpha[abs(parts).sum(1).argmin()] = 1.0  # the target
        training = self.train(problem, sweeps=sweeps)
        for rows in self.schedule(problem, seed, 12):
            w = training.weights().numpy()
            if truth.tied(w, rows):
                continue
            training.optim.zero_grad()
            value = training.backward(rows)
            (proposal,) = training.dual.mailbox.waiting
            training.optim.step()
            gamma = training.optim.param_groups[0]["lr"] * problem.lam
            expected = 0.0
            for row in proposal.rows.tolist():
                i = rows[row]
                scores = truth.losses[i] + truth.changes[i] @ w
                best = scores.argmax()
                gap = (scores[best] - alphas[i] @ scores) / truth.n
                assert float(proposal.block_gaps[row]) == pytest.approx(gap, abs=1e-12)
                expected += gap
                step = gamma * float(proposal.gammas[row])
                alphas[i] *= 1 - step
                alphas[i][best] += step
            assert value == pytest.approx(expected, abs=1e-12)
            assert training.weights().numpy() == pytest.approx(truth.weights(alphas), abs=1e-10)
            losses = [float(a @ losses) / truth.n for a, losses in zip(alphas, truth.losses, strict=True)]
            assert training.dual.loss.tolist() == pytest.approx(losses, abs=1e-12)
        assert training.dual.value() == pytest.approx(truth.dual(alphas), abs=1e-10)

    @pytest.mark.every_variant
    @examples(15)
    @given(seed=SEEDS, kind=KINDS)
    def test_gather_is_what_was_moved(self, seed, kind):
        """Random moves between random atoms, read again through inner products, atoms and the head's adjoint."""
        problem = PROBLEMS[kind](seed)
        truth, random = reference(problem), rng(seed)
        structure = problem.structure
        training = self.train(problem)
        with torch.no_grad():
            for p in training.dual.parameters:
                p.copy_(torch.randn(p.shape, generator=random, dtype=p.dtype))
        w, storage, n = training.weights().numpy(), training.dual.storage, problem.n
        explicit = ExplicitDuals(truth, self.capacity)
        for _ in range(8):
            rows = torch.randperm(n, generator=random)[: int(torch.randint(1, n + 1, (), generator=random))].tolist()
            batch = problem.batch(rows)
            potentials = apply_head(training.head, batch)
            target = structure.check_target(batch.y, potentials)
            stored = storage.gather(batch.index, potentials.detach(), target)
            alphas = explicit.alphas()
            psi = np.stack([-alphas[i] @ truth.changes[i] for i in rows])
            assert stored.inner(potentials).tolist() == pytest.approx((psi @ w / n).tolist(), abs=1e-10)
            total = flat(storage.contribution(stored, potentials))
            assert total.numpy() == pytest.approx(psi.sum(0) / (n * problem.lam), abs=1e-10)

            noise = {k: torch.randn(t.shape, generator=random, dtype=t.dtype) for k, t in potentials.tensors.items()}
            labeling = structure.argmax(potentials.replace(noise)).labeling
            parts = structure._difference(labeling, target, potentials)
            corner = [explicit.output(i, labeling[b]) for b, i in enumerate(rows)]
            decoded = torch.ones(len(rows), dtype=torch.bool)
            result = OracleResult(
                labeling,
                inner(parts, potentials.detach().tensors),
                structure.loss(labeling, target).double(),
                {name: tensor.detach() for name, tensor in parts.items()},
                decoded=decoded,
                column=stored.lookup(labeling),
            )
            kept = torch.tensor(explicit.losses(), dtype=torch.float64)[batch.index]
            mass, scores, losses, valid = stored.atoms(potentials.detach(), kept)
            change = torch.zeros(len(rows), mass.shape[1] + 1, dtype=torch.float64)
            expected = []
            for b, i in enumerate(rows):
                columns, masses = explicit.columns(i), explicit.masses(i)
                there = [c for c in range(len(masses)) if c > 0 or masses[0] > 0.0]
                assert valid[b].nonzero().flatten().tolist() == there
                assert mass[b, : len(masses)].tolist() == pytest.approx(masses.tolist(), abs=1e-12)
                assert scores[b, there].tolist() == pytest.approx((columns @ truth.changes[i] @ w)[there], abs=1e-8)
                assert losses[b, there].tolist() == pytest.approx((columns @ truth.losses[i])[there], abs=1e-8)
                known = explicit.outputs[i].index(corner[b]) + 1 if corner[b] in explicit.outputs[i] else 0
                assert int(result.column[b]) == known
                atoms = [*there, mass.shape[1]] if not known else there
                wanted = torch.rand(len(atoms), generator=random, dtype=torch.float64)
                wanted *= torch.rand(len(atoms), generator=random) < 0.7
                wanted[-1] += 0.1
                change[b, atoms] = wanted / wanted.sum()
                change[b, :-1] -= mass[b]
                changed = change[b].numpy()
                delta = changed[: len(columns)] @ columns + changed[-1] * np.eye(len(truth.losses[i]))[corner[b]]
                expected.append(delta @ truth.changes[i] / n)
            combined, direct = stored.combine(change, result)
            gradients = [g.detach() for g in potentials.adjoint(combined)]
            if direct is not None:
                gradients = [g + d for g, d in zip(gradients, direct, strict=True)]
            moving = torch.cat([g.flatten(1) for g in gradients], 1) / n
            assert moving.numpy() == pytest.approx(np.stack(expected), abs=1e-10)

            c = torch.rand(len(rows), generator=random, dtype=torch.float64)
            c[torch.rand(len(rows), generator=random) < 0.4] = 1.0
            keep = torch.arange(len(rows))[: max(1, len(rows) - 1)]
            storage.check_features(stored, potentials)
            stored.move(c, keep, change, combined, gradients if storage.needs_gradients else None)
            for b in keep.tolist():
                moved = (c[b] * change[b]).tolist()
                explicit.move(rows[b], moved, corner[b])

    @pytest.mark.every_variant
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("kind", sorted(PROBLEMS))
    def test_state_dict_round_trip_to_the_bit(self, kind, dtype):
        problem = PROBLEMS[kind](3, dtype=dtype, n=8)
        twin = problem.copy()
        training, other = self.train(problem), self.train(twin)
        training.run(self.schedule(problem, 1, 20))
        file = io.BytesIO()
        torch.save(training.dual.storage.state_dict(), file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        other.dual.storage.check_state(state)
        other.dual.storage.load_state_dict(state)
        assert_same(other.dual.storage.state_dict(), training.dual.storage.state_dict())
        batch = problem.batch(range(problem.n))
        potentials = apply_head(training.head, batch)
        expected = training.dual.storage.gather(batch.index, potentials, batch.y).inner(potentials)
        assert expected.abs().max() > 0
        with torch.no_grad():
            for p, q in zip(other.dual.parameters, training.dual.parameters, strict=True):
                p.copy_(q)
        result = other.dual.storage.gather(batch.index, apply_head(other.head, batch), batch.y).inner(potentials)
        assert torch.equal(result, expected)

    def test_a_state_dict_is_a_copy(self):
        before = self.train(multiclass(2)).dual.storage
        training = self.train(multiclass(2)).run([[0], [1, 2]])
        state = training.dual.storage.state_dict()
        before.load_state_dict(state)
        frozen = before.state_dict()
        training.run([[0], [3], [1, 2]])
        assert_same(before.state_dict(), frozen)
        assert_same(state, frozen)

    def test_too_little_memory_names_the_other_storage_and_changes_nothing(self):
        problem = chain(4, n=4, ragged=False)
        needed = self.expected_bytes(problem)
        training = self.train(problem, memory_limit=needed - 1)
        before = training.snapshot()
        for _ in range(2):
            with pytest.raises(MemoryError, match=self.alternative):
                training.backward([0, 1])
        assert_same(training.snapshot(), before)
        assert not training.dual.mailbox.waiting
        assert training.dual.storage.nbytes() == 0
        enough = self.train(problem.copy(), memory_limit=needed)
        enough.step([0, 1])
        assert enough.dual.storage.nbytes() >= needed / 4

    def test_the_estimate_is_what_it_takes(self):
        problem = chain(4, n=4, ragged=False, states=4, longest=4)
        training = self.train(problem)
        potentials = apply_head(training.head, problem.batch([1]))
        assert training.dual.storage.estimate(potentials) == self.expected_bytes(problem)
        training.run([[0], [1], [2, 3]])
        expected = self.expected_bytes(problem)
        assert expected <= training.dual.storage.nbytes() <= 1.3 * expected + 400

    def test_lengths_may_grow_and_shrink(self):
        """Batches are padded to their longest example, in any order."""
        for shared in (True, False):
            problem = chain(5, n=6, longest=4, states=2, shared=shared)
            problem.lengths = torch.tensor([1, 2, 4, 3, 1, 2])
            problem.y = problem.y.clamp(min=0).masked_fill(torch.arange(4) >= problem.lengths.unsqueeze(1), -1)
            rows = [[0], [0, 4], [1, 0], [5], [3, 4], [2], [0], [1, 2, 3], [4], [0, 5], [3], [2, 1]]
            truth = reference(problem)
            cropped, wide = self.train(problem.copy()), self.train(problem.copy())
            for some in rows:
                if truth.tied(cropped.weights(), some):
                    continue
                batch = problem.batch(some)
                cropped.step(batch)
                wide.step(batch.replace(x=problem.x[some], y=problem.y[some]))  # always with the full padding
            assert cropped.dual.steps >= 6
            torch.testing.assert_close(cropped.weights(), wide.weights(), rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(cropped.dual.loss, wide.dual.loss, rtol=1e-9, atol=1e-11)
            certificate = certify(cropped.head, cropped.dual, problem.everything(2))
            assert certificate.gap >= 0
            assert certificate.drift < 1e-12

    def test_a_storage_belongs_to_one_dual(self):
        storage = self.make_storage()
        multiclass(0).train(storage=storage)
        with pytest.raises(ValueError, match=r"already belongs to a DualState"):
            multiclass(1).train(storage=storage)

    @pytest.mark.parametrize("kind", sorted(PROBLEMS))
    @pytest.mark.parametrize("direction", [None, Pairwise])
    def test_no_sum_depends_on_the_order_of_its_terms(self, kind, direction):
        """On a CUDA device it is another one each time, and a resumed run would not go on as the first one."""
        if direction is not None and not self.capacity:
            pytest.skip("no labelings are kept")

        def run() -> Certificate:
            options = {} if direction is None else {"direction": direction()}
            training = self.train(PROBLEMS[kind](3, dtype=torch.float32, n=8, lam=0.05), **options)
            training.run(self.schedule(training.problem, 1, 20))
            training.optim.zero_grad()
            for scale in (1.0, 0.3, 0.7):  # an example in several batches
                training.backward([0, 1, 2], scale)
            training.optim.step()
            return certify(training.head, training.dual, training.problem.everything(3))

        with on_a_device() as seen:
            there = run()
        assert seen.sums
        assert not seen.depend
        here = run()  # other rounding may turn a tie, and then the path: both enclose the optimum
        assert max(here.dual, there.dual) <= min(here.primal, there.primal) + 1e-5

    def test_devices(self, device):
        problem = chain(6)
        here = self.train(problem.copy()).run([[0, 1], [2], [1, 3], [4, 0]])
        there = self.train(problem.copy().to(device))
        assert here.weights().abs().max() > 0
        for rows in [[0, 1], [2], [1, 3], [4, 0]]:
            batch = problem.batch(rows)
            there.step(type(batch)(*(t.to(device) for t in batch)))
        torch.testing.assert_close(there.weights().cpu(), here.weights())
        torch.testing.assert_close(there.dual.loss.cpu(), here.dual.loss)
