"""What the compiled loop refuses before anything changes: compiled code checks nothing itself."""

from __future__ import annotations

import pytest
import torch
from cases.problems import assert_same

from torchssvm import (
    BCFW,
    BlockGap,
    Chain,
    CompiledBCFW,
    DualState,
    Edges,
    GapBatchSampler,
    Labelings,
    LinearChain,
    LinearEdges,
    SlackRescaling,
    certify,
)
from torchssvm.core.batch import Batch


def small(capacity=3, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 4, 5, generator=random)
    lengths = torch.tensor([3, 3, 4, 2, 1, 4])
    y = torch.randint(3, (6, 4), generator=random)
    y[torch.arange(4) >= lengths.unsqueeze(1)] = -1
    head = LinearChain(5, 3)
    dual = DualState.for_head(head, 6, 0.1, storage=Labelings(capacity))
    return head, dual, Batch(x, y, torch.arange(6), lengths)


def infinite(batch):
    x = batch.x.clone()
    x[2, 0, 0] = float("inf")
    return batch.replace(x=x)


def some(batch):
    return Batch(batch.x[:3], batch.y[:3], batch.index[:3], batch.lengths[:3])


@pytest.mark.parametrize(
    ("options", "error", "argument"),
    [
        ({"structure": SlackRescaling(Chain(3))}, ValueError, "structure"),
        ({"memory_limit": 10}, MemoryError, "capacity"),
        ({"change": infinite}, ValueError, "x of example 2"),
        ({"change": some}, ValueError, "left out"),
        ({"other": LinearChain(5, 3)}, ValueError, "parameters"),
    ],
)
def test_doors(options, error, argument):
    head, _, batch = small()
    torch.nn.init.constant_(head.bias, 2.0)
    options = dict(options)
    change, other = options.pop("change", lambda same: same), options.pop("other", head)
    dual = DualState.for_head(head, 6, 0.1, storage=Labelings(), **options)
    with pytest.raises(error, match=argument):
        CompiledBCFW(other, dual, [change(batch)])
    assert float(head.bias.detach().sum()) == 6.0


def test_weights_that_are_not_those_of_the_dual_are_refused():
    head, dual, batch = small()
    loop = CompiledBCFW(head, dual, [batch])
    loop.step(30)
    before = dual.state_dict()
    kept = head.emission.detach().clone()
    with torch.no_grad():
        head.emission += 1.0
    with pytest.raises(RuntimeError, match="weights"):
        loop.step(6)
    with torch.no_grad():
        head.emission.copy_(kept)
    head.emission = torch.nn.Parameter(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="parameters"):
        loop.step(6)
    assert_same(dual.state_dict(), before)


def test_a_new_dual_stands_for_zero_weights():
    head, dual, batch = small()
    torch.nn.init.constant_(head.bias, 2.0)
    with pytest.warns(UserWarning, match="were not zero"):
        loop = CompiledBCFW(head, dual, [batch])
    loop.step(60)
    assert loop.certify().drift < 1e-5


def test_bounds_that_come_later_are_refused():
    head, dual, batch = small()
    loop = CompiledBCFW(head, dual, [batch])
    BCFW([{"params": list(head.parameters()), "lower": 0.0}], dual)
    with pytest.raises(TypeError, match="bounds"):
        loop.step(6)


def test_examples_of_other_lengths_are_refused():
    head, dual, batch = small(capacity=1)
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    for _ in range(8):
        optim.zero_grad()
        loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
        optim.step()
    y = batch.y.clamp(min=0)
    with pytest.raises(ValueError, match="example 0 came with length 4"):
        CompiledBCFW(head, dual, [batch.replace(y=y, lengths=torch.full((6,), 4))])


def test_the_torch_loop_knows_the_lengths_of_compiled_blocks():
    head, dual, batch = small()
    CompiledBCFW(head, dual, [batch]).step(30)
    with pytest.raises(ValueError, match="example 0 came with length 4"):
        BlockGap(dual)(head(batch.x, torch.full((6,), 4)), batch.y.clamp(min=0), batch.index)


def test_the_padding_of_edges_is_finite_too():
    head, widths, x = LinearEdges(2), torch.tensor([3, 2]), torch.zeros(2, 2, 3, 2)
    target = head.structure.argmax(head(Edges(x, widths))).labeling
    x[1, 0, 2, 1] = float("nan")
    batch = Batch(Edges(x, widths), target, torch.arange(2), torch.tensor([2, 2]))
    dual = DualState.for_head(head, 2, 0.1)
    with pytest.raises(ValueError, match=r"x of example 1 .*padding included: nan at position 0, 2, column 1"):
        CompiledBCFW(head, dual, [batch])
    with pytest.raises(ValueError, match=r"potentials of examples \[1\] are not finite \(in the padding\)"):
        certify(head, dual, [batch])


def test_compiled_steps_leave_the_position_of_a_sampler():
    head, dual, batch = small()
    sampler = GapBatchSampler(dual, batch_size=2)
    batches = iter(sampler)
    next(batches)
    before = sampler.state_dict()
    CompiledBCFW(head, dual, [batch]).step(12)
    assert_same(sampler.state_dict(), before)
