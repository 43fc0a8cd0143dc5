"""A step on a CUDA device: how often the host waits, how many kernels it starts, and that it is the step of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from cases.chain_twins import CHAIN_TWINS, TREE_TWINS

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    CacheOracle,
    Chain,
    Corrective,
    DualState,
    Labelings,
    LinearChain,
    LinearMulticlass,
    LinearTree,
    Pairwise,
    Solver,
    StructuredHinge,
    Weights,
    certify,
    make_trainer,
)
from torchssvm.core.batch import apply_head, tree_map
from torchssvm.datasets import PaddedDataset
from torchssvm.solvers import block_coordinate
from torchssvm.structures.chain import Transitions

pytestmark = pytest.mark.cuda


def _problem(n: int, longest: int = 5, features: int = 3, states: int = 4) -> Batch:
    random = torch.Generator().manual_seed(n)
    lengths = torch.randint(1, longest + 1, (n,), generator=random)
    x = torch.randn(n, longest, features, generator=random)
    y = torch.randint(states, (n, longest), generator=random)
    y[torch.arange(longest) >= lengths.unsqueeze(1)] = -1
    return Batch(x, y, torch.arange(n), lengths)


def _train(
    batches: list[Batch], n: int, steps: int, factor: float = 1.0
) -> tuple[LinearChain, DualState, BCFW, list[float]]:
    head = LinearChain(3, 4).to(batches[0].x.device)
    dual = DualState.for_head(head, num_examples=n, lam=0.1)
    loss, optimizer, values = BlockGap(dual), BCFW(head.parameters(), dual), []
    for step in range(steps):
        batch = batches[step % len(batches)]
        optimizer.zero_grad()
        value = factor * loss(head(batch.x, batch.lengths), batch.y, batch.index)
        value.backward()
        optimizer.step()
        values.append(value.detach())
    return head, dual, optimizer, [float(value) for value in values]


def _rows(batch: Batch, rows: slice | torch.Tensor) -> Batch:
    return Batch(batch.x[rows], batch.y[rows], batch.index[rows], batch.lengths[rows])


def test_steps_are_those_of_the_cpu(cuda):
    factor = 0.5
    everything = _problem(6)
    batches = [_rows(everything, slice(0, 3)), _rows(everything, slice(3, 6))]
    _, expected, _, losses = _train(batches, 6, 4, factor)
    _, result, _, values = _train([batch.to(cuda) for batch in batches], 6, 4, factor)
    torch.testing.assert_close(torch.tensor(values), torch.tensor(losses), rtol=1e-4, atol=1e-6)
    for mine, other in zip(result.parameters, expected.parameters, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), other.detach(), rtol=1e-3, atol=1e-5)
    assert result.value() == pytest.approx(expected.value(), rel=1e-5)
    assert torch.equal(result.targets, expected.targets)
    assert (result.steps, result.oracle_calls, result.moved) == (4, 12, 12)


@pytest.mark.filterwarnings("ignore:invalid value")  # of infinite potentials, in the interpreter
def test_refusals_of_a_device_change_nothing(cuda):
    batch = _problem(3).to(cuda)
    head, dual, optimizer, _ = _train([batch], 3, 2)
    stored = [p.detach().clone() for p in dual.parameters]
    blocks = {name: buffer.values.clone() for name, buffer in dual.storage.buffers.items()}
    losses, gaps = dual.loss.clone(), dual.gap_estimates.clone()

    def propose(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        BlockGap(dual)(head(x, batch.lengths), batch.y, batch.index).backward()

    propose(batch.x)
    dual.parameters[0].grad.mul_(1.5)
    with pytest.raises(RuntimeError, match="gradient"):
        optimizer.step()
    propose(batch.x)
    dual.parameters[1].grad.fill_(torch.nan)
    with pytest.raises(RuntimeError, match="gradient"):
        optimizer.step()
    wrong = batch.x.clone()
    wrong[0, 0, 0] = torch.inf
    with pytest.raises(ValueError, match="not finite"):
        propose(wrong)
    for mine, other in zip(dual.parameters, stored, strict=True):
        assert torch.equal(mine, other)
    for name, buffer in dual.storage.buffers.items():
        assert torch.equal(buffer.values, blocks[name])
    assert torch.equal(dual.loss, losses)
    assert torch.equal(dual.gap_estimates, gaps)
    assert dual.steps == 2


def _counted_step(batch: Batch, head: torch.nn.Module, twins: Any = CHAIN_TWINS) -> Any:
    """What the third step of a batch of all examples launches and waits for."""
    pretended = pytest.importorskip("cases.pretended_device")
    dual = DualState.for_head(head, num_examples=len(batch.y), lam=0.1)
    loss, optimizer = BlockGap(dual), BCFW(head.parameters(), dual)
    with pretended.computed_by(twins):  # the interpreter takes 60 ms for a chain
        for _ in range(3):
            optimizer.zero_grad()
            with pretended.counted() as counts:
                loss(apply_head(head, batch), batch.y, batch.index).backward()
                optimizer.step()
    return counts


@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are counted on the pretended device")
def test_rules_of_transitions_stay_on_the_device(cuda):
    rules = Transitions(torch.ones(4, 4, dtype=torch.bool))
    structure = Chain(4, transitions=rules)
    counts = _counted_step(_problem(64).to(cuda), LinearChain(3, 4, structure=structure).to(cuda))
    assert counts.syncs <= 2, counts
    assert counts.launches <= 121, counts
    assert rules.to(cuda).pairs is rules.to(cuda).pairs
    rules.pairs[0, 1] = False
    assert not bool(rules.to(cuda).pairs[0, 1])


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are counted on the pretended device")
@pytest.mark.parametrize(("size", "most"), [(64, 109), (1024, 109), (4096, 113 + 5 * 16)])
def test_a_step_waits_twice_for_the_device_and_starts_109_kernels(size, most, cuda):
    """And one for each 256 blocks of a sweep where there are more than 1024."""
    pretended = pytest.importorskip("cases.pretended_device")
    batch = _problem(size).to(cuda)
    head = LinearChain(3, 4).to(cuda)
    hinge, counts = StructuredHinge(head.structure), _counted_step(batch, head)
    assert counts.syncs <= 2, counts
    assert counts.launches <= most, counts
    with pretended.computed_by(CHAIN_TWINS):
        with pretended.counted() as counts:
            hinge(head(batch.x, batch.lengths), batch.y)
        assert counts.syncs <= 2, counts


def test_large_gradients_are_not_made_on_a_device(cuda, monkeypatch):
    """The steps are those of the CPU, for distinct and for repeated examples."""

    def train(device: torch.device | str) -> DualState:
        random = torch.Generator().manual_seed(1)
        x, y = torch.randn(6, 3, generator=random).double(), torch.randint(4, (6,), generator=random)
        head = LinearMulticlass(3, 4).double().to(device)
        dual = DualState.for_head(head, num_examples=6, lam=0.1)
        loss, optimizer = BlockGap(dual), BCFW(head.parameters(), dual)
        for rows in ([0, 1, 2], [3, 4, 5, 4], [0, 1, 2, 3, 4, 5]):
            potentials = head(x[rows].to(device))
            if device != "cpu":
                monkeypatch.setattr(potentials, "adjoint", None)
            optimizer.zero_grad()
            loss(potentials, y[rows].to(device), torch.tensor(rows).to(device)).backward()
            optimizer.step()
        return dual

    expected = train("cpu")
    monkeypatch.setattr(block_coordinate, "LARGE", 0)
    result = train(cuda)
    assert result.value() == pytest.approx(expected.value(), rel=1e-12)
    for mine, other in zip(result.parameters, expected.parameters, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), other.detach(), rtol=1e-9, atol=1e-12)


# Launches of a step, of a certificate's first batch, and of each further one.
COUNTS = {"chains": (109, 111, 71), "classes": (55, 61, 30), "trees": (116, 113, 73)}


def _kind(name: str, n: int) -> tuple[torch.nn.Module, Batch, Any]:
    """A head, all examples, and the kernels' twins."""
    everything = _problem(n)
    if name == "chains":
        return LinearChain(3, 4), everything, CHAIN_TWINS
    x, y = everything.x, everything.y.clamp(min=0)
    if name == "classes":
        return LinearMulticlass(3, 4), Batch(x[:, 0], y[:, 0], everything.index), CHAIN_TWINS
    return LinearTree(3, 4, [-1, 0, 0, 1, 1]), Batch(x, y, everything.index), TREE_TWINS


@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are counted on the pretended device")
@pytest.mark.parametrize("name", COUNTS)
def test_a_certificate_waits_four_times_and_once_for_each_further_batch(name, cuda):
    pretended = pytest.importorskip("cases.pretended_device")
    head, everything, twins = _kind(name, 80)
    step, first, further = COUNTS[name]
    counts = _counted_step(everything.to(cuda), head.to(cuda), twins)
    assert counts.syncs <= 2 + (name == "trees"), counts
    assert counts.launches <= step, counts
    with pretended.computed_by(twins):
        dual = DualState.for_head(head, num_examples=80, lam=0.1)
        loss, optimizer = BlockGap(dual), BCFW(head.parameters(), dual)
        batches = [tree_map(lambda t, some=some: t[some], everything).to(cuda) for some in torch.arange(80).split(20)]
        certify(head, dual, batches)  # makes the probe of these shapes
        for number in (1, 4):
            optimizer.zero_grad()
            loss(apply_head(head, batches[0]), batches[0].y, batches[0].index).backward()
            optimizer.step()
            given = [everything.to(cuda)] if number == 1 else batches
            with pretended.counted() as counts:
                certify(head, dual, given)
            assert counts.syncs <= 3 + number, counts
            assert counts.launches <= first + further * (number - 1), counts


@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are counted on the pretended device")
def test_steps_between_certificates_wait_once_more_where_batches_are_drawn(cuda):
    pretended = pytest.importorskip("cases.pretended_device")
    everything = _problem(64)
    data = PaddedDataset(everything.x, everything.y, everything.lengths)
    solver = Solver(compiled=False, batch_size=16)
    with pretended.computed_by(CHAIN_TWINS):
        trainer = make_trainer(LinearChain(3, 4).to(cuda), data, 0.1, solver=solver, progress=False)
        expected = make_trainer(LinearChain(3, 4), data, 0.1, solver=solver, progress=False)
        for step in range(14):
            with pretended.counted() as counts:
                trainer.step()
            expected.step()
            assert step < 5 or counts.syncs <= 3, counts
    torch.testing.assert_close(trainer.dual.gap_estimates.cpu(), expected.dual.gap_estimates, rtol=1e-4, atol=1e-7)


# How often a step may wait for the device, and the rules of the step. Pairwise steps of `Corrective` make hinges equal,
# and rounding decides which of them is the largest: blocks are solved to the end, where that does not matter.
RULES: dict[str, tuple[int, dict[str, Any]]] = {
    "examples repeated": (2, {"rows": [[0, 1, 2, 1], [3, 4, 5, 5]]}),
    "accumulated": (10, {"batches": 2}),
    "bounds": (5, {"lower": -0.05}),
    "weights": (4, {"storage": Weights, "rows": [[0, 1, 2, 1], [3, 4, 5, 5]]}),
    "corrective, labelings merged": (
        8,
        {"storage": lambda: Labelings(capacity=2), "direction": Corrective(200, tolerance=0.0)},
    ),
    "cache": (9, {"storage": Labelings, "direction": Pairwise(), "oracle": CacheOracle()}),
}


def _train_by(
    device: torch.device | str,
    counted: Callable[[], AbstractContextManager[Any]],
    *,
    rows: tuple[list[int], ...] = ([0, 1, 2], [3, 4, 5]),
    batches: int = 1,
    lower: float | None = None,
    storage: Callable[[], Any] | None = None,
    **rules: Any,
) -> tuple[DualState, Any]:
    """Five steps, and what ``counted`` says of the last one."""
    everything = _problem(6).to("cpu")
    head = LinearChain(3, 4).double().to(device)
    dual = DualState.for_head(head, num_examples=6, lam=0.1, storage=None if storage is None else storage())
    groups = [{"params": [p], "lower": lower if place == 0 else None} for place, p in enumerate(head.parameters())]
    loss, optimizer = BlockGap(dual, **rules), BCFW(groups, dual)
    for step in range(5):
        optimizer.zero_grad()
        with counted() as counts:
            for part in range(batches):
                batch = _rows(everything, torch.tensor(rows[(step + part) % 2])).to(device)
                loss(head(batch.x.double(), batch.lengths), batch.y, batch.index).backward()
            optimizer.step()
    return dual, counts


@pytest.mark.skipif(torch.cuda.is_available(), reason="launches are counted on the pretended device")
@pytest.mark.parametrize("name", RULES)
def test_steps_by_every_rule_are_those_of_the_cpu_and_wait_seldom(name, cuda):
    pretended = pytest.importorskip("cases.pretended_device")
    most, rules = RULES[name]
    expected, _ = _train_by("cpu", nullcontext, **rules)
    with pretended.computed_by(CHAIN_TWINS):
        result, counts = _train_by(cuda, pretended.counted, **rules)
        assert result.value() == pytest.approx(expected.value(), rel=1e-9)
    assert counts.syncs <= most, counts
    for mine, other in zip(result.parameters, expected.parameters, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), other.detach(), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(result.gap_estimates.cpu(), expected.gap_estimates, rtol=1e-7, atol=1e-9)
    assert (result.oracle_calls, result.cache_hits, result.moved) == (
        expected.oracle_calls,
        expected.cache_hits,
        expected.moved,
    )
