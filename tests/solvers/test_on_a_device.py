"""Training on a device: the same bits twice, on resuming and with TF32 allowed; the loop of the README."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.compiled_kinds import ARCS, KINDS
from cases.problems import chain, through_a_file

from torchssvm import (
    BCFW,
    BlockGap,
    DualState,
    LinearChain,
    Relative,
    certify,
    choose_lam,
    evaluate,
    make_trainer,
    solve,
)
from torchssvm.core.batch import to_device
from torchssvm.core.random_state import RandomState
from torchssvm.datasets import PaddedDataset, PrecomputedFeatures

ROWS = [[0, 1], [2, 3], [1, 4], [0, 2]]
pytestmark = pytest.mark.cuda


def trained(cuda, rows=ROWS, *, dtype=torch.float64, state=None):
    problem = chain(3, dtype=dtype)
    training = problem.copy().to(cuda).train()
    if state is not None:
        training.optim.load_state_dict(state)
    for some in rows:
        training.step(to_device(problem.batch(some), cuda))
    return training


def same_bits(a, b):
    return torch.equal(a.weights(), b.weights()) and torch.equal(a.dual.loss, b.dual.loss)


@pytest.mark.slow
def test_two_runs_have_the_same_bits(cuda):
    assert same_bits(trained(cuda), trained(cuda))


@pytest.mark.slow
def test_a_run_goes_on_to_the_same_bits(cuda):
    state = through_a_file(trained(cuda, ROWS[:2]).optim.state_dict())
    assert same_bits(trained(cuda, ROWS[2:], state=state), trained(cuda))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes minutes on the pretended device")
@pytest.mark.parametrize("kind", [*KINDS, *ARCS])
def test_a_run_of_every_kind_is_that_of_the_cpu(kind, cuda):
    """And has the same bits twice; the steps of eight examples in batches of four."""
    rows, results = [[0, 1, 2, 3], [4, 5, 6, 7]] * 3, []
    for device in (torch.device("cpu"), cuda, cuda):
        problem = (KINDS | ARCS)[kind]()
        problem.head.to(device)
        training = problem.train()
        for some in rows:
            training.step(to_device(problem.batch(some), device))
        results.append((training, certify(training.head, training.dual, problem.everything(4))))
    (_, here), (one, there), (other, _) = results
    assert there.primal == pytest.approx(here.primal, rel=1e-10)
    assert there.dual == pytest.approx(here.dual, rel=1e-10)
    assert same_bits(one, other)


def test_evaluate_moves_batches_to_the_weights(cuda):
    problem = chain(3)
    figures = [
        evaluate(problem.copy().head.to(device), problem.structure, problem.everything(2)) for device in ("cpu", cuda)
    ]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_tf32_changes_nothing(cuda):
    def run():
        training = trained(cuda, dtype=torch.float32)
        return training, certify(training.head, training.dual, training.problem.everything(2))

    (expected, a), before = run(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        result, b = run()
    finally:
        torch.set_float32_matmul_precision(before)
    assert same_bits(result, expected)
    assert (a.primal, a.dual) == (b.primal, b.dual)


def test_copies_go_on_alone(cuda):
    training = trained(cuda)
    before = training.weights().clone()
    other = copy.deepcopy(training.head)
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    assert torch.equal(training.weights(), before)
    assert next(other.parameters()).device.type == "cuda"


def test_the_generator_of_the_device_is_restored(cuda):
    state = RandomState()
    first = torch.randn(3, device=cuda)
    RandomState(through_a_file(state.state_dict())).restore()
    assert torch.equal(torch.randn(3, device=cuda), first)


def words(number=6):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(number, 3, 4, generator=random)
    return PaddedDataset(x=x, y=torch.randint(0, 2, (number, 3), generator=random))


def places(head):
    return {parameter.device.type for parameter in head.parameters()}


@pytest.mark.parametrize("x_there", [False, True])
@pytest.mark.parametrize("head_there", [False, True])
def test_solve_trains_any_head_on_features_anywhere(cuda, capsys, x_there, head_there):
    """Features may be on the device, and their labels not."""

    def trained(x_there, head_there):
        data = words()
        data = PaddedDataset(data.x.to(cuda) if x_there else data.x, data.y)
        head = LinearChain(4, 2).to(cuda if head_there else "cpu")
        kept, seen = [id(p) for p in head.parameters()], []
        certificate = solve(head, data, lam=0.3, tolerance=Relative(0.2), on_check=lambda _: seen.append(places(head)))
        assert kept == [id(p) for p in head.parameters()]
        assert {place for each in seen for place in each} == places(head) == {"cuda" if head_there else "cpu"}
        return [p.detach().cpu() for p in head.parameters()], (certificate.primal, certificate.dual, certificate.passes)

    (weights, figures), (expected, others) = trained(x_there, head_there), trained(False, False)
    assert all(map(torch.equal, weights, expected))
    assert figures == others


def test_an_error_leaves_the_head_where_it_was(cuda):
    head = LinearChain(4, 2).to(cuda)
    before = head.emission.detach().clone()
    data = words(70)
    data.y[69] = 7  # the solver is chosen from the first 64
    with pytest.raises(ValueError, match="7"):
        make_trainer(head, data, 0.3, progress=False)
    assert places(head) == {"cuda"}
    assert torch.equal(head.emission, before)


def test_choosing_lam_scores_the_head_where_it_was(cuda):
    data, head, seen = words(), LinearChain(4, 2).to(cuda), []

    def score(head):
        seen.append(places(head))
        return float(len(seen))

    choice = choose_lam(head, data, words(5), lams=[1.0, 0.5], tolerance=Relative(0.5), score=score, progress=False)
    assert seen == [{"cuda"}] * 2
    assert places(head) == {"cuda"}
    assert choice.best.lam == 0.5


def test_frozen_features_are_computed_on_their_device(cuda):
    network = torch.nn.Linear(4, 3).to(cuda)
    stored = PrecomputedFeatures(words(), network, device=cuda)
    assert stored.x.device.type == "cuda"
    assert stored.y.device.type == "cpu"
    batch = stored.__getitems__([4, 1])
    assert torch.equal(batch.x.cpu(), PrecomputedFeatures(words(), network).x[[4, 1]])
    assert solve(LinearChain(3, 2), stored, lam=0.3, tolerance=Relative(0.5), progress=False).exact


@pytest.mark.slow
def test_the_loop_of_the_readme(cuda):
    data = words()
    head = LinearChain(4, 2).to(cuda)
    dual = DualState.for_head(head, num_examples=len(data), lam=0.1)
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    whole = data.collate([data[i] for i in range(len(data))])
    for _ in range(4):
        batch = whole.to(cuda)
        optim.zero_grad()
        loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
        optim.step()
    assert certify(head, dual, [whole]).dual > 0.0
