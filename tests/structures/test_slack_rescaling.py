"""Slack rescaling: what every structure must do, and the oracles against enumeration."""

from __future__ import annotations

import itertools

import plain_structures as plain
import pytest
import torch
from custom import Approximate, LabelSets
from hypothesis import example, given
from hypothesis import strategies as st
from problems import examples, rng
from tables import each_row

from torchssvm import Chain, HiddenStates, Multiclass, Potentials, SlackRescaling, Structure, WeightedLabels
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import conform, inner, scale
from torchssvm.core.structure import Decoding
from torchssvm.structures.chain.by_level import viterbi_by_level
from torchssvm.structures.slack_rescaling import (
    BruteForceSearch,
    EveryClass,
    EveryLossLevel,
    LossScaleSearch,
    SlackOracle,
)

SEEDS = st.integers(0, 2**31 - 1)


class Rescaled:
    """The tests of the wrapped structure, with the product for the max oracle of training."""

    oracle = None

    def make_structure(self):
        return SlackRescaling(super().make_structure(), self.oracle)

    def augmented_score(self, structure, potentials, labeling, target):
        own = self.score(structure, potentials, target)
        product = structure.loss(labeling, target) * (1 + self.score(structure, potentials, labeling) - own)
        return product + own

    def difference(self, structure, potentials, labeling, target):
        return scale(super().difference(structure, potentials, labeling, target), structure.loss(labeling, target))


class TestSlackMulticlass(Rescaled, plain.MulticlassCase):
    def test_the_oracle_is_the_one_for_classes(self):
        assert repr(self.make_structure()) == "SlackRescaling(Multiclass(4), oracle=EveryClass())"


class TestSlackChain(Rescaled, plain.ChainCase):
    def test_the_oracle_is_the_one_for_chains(self):
        assert isinstance(self.make_structure().oracle, EveryLossLevel)


for _name, _case, _oracle in (
    ("MulticlassCost", plain.MulticlassCostCase, None),
    ("MulticlassOutputs", plain.MulticlassCostCase, BruteForceSearch()),
    ("ChainPositions", plain.ChainPositionsCase, None),
    ("ChainCounts", plain.ChainCountsCase, None),
    ("ChainClassWeights", plain.ChainClassWeightsCase, None),  # costs of 0.5, 0 and 3: units of 0.5
    ("ChainTransitions", plain.ChainTransitionsCase, None),
    ("ChainWeightedLabels", plain.ChainWeightedLabelsCase, BruteForceSearch()),  # costs without a common unit
):
    _made = type(f"TestSlack{_name}", (Rescaled, _case), {"__module__": __name__, "oracle": _oracle})
    globals()[_made.__name__] = pytest.mark.variant(_made)


@examples(30)
@given(seed=SEEDS, batch=st.integers(1, 3), longest=st.integers(1, 4), states=st.integers(1, 3), shared=st.booleans())
def test_the_best_sequence_of_every_level(seed, batch, longest, states, shared):
    random = rng(seed)
    emission = torch.randn(batch, longest, states, generator=random, dtype=torch.float64)
    pairs = (batch, states, states) if shared else (batch, longest - 1, states, states)
    transition = torch.randn(pairs, generator=random, dtype=torch.float64)
    levels = torch.randint(0, 3, (batch, longest, states), generator=random)
    lengths = torch.randint(1, longest + 1, (batch,), generator=random)
    real = torch.arange(longest) < lengths.unsqueeze(1)
    found = viterbi_by_level(emission, transition, levels, real)
    for b in range(batch):
        best: dict[int, tuple[float, tuple[int, ...]]] = {}
        length = int(lengths[b])
        for y in itertools.product(range(states), repeat=length):
            score = sum(float(emission[b, t, y[t]]) for t in range(length))
            for t in range(length - 1):
                score += float((transition[b] if shared else transition[b, t])[y[t], y[t + 1]])
            level = sum(int(levels[b, t, y[t]]) for t in range(length))
            best[level] = max(best.get(level, (-torch.inf, y)), (score, y))
        for level in range(found.scores.shape[1]):
            expected = best.get(level, (-torch.inf, None))[0]
            assert float(found.scores[b, level]) == pytest.approx(expected, abs=1e-10)
            if level in best:
                labels = found.labels(torch.full((batch,), level))[b].tolist()
                assert labels == [*best[level][1], *[-1] * (longest - length)]


def chains(seed: int, size: float, batch: int = 20, states: int = 3, longest: int = 4):
    random = rng(seed)
    lengths = torch.randint(1, longest + 1, (batch,), generator=random)
    tensors = {
        "emission": size * torch.randn(batch, longest, states, generator=random, dtype=torch.float64),
        "transition": size * torch.randn(batch, states, states, generator=random, dtype=torch.float64),
    }
    potentials = Potentials(tensors, lengths, ragged={"emission": 0})
    target = torch.randint(0, states, (batch, longest), generator=random)
    return Chain(states), potentials, Chain(states).check_target(target, potentials)


def factors(structure, potentials, target):
    """Loss and 1 + score difference of every output: ``[Y, B]`` each."""
    own = inner(conform(structure.parts(target), potentials, "parts"), potentials.tensors)
    outputs = list(structure.enumerate(potentials))
    losses = torch.stack([structure.loss(y, target).double() for y in outputs])
    scores = [inner(conform(structure.parts(y), potentials, "parts"), potentials.tensors) for y in outputs]
    return losses, 1 + torch.stack(scores) - own


def hull_maximum(losses, margins) -> float:
    """The largest product of one example on the convex hull of all (loss, margin): it lies between two outputs."""
    best = 0.0
    for (g, h), (a, b) in itertools.combinations_with_replacement(zip(losses, margins, strict=True), 2):
        u, v = a - g, b - h  # (g + t u)(h + t v) with t in [0, 1], both factors non-negative
        for t in (0.0, 1.0, -(g * v + h * u) / (2 * u * v) if u * v < 0 else 0.0):
            point = g + min(max(t, 0.0), 1.0) * u, h + min(max(t, 0.0), 1.0) * v
            if point[1] >= 0:
                best = max(best, point[0] * point[1])
    return best


@examples(10)
@given(seed=SEEDS, size=st.sampled_from([0.1, 1.0, 5.0]), calls=st.integers(3, 12))
def test_the_bound_of_the_search_is_a_bound(seed, size, calls):
    structure, potentials, target = chains(seed, size)
    losses, margins = factors(structure, potentials, target)
    best = (losses * margins).amax(0)
    corner = find_corner(SlackRescaling(structure, LossScaleSearch(calls)), potentials, target)
    assert bool((corner.hinge <= best + 1e-9).all())
    assert bool((corner.bound >= best - 1e-9).all())
    assert bool((corner.hinge >= 0).all())
    if corner.exact:
        torch.testing.assert_close(corner.hinge, best)
    previous = find_corner(SlackRescaling(structure, LossScaleSearch(calls + 1)), potentials, target)
    assert bool((previous.bound <= corner.bound + 1e-9).all())
    assert bool((previous.hinge >= corner.hinge - 1e-9).all())


@examples(5)
@example(seed=1163799, size=0.3)  # an output above the chord that leaves the bound where it is
@given(seed=SEEDS, size=st.sampled_from([0.3, 2.0]))
def test_the_search_comes_to_the_convex_hull(seed, size):
    structure, potentials, target = chains(seed, size, batch=4, longest=3)
    losses, margins = factors(structure, potentials, target)
    corner = find_corner(SlackRescaling(structure, LossScaleSearch(40)), potentials, target)
    for row in range(4):
        expected = hull_maximum(losses[:, row].tolist(), margins[:, row].tolist())
        assert float(corner.bound[row]) == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_the_search_errs_now_and_then_and_mostly_not():
    """Outputs inside the hull cannot be found: this oracle is approximate indeed, and says so."""
    wrong = total = 0
    for seed in range(10):
        structure, potentials, target = chains(seed, 1.0)
        best = find_corner(SlackRescaling(structure), potentials, target).hinge
        corner = find_corner(SlackRescaling(structure, LossScaleSearch()), potentials, target)
        wrong += int((corner.hinge < best - 1e-9).sum())
        total += len(best)
        assert not corner.exact
        assert float((corner.hinge / best.clamp(min=1e-9)).clamp(max=1).mean()) > 0.9
    assert 0 < wrong < total / 5


@pytest.mark.parametrize("calls", [3, 4, 30])
def test_the_search_decodes_no_more_often_than_it_may(calls):
    decoded = []

    class Counting(Chain):
        def argmax(self, potentials):
            decoded.append(potentials.batch_size)
            return super().argmax(potentials)

    _, potentials, target = chains(1, 1.0)
    find_corner(SlackRescaling(Counting(3), LossScaleSearch(calls)), potentials, target)
    assert 3 <= len(decoded) <= calls
    assert len(decoded) < 20  # the hull has few edges, and the search stops when it is reached


@examples(20)
@given(seed=SEEDS)
def test_a_search_with_an_approximate_oracle_has_a_bound(seed):
    random = rng(seed)
    potentials = Potentials(torch.randn(6, 4, generator=random, dtype=torch.float64))
    target = torch.zeros(6, 4, dtype=torch.int64)
    target[:, :2] = 1
    losses, margins = factors(LabelSets(4, 2), potentials, target)
    corner = find_corner(SlackRescaling(Approximate(4, 2), LossScaleSearch()), potentials, target)
    assert not corner.exact
    assert bool((corner.bound >= (losses * margins).amax(0) - 1e-9).all())


class Worthless(LabelSets):
    """Finds the worst output, and knows how good the best is."""

    def argmax(self, potentials):
        labeling = super().argmax(potentials.replace({n: -t for n, t in potentials.tensors.items()}))
        value = (potentials.single * labeling).sum(1)
        return Decoding(labeling, value, potentials.single.topk(self.size, dim=1).values.sum(1), exact=False)


def test_a_search_that_finds_nothing_falls_back_on_the_target():
    potentials = Potentials(torch.tensor([[4.0, 3.0, -3.0, -4.0], [0.0, 0.0, 0.0, 0.0]]))
    target = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0]])
    corner = find_corner(SlackRescaling(Worthless(4, 2), LossScaleSearch()), potentials, target)
    assert torch.equal(corner.labeling[0], target[0])
    assert corner.hinge[0] == 0.0 < corner.bound[0]
    assert corner.hinge[1] == 1.0  # all scores are 0, so the worst loss is best: two wrong labels of two
    assert not corner.exact


def test_a_search_that_finds_nothing_falls_back_on_the_states_of_a_target_of_labels():
    class Worst(Multiclass):
        def argmax(self, potentials):
            least, most = potentials.single.aminmax(dim=1)
            return Decoding(potentials.single.argmin(1), least, most, exact=False)

        augmented_argmax = Structure.augmented_argmax

    hidden = HiddenStates(Worst(3), [0, 0, 1])
    potentials = Potentials(torch.tensor([[0.0, -4.0, 5.0]]))
    target = hidden.check_target(torch.tensor([1]), potentials)
    corner = find_corner(SlackRescaling(hidden, LossScaleSearch()), potentials, target)
    assert (corner.labeling.tolist(), corner.hinge.tolist()) == ([2], [0.0])


class NoBound(LabelSets):
    def argmax(self, potentials):
        return Decoding(super().argmax(potentials), exact=False)


def test_a_search_needs_bounds_of_an_approximate_oracle():
    potentials = Potentials(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="must return bound"):
        find_corner(SlackRescaling(NoBound(4, 2), LossScaleSearch()), potentials, torch.tensor([[1, 1, 0, 0]]))


class Unlisted(LabelSets):
    enumerate = Structure.enumerate


def test_without_an_exact_oracle_the_error_names_them_all():
    with pytest.raises(TypeError, match="Unlisted has no exact oracle") as caught:
        SlackRescaling(Unlisted(4, 2))
    for oracle in ("EveryClass()", "EveryLossLevel()", "BruteForceSearch()", "LossScaleSearch()"):
        assert oracle in str(caught.value)
    SlackRescaling(Unlisted(4, 2), LossScaleSearch())


@each_row(
    ("structure", "oracle", "words"),
    [
        (Unlisted(4, 2), BruteForceSearch(), r"Unlisted does not define enumerate\(\)(.|\n)*LossScaleSearch"),
        (Chain(2), EveryClass(), r"EveryClass is for Multiclass, not for Chain(.|\n)*LossScaleSearch"),
        (Multiclass(3), EveryLossLevel(), r"EveryLossLevel is for Chain, not for Multiclass(.|\n)*LossScaleSearch"),
        (Multiclass(3), "exact", r"oracle must be one of these, not a str(.|\n)*LossScaleSearch"),
        (Multiclass(3), EveryClass, "oracle must be one of these"),
        ("chain", None, "structure must be a torchssvm.Structure"),
        (SlackRescaling(Multiclass(3)), None, "not rescaled itself"),
    ],
)
def test_what_does_not_fit_is_refused(structure, oracle, words):
    with pytest.raises(TypeError, match=words):
        SlackRescaling(structure, oracle)


@each_row(
    ("make", "words"),
    [
        (lambda: BruteForceSearch(0), "most=0"),
        (lambda: EveryLossLevel(0), "most=0"),
        (lambda: LossScaleSearch(2), "calls=2 must be a whole number, at least 3"),
    ],
)
def test_options_must_make_sense(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_limits_and_costs_without_a_unit():
    structure, potentials, target = chains(0, 1.0, batch=3)
    with pytest.raises(ValueError, match=r"more outputs than BruteForceSearch\(most=80\)"):
        find_corner(SlackRescaling(structure, BruteForceSearch(80)), potentials, target)
    find_corner(SlackRescaling(structure, BruteForceSearch(81)), potentials, target)
    with pytest.raises(ValueError, match=r"loss has \d levels, and EveryLossLevel\(most=1\)"):
        find_corner(SlackRescaling(structure, EveryLossLevel(1)), potentials, target)
    weights = torch.ones(3, 4)
    weights[1, 0] = 1.3
    weighted = structure.check_target(WeightedLabels(target, weights), potentials)
    assert int(potentials.lengths[1]) > 1
    with pytest.raises(ValueError, match=r"rows \[1\] are not whole multiples"):
        find_corner(SlackRescaling(structure), potentials, weighted)


def test_a_structure_that_lists_nothing():
    class Nothing(LabelSets):
        def enumerate(self, potentials):
            return None

    with pytest.raises(ValueError, match="lists no outputs"):
        find_corner(SlackRescaling(Nothing(4, 2)), Potentials(torch.zeros(1, 4)), torch.tensor([[1, 1, 0, 0]]))


def test_an_oracle_of_ones_own():
    class First(SlackOracle):
        def check(self, structure):
            if not isinstance(structure, Multiclass):
                raise TypeError("classes only")

        def __call__(self, structure, potentials, target):
            return Decoding(
                target, torch.zeros(len(target), dtype=torch.float64), torch.full((len(target),), 9.0), False
            )

    potentials = Potentials(torch.tensor([[1.0, 2.0, 3.0]]))
    corner = find_corner(SlackRescaling(Multiclass(3), First()), potentials, torch.tensor([1]))
    assert corner.hinge.tolist() == [0.0]
    assert corner.bound.tolist() == [9.0]
    assert not corner.exact
    with pytest.raises(TypeError, match="classes only"):
        SlackRescaling(Chain(2), First())
