"""Sets of labels with pairwise scores: the structure, with each of its decoders, against all sets of few labels."""

import math

import pytest
import torch
from cases.problems import examples, rng
from cases.structure_cases import BATCHES, SEEDS, StructureTestCase
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import Multilabel, Potentials
from torchssvm.core.max_oracle import find_corner
from torchssvm.structures.multilabel import BranchAndBound, MessagePassing

K = 4
WEIGHTS = torch.tensor([1.0, 0.5, 0.0, 3.0])


class MultilabelCase(StructureTestCase):
    options: dict = {}  # noqa: RUF012
    shared, attractive, no_values = True, False, (2, -1)

    def make_structure(self):
        return Multilabel(K, **self.options)

    def listed(self):
        pairs = self.options.get("pairs", torch.triu_indices(K, K, 1).T)
        return [(i, j) for i, j in pairs.tolist()]

    def make_potentials(self, random, batch, integers, dtype):
        def draw(*shape):
            numbers = torch.randn(shape, generator=random, dtype=torch.float64)
            return (2 * numbers).round().to(dtype) if integers else numbers.to(dtype)

        unary, pairs = draw(batch, K), len(self.listed())
        pairwise = draw(pairs).expand(batch, -1) if self.shared else draw(batch, pairs)
        tensors = {"unary": unary, "pairwise": pairwise.abs() if self.attractive else pairwise}
        return Potentials(tensors if self.options.get("pairwise", True) else {"unary": unary})

    def random_target(self, structure, potentials, random):
        return torch.randint(0, 2, (potentials.batch_size, K), generator=random)

    def reference_score(self, potentials, labeling):
        on = [k for k, y in enumerate(labeling.tolist()) if y]
        pairs = self.listed()
        together = potentials.get("pairwise", torch.zeros(len(pairs))).tolist()
        alone = sum(potentials["unary"][k].item() for k in on)
        return alone + sum(w for (i, j), w in zip(pairs, together, strict=True) if i in on and j in on)

    def reference_loss(self, structure, labeling, target):
        weights = self.options.get("weights", torch.ones(K)).tolist()
        wrong = [a != b for a, b in zip(labeling.tolist(), target.tolist(), strict=True)]
        total = sum(weight for weight, bad in zip(weights, wrong, strict=True) if bad)
        return total / sum(weights) if self.options.get("normalize", True) else total

    def count(self, structure, potentials, row):
        return 2**K

    def several(self, structure, potentials, seed, count):
        """At potentials of any sign, where messages alone are not exact."""
        return super().several(
            Multilabel(K, pairwise=structure.pairwise, pairs=structure.pairs), potentials, seed, count
        )


class TestMultilabel(MultilabelCase):
    """Weights that all examples share, as the heads give them."""


@pytest.mark.variant
class TestMultilabelByExample(MultilabelCase):
    """Every example has its own scores of pairs; a label that costs nothing, and the sum of costs."""

    shared = False
    options = {"normalize": False, "weights": WEIGHTS}  # noqa: RUF012


@pytest.mark.variant
class TestMultilabelWithoutPairs(MultilabelCase):
    options = {"pairwise": False, "weights": WEIGHTS}  # noqa: RUF012


@pytest.mark.variant
class TestAttractiveByMessages(MultilabelCase):
    """A minimum cut: messages alone are exact."""

    attractive = True
    options = {"decoder": MessagePassing(10_000)}  # noqa: RUF012


class TestMultilabelOfSomePairs(MultilabelCase):
    """Pairs that make no circle: messages alone are exact."""

    options = {"decoder": MessagePassing(10_000), "pairs": torch.tensor([[0, 2], [1, 2], [1, 3]])}  # noqa: RUF012


@examples(40)
@given(seed=SEEDS, batch=BATCHES, max_rounds=st.integers(1, 30))
def test_messages_that_leave_a_gap_still_bound_the_hinge(seed, batch, max_rounds):
    random = rng(seed)
    structure = Multilabel(6, decoder=MessagePassing(max_rounds))
    unary = torch.randn(batch, 6, generator=random, dtype=torch.float64)
    pairwise = 3 * torch.randn(15, generator=random, dtype=torch.float64)
    potentials = Potentials({"unary": unary, "pairwise": pairwise.expand(batch, -1)})
    target = structure.check_target(torch.randint(0, 2, (batch, 6), generator=random), potentials)
    corner, best = (find_corner(s, potentials, target) for s in (structure, Multilabel(6)))
    assert best.exact
    assert bool((corner.hinge >= 0.0).all())
    assert bool((corner.hinge <= best.hinge + 1e-9).all())
    assert bool((corner.bound >= best.hinge - 1e-9).all())
    if corner.exact:
        torch.testing.assert_close(corner.hinge, best.hinge)


def test_what_is_too_much_for_branching_has_a_bound():
    random = rng(0)
    unary = torch.randn(2, 40, generator=random, dtype=torch.float64) * 0.1
    pairwise = torch.randn(780, generator=random, dtype=torch.float64)
    potentials = Potentials({"unary": unary, "pairwise": pairwise.expand(2, -1)})
    decoding = Multilabel(40, decoder=BranchAndBound(effort=20_000)).argmax(potentials)
    longer = Multilabel(40, decoder=BranchAndBound(effort=1_000_000)).argmax(potentials)
    messages = Multilabel(40, decoder=MessagePassing()).argmax(potentials)
    assert not decoding.exact
    assert bool((messages.value <= decoding.value).all())
    assert bool((decoding.value <= longer.value).all())
    assert bool(((longer.value if longer.exact else longer.bound) <= decoding.bound + 1e-9).all())
    assert bool((decoding.bound <= messages.bound + 1e-9).all())


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"num_labels": 0}, "num_labels"),
        ({"weights": torch.ones(3)}, "weights"),
        ({"weights": -torch.ones(4)}, "weights"),
        ({"weights": torch.tensor([1.0, 1.0, 1.0, math.nan])}, "weights"),
        ({"pairs": torch.tensor([[0, 1]]), "pairwise": False}, "pairs"),
        ({"pairs": torch.tensor([[0, 1, 2]])}, "pairs"),
        ({"pairs": torch.tensor([[0, 1]]).int()}, "pairs"),
        ({"pairs": torch.tensor([[1, 0]])}, "pairs"),
        ({"pairs": torch.tensor([[0, 1], [0, 1]])}, "pairs"),
        ({"pairs": torch.tensor([[2, 4]])}, "pairs"),
        ({"pairs": torch.zeros(0, 2).long()}, "pairs"),
    ],
)
def test_bad_options(options, argument):
    with pytest.raises(ValueError, match=argument):
        Multilabel(**{"num_labels": 4, **options})
