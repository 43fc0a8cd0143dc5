"""The n best sequences of chains, against a list of all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import examples

from torchssvm import Chain, Potentials
from torchssvm.core.potentials import inner
from torchssvm.structures.chain import Transitions


@st.composite
def problems(draw):
    states, longest, batch = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    shared, whole = draw(st.booleans()), draw(st.booleans())  # whole numbers have many ties
    allowed = None
    if draw(st.booleans()):
        pairs = torch.rand(states, states, generator=generator) > 0.3
        pairs[0, 0] = True
        allowed = Transitions(pairs, first=torch.tensor([True] + [bool(pairs[0, k]) for k in range(1, states)]))
    shape = (batch, states, states) if shared else (batch, longest - 1, states, states)
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    scores = [torch.randn(size, generator=generator, dtype=dtype) for size in ((batch, longest, states), shape)]
    emission, transition = (score.round() if whole else score for score in scores)
    lengths = torch.randint(1, longest + 1, (batch,), generator=generator)
    lengths[0] = longest
    potentials = Potentials({"emission": emission, "transition": transition}, lengths)
    return Chain(states, shared=shared, transitions=allowed), potentials, draw(st.integers(1, 9))


@examples(60)
@given(problems())
def test_the_n_best_of_all(problem):
    chain, potentials, n = problem
    found = chain.nbest(potentials, n)
    assert found.labelings.shape == (potentials.batch_size, n, potentials["emission"].shape[1])
    assert torch.equal(found.labelings[:, 0], chain.argmax(potentials).labeling)
    for row in range(potentials.batch_size):
        values = {
            tuple(labels[row].tolist()): float(inner(chain.parts(labels), potentials.tensors)[row])
            for labels in chain.enumerate(potentials)
        }
        best = sorted(values.values(), reverse=True)[:n]
        there = len(best)
        torch.testing.assert_close(
            found.values[row, :there], torch.tensor(best, dtype=torch.float64), atol=1e-5, rtol=1e-5
        )
        listed = [tuple(labels) for labels in found.labelings[row].tolist()]
        assert len(set(listed[:there])) == there
        for labels, value in zip(listed[:there], found.values[row].tolist(), strict=False):
            assert values[labels] == pytest.approx(value, abs=1e-5)
        assert bool((found.labelings[row, there:] == -1).all())
        assert bool((found.values[row, there:] == -torch.inf).all())


def test_refusals():
    potentials = Potentials({"emission": torch.zeros(1, 2, 2), "transition": torch.zeros(1, 2, 2)})
    with pytest.raises(ValueError, match="n=0"):
        Chain(2).nbest(potentials, 0)
    with pytest.raises(ValueError, match=r"not finite|NaN"):
        Chain(2).nbest(potentials.replace({"emission": torch.full((1, 2, 2), torch.nan)}), 1)
    with pytest.raises(ValueError, match="transition"):
        Chain(2).nbest(potentials.replace({"transition": torch.zeros(1, 3, 3)}), 1)
    with pytest.raises(ValueError, match="lengths"):
        Chain(2).nbest(Potentials(potentials.tensors, torch.tensor([3])), 1)
