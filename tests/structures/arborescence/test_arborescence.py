"""Arborescences: the structure, its head, and training to the optimum that a QP solver finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from arborescences import KINDS, crosses, own_outputs, reaches_root
from head_cases import SEEDS, HeadTestCase
from hypothesis import given
from hypothesis import strategies as st
from problems import Problem, Reference, examples, rng
from structure_cases import StructureTestCase

from torchssvm import Arborescence, DualState, Labelings, LinearArcs, MeanParts, Pairwise, Potentials, Weights, check
from torchssvm.core.gradients import per_example_adjoint
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import as_potentials
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.structures.arborescence import NonProjective, Projective
from torchssvm.structures.arborescence.structure import has_root, is_projective

# -- The structure -------------------------------------------------------------------------------------


class ArborescenceCase(StructureTestCase):
    among = Projective()
    normalize = True
    longest = 4
    padded = True

    def make_structure(self):
        return Arborescence(self.among, normalize=self.normalize)

    def make_potentials(self, random, batch, integers, dtype):
        lengths = torch.randint(1, self.longest + 1, (batch,), generator=random)
        longest = int(lengths.max()) if self.padded else self.longest
        shape = (batch, longest, longest + 1)
        if integers:
            scores = torch.randint(-2, 3, shape, generator=random).to(dtype)
        else:
            scores = torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)
        return Potentials({"arcs": scores}, lengths, ragged={"arcs": 0}) if self.padded else Potentials(scores)

    def lengths(self, potentials):
        batch, longest = potentials.single.shape[:2]
        return [longest] * batch if potentials.lengths is None else potentials.lengths.tolist()

    def random_target(self, structure, potentials, random):
        batch, longest = potentials.single.shape[:2]
        target = torch.randint(-2, 9, (batch, longest), generator=random)
        for row, length in enumerate(self.lengths(potentials)):
            every = own_outputs(self.among, length)
            target[row, :length] = torch.tensor(every[int(torch.randint(len(every), (), generator=random))])
        return target

    def cropped(self, potentials, row):
        alone = super().cropped(potentials, row)
        length = self.lengths(potentials)[row]
        return alone.replace({name: tensor[:, :, : length + 1] for name, tensor in alone.tensors.items()})

    def reference_score(self, potentials, labeling):
        (scores,) = potentials.values()
        return sum(float(scores[t, head]) for t, head in enumerate(labeling.tolist()))

    def reference_loss(self, structure, labeling, target):
        wrong = sum(a != b for a, b in zip(labeling.tolist(), target.tolist(), strict=True))
        return wrong / len(target) if self.normalize else wrong

    def count(self, structure, potentials, row):
        return len(own_outputs(self.among, self.lengths(potentials)[row]))

    def bad_targets(self, potentials, target):
        length = self.lengths(potentials)[1]

        def heads(*own):
            wrong = target.clone()
            wrong[1] = torch.tensor([*own, *[-1] * (target.shape[1] - len(own))])
            return wrong

        chain = list(range(length))
        yield heads(*chain[:-1], length + 1), f"head {length + 1} for token {length} in row 1"
        yield heads(*chain[:-1], -1), f"head -1 for token {length} in row 1"
        yield heads(*chain[:-1], length), f"from token {length} the heads lead in a circle"
        if length > 1:
            yield heads(*chain[:-2], length, length - 1), f"from token {length - 1} the heads lead in a circle"
            if self.among.single_root:
                yield heads(0, 0, *chain[2:]), "not an output in row 1.*one token has head 0"
        yield target[:, :-1], "target must be int64"
        yield target[:2], "target must be int64"
        yield target.double(), "float64"

    def bad_potentials(self, potentials):
        scores = potentials.single
        yield Potentials(scores[:, :, 1:])
        yield Potentials(scores.unsqueeze(3))
        yield Potentials({"arcs": scores, "more": scores})
        yield Potentials(scores[:, :0, :1])

    @examples(25)
    @given(seed=SEEDS, noise=st.sampled_from([1.0, 1e6, -1e6]))
    def test_impossible_arcs_do_not_matter(self, seed, noise):
        """From a token to itself, and from heads in the padding."""
        structure, potentials, target = self.setting(seed)
        scores = potentials.single.clone()
        for row, length in enumerate(self.lengths(potentials)):
            scores[row, :, length + 1 :] = noise
            scores[row].diagonal(1).fill_(noise)
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


@examples(60)
@given(seed=SEEDS, length=st.integers(1, 6))
def test_what_is_said_of_heads_is_the_definition(seed, length):
    heads = torch.randint(0, length + 1, (20, length), generator=rng(seed))
    padded = torch.nn.functional.pad(heads, (0, 2), value=-1)
    for row, own in enumerate(heads.tolist()):
        expected = [reaches_root(own, t) for t in range(1, length + 1)] + [True, True]
        assert has_root(padded)[row].tolist() == expected
        if all(head != t for t, head in enumerate(own, 1)):
            assert bool(is_projective(padded)[row]) == (not crosses(own))


def test_arcs_that_cross_are_named():
    structure = Arborescence(Projective())
    target = torch.tensor([[0, 1, 2, 3], [3, 4, 0, 3]])
    potentials = Potentials(torch.zeros(2, 4, 5))
    with pytest.raises(
        ValueError,
        match=r"not an output in row 1 of the batch, heads \[3, 4, 0, 3\]: Projective.*no arcs cross.*NonProjective",
    ):
        structure.check_target(target, potentials)
    assert torch.equal(Arborescence().check_target(target, potentials), target)


def test_long_sentences_are_not_listed():
    assert Arborescence().enumerate(Potentials(torch.zeros(1, 6, 7))) is None


def test_repr_tells_structures_apart():
    shown = {repr(Arborescence(among, normalize=share)) for among in KINDS for share in (True, False)}
    assert len(shown) == 8
    assert repr(Arborescence()) == "Arborescence(NonProjective(single_root=False), normalize=True)"


# -- The head ------------------------------------------------------------------------------------------


class TestLinearArcs(HeadTestCase):
    lengths = True
    features = 9

    def make_head(self):
        return LinearArcs(self.features)

    def make_input(self, random, batch):
        columns = torch.randint(-1, self.features, (batch, 3, 4, 3), generator=random)
        return (columns, torch.randint(1, 4, (batch,), generator=random)) if self.lengths else (columns,)

    def reference(self, head, x):
        scores = torch.zeros(len(x), len(x) + 1, dtype=torch.float64)
        for t, h in itertools.product(range(len(x)), range(len(x) + 1)):
            scores[t, h] = sum(head.weight[f].item() for f in x[t, h].tolist() if f >= 0)
        return {"arcs": scores}

    def alone(self, inputs, row):
        x, *lengths = inputs
        if not lengths:
            return (x[row : row + 1],)
        length = int(lengths[0][row])
        return x[row : row + 1, :length, : length + 1], lengths[0][row : row + 1]

    def own(self, potentials, row):
        return {name: t[:, : t.shape[0] + 1] for name, t in super().own(potentials, row).items()}

    def random_parts(self, potentials, random):
        parts = super().random_parts(potentials, random)
        if potentials.lengths is not None:
            beyond = torch.arange(parts["arcs"].shape[2]) > potentials.lengths.unsqueeze(1)
            parts["arcs"].masked_fill_(beyond.unsqueeze(1), 0.0)
        return parts

    def bad_inputs(self, inputs):
        x, *lengths = inputs
        yield (x[:, :, :, 0], *lengths), r"columns must be \[B, N, N\+1, P\]"
        yield (x[:, :, 1:], *lengths), r"columns must be \[B, N, N\+1, P\]"
        yield (x.double(), *lengths), "columns must be int64"
        for wrong in (-2, self.features):
            columns = x.clone()
            columns[0, 0, 0, 0] = wrong
            yield (columns, *lengths), f"in_features - 1 = 8.*got {wrong}"
        values = torch.ones(x.shape)
        yield (SparseFeatures(x, values[:, :, :, :1]), *lengths), "values must be floating and shaped"
        yield (SparseFeatures(x, x), *lengths), "values must be floating and shaped"
        for wrong in (0, -1, 4):
            yield (x, torch.tensor([1, wrong, 1])), f"lengths must lie between 1 and .*{wrong}"

    # Columns are whole numbers: what follows replaces the tests that make other features of them.

    @examples(20)
    @given(seed=SEEDS, noise=st.sampled_from([-7, 10**6]))
    def test_features_in_the_padding_do_not_matter(self, seed, noise):
        head, inputs = self.setting(seed)
        x, *lengths = inputs
        if not lengths:
            pytest.skip("nothing is padded")
        other = x.clone()
        for row, length in enumerate(lengths[0].tolist()):
            other[row, length:] = noise
            other[row, :, length + 1 :] = noise
        potentials, again = head(x, *lengths), head(other, *lengths)
        parts = self.random_parts(potentials, rng(seed + 1))
        parameters = list(head.parameters())
        assert torch.equal(potentials["arcs"], again["arcs"])
        for mine, clean in zip(
            per_example_adjoint(again, parts, parameters),
            per_example_adjoint(potentials, parts, parameters),
            strict=True,
        ):
            assert torch.equal(mine, clean)

    def test_gradcheck(self):
        head, (columns, *lengths) = self.setting(1)
        weight = head.weight.detach().clone().requires_grad_()
        values = torch.randn(columns.shape, generator=rng(2), dtype=torch.float64, requires_grad=True)

        def potentials(values, weight):
            x = SparseFeatures(columns, values)
            return torch.func.functional_call(head, {"weight": weight}, (x, *lengths)).single

        assert torch.autograd.gradcheck(potentials, (values, weight))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_potentials_have_the_dtype_of_the_weights(self, dtype):
        head, (columns, *lengths) = self.setting(2)
        head = head.to(dtype)
        for values in (None, torch.ones(columns.shape, dtype=torch.float16), torch.ones(columns.shape)):
            potentials = head(SparseFeatures(columns, values), *lengths)
            assert potentials.dtype == dtype
            torch.testing.assert_close(potentials["arcs"], head(columns, *lengths)["arcs"])
            parts = self.random_parts(potentials, rng(3))
            assert {g.dtype for g in per_example_adjoint(potentials, parts, list(head.parameters()))} == {dtype}

    def test_autocast_does_not_reach_the_head(self):
        head, inputs = self.setting(4)
        head = head.float()
        plain = head(*inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            under = head(*inputs)
        assert under.dtype == torch.float32
        assert torch.equal(plain["arcs"], under["arcs"])

    @examples(20)
    @given(seed=SEEDS)
    def test_values_multiply_the_weights(self, seed):
        """The dense features, made by other code, times the weights."""
        head, (columns, *lengths) = self.setting(seed)
        values = torch.randn(columns.shape, generator=rng(seed), dtype=torch.float64)
        x = SparseFeatures(columns, values)
        found = head(x, *lengths)
        together = Potentials({"arcs": x.dense(self.features, torch.float64) @ head.weight}, *lengths)
        together.ragged = found.ragged
        for row in range(len(columns)):
            torch.testing.assert_close(self.own(found, row)["arcs"], self.own(together, row)["arcs"])
        parts = self.random_parts(found, rng(seed + 1))
        without = Potentials(found.tensors, found.lengths, ragged=found.ragged)
        for mine, general in zip(
            *(per_example_adjoint(p, parts, [head.weight]) for p in (found, without)), strict=True
        ):
            torch.testing.assert_close(mine, general)


@pytest.mark.variant
class TestLinearArcsUnpadded(TestLinearArcs):
    lengths = False


def test_the_head_says_what_it_is():
    own = Arborescence(Projective())
    assert LinearArcs(3, structure=own).structure is own
    assert repr(LinearArcs(3).structure) == repr(Arborescence())
    with pytest.raises(ValueError, match="in_features=0"):
        LinearArcs(0)


# -- Training ------------------------------------------------------------------------------------------


def problem(among, ragged=True, seed=3, n=5, features=4, lam=0.3):
    random = rng(seed)
    lengths = torch.tensor([3, 2, 3, 1, 3]) if ragged else None
    columns = torch.randint(-1, features, (n, 3, 4, 2), generator=random)
    y = torch.full((n, 3), -1)
    for i in range(n):
        length = 3 if lengths is None else int(lengths[i])
        every = own_outputs(among, length)
        y[i, :length] = torch.tensor(every[int(torch.randint(len(every), (), generator=random))])
    return Arcs(LinearArcs(features, structure=Arborescence(among)).double(), columns, y, lengths, lam)


class Arcs(Problem):
    """Both axes of a batch's arcs are cropped."""

    def batch(self, rows):
        batch = super().batch(rows)
        return batch.replace(x=batch.x[:, :, : batch.x.shape[1] + 1])


def listed(arcs):
    """The features of all outputs by their definition: how often each column comes."""
    found = Reference([], [], [], arcs.lam)
    for i in range(arcs.n):
        length = 3 if arcs.lengths is None else int(arcs.lengths[i])
        target = tuple(arcs.y[i, :length].tolist())

        def features(heads, i=i):
            count = np.zeros(len(arcs.head.weight))
            for t, head in enumerate(heads):
                for column in arcs.x[i, t, head].tolist():
                    count[column] += column >= 0
            return count

        every = own_outputs(arcs.structure.among, length)
        found.losses.append(np.array([np.mean([a != b for a, b in zip(o, target, strict=True)]) for o in every]))
        found.changes.append(np.stack([features(o) - features(target) for o in every]))
    return found


@pytest.mark.parametrize("among, ragged", [(Projective(), True), (NonProjective(single_root=True), False)])
def test_training_reaches_the_optimum_of_the_qp(among, ragged):
    arcs = problem(among, ragged)
    optimum = listed(arcs).optimum()
    for options, tolerance in (
        ({"storage": MeanParts()}, 0.02),
        ({"storage": Weights()}, 0.02),
        ({"storage": Labelings(8), "direction": Pairwise()}, 1e-3),
    ):
        found = Arcs(*vars(arcs.copy()).values()).train(**options).until(tolerance, passes=60)
        assert found.dual <= optimum + 1e-7
        assert found.primal >= optimum - 1e-7
        assert found.gap <= tolerance


@pytest.mark.parametrize("among", KINDS)
def test_the_checks_for_users_pass(among):
    arcs = problem(among)
    report = check(arcs.head, arcs.structure, arcs.batch(range(5)))
    assert report.ok, str(report)
    DualState.for_head(arcs.head, 5, 0.1)
    assert as_potentials(arcs.head(arcs.x, arcs.lengths)).ragged == {"arcs": 0}
