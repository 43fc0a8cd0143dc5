"""Training on a device: the same bits twice, on resuming and with TF32 allowed; the loop of the README."""

from __future__ import annotations

import copy

import pytest
import torch
from average_cases import through_a_file
from problems import chain

from torchssvm import BCFW, BlockGap, DualState, LinearChain, certify
from torchssvm.core.batch import to_device
from torchssvm.core.random_state import RandomState
from torchssvm.datasets import PaddedDataset
from torchssvm.solvers import CompiledBCFW

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


def test_two_runs_have_the_same_bits(cuda):
    assert same_bits(trained(cuda), trained(cuda))


def test_a_run_goes_on_to_the_same_bits(cuda):
    state = through_a_file(trained(cuda, ROWS[:2]).optim.state_dict())
    assert same_bits(trained(cuda, ROWS[2:], state=state), trained(cuda))


def test_tf32_changes_nothing(cuda):
    def run():
        training = trained(cuda, dtype=torch.float32)
        return training, certify(training.head, training.dual, training.problem.everything(2))

    (expected, a), before = run(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        found, b = run()
    finally:
        torch.set_float32_matmul_precision(before)
    assert same_bits(found, expected)
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


def test_the_compiled_loop_says_what_to_do(cuda):
    data = words()
    head = LinearChain(4, 2).to(cuda)
    dual = DualState.for_head(head, num_examples=len(data), lam=0.1)
    with pytest.raises(TypeError, match=r"head is on cuda:0.*head.to\('cpu'\).*BlockGap and BCFW"):
        CompiledBCFW(head, dual, [data.collate([data[i] for i in range(len(data))])])


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
