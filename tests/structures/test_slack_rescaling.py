"""Slack rescaling: what every structure must do, and the oracles against enumeration."""

import itertools

import pytest
import torch
from cases import plain_structures as plain
from cases.problems import examples, rng
from cases.top_label_sets import LabelSets
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import Chain, Multiclass, Potentials, SlackRescaling, Structure, WeightedLabels
from torchssvm.core.decoding import Decoding
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import scale
from torchssvm.structures.chain.oracle import viterbi_by_level
from torchssvm.structures.slack_rescaling import (
    BruteForceSearch,
    EveryClass,
    EveryLossLevel,
    SlackOracle,
)

SEEDS = st.integers(0, 2**31 - 1)


class Rescaled:
    """The tests of the wrapped structure, with the product for the max oracle of training."""

    oracle = None

    def make_structure(self):
        return SlackRescaling(super().make_structure(), self.oracle)

    def augmented_score(self, structure, potentials, labeling, target):
        score = self.score(structure, potentials, target)
        product = structure.loss(labeling, target) * (1 + self.score(structure, potentials, labeling) - score)
        return product + score

    def difference(self, structure, potentials, labeling, target):
        return scale(super().difference(structure, potentials, labeling, target), structure.loss(labeling, target))


class TestSlackMulticlass(Rescaled, plain.MulticlassCase):
    def test_the_oracle_is_the_one_for_classes(self):
        assert isinstance(self.make_structure().oracle, EveryClass)


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
    result = viterbi_by_level(emission, transition, levels, real)
    for b in range(batch):
        best: dict[int, tuple[float, tuple[int, ...]]] = {}
        length = int(lengths[b])
        for y in itertools.product(range(states), repeat=length):
            score = sum(float(emission[b, t, y[t]]) for t in range(length))
            for t in range(length - 1):
                score += float((transition[b] if shared else transition[b, t])[y[t], y[t + 1]])
            level = sum(int(levels[b, t, y[t]]) for t in range(length))
            best[level] = max(best.get(level, (-torch.inf, y)), (score, y))
        for level in range(result.scores.shape[1]):
            expected = best.get(level, (-torch.inf, None))[0]
            assert float(result.scores[b, level]) == pytest.approx(expected, abs=1e-10)
            if level in best:
                labels = result.labels(torch.full((batch,), level))[b].tolist()
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


class Unlisted(LabelSets):
    enumerate = Structure.enumerate


@pytest.mark.parametrize(
    ("structure", "oracle", "argument"),
    [
        (Unlisted(4, 2), None, "structure"),
        (Unlisted(4, 2), BruteForceSearch(), "structure"),
        (Chain(2), EveryClass(), "structure"),
        (Multiclass(3), EveryLossLevel(), "structure"),
        (Multiclass(3), "exact", "oracle"),
        (Multiclass(3), EveryClass, "oracle"),
        ("chain", None, "structure"),
        (SlackRescaling(Multiclass(3)), None, "structure"),
    ],
)
def test_what_does_not_fit_is_refused(structure, oracle, argument):
    with pytest.raises(TypeError, match=f"{argument}="):
        SlackRescaling(structure, oracle)


def test_limits_and_costs_without_a_unit():
    structure, potentials, target = chains(0, 1.0, batch=3)
    with pytest.raises(ValueError, match="most"):
        find_corner(SlackRescaling(structure, BruteForceSearch(80)), potentials, target)
    find_corner(SlackRescaling(structure, BruteForceSearch(81)), potentials, target)
    with pytest.raises(ValueError, match="most"):
        find_corner(SlackRescaling(structure, EveryLossLevel(1)), potentials, target)
    weights = torch.ones(3, 4)
    weights[1, 0] = 1.3
    weighted = structure.check_target(WeightedLabels(target, weights), potentials)
    assert int(potentials.lengths[1]) > 1
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        find_corner(SlackRescaling(structure), potentials, weighted)


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
