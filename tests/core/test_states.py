"""Objects that list the entries of their state once."""

from __future__ import annotations

import io
import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cases.problems import PROBLEMS, assert_same, examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torchssvm import GDMM, CompiledBCFW, Corrective, GapBatchSampler, Labelings, MeanParts, Weights
from torchssvm.core.random_state import check_random_state
from torchssvm.core.schema import (
    Each,
    Entry,
    Field,
    Maybe,
    New,
    Noted,
    Own,
    Same,
    Stateful,
    check_seal,
    damaged,
    with_seal,
)


class Inner(Stateful):
    state_name = "inner"

    def __init__(self, size: int) -> None:
        self.values = torch.zeros(size)

    def _schema(self):
        return {"values": Entry(torch.float32, (Own(len(self.values)),))}


class Pair(NamedTuple):
    values: np.ndarray
    name: str


class Everything(Stateful):
    """An entry of every kind."""

    state_name = "everything"

    def __init__(self, seed: int, size: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.size = size
        self.weight = nn.Parameter(torch.from_numpy(random.normal(size=2)))
        self.array = random.normal(size=4)
        self._count = int(random.integers(9))
        self.pair = Pair(random.normal(size=2), "name")
        self.generator = torch.Generator().manual_seed(seed)
        self.inner, self.many = Inner(size), {str(k): Inner(size) for k in range(seed)}
        self.rows = [torch.from_numpy(random.normal(size=(size, 2)))]
        self.nothing: Tensor | None = None
        self.done = bool(seed % 2)

    def _schema(self):
        return {
            "kind": Same("everything"),
            "weight": Entry(torch.float64, (2,)),
            "array": Entry(torch.float64, (4,)),
            "count": Entry(int, low=0),
            "of_pair": Field(Entry(torch.float64, (2,)), at="pair.values"),
            "text": Field(str, at="array", save=lambda a: ",".join(map(str, a)), load=lambda t: self._read(t)),
            "generator": check_random_state,
            "inner": self.inner,
            "many": Each(dict, New(lambda: Inner(self.size))),
            "rows": Each(list, Entry(torch.float64, (Own(self.size), 2))),
            "nothing": Maybe(Entry(torch.float64, (Own(self.size),))),
            "done": bool,
            "noted": Noted(int, self.size),
            "nested": {"count": Entry(int), "seal": int},
            "seal": int,
        }

    @staticmethod
    def _read(text: str) -> np.ndarray:
        return np.array([float(number) for number in text.split(",")])

    def _check_relations(self, state, where):
        if state["count"] > 100:
            raise damaged(f"{where}['count'] is large")


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@given(seed=st.integers(1, 4))
@examples(8)
def test_all_kinds_of_entries_are_saved_and_loaded(seed):
    made, other = Everything(seed), Everything(7)
    weight, state = other.weight, through_a_file(made.state_dict())
    other.load_state_dict(state)
    assert_same(other.state_dict(), state)
    assert other.weight is weight  # the head holds it too
    assert other.pair.name == "name"
    assert torch.equal(torch.rand(3, generator=other.generator), torch.rand(3, generator=made.generator))


def test_states_share_no_memory_with_their_object():
    made = Everything(1)
    state = made.state_dict()
    before = through_a_file(state)
    made.array[:] = 0.0
    made.rows[0][:] = 0.0
    with torch.no_grad():
        made.weight.zero_()
    assert_same(state, before)
    made.load_state_dict(state)
    made.array[:] = 0.0
    made.rows[0][:] = 0.0
    assert_same(state, before)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("kind", "other", "of another problem: everything.'kind'. is other there and everything here"),
        ("array", torch.zeros(5, dtype=torch.float64), r"everything.'array'. should be finite float64 .4."),
        ("count", 101, "count'. is large"),
        ("noted", "three", "everything.'noted'. should be an int"),
        ("inner", {"values": torch.zeros(2)}, r"everything.'inner'..'values'. should be finite float32 .3."),
        ("many", {"0": {}}, r"everything.'many'..'0'..'values'. is missing"),
        ("done", 1, "everything.'done'. should be a bool"),
        ("nested", with_seal({"count": 1}) | {"count": 2}, "everything.'nested'. numbers are not those"),
        ("count", 3, "everything numbers are not those"),
    ],
)
def test_a_wrong_entry_is_named_and_nothing_changes(name, value, words):
    made = Everything(2)
    made.load_state_dict(good := made.state_dict())
    with pytest.raises(ValueError, match=words):
        made.load_state_dict({**good, name: value})
    assert_same(made.state_dict(), good)


@given(cuts=st.lists(st.integers(0, 7), max_size=3), seed=st.integers(0, 3))
@examples(20)
def test_a_state_is_the_whole_of_its_parts(cuts, seed):
    ends = [0, *sorted(cuts), 7]
    parts = [range(a, b) for a, b in itertools.pairwise(ends)]
    whole = Everything(seed, 7)
    state = whole.state_dict()
    some = [whole.part_of_state(state, part) for part in parts]
    for part, own in zip(some, parts, strict=True):
        check_seal(part, "part")
        assert torch.equal(part["rows"][0], state["rows"][0][own.start : own.stop])
        assert len(part["inner"]["values"]) == len(own)
    assert_same(whole.merged_state(some, parts), state)
    one_more = [*some[:-1], with_seal({**some[-1], "done": True})]
    assert whole.merged_state(one_more, parts)["done"]


STORAGES = {
    "mean parts": lambda: {"storage": MeanParts()},
    "labelings": lambda: {"storage": Labelings(capacity=2), "direction": Corrective()},
    "weights": lambda: {"storage": Weights()},
}


@pytest.mark.parametrize("kind", STORAGES)
def test_parts_of_a_dual_make_the_whole(kind):
    training = PROBLEMS["chain"](4, n=9, lam=0.03).train(sweeps=5, **STORAGES[kind]())
    training.run([[0, 1, 5], [8, 2], [1, 3]])  # some examples have no rows yet
    dual = training.dual
    state = dual.state_dict()
    parts = [range(4), range(4, 7), range(7, 9)]
    whole = dual.merged_state([dual.part_of_state(state, part) for part in parts], parts)
    dual.load_state_dict(whole)
    assert_same([dual.part_of_state(whole, p) for p in parts], [dual.part_of_state(state, p) for p in parts])
    problem = training.problem
    for row in range(problem.n):
        batch = problem.batch([row])
        potentials = training.head(batch.x, batch.lengths)
        target = dual.structure.check_target(batch.y, potentials)
        assert_same(
            dual.storage.gather(batch.index, potentials, target).inner(potentials),
            _again(training, state).gather(batch.index, potentials, target).inner(potentials),
        )


def _again(training, state):
    storage = type(training.dual.storage)(*([2] if isinstance(training.dual.storage, Labelings) else []))
    dual = training.dual
    storage.bind(dual.num_examples, dual.lam, dual.structure, dual.parameters, None)
    storage.load_state_dict(state["storage"])
    return storage


def test_the_entries_of_checkpoints_are_those_of_format_4():
    """Files of earlier releases hold these, and none of them more or fewer."""
    problem = PROBLEMS["chain"](4, n=6)
    training = problem.copy().train(storage=Labelings(2))
    training.step([0, 1])
    state = training.optim.state_dict()
    assert list(state) == ["state", "param_groups", "dual"]
    assert " ".join(state["dual"]) == (
        "format num_examples lam structure weights box recomputed loss gap_estimates oracle_gaps targets "
        "certified_gap cache_hits steps oracle_calls visits moved relaxed storage seal"
    )
    assert " ".join(state["dual"]["storage"]) == "kind sets rest rest_mass rest_loss mixed"
    assert " ".join(state["dual"]["storage"]["sets"]) == (
        "capacity clock count length mass loss used known labelings gram"
    )
    training = problem.copy().train()
    training.step([0, 1])
    buffers = training.dual.state_dict()["storage"]["buffers"]
    assert {" ".join(rows) for rows in buffers.values()} == {"start rows values examples"}
    sampler = GapBatchSampler(training.dual, batch_size=2)
    assert " ".join(sampler.state_dict()) == (
        "num_examples batch_size chunk order epoch used under_way generator drawn snapshots"
    )
    gdmm = GDMM(problem.copy().head, problem.everything(), num_examples=6, lam=0.1).state_dict()["gdmm"]
    assert " ".join(gdmm) == (
        "format rho passes oracle_calls violation worst_violation best_dual best_relaxed_dual lam num_examples "
        "features visits visited generator problem seal"
    )
    assert " ".join(gdmm["problem"]) == "kind targets weights dense entries variables factors sides"
    training = problem.copy().train(storage=MeanParts())
    loop = CompiledBCFW(training.head, training.dual, problem.everything(1))
    assert " ".join(loop.state_dict()) == "order generator waiting"
