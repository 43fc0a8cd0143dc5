"""The n best segmentations, against a list of all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import examples

from torchssvm import Potentials, Segments
from torchssvm.core.potentials import inner


@st.composite
def problems(draw):
    labels, most, batch = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    least = [draw(st.integers(1, 2 if most > 1 else 1)) for _ in range(labels)]
    least[0] = 1  # every length can be cut
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    lengths = torch.randint(1, 5, (batch,), generator=generator)
    structure = Segments(labels, most, min_duration=least, boundary=draw(st.booleans()))
    shapes = (batch, int(lengths.max()), structure.num_scores), (batch, labels + most, labels)
    scores = [torch.randn(shape, generator=generator) for shape in shapes]
    whole = draw(st.booleans())  # whole numbers have many ties
    tensors = dict(zip(("emission", "segment"), (s.round() if whole else s for s in scores), strict=True))
    return structure, Potentials(tensors, lengths), draw(st.integers(1, 9))


@examples(60)
@given(problems())
def test_the_n_best_of_all(problem):
    structure, potentials, n = problem
    found, best = structure.nbest(potentials, n), structure.argmax(potentials).labeling
    for row, size in enumerate(potentials.lengths.tolist()):
        values = {
            tuple(codes[row].tolist()): float(inner(structure.parts(codes), potentials.tensors)[row])
            for codes in structure.enumerate(potentials)
        }
        expected = sorted(values.values(), reverse=True)[:n]
        there = len(expected)
        assert found.values[row, :there].tolist() == pytest.approx(expected, abs=1e-5)
        listed = [tuple(codes) for codes in found.labelings[row].tolist()]
        assert len(set(listed[:there])) == there
        assert [values[codes] for codes in listed[:there]] == pytest.approx(expected, abs=1e-5)
        assert values[tuple(best[row].tolist())] == pytest.approx(expected[0], abs=1e-5)
        assert bool((found.labelings[row, there:] == -1).all())
        assert bool((found.labelings[row, :, size:] == -1).all())
        assert bool((found.values[row, there:] == -torch.inf).all())


def test_refusals():
    potentials = Potentials({"emission": torch.zeros(1, 2, 2), "segment": torch.zeros(1, 4, 2)})
    with pytest.raises(ValueError, match="n=0"):
        Segments(2, 2).nbest(potentials, 0)
    with pytest.raises(ValueError, match="emission that is NaN"):
        Segments(2, 2).nbest(potentials.replace({"emission": torch.full((1, 2, 2), torch.nan)}), 1)
