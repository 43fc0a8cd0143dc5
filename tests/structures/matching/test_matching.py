import itertools
import math

import numpy as np
import pytest
import torch
from cases.head_cases import HeadTestCase
from cases.problems import examples, rng
from cases.random_potentials import draw
from cases.structure_cases import StructureTestCase
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import (
    Edges,
    LinearEdges,
    Matching,
    Potentials,
)
from torchssvm.core.max_oracle import find_corner
from torchssvm.structures import POSSIBLE, best_matching
from torchssvm.structures.matching import EdgePotentials


def random_matching(left, right, random):
    """Every left node asks for a node at random; the first one gets it, and a third of them asks for none."""
    edges = torch.zeros(left, right, dtype=torch.int64)
    for s in range(left):
        t = int(torch.randint(-right // 2, right, (1,), generator=random))
        if t >= 0 and not edges[:, t].any():
            edges[s, t] = 1
    return edges


class MatchingCase(StructureTestCase):
    most, no_values = (3, 3), (3, -1)
    padded = True
    possible = True
    options: dict = {}  # noqa: RUF012

    def make_structure(self):
        return Matching(**self.options)

    def make_potentials(self, random, batch, integers, dtype):
        sizes = [torch.randint(1, most + 1, (batch,), generator=random) for most in self.most]
        shape = (batch, *(int(s.max()) for s in sizes)) if self.padded else (batch, *self.most)
        scores = draw(random, shape, integers, dtype)
        return EdgePotentials(scores, *sizes) if self.padded else Potentials(scores)

    def sizes(self, potentials, row):
        _, left, right = potentials.single.shape
        widths = getattr(potentials, "widths", None)
        return (
            left if potentials.lengths is None else int(potentials.lengths[row]),
            right if widths is None else int(widths[row]),
        )

    def random_target(self, structure, potentials, random):
        target = torch.randint(-5, 9, potentials.single.shape, generator=random)  # garbage in the padding
        for row in range(potentials.batch_size):
            left, right = self.sizes(potentials, row)
            edges = random_matching(left, right, random)
            if self.possible:
                free = torch.rand(edges.shape, generator=random) < 0.3
                edges[free & (edges == 0)] = POSSIBLE
            target[row, :left, :right] = edges
        return target

    def one(self, labeling, potentials, row):
        left, right = self.sizes(potentials, row)
        return labeling[row, :left, :right]

    def cropped(self, potentials, row):
        left, right = self.sizes(potentials, row)
        tensors = {name: tensor[row : row + 1, :left, :right] for name, tensor in potentials.tensors.items()}
        return (
            EdgePotentials(tensors, *(torch.tensor([size]) for size in (left, right)))
            if self.padded
            else Potentials(tensors)
        )

    def reference_score(self, potentials, labeling):
        (scores,) = potentials.values()
        return sum(float(scores[s, t]) for s, t in itertools.product(*map(range, scores.shape)) if labeling[s, t] == 1)

    def reference_loss(self, structure, labeling, target):
        edges, true, free = ({tuple(e) for e in (m == k).nonzero().tolist()} for m, k in
                             ((labeling, 1), (target, 1), (target, POSSIBLE)))  # fmt: skip
        cost = structure.precision_cost * len(edges - true - free) + structure.recall_cost * len(true - edges)
        return cost / len(target) if structure.normalize else cost

    def count(self, structure, potentials, row):
        left, right = self.sizes(potentials, row)
        return sum(math.comb(left, k) * math.comb(right, k) * math.factorial(k) for k in range(min(left, right) + 1))

    def on(self, potentials, device):
        if not self.padded:
            return super().on(potentials, device)
        moved = (t.to(device) for t in (potentials.single, potentials.lengths, potentials.widths))
        return EdgePotentials(*moved)

    @examples(25)
    @given(seed=st.integers(0, 2**31 - 1), noise=st.sampled_from([1.0, 1e6]))
    def test_what_stands_beyond_the_right_nodes_does_not_matter(self, seed, noise):
        structure, potentials, target = self.setting(seed)
        if not self.padded:
            return
        beyond = torch.arange(target.shape[2]) >= potentials.widths.view(-1, 1, 1)
        garbage = noise * torch.randn(target.shape, generator=rng(seed), dtype=torch.float64)
        other = potentials.replace({"potentials": torch.where(beyond, garbage, potentials.single)})
        corner, again = (find_corner(structure, p, target) for p in (potentials, other))
        assert torch.equal(again.labeling, corner.labeling)
        assert torch.equal(again.hinge, corner.hinge)
        assert torch.equal(structure.argmax(other).labeling, structure.argmax(potentials).labeling)


class TestMatching(MatchingCase):
    """Both sides differ in size, and some edges are possible."""


@pytest.mark.variant
class TestMatchingUnpadded(MatchingCase):
    padded = False
    possible = False
    most = (2, 4)


@pytest.mark.variant
class TestMatchingCounts(MatchingCase):
    options = {"precision_cost": 2.0, "recall_cost": 0.5, "normalize": False}  # noqa: RUF012
    most = (4, 2)


@pytest.mark.variant
class TestMatchingRecallOnly(MatchingCase):
    options = {"precision_cost": 0.0}  # noqa: RUF012


@pytest.mark.parametrize("rows", [(slice(1), slice(None), 2), (slice(1), 0, slice(None))])
def test_targets_that_are_no_matchings_are_refused(rows):
    target = torch.zeros(2, 2, 3, dtype=torch.int64)
    target[rows] = 1
    with pytest.raises(ValueError, match="target"):
        Matching().check_target(target, Potentials(torch.zeros(2, 2, 3)))


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"precision_cost": -1.0}, "precision_cost"),
        ({"recall_cost": math.nan}, "recall_cost"),
        ({"recall_cost": math.inf}, "recall_cost"),
    ],
)
def test_costs_must_make_sense(options, argument):
    with pytest.raises(ValueError, match=argument):
        Matching(**options)


@examples(20)
@given(seed=st.integers(0, 2**31 - 1))
def test_partners_go_there_and_back(seed):
    random = rng(seed)
    labeling = torch.stack([random_matching(4, 3, random) for _ in range(5)])
    partners = Matching.partners(labeling)
    assert torch.equal(Matching.from_partners(partners, 3), labeling)
    for row, s in itertools.product(range(5), range(4)):
        assert labeling[row, s].nonzero().flatten().tolist() == [t for t in [int(partners[row, s])] if t >= 0]
    assert Matching.partners(torch.tensor([[-1, 2, -1]])).tolist() == [-1]
    for wrong in (3, -2):
        with pytest.raises(ValueError, match="partners"):
            Matching.from_partners(torch.tensor([0, wrong]), 3)


class TestEdgePotentials:
    def test_sizes_that_do_not_fit_are_refused(self):
        scores, two = torch.zeros(2, 3, 4), torch.tensor([3, 1])
        for sizes, argument in [
            ((torch.tensor([3, 4]), two), "lengths"),
            ((two, torch.tensor([5, 1])), "widths"),
            ((None, torch.tensor([0, 1])), "widths"),
            ((two, torch.tensor([1])), "widths"),
            ((two, torch.tensor([1.0, 2.0])), "widths"),
        ]:
            with pytest.raises(ValueError, match=argument):
                EdgePotentials(scores, *sizes)
        for wrong in (scores[0], scores.unsqueeze(3)):
            with pytest.raises(ValueError, match="potentials"):
                EdgePotentials(wrong)

    def test_sizes_go_with_the_examples(self):
        scores = torch.randn(3, 2, 4, requires_grad=True)
        potentials = EdgePotentials(scores, torch.tensor([2, 1, 2]), torch.tensor([4, 3, 1]), adjoint=lambda parts: [])
        chosen = potentials.select(torch.tensor([2, 0])).detach()
        assert chosen.widths.tolist() == [1, 4]
        assert chosen.lengths.tolist() == [2, 2]
        assert chosen.adjoint is None
        assert not chosen.requires_grad
        assert torch.equal(chosen.single, scores[[2, 0]])
        assert potentials.replace({"potentials": 2 * scores}).widths is potentials.widths
        assert EdgePotentials(scores).select(torch.tensor([1])).widths is None


class TestLinearEdges(HeadTestCase):
    lengths = True

    def make_head(self):
        return LinearEdges(3)

    def make_input(self, random, batch):
        x = torch.randn(batch, 4, 2, 3, generator=random, dtype=torch.float64)
        return (x, torch.randint(1, 5, (batch,), generator=random)) if self.lengths else (x,)

    def reference(self, head, x):
        return {"potentials": sum(x[:, :, f] * head.weight[f] for f in range(3))}

    def bad_inputs(self, inputs):
        yield from super().bad_inputs(inputs)
        for wrong in ([1, 3, 1], [1, 2]):
            yield (Edges(inputs[0], torch.tensor(wrong)), *inputs[1:]), "widths"

    def test_edges_bring_their_widths(self):
        head, (x, *lengths) = self.setting(1)
        widths = torch.tensor([2, 1, 2])
        potentials = head(Edges(x, widths), *lengths)
        assert potentials.widths is widths
        assert torch.equal(potentials.single, head(x, *lengths).single)


@pytest.mark.variant
class TestLinearEdgesWithoutLengths(TestLinearEdges):
    lengths = False


@examples(100)
@given(
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_ties_are_those_of_scipy(seed, left, right, dtype, whole):
    """Scores that are whole numbers have many best matchings."""
    optimize = pytest.importorskip("scipy.optimize")
    scores = 2.0 * torch.randn(2, left, right, generator=rng(seed), dtype=dtype)
    scores = scores.round() if whole else scores
    sizes = torch.tensor([left, max(left - 1, 1)]), torch.tensor([right, max(right - 1, 1)])
    matching = best_matching(scores, *sizes)
    for one, chosen, height, width in zip(
        scores.double().numpy(), matching.numpy(), *(size.tolist() for size in sizes), strict=True
    ):
        gains, expected = one[:height, :width].clip(min=0.0), np.zeros((left, right), bool)
        rows, columns = optimize.linear_sum_assignment(gains, maximize=True)
        used = gains[rows, columns] > 0.0
        expected[rows[used], columns[used]] = True
        assert np.array_equal(chosen, expected)
