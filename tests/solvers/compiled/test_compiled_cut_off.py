"""What becomes of the compiled loop when a run is cut off, and what it refuses to begin with."""

from __future__ import annotations

import pytest
import torch
from cases.problems import assert_same, rng

from torchssvm import BCFW, BlockGap, CompiledBCFW, DualState, Labelings, LinearChain, LinearMulticlass, MeanParts
from torchssvm.core.batch import Batch
from torchssvm.solvers.compiled import loop


def many_states(storage=None, states: int = 9, dtype=torch.float64, limit: int | None = None):
    """Rows of the weights are filled up here: the loop works on a copy."""
    random = rng(0)
    x, y = torch.randn(40, 5, generator=random, dtype=dtype), torch.randint(states, (40,), generator=random)
    head = LinearMulticlass(5, states).to(dtype)
    dual = DualState.for_head(head, 40, 0.01, storage=storage or MeanParts(), memory_limit=limit)
    return head, dual, Batch(x, y, torch.arange(40))


@pytest.mark.parametrize("storage", [MeanParts, lambda: Labelings(2)], ids=["mean parts", "labelings"])
@pytest.mark.parametrize("method", ["run", "visit"])
def test_an_interrupt_loses_nothing(storage, method, monkeypatch):
    """It is raised where Python gets the control back: after the compiled code."""
    head, dual, batch = many_states(storage())
    cut = CompiledBCFW(head, dual, [batch])
    other, other_dual, _ = many_states(storage())
    whole = CompiledBCFW(other, other_dual, [batch])
    visit_blocks = loop.visit_blocks

    def interrupted(*arguments):
        visit_blocks(*arguments)
        raise KeyboardInterrupt

    def go(made: CompiledBCFW) -> None:
        made.step(30) if method == "run" else made.visit(torch.arange(30))

    monkeypatch.setattr(loop, "visit_blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go(cut)
    monkeypatch.undo()
    go(whole)
    assert_same(dual.state_dict(), other_dual.state_dict())
    assert_same(cut.state_dict(), whole.state_dict())
    assert cut.certify().drift < 1e-10


def test_a_run_that_finds_no_memory_can_go_on():
    head, dual, batch = many_states(Labelings(1))
    made = CompiledBCFW(head, dual, [batch])
    dual.storage.memory_limit = 40 * (16 + 1 * (1 + 25) + 17) + 100  # the labelings, and nothing beside them
    with pytest.raises(MemoryError, match="capacity"):
        made.step(2000)
    assert dual.steps > 0
    assert made.certify().drift < 1e-10
    dual.storage.memory_limit = None
    before = dual.value()
    assert made.step(500) == 500
    assert dual.value() > before
    assert made.certify().drift < 1e-10


def test_features_that_overflow_the_dtype_of_the_weights_are_refused():
    head, dual, batch = many_states(dtype=torch.float32)
    x = batch.x.double()
    x[3, 0] = 1e300
    with pytest.raises(ValueError, match=r"x of example 3 holds numbers that are not finite in torch.float32.*1e\+300"):
        CompiledBCFW(head, dual, [batch.replace(x=x)])


def test_a_dual_that_was_shared_between_processes_goes_on():
    head, dual, batch = many_states()
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    for _ in range(6):
        optim.zero_grad()
        loss(head(batch.x), batch.y, batch.index).backward()
        optim.step()
        for buffer in dual.storage.buffers.values():
            buffer.values.share_memory_()
    assert CompiledBCFW(head, dual, [batch]).certify().drift < 1e-10


def test_transforms_of_torch_func_go_through_the_head():
    head = LinearChain(2, 3)
    x = torch.randn(2, 4, 2, generator=rng(1))
    result = torch.func.jacrev(lambda weights: torch.func.functional_call(head, weights, (x,))["emission"])(
        dict(head.named_parameters())
    )
    torch.testing.assert_close(result["bias"][:, :, 0, 0], torch.ones(2, 4))
    torch.testing.assert_close(result["start_transitions"][:, :, 1, 1], torch.tensor([[1.0, 0, 0, 0]] * 2))
