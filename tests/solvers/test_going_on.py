"""Runs that go on from a dual with more examples, fewer, or others."""

import functools

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from torchssvm import Batch, Chain, Labelings, LinearChain, MeanParts, Relative, Solver, Weights, make_trainer, solve
from torchssvm.solvers.training import CompiledBCFW

chance = torch.Generator().manual_seed(0)
X = [torch.randn(int(n), 4, generator=chance) for n in torch.randint(1, 6, (30,), generator=chance)]
SCORES = torch.randn(4, 3, generator=chance)
Y = [(rows @ SCORES + 0.5 * torch.randn(len(rows), 3, generator=chance)).argmax(1) for rows in X]


class Some:
    """Some of the sequences, whose labels may be moved by one."""

    def __init__(self, places, moved=0, features=4):
        self.places, self.moved, self.features = list(places), moved, features

    def __len__(self):
        return len(self.places)

    def __getitem__(self, i):
        return i

    def collate(self, rows):
        places = [self.places[i] for i in rows]
        x = pad_sequence([X[i] for i in places], True)
        x = torch.nn.functional.pad(x, (0, self.features - 4), value=0.5)
        y = pad_sequence([(Y[i] + self.moved) % 3 for i in places], True, -1.0)
        return Batch(x, y, torch.tensor(rows), torch.tensor([len(X[i]) for i in places]))


def head(features=4, states=3):
    return LinearChain(features, states, structure=Chain(states, normalize=False))


def trained(places=range(20), lam=0.05, storage=None, compiled=True, **data):
    trainer = make_trainer(
        head(), Some(places, **data), lam, solver=Solver(storage=storage, compiled=compiled), progress=False
    )
    trainer.solve(Relative(0.05), progress=False)
    return trainer


def same_optimum(one, other):
    assert one.dual <= other.primal * (1 + 1e-6)
    assert other.dual <= one.primal * (1 + 1e-6)


KINDS = [
    (Labelings, True),
    (lambda: Labelings(2), True),
    (MeanParts, True),
    (Labelings, False),
    (MeanParts, False),
    (Weights, False),
]
OTHERS = {"more": (range(25), None), "fewer": (range(12), None), "others": ([7, 25, 3, 4, 3, 29], [7, -1, 3, 4, 3, -1])}


@functools.cache
def before_that(storage, compiled):
    """What a run goes on from, which it leaves as it is."""
    return trained(storage=storage(), compiled=compiled)


@functools.cache
def fresh(case):
    return solve(head(), Some(OTHERS[case][0]), 0.04, tolerance=Relative(0.05), progress=False)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("storage", "compiled"), KINDS)
@pytest.mark.parametrize("case", OTHERS)
def test_it_reaches_the_optimum_of_a_fresh_run(storage, compiled, case, whole, recwarn):
    places, kept = OTHERS[case]
    old = before_that(storage, compiled)
    before = {name: value for name, value in old.dual.state_dict().items() if name in ("loss", "targets", "steps")}
    rules, data = Solver(compiled=compiled), Some(places)
    kept = None if kept is None else torch.tensor(kept)
    start = old if whole else old.dual  # a trainer has features, too
    trainer = make_trainer(head(), data, 0.04, solver=rules, start=start, kept=kept, progress=False)
    first = trainer.certify()
    assert type(trainer.dual.storage) is type(old.dual.storage)
    assert isinstance(trainer, CompiledBCFW) == compiled
    assert first.exact
    assert first.drift < 1e-5
    assert first.dual > 0.0
    last = trainer.solve(Relative(0.05), progress=False)
    same_optimum(last, fresh(case))
    assert last.dual >= first.dual
    after = old.dual.state_dict()
    assert torch.equal(before["loss"], after["loss"])
    assert torch.equal(before["targets"], after["targets"])
    assert not [w for w in recwarn if "differ from the dual's" in str(w.message)]


def test_the_same_examples_keep_their_certificate():
    old = trained()
    certificate = old.certify()
    again = make_trainer(head(), Some(range(20)), 0.05, start=old.dual, progress=False).certify()
    assert (again.primal, again.dual) == pytest.approx((certificate.primal, certificate.dual), rel=1e-5)


def test_the_head_of_the_start_may_be_trained_again():
    old = trained()
    solve(old.head, Some(range(24)), 0.05, start=old.dual, tolerance=Relative(0.05), progress=False)
    fresh = solve(head(), Some(range(24)), 0.05, tolerance=Relative(0.05), progress=False)
    # Its weights are no longer those of the first dual, which goes on all the same.
    third = solve(head(), Some(range(24)), 0.05, start=old.dual, tolerance=Relative(0.05), progress=False)
    same_optimum(third, fresh)


@pytest.mark.parametrize("storage", [lambda: Labelings(1), MeanParts])
@pytest.mark.parametrize("compiled", [True, False])
def test_features_and_states_may_be_more(storage, compiled, recwarn):
    old = trained(storage=storage(), compiled=compiled)
    data, rules = Some(range(25), features=6), Solver(compiled=compiled)
    trainer = make_trainer(head(6, 4), data, 0.05, solver=rules, start=old.dual, progress=False)
    assert trainer.certify().dual > 0.0
    assert not [w for w in recwarn if "differ from the dual's" in str(w.message)]
    last = trainer.solve(Relative(0.05), progress=False)
    same_optimum(last, solve(head(6, 4), data, 0.05, tolerance=Relative(0.05), progress=False))


@pytest.mark.parametrize("storage", [lambda: Labelings(1), MeanParts])
def test_no_example_may_stay(storage):
    old = trained(storage=storage(), compiled=False)
    given = {"start": old.dual, "kept": torch.full((5,), -1), "solver": Solver(compiled=False), "progress": False}
    assert make_trainer(head(4, 4), Some(range(25, 30)), 0.05, **given).certify().dual == 0.0


def test_a_run_that_went_on_resumes_bit_for_bit():
    old, data = trained(), Some(range(25))
    trainers = [make_trainer(head(), data, 0.05, start=old.dual, progress=False) for _ in range(2)]
    trainers[0].step()
    trainers[1].dual.load_state_dict(trainers[0].dual.state_dict())
    trainers[1].load_state_dict(trainers[0].state_dict())
    results = [trainer.solve(Relative(0.01), progress=False) for trainer in trainers]
    assert results[0] == results[1]
    for one, other in zip(trainers[0].head.parameters(), trainers[1].head.parameters(), strict=True):
        assert torch.equal(one, other)


def test_bounds_go_on():
    def bounded(n, **start):
        solver = Solver(bounds={"transition": (0.0, None)})
        trainer = make_trainer(head(), Some(range(n)), 0.05, solver=solver, progress=False, **start)
        return trainer, trainer.solve(Relative(0.05), progress=False)

    same_optimum(bounded(24, start=bounded(20)[0].dual)[1], bounded(24)[1])


REFUSED = [
    ({"start": 3}, TypeError, "dual=3"),
    ({"kept": torch.zeros(25, dtype=torch.int64)}, ValueError, "kept="),
    ({"start": ..., "kept": torch.arange(25)}, ValueError, "kept"),
    ({"start": ..., "kept": torch.arange(3)}, ValueError, "kept"),
    ({"start": ..., "head": LinearChain(4, 3)}, ValueError, "start="),
    ({"start": ..., "head": head().double()}, ValueError, "float32.*float64"),
    ({"start": ..., "solver": Solver(storage=MeanParts())}, ValueError, "storage="),
    ({"start": ..., "solver": Solver(storage=Labelings(3))}, ValueError, "storage="),
    ({"start": ..., "data": Some(range(25), moved=1)}, RuntimeError, "targets.*kept"),
    ({"start": ..., "data": Some(range(24, -1, -1))}, (RuntimeError, ValueError), "length|targets"),
]


@pytest.mark.parametrize(("given", "kind", "words"), REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_changes(given, kind, words):
    old = trained()
    made = {name: old.dual if value is ... else value for name, value in given.items()}
    model, data = made.pop("head", head()), made.pop("data", Some(range(25)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    state = old.dual.state_dict()
    with pytest.raises(kind, match=words):
        solve(model, data, 0.05, progress=False, **made)
    assert all(bool((parameter == 0.5).all()) for parameter in model.parameters())
    assert old.dual.state_dict()["seal"] == state["seal"]
