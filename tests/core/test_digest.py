"""A dual that meets other targets than those that it was trained on says so."""

import copy
import io

import pytest
import torch
from cases.problems import chain, examples, rng
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import BCFW, BlockGap, CompiledBCFW, DualState, certify
from torchssvm.dual.checks import digest_targets
from torchssvm.dual.state import UNKNOWN


@examples(50)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
    st.integers(0, 4),
    st.integers(0, 5),
    st.sampled_from([-1, 0, -100]),
)
def test_padding_does_not_count_and_labels_do(labels, more, place, padding):
    target = torch.tensor([labels])
    padded = torch.nn.functional.pad(target, (0, more), value=padding)
    assert torch.equal(digest_targets(target), digest_targets(padded))
    changed = target.clone()
    changed[0, place % len(labels)] += 1
    assert not torch.equal(digest_targets(target), digest_targets(changed))


def test_other_axes_than_that_of_the_lengths_count_whole():
    labels, edges = torch.tensor([[1, 1]]), torch.tensor([[False, True, True, True]])
    wide = torch.nn.functional.pad(labels, (0, 3), value=-1)
    lengths = torch.tensor([2])
    for padded in (labels, wide):  # the edges are more or fewer than the padded nodes
        assert torch.equal(digest_targets((padded, edges), lengths), digest_targets((labels, edges), lengths))
    other = torch.tensor([[False, True, True, False]])
    assert not torch.equal(digest_targets((labels, edges), lengths), digest_targets((labels, other), lengths))


ODD = (-7046029254386353131, -4417276706812531889, 1609587929392839161)


def mix(numbers):
    numbers = (numbers ^ (numbers >> 29)) * ODD[2]
    return numbers ^ (numbers >> 32)


def summed(leaf, place, lengths):
    """The digest of one tensor of a target, in torch."""
    where = torch.full((1,) * leaf.ndim, place + 1)
    for axis, size in enumerate(leaf.shape[1:], 1):
        along = torch.arange(1, size + 1).view([-1 if a == axis else 1 for a in range(leaf.ndim)])
        where = mix(where * ODD[0] + along)
    floating = leaf.is_floating_point()
    numbers = leaf.double().view(torch.int64) if floating else leaf.to(torch.int64)
    counts = numbers & (2**63 - 1) != 0 if floating or leaf.dtype == torch.bool else numbers > 0
    mixed = torch.where(counts, mix(numbers * ODD[1] + where), 0)
    total = mixed.flatten(1).sum(1) if leaf.ndim > 1 else mixed
    total = total if lengths is None else total + mix(lengths * ODD[0])
    return torch.where(total == UNKNOWN, 1, total)


@examples(30)
@given(st.integers(0, 2**16), st.sampled_from([torch.int64, torch.int8, torch.bool, torch.float64, torch.float32]))
def test_digests_are_sums_of_mixed_numbers(seed, dtype):
    random = rng(seed)
    shape = torch.randint(0, 4, (2,), generator=random).tolist()
    leaves = [torch.randint(-2, 4, (3, *shape[:k]), generator=random).to(dtype) for k in range(3)]
    lengths = torch.randint(1, 5, (3,), generator=random)
    for target in (*leaves, tuple(leaves)):
        for sizes in (None, lengths):
            several = target if isinstance(target, tuple) else (target,)
            expected = sum(summed(leaf, place, sizes) for place, leaf in enumerate(several))
            assert torch.equal(digest_targets(target, sizes), expected)


def test_no_target_has_the_digest_of_one_that_was_not_seen():
    assert int(digest_targets(torch.zeros(1, 3, dtype=torch.int64))) != UNKNOWN


def test_places_count_on_every_axis():
    grids = torch.zeros(12, 3, 4, dtype=torch.int64)
    for i in range(12):
        grids[i, i // 4, i % 4] = 1
    assert len(digest_targets(grids).unique()) == 12
    assert len(digest_targets(torch.arange(1, 100)).unique()) == 99


def trained():
    problem = chain(n=8, states=3)
    head = problem.head
    dual = DualState.for_head(head, 8, 0.1)
    optimizer, loss = BCFW(head.parameters(), dual), BlockGap(dual)
    for batch in problem.everything(3):
        optimizer.zero_grad()
        loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
        optimizer.step()
    return problem, head, dual, optimizer


def others(problem):
    """The same examples with the labels of two of them changed."""
    for batch in problem.everything(3):
        y = batch.y.clone()
        for row, index in enumerate(batch.index.tolist()):
            if index in (2, 5):
                y[row, 0] = (y[row, 0] + 1) % 3
        yield batch.replace(y=y)


def test_other_targets_are_refused():
    problem, head, dual, optimizer = trained()
    first = certify(head, dual, problem.everything(3))
    assert certify(head, dual, problem.everything(8)).gap == pytest.approx(first.gap)
    before = dual.oracle_calls
    for attempt in (lambda: certify(head, dual, others(problem)), lambda: CompiledBCFW(head, dual, others(problem))):
        with pytest.raises(RuntimeError, match=r"\[2, 5\]"):
            attempt()
    assert dual.oracle_calls == before
    for batch in problem.everything(3):
        optimizer.zero_grad()
        BlockGap(dual)(head(batch.x, batch.lengths), batch.y, batch.index).backward()
        optimizer.step()
    CompiledBCFW(head, dual, problem.everything(4)).certify()


def test_a_checkpoint_knows_its_targets():
    problem, head, dual, optimizer = trained()
    certify(head, dual, problem.everything(3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(head)
    again = DualState.for_head(other, 8, 0.1)
    BCFW(other.parameters(), again).load_state_dict(torch.load(file, weights_only=True))
    with pytest.raises(RuntimeError, match="other targets"):
        certify(other, again, others(problem))
    certify(other, again, problem.everything(3))


def test_a_dual_that_has_not_moved_takes_any_targets():
    problem = chain(n=8, states=3)
    head = problem.head
    dual = DualState.for_head(head, 8, 0.1)
    certify(head, dual, problem.everything(3))
    assert certify(head, dual, others(problem)).gap > 0.0


def test_real_numbers_count():
    costs, lengths = torch.rand(4, 3, dtype=torch.float64), torch.tensor([3, 2, 1, 3])
    costs = costs.masked_fill(torch.arange(3) >= lengths.unsqueeze(1), 0.0)
    first = digest_targets((torch.zeros(4, 3, dtype=torch.int64), costs), lengths)
    wide = torch.nn.functional.pad(costs, (0, 2))
    assert torch.equal(digest_targets((torch.zeros(4, 5, dtype=torch.int64), wide), lengths), first)
    assert bool((digest_targets((torch.zeros(4, 3, dtype=torch.int64), 0.7 * costs), lengths) != first).all())
