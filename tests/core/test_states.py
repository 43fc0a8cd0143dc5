"""States in checkpoints: refused as a whole if one entry does not fit, divided and put together again."""

import copy
import math

import pytest
import torch
from cases.problems import PROBLEMS, assert_same, chain, through_a_file

from torchssvm import GDMM, CompiledBCFW, Corrective, DualState, GapBatchSampler, Labelings, MeanParts, Weights
from torchssvm.core.states import check_entries, with_seal
from torchssvm.solvers import WeightedAverage
from torchssvm.solvers.kernel import RBF, KernelChain, KernelSSVM


def trained(**rules):
    training = PROBLEMS["chain"](4, n=6, lam=0.05).train(**rules)
    return training.run([[0, 1], [2, 3], [0, 4], [1, 2]])


def average():
    training = trained()
    result = WeightedAverage.following(training.dual)
    result.training = training.run([[0], [1]])
    return result


def sampler():
    training = trained()
    result = GapBatchSampler(training.dual, batch_size=2, chunk=1)
    for rows, _ in zip(result, range(2), strict=False):
        training.step(rows)
    return result


def compiled():
    problem = chain(4, n=5)
    dual = DualState.for_head(problem.head, 5, problem.lam, storage=MeanParts())
    loop = CompiledBCFW(problem.head, dual, problem.everything())
    loop.step(7)
    return loop


def factorwise():
    problem = chain(4, n=5)
    gdmm = GDMM(problem.head, problem.everything(), num_examples=5, lam=0.1)
    gdmm.step()
    return gdmm


def kernels():
    problem = chain(4, n=5)
    head = KernelChain(RBF(0.5), problem.x.shape[-1], 2).double()
    svm = KernelSSVM(head, problem.x, problem.y.clamp(max=1), problem.lengths, lam=0.1)
    svm.visit([0, 1, 2])
    return svm


MAKE = {
    "mean parts": lambda: trained().optim,
    "labelings": lambda: trained(storage=Labelings(2), direction=Corrective()).optim,
    "weights": lambda: trained(storage=Weights()).optim,
    "average": average,
    "sampler": sampler,
    "compiled": compiled,
    "gdmm": factorwise,
    "kernels": kernels,
}


def shorter(value):
    return value[:-1]


def half(value):
    return value.to(torch.float16)


def put(number):
    return lambda value: torch.full_like(value, number) if isinstance(value, torch.Tensor) else number


def changed(state, path, change, resealed):
    """The state with another value at a place, and with new checksums around it where they are ``resealed``."""
    name, *rest = path
    value = changed(state[name], rest, change, resealed) if rest else change(state[name])
    state = {**state, name: value} if isinstance(state, dict) else [*state[:name], value, *state[name + 1 :]]
    return with_seal(state) if resealed and "seal" in state else state


@pytest.mark.parametrize(
    ("kind", "path", "change"),
    [
        ("mean parts", "dual.loss", shorter),
        ("mean parts", "dual.loss", put(math.nan)),
        ("mean parts", "dual.gap_estimates", put(-1.0)),
        ("mean parts", "dual.weights", shorter),
        ("mean parts", "dual.steps", put(-1)),
        ("mean parts", "dual.relaxed", put(3)),
        ("mean parts", "dual.lam", put(7.0)),
        ("mean parts", "dual.structure", put("Chain(9)")),
        ("mean parts", "dual.format", put(3)),
        ("mean parts", "dual.storage.kind", put("weights")),
        ("mean parts", "dual.storage.buffers.emission.start", put(10**9)),
        ("mean parts", "dual.storage.buffers.emission.values", half),
        ("mean parts", "dual.box", put({})),
        ("mean parts", "param_groups", shorter),
        ("labelings", "dual.storage.sets.capacity", put(3)),
        ("labelings", "dual.storage.sets.mass", put(2.0)),
        ("labelings", "dual.storage.sets.count", put(9)),
        ("labelings", "dual.storage.sets.gram", shorter),
        ("labelings", "dual.storage.mixed", shorter),
        ("weights", "dual.storage.blocks", shorter),
        ("weights", "dual.storage.features", lambda _: None),
        ("average", "kind", put("SuffixAverage")),
        ("average", "weights", shorter),
        ("average", "format", put(1)),
        ("sampler", "batch_size", put(3)),
        ("sampler", "generator", shorter),
        ("sampler", "drawn", lambda drawn: [batch + 9 for batch in drawn]),
        ("sampler", "snapshots", put({})),
        ("compiled", "order", put("Uniform")),
        ("compiled", "waiting", lambda _: torch.tensor([0, 8])),
        ("gdmm", "gdmm.lam", put(7.0)),
        ("gdmm", "gdmm.rho", put(0.0)),
        ("gdmm", "gdmm.format", put(1)),
        ("gdmm", "gdmm.visited", shorter),
        ("gdmm", "gdmm.problem.weights", half),
        ("gdmm", "gdmm.problem.targets", put(0)),
        ("kernels", "kernel", put("Linear()")),
        ("kernels", "dual.kernel_squared_norm", put(-1.0)),
        ("kernels", "dual.targets", put(0)),
    ],
)
def test_a_wrong_entry_is_refused_and_nothing_changes(kind, path, change):
    owner = MAKE[kind]()
    good = through_a_file(owner.state_dict())
    for bad in (changed(good, path.split("."), change, True), "no state", {}):
        with pytest.raises(ValueError, match="checkpoint"):
            owner.load_state_dict(bad)
        assert_same(owner.state_dict(), good)
    owner.load_state_dict(good)
    assert_same(owner.state_dict(), good)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("mean parts", "dual.storage.buffers.emission.values"),
        ("average", "weights.0"),
        ("gdmm", "gdmm.problem.weights"),
        ("kernels", "sampler.generator"),
    ],
)
def test_numbers_that_were_changed_are_told_by_the_checksum(kind, path):
    owner = MAKE[kind]()
    good = through_a_file(owner.state_dict())
    places = [int(name) if name.isdigit() else name for name in path.split(".")]
    with pytest.raises(ValueError, match="checksum"):
        owner.load_state_dict(changed(good, places, lambda value: value + 1, False))
    assert_same(owner.state_dict(), good)


@pytest.mark.parametrize("kind", MAKE)
def test_states_share_no_memory_with_their_object(kind):
    owner = MAKE[kind]()
    owner.load_state_dict(state := owner.state_dict())
    before = copy.deepcopy(state)
    if kind in ("mean parts", "labelings", "weights"):
        owner.dual.loss.fill_(3.0)
        owner.dual.storage.rescale(0.5)
    assert_same(state, before)


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


def test_an_entry_of_a_list_that_is_of_another_problem_is_named():
    with pytest.raises(ValueError, match=r"another problem.*\['sizes'\]\[1\] is 4"):
        check_entries({"sizes": [3, 4]}, {"sizes": [3, 5]}, "state")
