"""The concave-convex procedure: its objective by enumeration, warm duals, resuming, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchssvm import (
    Chain,
    HiddenStates,
    LinearChain,
    LinearMulticlass,
    LinearMultilabel,
    Multiclass,
    Relative,
    Solver,
    in_order,
    latent,
)
from torchssvm.core.potentials import inner
from torchssvm.datasets import LatentCrosses, PaddedDataset
from torchssvm.solvers import LatentTrainer, primal

LAM = 1.0
CHAIN = HiddenStates(Chain(4), [0, 0, 1, 1])


def chains(lengths=True):
    random = torch.Generator().manual_seed(0)
    senses = (torch.rand(12, 4, generator=random) < 0.5).long().cumsum(1) % 4
    x = torch.eye(4)[senses] + 0.3 * torch.randn(12, 4, 4, generator=random)
    y, sizes = senses % 2, torch.randint(2, 5, (12,), generator=random)
    if not lengths:
        return PaddedDataset(x, y)
    beyond = torch.arange(4) >= sizes.unsqueeze(1)
    return PaddedDataset(x.masked_fill(beyond.unsqueeze(2), 0.0), y.masked_fill(beyond, -1), sizes)


def trainer(data=None, **options):
    options = {"tolerance": Relative(0.1), **options}
    return LatentTrainer(LinearChain(4, 4), data or chains(), LAM, structure=CHAIN, solver=Solver(seed=1), **options)


def objective(head, data, structure=CHAIN):
    """By its definition: all outputs of every example."""
    total = 0.0
    for i in range(len(data)):
        batch = data.__getitems__([i])
        potentials = head(batch.x, batch.lengths)
        target = structure.check_target(batch.y, potentials)
        scores = {"all": [], "right": []}
        for states in structure.enumerate(potentials):
            score = float(inner(structure.parts(states), {k: t.detach() for k, t in potentials.tensors.items()}))
            loss = float(structure.loss(states, target))
            scores["all"].append(score + loss)
            if loss == 0.0:
                scores["right"].append(score)
        total += max(scores["all"]) - max(scores["right"])
    return LAM / 2 * sum(float(p.detach().square().sum()) for p in head.parameters()) + total / len(data)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [True, False])
def test_the_objective_is_the_definition_and_falls(lengths):
    data = chains(lengths)
    run = trainer(data)
    assert run.objectives[0] == pytest.approx(objective(run.head, data), rel=1e-5)
    for _ in range(2):
        before = len(run.objectives)
        certificate = run.step()
        assert certificate.relative_gap <= 0.1
        if len(run.objectives) > before:
            assert run.objectives[-1] <= certificate.primal <= run.objectives[-2]
        assert run.objectives[-1] == pytest.approx(objective(run.head, data), rel=1e-4)
    assert run.objectives[-1] < run.objectives[0]


def test_a_round_begins_from_the_duals_of_the_one_before():
    """The losses are kept up to a common factor, and the weights are those of the moved blocks."""
    run = trainer()
    run.step()
    before = run.loop.dual.loss.clone()
    run._move_duals()
    share = float(run.loop.dual.loss.sum() / before.sum())
    assert 0.0 < share <= 1.0
    torch.testing.assert_close(run.loop.dual.loss, share * before)
    warm = run.loop.certify()
    assert warm.exact
    assert warm.drift < 1e-5
    assert warm.dual > 0.0  # a new dual has 0
    cold = trainer()
    cold.data.rows = cold.next = run.data.rows
    proof = cold.loop.solve(Relative(0.1), progress=False)
    assert warm.dual <= proof.primal  # of the same problem
    assert proof.dual <= warm.primal


def test_a_run_goes_on_to_the_same_bits():
    whole, first, second = trainer(), trainer(), trainer()
    for _ in range(3):
        whole.step()
    first.step()
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        second.step()
    assert second.objectives == whole.objectives
    assert all(torch.equal(a, b) for a, b in zip(second.head.parameters(), whole.head.parameters(), strict=True))
    with pytest.raises(ValueError, match="latent run"):
        second.load_state_dict({**first.state_dict(), "objectives": "none"})


def test_a_round_that_gains_nothing_is_dropped():
    run = trainer(tolerance=0.9)
    run.objectives = [1e-3]  # no round can be as good
    stored = [p.detach().clone() for p in run.head.parameters()]
    certificate = run.step()
    assert run.settled
    assert run.objectives == [1e-3]
    kept = primal(run.head, run.structure, in_order(run.data), lam=LAM)
    assert certificate.primal == kept.bound  # not that of the dropped weights
    assert certificate.gap == certificate.primal - certificate.dual >= 0.0
    assert all(torch.equal(a, b) for a, b in zip(run.head.parameters(), stored, strict=True))
    run.objectives = [1.0]
    assert run.step().primal == pytest.approx(run.objectives[-1], abs=0.2)  # from the duals, without a warning
    assert run.objectives[-1] < 1.0


class Wide(PaddedDataset):
    """Batches padded to two more places than the longest example has."""

    def __getitems__(self, indices):
        batch = super().__getitems__(indices)
        x, y = (nn.functional.pad(batch.x, (0, 0, 0, 2)), nn.functional.pad(batch.y, (0, 2), value=-1))
        return batch.replace(x=x, y=y)


def test_padding_changes_nothing():
    data = chains()
    one, two = trainer(data), trainer(Wide(data.x, data.y, data.lengths))
    for run in (one, two):
        run.step()
    assert two.objectives == pytest.approx(one.objectives, rel=0.2)
    assert two.objectives[-1] == pytest.approx(objective(two.head, data), abs=1e-6)


class Templates(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 9))

    def forward(self, x):
        return (x @ self.weight.T).flatten(1)


def test_crosses_are_found():
    train, test = LatentCrosses(num_images=60, size=5), LatentCrosses("test", num_images=100, size=5)
    head, structure = Templates(), HiddenStates(Multiclass(18), torch.arange(18) % 2)
    report = latent(head, train, 0.03, structure=structure)
    assert report.settled
    assert "rounds, settled, with no known gap; of the last round's convex problem: primal" in str(report)
    decoded = structure.decode(head(test.x))
    assert float((structure.observe(decoded) == test.y).double().mean()) > 0.9
    assert float((decoded // 2 == test.places).double().mean()) > 0.9


def test_crosses_are_drawn_as_asked():
    crosses = LatentCrosses(num_images=20, noise=0.0, seed=3)
    assert torch.equal(crosses.x[torch.arange(20), crosses.places].sum(1), torch.full((20,), 5.0))
    assert crosses.x.sum(2).amax(1).tolist() == [5.0] * 20
    assert torch.equal(crosses.x[torch.arange(20), crosses.places, 1], 1.0 - crosses.y)  # above the middle
    again = LatentCrosses(num_images=20, noise=0.0, seed=3)
    assert torch.equal(again.images, crosses.images)
    assert not torch.equal(LatentCrosses("test", num_images=20, noise=0.0, seed=3).images, crosses.images)
    for wrong, words in [({"split": "dev"}, "not 'dev'"), ({"size": 2}, "size=2"), ({"noise": -1.0}, "noise=-1")]:
        with pytest.raises(ValueError, match=words):
            LatentCrosses(**wrong)


def test_what_does_not_fit_is_refused():
    data = chains()
    with pytest.raises(TypeError, match="structure=Multilabel"):
        latent(LinearMultilabel(4, 3), data, LAM)
    with pytest.raises(ValueError, match="dataset"):
        latent(LinearChain(4, 4), torch.utils.data.Subset(data, []), LAM, structure=CHAIN)
    with pytest.raises(ValueError, match="rounds=0"):
        latent(LinearChain(4, 4), data, LAM, structure=CHAIN, rounds=0)
    with pytest.raises(ValueError, match="lam=0"):
        latent(LinearChain(4, 4), data, 0.0, structure=CHAIN)
    with pytest.raises(ValueError, match="target"):
        wrong = PaddedDataset(torch.zeros(2, 4), torch.tensor([0, 3]))
        latent(LinearMulticlass(4, 4), wrong, LAM, structure=HiddenStates(Multiclass(4), [0, 0, 1, 1]))


class Worst(HiddenStates):
    """Completes by the states that score lowest."""

    def complete(self, potentials, target):
        return super().complete(potentials.replace({k: -t for k, t in potentials.tensors.items()}), target)


def test_a_wrong_completion_is_refused():
    run = LatentTrainer(LinearChain(4, 4), chains(), LAM, structure=Worst(Chain(4), [0, 0, 1, 1]))
    with pytest.raises(RuntimeError, match="best hidden part"):
        run.step()
