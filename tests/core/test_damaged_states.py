"""Every entry of every state is checked before anything changes, whatever its checksum says, and is named."""

from __future__ import annotations

import pytest
from cases.damages import damages, resealed
from cases.problems import PROBLEMS, assert_same, chain, through_a_file

from torchssvm import GDMM, CompiledBCFW, Corrective, DualState, GapBatchSampler, Labelings, MeanParts, Weights, certify
from torchssvm.solvers import SuffixAverage, WeightedAverage
from torchssvm.solvers.kernel import RBF, KernelChain, KernelSSVM


def trained(kind="chain", **rules):
    training = PROBLEMS[kind](4, n=6, lam=0.05).train(**rules)
    training.run([[0, 1], [2, 3], [0, 4], [1, 2]])
    certify(training.head, training.dual, training.problem.everything())
    return training


def bounded():
    problem = chain(4, n=5, lam=0.05)
    groups = [
        {"params": [p], **({"lower": 0.0} if name == "weight" else {})} for name, p in problem.head.named_parameters()
    ]
    training = problem.train()
    dual = DualState.for_head(problem.head, 5, 0.05)
    training.dual, training.optim = dual, type(training.optim)(groups, dual)
    training.loss = type(training.loss)(dual)
    return training.run([[0, 1], [2, 3]]).optim


def average(kind):
    training = trained()
    found = kind.following(training.dual)
    training.run([[0], [1]])
    return found


def sampler():
    training = trained()
    found = GapBatchSampler(training.dual, batch_size=2, chunk=1)
    for rows, _ in zip(found, range(2), strict=False):
        training.step(rows)
    return found


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
    "mean parts of classes": lambda: trained("multiclass").optim,
    "labelings": lambda: trained(storage=Labelings(2), direction=Corrective()).optim,
    "weights": lambda: trained(storage=Weights()).optim,
    "bounds": bounded,
    "weighted average": lambda: average(WeightedAverage),
    "suffix average": lambda: average(SuffixAverage),
    "sampler": sampler,
    "compiled loop": compiled,
    "factorwise": factorwise,
    "kernels": kernels,
}


# What only the checksum tells: rows of potentials that nobody has touched, numbers of either sign, kinds of labels.
BY_CHECKSUM = {"emission", "transition", "loss", "features", "visited", "labelings"}


def refused(held, state, before, path):
    """Whether the state is refused by name, and nothing changes."""
    try:
        held.load_state_dict(state)
    except ValueError as error:
        told = str(error)
    else:
        held.load_state_dict(before)
        return False
    assert any(name in told for name in path if isinstance(name, str)) or "numbers are not those" in told, (path, told)
    assert_same(held.state_dict(), before, str(path))
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKE)
def test_every_entry_is_checked(kind):
    held = MAKE[kind]()
    before = through_a_file(held.state_dict())
    for path, state in damages(before):
        fewer = path[0] in ("drawn", "snapshots") and len(path) == 2 and len(state[path[0]]) < len(before[path[0]])
        if fewer or path[0] in ("state", "param_groups"):
            continue  # torch checks these, and an epoch may have fewer batches and gaps left
        sealed = state if path[-1] == "seal" else resealed(state)
        if not refused(held, sealed, before, path):
            assert BY_CHECKSUM & set(path), (path, "was taken")
            assert refused(held, state, before, path), (path, "was taken")
    held.load_state_dict(before)
    assert_same(held.state_dict(), before)
