"""A dual refuses another problem: other targets, features, losses, heads."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from cases.problems import PROBLEMS, WithoutAdjoint, assert_same, chain, multiclass, refused

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    CompiledBCFW,
    DualState,
    Labelings,
    LinearMulticlass,
    MeanParts,
    Pairwise,
    Structure,
    WeightedLabels,
    Weights,
    certify,
    check,
    recompute_weights,
    regularization_path,
)
from torchssvm.core.decoding import Decoding
from torchssvm.core.states import with_seal
from torchssvm.datasets import PaddedDataset
from torchssvm.dual.checks import digest_targets
from torchssvm.solvers.kernel import RBF, KernelChain, KernelSSVM
from torchssvm.steps import CommonStep

STORAGES = [MeanParts, Weights, Labelings]
ROWS = [[0, 1], [2, 3], [4, 0]]


def relabelled(problem, rows):
    """The batch with other targets."""
    batch = problem.batch(rows)
    states = problem.structure.num_states if problem.y.ndim > 1 else problem.structure.num_classes
    return batch.replace(y=torch.where(batch.y >= 0, (batch.y + 1) % states, batch.y))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_other_targets_are_refused_at_the_next_visit(kind, storage):
    problem = PROBLEMS[kind](3, n=6)
    training = problem.train(storage=storage()).run(ROWS)
    with refused(training, RuntimeError, r"1 of 2 examples have other targets .* \[2\]"):
        training.forward(relabelled(problem, [5, 2]))
    training.run([[5, 2]])


def test_an_exact_pass_knows_the_targets_of_examples_that_no_step_has_visited():
    problem = chain(3, n=6)
    training = problem.train().run([[0]])
    certify(training.head, training.dual, problem.everything())
    with pytest.raises(RuntimeError, match="other targets"):
        training.forward(relabelled(problem, [2]))


def test_other_targets_are_refused_after_a_resume_without_an_exact_pass():
    problem = chain(3, n=6)
    training = problem.train().run(ROWS)
    again = problem.copy().train()
    again.optim.load_state_dict(training.optim.state_dict())
    everything = [relabelled(problem, range(6))]
    for use in (
        lambda: again.forward(relabelled(problem, [2])),
        lambda: recompute_weights(again.head, again.dual, everything),
        lambda: CompiledBCFW(again.head, again.dual, everything),
    ):
        with pytest.raises(RuntimeError, match="other targets"):
            use()


def test_a_compiled_loop_refuses_a_dual_that_went_on_elsewhere_on_other_targets():
    problem = chain(3, n=6)
    training = problem.train()
    loop = CompiledBCFW(training.head, training.dual, [problem.batch(range(6))])
    training.step(relabelled(problem, [2]))
    for use in (lambda: loop.step(3), loop.certify):
        with pytest.raises(RuntimeError, match="other targets"):
            use()


@pytest.mark.parametrize("storage", [MeanParts, Labelings])
@pytest.mark.parametrize("kind", sorted(PROBLEMS))
@pytest.mark.parametrize("compiled", [False, True])
def test_losses_that_are_not_those_of_the_blocks_are_found(kind, storage, compiled):
    problem = PROBLEMS[kind](3, n=6)
    training = problem.train(storage=storage(), direction=Pairwise() if storage is Labelings else None).run(ROWS)
    state = training.optim.state_dict()
    state["dual"]["loss"][2] += 1e-4
    again = problem.copy().train(storage=storage(), direction=Pairwise() if storage is Labelings else None)
    with pytest.raises(ValueError, match="checksum"):
        again.optim.load_state_dict(state)
    again.optim.load_state_dict({**state, "dual": with_seal(state["dual"])})
    loop = CompiledBCFW(again.head, again.dual, problem.everything(2)) if compiled else None
    before = again.snapshot()
    with pytest.raises(RuntimeError, match=r"losses of 1 blocks.* \[2\]"):
        if loop is not None:
            loop.certify()
        else:
            certify(again.head, again.dual, problem.everything(2))
    after = again.snapshot()
    if loop is not None:  # which gives every block its room
        del before["dual"]["storage"], after["dual"]["storage"]
    assert_same(after, before)


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("change", ["noise", "scaled", "one token"])
def test_weights_refuse_features_that_move(adjoint, change):
    problem = chain(3, n=6)
    head = problem.head if adjoint else WithoutAdjoint(problem.head)
    dual = DualState.for_head(head, 6, 0.1, storage=Weights(), structure=problem.structure)
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)

    def step(batch):
        optim.zero_grad()
        loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
        optim.step()

    def moved(batch):
        x = batch.x.clone()
        if change == "noise":
            x += torch.randn_like(x)
        elif change == "scaled":
            x /= 4
        else:
            x[0, 0, 0] += 0.01
        return batch.replace(x=x)

    for rows in ROWS:
        step(problem.batch(rows))
    before = copy.deepcopy(optim.state_dict())
    with pytest.raises(RuntimeError, match=r"examples \[0.*\] came with other features"):
        step(moved(problem.batch([0, 5])))
    with pytest.raises(RuntimeError, match=r"came with other features"):
        certify(head, dual, [moved(problem.batch([0, 1, 2])), problem.batch([3, 4, 5])])
    assert_same(optim.state_dict(), before)
    step(problem.batch([0, 5]))
    assert certify(head, dual, problem.everything(2)).gap > 0.0  # in other batches, padded otherwise


def test_weights_remember_their_features_in_checkpoints():
    problem = chain(3, n=6)
    training = problem.train(storage=Weights()).run(ROWS)
    again = problem.copy().train(storage=Weights())
    again.optim.load_state_dict(training.optim.state_dict())
    batch = problem.batch([2])
    with pytest.raises(RuntimeError, match="other features"):
        again.loss(again.head(batch.x + 1.0, batch.lengths), batch.y, batch.index)


def test_weights_refuse_two_views_of_an_example_in_one_step():
    problem = chain(3, n=6)
    training = problem.train(storage=Weights())
    training.loss.block_steps = CommonStep()  # else an example counts once
    batch = problem.batch([2])
    for x in (batch.x, batch.x * 1.1):
        training.loss(training.head(x, batch.lengths), batch.y, batch.index).backward()
    with pytest.raises(RuntimeError, match=r"examples \[2\] came with other features"):
        training.optim.step()


@pytest.mark.parametrize("storage", STORAGES)
def test_only_the_weights_of_the_dual_are_certified(storage):
    problem = chain(3, n=6)
    training = problem.train(storage=storage()).run(ROWS)
    head, everything = training.head, problem.everything(2)
    certificate = certify(head, training.dual, everything, refresh=False)
    for alike in (copy.deepcopy(head), head.forward, lambda x, lengths: head(x, lengths)):
        again = certify(alike, training.dual, everything, refresh=False)
        assert (again.primal, again.dual) == (certificate.primal, certificate.dual)
    other = copy.deepcopy(head)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(3.0)
    before = training.snapshot()
    for wrong in (
        other,
        lambda x, lengths: other(x, lengths),
        lambda x, lengths: copy.deepcopy(head)(x, lengths),
        lambda x, lengths: both(head(x, lengths), other(x, lengths)),
        lambda x, lengths: head(x, lengths).detach(),
    ):
        for use in (certify, *([] if storage is Weights else [recompute_weights])):
            with pytest.raises(ValueError, match=r"head|potentials"):
                use(wrong, training.dual, everything)
    assert_same(training.snapshot(), before)


def both(a, b):
    return type(a)({name: a[name] + b[name] for name in a.tensors}, a.lengths, ragged=a.ragged)


OUT_OF_RANGE = [(1e-300, "float32"), (1e-45, "float32"), (1e39, "float32"), (1e-310, "float64"), (1e308, "float64")]


@pytest.mark.parametrize(("lam", "dtype"), OUT_OF_RANGE)
def test_a_lam_out_of_range_is_refused(lam, dtype):
    head = LinearMulticlass(2, 3).to(getattr(torch, dtype))
    with pytest.raises(ValueError, match=re.escape(f"lam={lam:g} with num_examples=50 is out of range")):
        DualState.for_head(head, 50, lam)
    dual = DualState.for_head(head, 50, 1.0)
    with pytest.raises(ValueError, match="out of range"):
        dual.change_lam(lam)
    if lam < 1.0:
        with pytest.raises(ValueError, match="out of range"):
            dual.rescale(lam)
    assert dual.lam == 1.0


@pytest.mark.parametrize(("lam", "dtype"), [(1e-12, torch.float32), (1e12, torch.float32), (1e-60, torch.float64)])
def test_a_lam_within_range_certifies_finite_numbers(lam, dtype):
    problem = multiclass(0, n=5, features=2, lam=lam, dtype=dtype)
    training = problem.train().run([range(5)] * 20)
    certificate = certify(training.head, training.dual, problem.everything())
    assert 0.0 <= certificate.dual <= certificate.primal < float("inf")


class OneOfThree(Structure):
    """One of three classes; decoded, if ``relaxed``, with the point (1/2, 1/2, 1/2) outside of their hull."""

    def __init__(self, relaxed: bool) -> None:
        self.relaxed = relaxed

    def argmax(self, potentials):
        points = torch.eye(3, dtype=torch.float64)
        if self.relaxed:
            points = torch.cat([points, torch.full((1, 3), 0.5, dtype=torch.float64)])
        best = (potentials.single @ points.T).max(1)
        return Decoding(points[best.indices], best.values, relaxed=self.relaxed)

    def parts(self, labeling):
        return labeling

    def loss(self, labeling, target):
        return (labeling * (1.0 - target)).sum(1)

    def loss_potentials(self, target):
        return 1.0 - target, torch.zeros(len(target))


def train_one_of_three(relaxed, steps=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    batch = Batch(x, torch.eye(3, dtype=torch.float64).repeat(2, 1), torch.arange(6))
    head = LinearMulticlass(2, 3, bias=False).double()
    dual = DualState.for_head(head, 6, 0.5, structure=OneOfThree(relaxed))
    loss, optim = BlockGap(dual), BCFW(head.parameters(), dual)
    for _ in range(steps):
        optim.zero_grad()
        loss(head(batch.x), batch.y, batch.index).backward()
        optim.step()
    return head, dual, optim, batch


def test_a_certificate_says_that_it_is_of_the_relaxation():
    """The dual of a relaxation may lie above the optimum, which is what the certificate must tell."""
    results = {}
    for relaxed in (True, False):
        head, dual, _, batch = train_one_of_three(relaxed)
        results[relaxed] = certify(head, dual, [batch])
    loose, exact = results[True], results[False]
    assert loose.dual > exact.primal + 1e-3  # else the test shows nothing
    assert (loose.relaxed, loose.exact) == (True, False)
    assert (exact.relaxed, exact.exact) == (False, True)
    assert str(loose).startswith("relaxation: primal")
    assert loose.gaps == f"gap of the relaxation {loose.gap:.6g}"
    assert exact.gaps == f"gap {exact.gap:.6g}"
    assert loose.gap == loose.primal - loose.dual >= 0.0


def test_a_path_of_a_relaxation_is_not_certified():
    for relaxed in (True, False):
        head, _, _, batch = train_one_of_three(relaxed, 0)
        data = PaddedDataset(batch.x, batch.y)
        structure = OneOfThree(relaxed)
        path = regularization_path(head, data, epsilon=0.1, lam_min=0.5, structure=structure, progress=False)
        assert path.certified is not relaxed
        if relaxed:
            with pytest.raises(RuntimeError, match="relaxation"):
                path.gap(1.0)


def test_a_relaxation_is_remembered():
    head, dual, optim, batch = train_one_of_three(True, 0)
    BlockGap(dual)(head(batch.x), batch.y, batch.index).backward()
    assert not dual.relaxed  # a proposal is no step
    optim.step()
    assert dual.relaxed
    _, again, other, _ = train_one_of_three(True, 0)
    other.load_state_dict(optim.state_dict())
    assert again.relaxed


def test_check_finds_a_relaxation_that_does_not_say_so():
    class Unmarked(OneOfThree):
        def argmax(self, potentials):
            return super().argmax(potentials)._replace(relaxed=False)

        def enumerate(self, potentials):
            for point in torch.eye(3, dtype=torch.float64):
                yield point.expand(potentials.batch_size, 3)

    _, _, _, batch = train_one_of_three(True, 0)
    head = LinearMulticlass(2, 3, bias=False).double()
    assert "it is not an output" in str(check(head, Unmarked(True), batch))
    assert "it is not an output" not in str(check(head, Unmarked(False), batch))


def test_a_kernel_model_refuses_the_state_of_other_costs():
    x, y = torch.randn(5, 3, 2), torch.randint(0, 2, (5, 3))
    made = [
        KernelSSVM(KernelChain(RBF(1.0), 2, 2), x, WeightedLabels(y, torch.full((5, 3), cost)), lam=0.1)
        for cost in (1.0, 3.0)
    ]
    made[0].visit([0, 1])
    with pytest.raises(ValueError, match="other targets"):
        made[1].load_state_dict(made[0].state_dict())


def test_targets_of_another_width_than_the_tokens_are_the_same_in_every_batch():
    costs, labels = torch.tensor([[0.5, 1.0, 0.0, 2.0]]), torch.tensor([[1, 2, 1]])
    lengths = torch.tensor([3])
    result = digest_targets((labels, costs), lengths)
    for more in range(4):
        wide = torch.nn.functional.pad(labels, (0, more), value=-1)
        assert torch.equal(digest_targets((wide, costs), lengths), result)


def test_the_losses_of_blocks_may_round_at_every_move():
    training = multiclass(3, n=6, dtype=torch.float32).train().run(ROWS)
    training.dual.loss += 4e-4 * training.dual.loss.max()
    everything = [training.problem.batch(range(6))]
    with pytest.raises(RuntimeError, match="losses of"):
        certify(training.head, training.dual, everything)
    training.dual.moved = 6 * 200_000
    certify(training.head, training.dual, everything)
