"""The generalised distance transform: against all pairs of places, and the same numbers from every implementation."""

import importlib
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import examples, rng
from tables import each_row

from torchssvm.structures.pose.distance_transform import distance_transform, distance_transform_torch

module = importlib.import_module(
    "torchssvm.structures.pose.distance_transform"
)  # the function of the same name hides it

SEEDS = st.integers(0, 10**6)
SIZES = st.integers(1, 5)
DTYPES = st.sampled_from([torch.float32, torch.float64])
WAYS = ["torch", "dense", "envelope"]


def images(seed, batch=2, height=5, width=6, integers=False, dtype=torch.float64, shared=False, flat=False):
    """With ``integers``, ties are common and all sums exact."""
    random = rng(seed)
    shape, costs = (batch, height, width), (4,) if shared else (batch, 4)
    if integers:
        scores, springs = torch.randint(-9, 10, shape, generator=random), torch.randint(-3, 4, costs, generator=random)
    else:
        scores, springs = 5 * torch.randn(shape, generator=random), torch.randn(costs, generator=random)
    springs = springs.double()
    springs[..., ::2] = 0.0 if flat else springs[..., ::2].abs()
    return scores.to(dtype), springs


def transform(way, scores, springs):
    if way == "torch":
        return distance_transform_torch(scores, springs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DENSE", 0 if way == "envelope" else 10**6)
        return distance_transform(scores, springs)


def reference(scores, springs):
    """All pairs, float64: the values, and the first of the best places."""
    batch, height, width = scores.shape
    value = np.full(scores.shape, -np.inf)
    place = np.zeros(scores.shape, int)
    for i in range(batch):
        a, b, c, d = springs.expand(batch, 4)[i].tolist()
        for py, px, qy, qx in itertools.product(range(height), range(width), range(height), range(width)):
            dx, dy = px - qx, py - qy
            found = float(scores[i, qy, qx]) - (a * dx**2 + b * dx) - (c * dy**2 + d * dy)
            if found > value[i, py, px]:
                value[i, py, px], place[i, py, px] = found, qy * width + qx
    return torch.from_numpy(value), torch.from_numpy(place)


@pytest.mark.parametrize("way", WAYS)
@examples(25)
@given(seed=SEEDS, batch=st.integers(1, 3), height=SIZES, width=SIZES, dtype=DTYPES, shared=st.booleans())
def test_the_best_of_all_places(way, seed, batch, height, width, dtype, shared):
    scores, springs = images(seed, batch, height, width, dtype=dtype, shared=shared)
    value, place = transform(way, scores, springs)
    assert value.dtype == dtype
    assert place.dtype == torch.int64
    expected, _ = reference(scores, springs)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-4 if dtype == torch.float32 else 1e-11)
    p, q = torch.arange(height * width).view(height, width), place
    dx, dy = p % width - q % width, p // width - q // width
    a, b, c, d = springs.expand(batch, 4).T[:, :, None, None]
    own = scores.flatten(1).gather(1, place.flatten(1)).view(place.shape).double()
    own -= a * dx**2 + b * dx + c * dy**2 + d * dy
    torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-4 if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize("way", WAYS)
@examples(40)
@given(seed=SEEDS, height=SIZES, width=SIZES, dtype=DTYPES, flat=st.booleans())
def test_ties_go_to_the_first_place(way, seed, height, width, dtype, flat):
    """Whole numbers, with and without curvature: all implementations agree to the bit."""
    scores, springs = images(seed, 2, height, width, integers=True, dtype=dtype, flat=flat)
    value, place = transform(way, scores, springs)
    expected, first = reference(scores, springs)
    assert torch.equal(value.double(), expected)
    assert torch.equal(place, first)


@pytest.mark.parametrize("way", WAYS)
@examples(20)
@given(seed=SEEDS, share=st.floats(0, 1))
def test_places_that_are_missing(way, seed, share):
    scores, springs = images(seed, integers=True)
    gone = torch.rand(scores.shape, generator=rng(seed)) < share
    scores[gone] = -torch.inf
    value, place = transform(way, scores, springs)
    expected, first = reference(scores, springs)
    assert torch.equal(value, expected)
    assert torch.equal(place, first)


@pytest.mark.parametrize("way", WAYS[1:])
@examples(20)
@given(seed=SEEDS, dtype=DTYPES)
def test_long_lines_equal_torch(way, seed, dtype):
    for shape in ((1, 200), (170, 1), (40, 33)):
        scores, springs = images(seed, 2, *shape, dtype=dtype)
        springs[:, ::2] *= 0.01
        value, place = transform(way, scores, springs)
        expected, first = distance_transform_torch(scores, springs)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-4 if dtype == torch.float32 else 1e-10)
        if way == "dense":
            assert torch.equal(value, expected)
            assert torch.equal(place, first)


@pytest.mark.parametrize("way", WAYS)
def test_a_tiny_curvature(way):
    scores = torch.tensor([[[0.0, 2.0, 1.0]]], dtype=torch.float64)
    for a in (0.0, 1e-300, 5e-324):
        value, place = transform(way, scores, torch.tensor([a, 0.0, a, 0.0], dtype=torch.float64))
        assert value.tolist() == [[[2.0, 2.0, 2.0]]]
        assert place.tolist() == [[[1, 1, 1]]]


@pytest.mark.parametrize("way", WAYS)
def test_a_known_transform(way):
    """The well-known distance to the nearest point, of two points."""
    scores = torch.full((1, 1, 6), -torch.inf)
    scores[0, 0, 1] = scores[0, 0, 5] = 0.0
    value, place = transform(way, scores, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert value.tolist() == [[[-1.0, 0.0, -1.0, -4.0, -1.0, 0.0]]]
    assert place.tolist() == [[[1, 1, 1, 1, 5, 5]]]


@each_row("way", WAYS)
@each_row(
    ("scores", "springs", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(4), r"scores must be \[B, H, W\]"),
        (torch.zeros(1, 0, 3), torch.zeros(4), "at least one place"),
        (torch.zeros(2, 3, 3), torch.zeros(3, 4), r"springs must be \[4\] or \[2, 4\]"),
        (
            torch.zeros(2, 3, 3),
            torch.tensor([-1.0, 0, 0, 0]),
            r"at least 0: got .*\[-1.0, 0.0, 0.0, 0.0\]; .*lower=0.0",
        ),
        (torch.zeros(1, 3, 3), torch.tensor([[0.0, 0, -0.5, 0]]), "at least 0"),
        (torch.zeros(1, 3, 3), torch.tensor([0.0, torch.nan, 0, 0]), "finite"),
        (torch.zeros(1, 3, 3), torch.tensor([0.0, torch.inf, 0, 0]), "finite"),
    ],
)
def test_what_does_not_fit_is_refused(way, scores, springs, words):
    with pytest.raises(ValueError, match=words):
        transform(way, scores, springs)
