"""The n best sequences of chains, and segmentations, against a list of all."""

import pytest
import torch
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import Chain, Potentials, Segments
from torchssvm.core.potentials import inner
from torchssvm.structures.chain import Transitions

SIZES, DTYPES = st.integers(1, 3), st.sampled_from([torch.float32, torch.float64])


def scored(draw, generator, lengths, **shapes) -> Potentials:
    """Potentials of these lengths; whole numbers have many ties."""
    whole, dtype = draw(st.booleans()), draw(DTYPES)
    scores = {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()}
    return Potentials({name: score.round() if whole else score for name, score in scores.items()}, lengths)


@st.composite
def problems(draw):
    """A chain or segments, with potentials."""
    labels, batch = draw(SIZES), draw(SIZES)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    lengths = torch.randint(1, 5, (batch,), generator=generator)
    longest = int(lengths.max())
    if draw(st.booleans()):
        shared, allowed = draw(st.booleans()), None
        if draw(st.booleans()):
            pairs = torch.rand(labels, labels, generator=generator) > 0.3
            pairs[0, 0] = True
            allowed = Transitions(pairs, first=torch.tensor([True] + [bool(pairs[0, k]) for k in range(1, labels)]))
        shape = (batch, labels, labels) if shared else (batch, longest - 1, labels, labels)
        potentials = scored(draw, generator, lengths, emission=(batch, longest, labels), transition=shape)
        return Chain(labels, shared=shared, transitions=allowed), potentials
    most = draw(SIZES)
    least = [1, *(draw(st.integers(1, min(most, 2))) for _ in range(labels - 1))]  # every length can be cut
    structure = Segments(labels, most, min_duration=least, boundary=draw(st.booleans()))
    shapes = {"emission": (batch, longest, structure.num_scores), "segment": (batch, labels + most, labels)}
    return structure, scored(draw, generator, lengths, **shapes)


@pytest.mark.slow
@examples(100)
@given(problems(), st.integers(1, 9))
def test_the_n_best_of_all(problem, n):
    structure, potentials = problem
    result, best = structure.nbest(potentials, n), structure.argmax(potentials).labeling
    assert result.labelings.shape == (potentials.batch_size, n, potentials["emission"].shape[1])
    assert isinstance(structure, Segments) or torch.equal(result.labelings[:, 0], best)
    for row, size in enumerate(potentials.lengths.tolist()):
        values = {
            tuple(labels[row].tolist()): float(inner(structure.parts(labels), potentials.tensors)[row])
            for labels in structure.enumerate(potentials)
        }
        expected = sorted(values.values(), reverse=True)[:n]
        count = len(expected)
        assert result.values[row, :count].tolist() == pytest.approx(expected, abs=1e-5)
        listed = [tuple(labels) for labels in result.labelings[row].tolist()]
        assert len(set(listed[:count])) == count
        assert [values[labels] for labels in listed[:count]] == pytest.approx(expected, abs=1e-5)
        assert values[tuple(best[row].tolist())] == pytest.approx(expected[0], abs=1e-5)
        assert bool((result.labelings[row, count:] == -1).all())
        assert bool((result.labelings[row, :, size:] == -1).all())
        assert bool((result.values[row, count:] == -torch.inf).all())


CHAIN = {"emission": torch.zeros(1, 2, 2), "transition": torch.zeros(1, 2, 2)}
FRAMES = {"emission": torch.zeros(1, 2, 2), "segment": torch.zeros(1, 4, 2)}
NAN = {"emission": torch.full((1, 2, 2), torch.nan)}


@pytest.mark.parametrize(
    "structure, tensors, lengths, n, argument",
    [
        (Chain(2), CHAIN, None, 0, "n="),
        (Chain(2), CHAIN | NAN, None, 1, "potentials"),
        (Chain(2), CHAIN | {"transition": torch.zeros(1, 3, 3)}, None, 1, "transition"),
        (Chain(2), CHAIN, torch.tensor([3]), 1, "lengths"),
        (Segments(2, 2), FRAMES, None, 0, "n="),
        (Segments(2, 2), FRAMES | NAN, None, 1, "potentials"),
    ],
)
def test_what_does_not_fit_is_refused(structure, tensors, lengths, n, argument):
    with pytest.raises(ValueError, match=argument):
        structure.nbest(Potentials(tensors, lengths), n)
