"""Arborescences: the structure and its head."""

import itertools

import pytest
import torch
from cases.arborescences import crosses, own_outputs, reaches_root
from cases.head_cases import SEEDS, HeadTestCase
from cases.problems import examples, rng
from cases.random_potentials import draw
from cases.structure_cases import StructureTestCase
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import Arborescence, LinearArcs, Potentials
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.structures.arborescence import NonProjective, Projective
from torchssvm.structures.arborescence.structure import has_root, is_projective


class ArborescenceCase(StructureTestCase):
    among = Projective()
    normalize = True
    longest = 4
    padded = True
    num_labels = label_cost = None

    def make_structure(self):
        return Arborescence(
            self.among, normalize=self.normalize, num_labels=self.num_labels, label_cost=self.label_cost
        )

    def make_potentials(self, random, batch, integers, dtype):
        lengths = torch.randint(1, self.longest + 1, (batch,), generator=random)
        longest = int(lengths.max()) if self.padded else self.longest
        shape = (batch, longest, longest + 1, *([] if self.num_labels is None else [self.num_labels]))
        scores = draw(random, shape, integers, dtype)
        return Potentials({"arcs": scores}, lengths, ragged={"arcs": 0}) if self.padded else Potentials(scores)

    def lengths(self, potentials):
        batch, longest = potentials.single.shape[:2]
        return [longest] * batch if potentials.lengths is None else potentials.lengths.tolist()

    def random_target(self, structure, potentials, random):
        batch, longest = potentials.single.shape[:2]
        target, labels = torch.randint(-2, 9, (batch, longest), generator=random), self.num_labels or 1
        for row, length in enumerate(self.lengths(potentials)):
            every = own_outputs(self.among, length)
            heads = torch.tensor(every[int(torch.randint(len(every), (), generator=random))])
            target[row, :length] = heads * labels + torch.randint(0, labels, (length,), generator=random)
        return target

    def cropped(self, potentials, row):
        alone = super().cropped(potentials, row)
        length = self.lengths(potentials)[row]
        return alone.replace({name: tensor[:, :, : length + 1] for name, tensor in alone.tensors.items()})

    def reference_score(self, potentials, labeling):
        (scores,) = potentials.values()
        return sum(float(scores[t].flatten()[arc]) for t, arc in enumerate(labeling.tolist()))

    def reference_loss(self, structure, labeling, target):
        labels, wrong = self.num_labels or 1, 0.0
        for a, b in zip(labeling.tolist(), target.tolist(), strict=True):
            wrong += 1.0 if a // labels != b // labels else 0.0 if a == b else structure.label_cost
        return wrong / len(target) if self.normalize else wrong

    def count(self, structure, potentials, row):
        length = self.lengths(potentials)[row]
        return len(own_outputs(self.among, length)) * (self.num_labels or 1) ** length

    def bad_targets(self, potentials, target):
        length = self.lengths(potentials)[1]

        def heads(*first):
            wrong = target.clone()
            wrong[1] = torch.tensor([*first, *[-1] * (target.shape[1] - len(first))]) * (self.num_labels or 1)
            return wrong

        chain = list(range(length))
        wrong = [heads(*chain[:-1], head) for head in (length + 1, -1, length)]
        if length > 1:
            wrong.append(heads(*chain[:-2], length, length - 1))
            if self.among.single_root:
                wrong.append(heads(0, 0, *chain[2:]))
        yield from super().bad_targets(potentials, target)
        for other in wrong:
            yield other, "target"

    @examples(25)
    @given(seed=SEEDS, noise=st.sampled_from([1.0, 1e6, -1e6]))
    def test_impossible_arcs_do_not_matter(self, seed, noise):
        """From a token to itself, and from heads in the padding."""
        structure, potentials, target = self.setting(seed)
        scores = potentials.single.clone()
        for row, length in enumerate(self.lengths(potentials)):
            scores[row, :, length + 1 :] = noise
            scores[row].diagonal(1, 0, 1).fill_(noise)
        other = potentials.replace({name: scores for name in potentials.tensors})
        corner, again = (find_corner(structure, p, target) for p in (potentials, other))
        assert torch.equal(again.labeling, corner.labeling)
        assert torch.equal(again.hinge, corner.hinge)


class TestProjective(ArborescenceCase):
    pass


@pytest.mark.variant
class TestProjectiveSingleRoot(ArborescenceCase):
    among = Projective(single_root=True)
    normalize = False


class TestNonProjective(ArborescenceCase):
    among = NonProjective()


@pytest.mark.variant
class TestNonProjectiveSingleRoot(ArborescenceCase):
    among = NonProjective(single_root=True)


@pytest.mark.variant
class TestUnpadded(ArborescenceCase):
    among = Projective(single_root=True)
    padded = False
    longest = 3


class TestLabelled(ArborescenceCase):
    num_labels = 3
    longest = 3

    @examples(10)
    @given(seed=SEEDS, integers=st.booleans())
    def test_a_label_is_the_first_best_of_its_arc(self, seed, integers):
        structure, potentials, _ = self.setting(seed, integers=integers)
        heads, labels = structure.split(structure.decode(potentials))
        assert torch.equal(structure.join(heads, labels), structure.decode(potentials))
        best = potentials.replace({name: scores.amax(3) for name, scores in potentials.tensors.items()})
        assert torch.equal(heads, Arborescence(self.among).decode(best))
        for row, t in (heads >= 0).nonzero().tolist():
            scores = potentials.single[row, t, heads[row, t]].tolist()
            assert labels[row, t] == scores.index(max(scores))
        assert bool(((labels == -1) == (heads == -1)).all())


@pytest.mark.variant
class TestLabelledNonProjective(ArborescenceCase):
    among = NonProjective(single_root=True)
    normalize = False
    num_labels = 2
    label_cost = 1.0
    longest = 3


@pytest.mark.variant
class TestOneLabelUnpadded(ArborescenceCase):
    num_labels = 1
    label_cost = 0.0
    padded = False
    longest = 3


@examples(60)
@given(seed=SEEDS, length=st.integers(1, 6))
def test_what_is_said_of_heads_is_the_definition(seed, length):
    heads = torch.randint(0, length + 1, (20, length), generator=rng(seed))
    padded = torch.nn.functional.pad(heads, (0, 2), value=-1)
    for row, tree in enumerate(heads.tolist()):
        expected = [reaches_root(tree, t) for t in range(1, length + 1)] + [True, True]
        assert has_root(padded)[row].tolist() == expected
        if all(head != t for t, head in enumerate(tree, 1)):
            assert bool(is_projective(padded)[row]) == (not crosses(tree))


def test_arcs_that_cross_are_refused():
    target, potentials = torch.tensor([[0, 1, 2, 3], [3, 4, 0, 3]]), Potentials(torch.zeros(2, 4, 5))
    with pytest.raises(ValueError, match=r"target of rows \[1\]"):
        Arborescence(Projective()).check_target(target, potentials)
    assert torch.equal(Arborescence().check_target(target, potentials), target)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: Arborescence(num_labels=0), "num_labels"),
        (lambda: Arborescence(num_labels=2, label_cost=1.5), "label_cost"),
        (lambda: Arborescence(label_cost=0.5), "label_cost"),
        (lambda: LinearArcs(3, num_labels=2, structure=Arborescence(num_labels=3)), "num_labels=2"),
        (lambda: Arborescence(num_labels=2).join(torch.tensor([[0]]), torch.tensor([[2]])), "label 2"),
        (lambda: Arborescence(num_labels=2).decode(torch.zeros(1, 2, 3)), "potentials"),
        (lambda: Arborescence().decode(torch.zeros(1, 2, 3, 2)), "potentials"),
    ],
)
def test_labels_that_do_not_fit_are_refused(call, argument):
    with pytest.raises(ValueError, match=argument):
        call()


class Packed(LinearArcs):
    """Takes columns and values in one tensor ``[B, N, N+1, 2 P]``, whatever numbers they are."""

    with_values = True

    def forward(self, x, lengths=None):
        columns = x[..., :3].abs().round().remainder(len(self.weight) + 1).long() - 1
        return super().forward(SparseFeatures(columns, x[..., 3:]) if self.with_values else columns, lengths)


class TestLinearArcs(HeadTestCase):
    lengths = with_values = any_features = True
    num_labels = None

    def make_head(self):
        head = Packed(9, num_labels=self.num_labels)
        head.with_values = self.with_values
        return head

    def make_input(self, random, batch):
        columns = torch.randint(0, 10, (batch, 3, 4, 3), generator=random)
        x = torch.cat([columns, torch.randn(batch, 3, 4, 3, generator=random)], 3).double()
        return (x, torch.randint(1, 4, (batch,), generator=random)) if self.lengths else (x,)

    def reference(self, head, x):
        scores = torch.zeros(len(x), len(x) + 1, *head.weight.shape[1:], dtype=torch.float64)
        for t, h, p in itertools.product(range(len(x)), range(len(x) + 1), range(3)):
            column = round(abs(float(x[t, h, p]))) % 10 - 1
            if column >= 0:
                scores[t, h] += head.weight[column].detach() * (float(x[t, h, 3 + p]) if self.with_values else 1.0)
        return {"arcs": scores}

    def alone(self, inputs, row):
        x, *lengths = inputs
        if not lengths:
            return (x[row : row + 1],)
        length = int(lengths[0][row])
        return x[row : row + 1, :length, : length + 1], lengths[0][row : row + 1]

    def single(self, potentials, row):
        return {name: t[:, : t.shape[0] + 1] for name, t in super().single(potentials, row).items()}

    def random_parts(self, potentials, random):
        parts = super().random_parts(potentials, random)
        if potentials.lengths is not None:
            beyond = torch.arange(parts["arcs"].shape[2]) > potentials.lengths.unsqueeze(1)
            parts["arcs"].movedim(2, -1).masked_fill_(
                beyond.view(len(beyond), *[1] * (parts["arcs"].ndim - 2), -1), 0.0
            )
        return parts


@pytest.mark.variant
class TestLinearArcsUnpadded(TestLinearArcs):
    lengths = with_values = False


@pytest.mark.variant
class TestLabelledArcs(TestLinearArcs):
    num_labels = 3


@pytest.mark.variant
class TestLabelledArcsUnpadded(TestLinearArcs):
    num_labels = 2
    lengths = with_values = False


COLUMNS = torch.zeros(2, 3, 4, 5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("x", "argument"),
    [
        (COLUMNS[..., 0], "columns"),
        (COLUMNS[:, :, 1:], "columns"),
        (COLUMNS.double(), "columns"),
        (COLUMNS - 2, "columns"),
        (COLUMNS + 9, "columns"),
        (SparseFeatures(COLUMNS, torch.ones(2, 3, 4, 1)), "values"),
        (SparseFeatures(COLUMNS, COLUMNS), "values"),
    ],
)
def test_columns_that_do_not_fit_are_refused(x, argument):
    with pytest.raises(ValueError, match=argument):
        LinearArcs(9)(x)
