import itertools
import math

import pytest
import torch
from cases.head_cases import HeadTestCase
from cases.problems import examples, rng
from cases.random_potentials import draw
from cases.structure_cases import StructureTestCase
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from torchssvm import (
    LinearRanking,
    Potentials,
    Ranking,
)
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import inner
from torchssvm.structures.ranking import NDCG, PairSwaps, PrecisionAt

SEEDS = st.integers(0, 2**31 - 1)


def from_the_top(places):
    """The documents of a list from the top down."""
    return sorted(range(len(places)), key=lambda d: int(places[d]))


class RankingCase(StructureTestCase):
    """Lists of 1 to ``most`` documents, with at least one that is relevant."""

    measure = NDCG()
    most, grades, no_values = 4, 3, (-2,)

    def make_structure(self):
        return Ranking(self.measure)

    def make_potentials(self, random, batch, integers, dtype):
        lengths = torch.randint(1, self.most + 1, (batch,), generator=random)
        shape = (batch, int(lengths.max()))
        return Potentials({"scores": draw(random, shape, integers, dtype)}, lengths, ragged={"scores": 0})

    def random_target(self, structure, potentials, random):
        grades = torch.randint(0, self.grades, potentials.single.shape, generator=random)
        grades[:, 0] = grades[:, 0].clamp(min=1)
        garbage = torch.arange(grades.shape[1]) >= potentials.lengths.unsqueeze(1)
        return torch.where(garbage, torch.randint(-5, 9, grades.shape, generator=random), grades)

    def test_max_marginals_are_margins_among_all_outputs(self):
        structure, potentials, _ = self.setting(0)
        with pytest.raises(TypeError, match="max_marginals"):
            structure.max_marginals(potentials)

    def one(self, labeling, potentials, row):
        return super().one(getattr(labeling, "grades", labeling), potentials, row)

    def alone(self, labeling, potentials, row):
        return type(labeling)(self.one(labeling, potentials, row).unsqueeze(0))

    def weight(self, place, size):
        return self.measure.k is None or place < self.measure.k, 1 / math.log2(place + 2)

    def reference_parts(self, places):
        weights = [keep * weight for keep, weight in (self.weight(int(p), len(places)) for p in places)]
        return torch.tensor(weights, dtype=torch.float64)

    def reference_score(self, potentials, labeling):
        return float(self.reference_parts(labeling) @ potentials["scores"])

    def reference_difference(self, labeling, grades):
        """Less the mean of all orders that cost nothing."""
        ideal = [
            self.reference_parts(torch.tensor(places))
            for places in itertools.permutations(range(len(grades)))
            if all(places[i] < places[j] for i, j in self.pairs(self.levels(grades)))
        ]
        return self.reference_parts(labeling) - sum(ideal) / len(ideal)

    def levels(self, grades):
        return grades

    def pairs(self, grades):
        return [(i, j) for i, j in itertools.permutations(range(len(grades)), 2) if grades[i] > grades[j]]

    def difference(self, structure, potentials, labeling, target):
        result = torch.zeros_like(potentials.single)
        for row in range(potentials.batch_size):
            one, grades = self.one(labeling, potentials, row), self.one(target, potentials, row)
            result[row, : len(grades)] = self.reference_difference(one, grades).to(result.dtype)
        return {"scores": result}

    def augmented_score(self, structure, potentials, labeling, target):
        gain = inner(structure._difference(labeling, target, potentials), potentials.tensors)
        return self.score(structure, potentials, target) + gain + structure.loss(labeling, target)

    def count(self, structure, potentials, row):
        return math.factorial(int(potentials.lengths[row]))

    def bad_targets(self, potentials, target):
        return super().bad_targets(potentials, target.grades)

    @examples(8)
    @given(seed=SEEDS, batch=st.integers(1, 4))
    def test_the_loss_is_the_definition_and_its_potentials(self, seed, batch):
        structure, potentials, target = self.setting(seed, batch)
        with pytest.raises(NotImplementedError, match="loss_potentials"):
            structure.loss_potentials(target)
        for labeling in structure.enumerate(potentials):
            loss = structure.loss(labeling, target)
            result = structure._difference(labeling, target, potentials)["scores"]
            torch.testing.assert_close(result, self.difference(structure, potentials, labeling, target)["scores"])
            for row in range(batch):
                one = self.one(labeling, potentials, row), self.one(target, potentials, row)
                assert float(loss[row]) == pytest.approx(self.reference_loss(structure, *one), abs=1e-12)

    @examples(8)
    @given(seed=SEEDS)
    def test_the_corner_is_the_structured_hinge(self, seed):
        """Its parts too: those of the difference, which is not always one of parts."""
        structure, potentials, target = self.setting(seed)
        corner = find_corner(structure, potentials, target)
        hinge = self.best(structure, potentials, target) - self.score(structure, potentials, target)
        torch.testing.assert_close(corner.hinge, hinge)
        assert bool((corner.hinge >= -1e-12).all())
        assert corner.exact
        expected = self.difference(structure, potentials, corner.labeling, target)
        torch.testing.assert_close(corner.parts["scores"], expected["scores"])


@pytest.mark.parametrize("measure", [NDCG(), PrecisionAt(2)])
def test_scores_that_are_small_beside_gains_still_count(measure):
    """Of documents with equal gains the better one stands above, though the difference of their scores rounds away."""
    scores, grades = torch.tensor([[0.0, 4e-17, 2e-17]], dtype=torch.float64), torch.tensor([[1, 1, 0]])
    places = measure.worst(scores, grades)
    assert places[0, 1] < places[0, 0]
    assert float((measure.difference(places, grades) * scores).sum() + measure.loss(places, grades)) >= 0.0


class TestNDCG(RankingCase):
    def reference_loss(self, structure, labeling, target):
        def gain(order):
            places = zip(order, range(structure.measure.k or len(order)), strict=False)
            return sum((2 ** int(target[d]) - 1) / math.log2(place + 2) for d, place in places)

        return 1 - gain(from_the_top(labeling)) / gain(sorted(range(len(target)), key=lambda d: -int(target[d])))

    @examples(8)
    @given(seed=SEEDS)
    def test_the_oracle_is_the_best_assignment(self, seed):
        """Of documents to places, by a solver that knows nothing of sorting."""
        structure, potentials, target = self.setting(seed)
        corner = find_corner(structure, potentials, target)
        for row, length in enumerate(potentials.lengths.tolist()):
            grades, scores = target.grades[row, :length], potentials.single[row, :length]
            discount = self.reference_parts(torch.arange(length))
            gain = 2.0 ** grades.double() - 1.0
            gain = gain / (gain.sort(descending=True).values * discount).sum()
            values = (scores - gain).unsqueeze(1) * discount
            chosen = linear_sum_assignment(values, maximize=True)
            constant = 1.0 - float(structure.measure.ideal(grades.unsqueeze(0))[0] @ scores)
            assert float(corner.hinge[row]) == pytest.approx(float(values[chosen].sum()) + constant, abs=1e-12)


@pytest.mark.variant
class TestNDCGOfTheFirst(TestNDCG):
    measure = NDCG(k=2)
    most = 3


class TestPrecisionAt(RankingCase):
    measure = PrecisionAt(k=2, relevant=2)
    grades = 4
    most = 3

    def random_target(self, structure, potentials, random):
        return super().random_target(structure, potentials, random) + 1

    def levels(self, grades):
        return grades >= 2

    def weight(self, place, size):
        return place < 2, 1.0

    def reference_loss(self, structure, labeling, target):
        relevant = [d for d in range(len(target)) if target[d] >= 2]
        return 1 - sum(int(labeling[d]) < 2 for d in relevant) / min(2, len(relevant))


class PairsCase(RankingCase):
    def weight(self, place, size):
        return 1.0, size - 1 - 2 * place

    def is_swapped(self, labeling, i, j):
        return labeling[j] < labeling[i]

    def reference_difference(self, labeling, grades):
        result = torch.zeros(len(grades), dtype=torch.float64)
        pairs = self.pairs(self.levels(grades))
        for i, j in pairs:
            if self.is_swapped(labeling, i, j):
                result[i] -= 1 / len(pairs)
                result[j] += 1 / len(pairs)
        return result


@pytest.mark.variant
class TestPairSwaps(PairsCase):
    """All pairs of rankings are listed, so lists are short; longer ones are tested below."""

    measure = PairSwaps()
    most = 2

    def is_swapped(self, labeling, i, j):
        return labeling[j, 1] < labeling[i, 0]

    def reference_parts(self, places):
        result = torch.zeros(len(places), dtype=torch.float64)
        for i, j in itertools.permutations(range(len(places)), 2):
            sign = 0.5 if places[i, 0] < places[j, 1] else -0.5
            result[i] += sign
            result[j] -= sign
        return result

    def reference_loss(self, structure, labeling, target):
        pairs = self.pairs(target)
        return sum(bool(self.is_swapped(labeling, i, j)) for i, j in pairs) / max(len(pairs), 1)

    def count(self, structure, potentials, row):
        return math.factorial(2 * int(potentials.lengths[row]))


@pytest.mark.parametrize("measure", [NDCG(), PrecisionAt(2)])
def test_the_worst_order_is_that_of_float64(measure):
    random, structure = rng(7), Ranking(measure)
    grades = torch.tensor([[1, 0, 1, 0, 0]]).expand(200, 5)
    scores = torch.randint(-1, 2, (200, 5), generator=random) / 30 + 1e-9 * torch.randn(
        200, 5, generator=random, dtype=torch.float64
    )
    target = structure.check_target(grades, scores)

    def hinge(labeling):
        moved = structure._difference(labeling, target, Potentials(scores))["potentials"]
        return structure.loss(labeling, target) + (moved * scores).sum(1)

    best = torch.stack([hinge(labeling) for labeling in structure.enumerate(Potentials(scores))]).amax(0)
    assert float((best - hinge(measure.worst(scores, grades))).max()) < 1e-14


@examples(30)
@given(seed=SEEDS, normalize=st.booleans(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_the_hinge_of_swaps_is_that_of_each_pair(seed, normalize, dtype):
    """The best of all sets of pairs, whose pairs are chosen one by one."""
    random = rng(seed)
    lengths = torch.randint(1, 9, (4,), generator=random)
    scores = torch.randn(4, 8, generator=random, dtype=torch.float64).to(dtype)
    potentials = Potentials({"scores": scores}, lengths, ragged={"scores": 0})
    structure = Ranking(PairSwaps(normalize))
    target = structure.check_target(torch.randint(0, 5, (4, 8), generator=random), potentials)
    corner = find_corner(structure, potentials, target)
    for row, length in enumerate(lengths.tolist()):
        one, grades = scores[row, :length].double(), target.grades[row, :length]
        margins = one.unsqueeze(1) - one
        pairs = grades.unsqueeze(1) > grades
        expected = (1.0 - margins).clamp(min=0.0)[pairs].sum() / (max(int(pairs.sum()), 1) if normalize else 1)
        assert float(corner.hinge[row]) == pytest.approx(float(expected), abs=1e-5 if dtype == torch.float32 else 1e-12)


class TestLinearRanking(HeadTestCase):
    def make_head(self):
        return LinearRanking(3)

    def make_input(self, random, batch):
        x = torch.randn(batch, 4, 3, generator=random, dtype=torch.float64)
        return x, torch.randint(1, 5, (batch,), generator=random)

    def reference(self, head, x):
        return {"scores": sum(x[:, f] * head.weight[f] for f in range(3))}


@pytest.mark.parametrize("measure", [NDCG(), PrecisionAt(1, relevant=2)])
def test_lists_without_a_relevant_document_are_refused(measure):
    target = torch.tensor([[2, 0], [0, 0]])
    with pytest.raises(ValueError, match=r"target .*rows \[1\]"):
        Ranking(measure).check_target(target, torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("make", "error", "argument"),
    [
        (lambda: Ranking(NDCG), TypeError, "measure"),
        (lambda: Ranking("ndcg"), TypeError, "measure"),
        (lambda: NDCG(k=0), ValueError, "k"),
        (lambda: PrecisionAt(k=0), ValueError, "k"),
        (lambda: PrecisionAt(k=1, relevant=0), ValueError, "relevant"),
        (lambda: PairSwaps(normalize=1), TypeError, "normalize"),
        (lambda: LinearRanking(0), ValueError, "in_features"),
        (lambda: LinearRanking(2, structure="pairs"), TypeError, "structure"),
    ],
)
def test_wrong_arguments_are_refused(make, error, argument):
    with pytest.raises(error, match=f"{argument}="):
        make()
