"""The oracles of arborescences: against all of them, and against each other."""

import pytest
import torch
from cases.arborescences import KINDS, own_outputs
from cases.problems import examples, rng
from cases.random_potentials import draw
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.structures.arborescence.oracle import eisner, max_arborescence
from torchssvm.structures.arborescence.structure import has_root, is_projective

SEEDS = st.integers(0, 2**31 - 1)


def drawn(seed, batch, longest, integers=False, dtype=torch.float64):
    random = rng(seed)
    scores = draw(random, (batch, longest, longest + 1), integers, dtype)
    return scores, torch.randint(1, longest + 1, (batch,), generator=random)


@pytest.mark.parametrize("among", KINDS)
@examples(40)
@given(seed=SEEDS, longest=st.integers(1, 5), integers=st.booleans())
def test_the_best_of_all_arborescences(among, seed, longest, integers):
    scores, lengths = drawn(seed, 3, longest, integers)
    heads, value = among.argmax(scores, lengths)
    for b, length in enumerate(lengths.tolist()):
        result = tuple(heads[b, :length].tolist())
        assert result in own_outputs(among, length)
        total = {y: float(scores[b, range(length), list(y)].sum()) for y in own_outputs(among, length)}
        assert total[result] == pytest.approx(max(total.values()), abs=1e-12)
        assert float(value[b]) == pytest.approx(total[result], abs=1e-12)
        assert heads[b, length:].tolist() == [-1] * (longest - length)


def with_cycles(scores):
    """Neighbours would be each other's heads, and the pairs so too: contractions within others."""
    t = torch.arange(scores.shape[1])
    scores[:, t, (t ^ 1).clamp(max=len(t) - 1) + 1] += 20.0
    scores[:, t, (t ^ 2).clamp(max=len(t) - 1) + 1] += 10.0
    return scores


@examples(15)
@given(seed=SEEDS, longest=st.integers(6, 14), single_root=st.booleans(), kind=st.sampled_from(["normal", "cycles"]))
def test_long_sentences(seed, longest, single_root, kind):
    """The best of all arborescences is at least as good as the best projective one, and equal where that is enough."""
    scores, lengths = drawn(seed, 3, longest)
    if kind == "cycles":
        scores = with_cycles(scores)
    projective, lower = eisner(scores, lengths, single_root)
    heads, upper = max_arborescence(scores, lengths, single_root)
    assert bool(has_root(heads).all())
    assert bool(is_projective(projective).all())
    assert bool((upper >= lower - 1e-9).all())
    arc_scores = scores.gather(2, heads.clamp(min=0).unsqueeze(2)).squeeze(2).masked_fill(heads < 0, 0.0).sum(1)
    torch.testing.assert_close(arc_scores, upper)
    if single_root:
        assert ((heads == 0).sum(1) == 1).all()
        torch.testing.assert_close(upper, best_of_every_root(scores, lengths))
    same = is_projective(heads)
    torch.testing.assert_close(lower[same], upper[same])


def best_of_every_root(scores, lengths):
    """The root's only child is each token in turn."""
    best = torch.full((len(scores),), -torch.inf, dtype=torch.float64)
    for child in range(scores.shape[1]):
        only = scores.clone()
        only[:, :, 0] = -1e6
        only[:, child, 0] = scores[:, child, 0]
        heads, value = max_arborescence(only, lengths)
        single = ((heads == 0).sum(1) == 1) & (child < lengths)
        best = torch.where(single, torch.maximum(best, value), best)
    return best


@pytest.mark.parametrize("among", KINDS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_oracles_return_from_numbers_that_are_not_finite(among, value):
    scores, _ = drawn(1, 3, 6)
    scores[0], scores[1, 2], scores[2, :, 0] = value, value, value
    heads, _ = among.argmax(scores, None)
    assert bool(((heads >= 0) & (heads <= 6)).all())
