"""Labels that a token may have, from a dataset to the losses."""

import itertools

import pytest
import torch
from torch import nn

from torchssvm import Chain, HiddenStates, LinearChain, Relative, SoftmaxMargin, in_order, latent
from torchssvm.datasets import PaddedDataset, PrecomputedFeatures, hold_out

K = 3


def problem(n=6):
    """Sequences of up to 3 tokens whose sets hold the right label."""
    random = torch.Generator().manual_seed(0)
    lengths = torch.tensor([1, 3, 2, 3, 1, 2])[:n]
    inside = torch.arange(3) < lengths[:, None]
    y = torch.randint(K, (n, 3), generator=random)
    x = (torch.eye(K)[y] + 0.1 * torch.randn(n, 3, K, generator=random)) * inside[..., None]
    sets = nn.functional.one_hot(y, K).bool() | (torch.rand(n, 3, K, generator=random) < 0.3)
    return PaddedDataset(x, sets & inside[..., None], lengths)


def enumerated(head, data, value):
    """The mean of ``value(scores, wrong)`` over the examples: of all labelings, and their numbers of wrong labels."""
    total = 0.0
    for x, sets, _ in data:
        potentials = {name: t.detach()[0].double() for name, t in head(x[None], torch.tensor([len(x)])).tensors.items()}
        scores, wrong = [], []
        for states in itertools.product(range(K), repeat=len(x)):
            score = sum(float(potentials["emission"][t, k]) for t, k in enumerate(states))
            scores.append(score + sum(float(potentials["transition"][a, b]) for a, b in itertools.pairwise(states)))
            wrong.append(sum(not bool(sets[t, k]) for t, k in enumerate(states)))
        total += value(torch.tensor(scores), torch.tensor(wrong))
    return total / len(data)


def hinge(scores, wrong):
    return float((scores + wrong).max() - scores[wrong == 0].max())


def margin(scores, wrong):
    return float((scores + wrong).logsumexp(0) - scores[wrong == 0].logsumexp(0))


def test_they_reach_the_losses():
    data = problem()
    head = LinearChain(K, K, structure=Chain(K, normalize=False))
    structure = HiddenStates(head.structure)
    with torch.no_grad():
        for p in head.parameters():
            p.normal_(generator=torch.Generator().manual_seed(1))
    (batch,) = in_order(data)
    result = SoftmaxMargin(structure)(head(batch.x, batch.lengths), batch.y)
    assert float(result) == pytest.approx(enumerated(head, data, margin), rel=1e-5)
    report = latent(head, data, 1.0, structure=structure, tolerance=Relative(0.3), rounds=2)
    norm = sum(float(p.detach().double().square().sum()) for p in head.parameters())
    assert report.objectives[-1] == pytest.approx(0.5 * norm + enumerated(head, data, hinge), rel=1e-4)


def test_batches_pad_them_with_no_label():
    data = problem()
    items = [data[0], data[4], data[2]]
    assert items[0].y.shape == (1, K)
    for batch in (
        data.collate(items),
        data.__getitems__([0, 4, 2]),
        next(iter(in_order(PrecomputedFeatures(data, nn.Identity())))),
    ):
        beyond = torch.arange(batch.y.shape[1]) >= batch.lengths[:, None]
        assert batch.y.dtype == torch.bool
        assert torch.equal(~batch.y.any(2), beyond)
    part, _ = hold_out(data, 0.5)
    assert next(iter(in_order(part))).y.shape[2] == K


def test_unknown_labels_stay_unknown_with_computed_features():
    data = PaddedDataset(torch.zeros(1, 2, K), torch.tensor([[0, -100]]))
    assert PrecomputedFeatures(data, nn.Identity()).y.tolist() == [[0, -100]]
