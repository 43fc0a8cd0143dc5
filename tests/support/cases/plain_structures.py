"""The tests of chains and classes, to be inherited for wrappers too."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases.problems import examples, is_allowed, rng
from cases.structure_cases import StructureTestCase
from torchssvm import Chain, Multiclass, WeightedLabels
from torchssvm.core.decoding import as_decoding
from torchssvm.core.potentials import Potentials
from torchssvm.structures.chain import Transitions


class MulticlassCase(StructureTestCase):
    classes = 4

    def make_structure(self):
        return Multiclass(self.classes)

    def make_potentials(self, random, batch, integers, dtype):
        if integers:
            return Potentials(torch.randint(-1, 2, (batch, self.classes), generator=random).to(dtype))
        return Potentials(torch.randn(batch, self.classes, generator=random, dtype=torch.float64).to(dtype))

    def random_target(self, structure, potentials, random):
        return torch.randint(0, self.classes, (potentials.batch_size,), generator=random)

    def reference_score(self, potentials, labeling):
        (tensor,) = potentials.values()
        return float(tensor[int(labeling)])

    def reference_loss(self, structure, labeling, target):
        return float(int(labeling) != int(target))

    def count(self, structure, potentials, row):
        return self.classes

    def bad_targets(self, potentials, target):
        wrong = target.clone()
        wrong[1] = self.classes
        yield wrong, f"label {self.classes} in row 1"
        yield torch.where(torch.arange(3) == 2, -1, target), "label -1 in row 2"
        yield target[:2], r"\[3\]"
        yield target.unsqueeze(1), r"\[3\]"
        yield target.to(torch.int32), "int32"
        yield target.double(), "float64"

    def bad_potentials(self, potentials):
        yield Potentials(potentials.single[:, 1:])
        yield Potentials(potentials.single.unsqueeze(2))
        yield Potentials({"a": potentials.single, "b": potentials.single})

    def test_ties_go_to_the_smallest_class(self):
        scores = torch.tensor([[1.0, 1.0, 0.0, 1.0], [0.0, 2.0, 2.0, 1.0]])
        assert Multiclass(4).argmax(Potentials(scores)).labeling.tolist() == [0, 1]


class MulticlassCostCase(MulticlassCase):
    classes = 3

    def make_structure(self):
        random = rng(5)
        cost = torch.randint(0, 4, (self.classes, self.classes), generator=random).double()
        return Multiclass(self.classes, cost.fill_diagonal_(0))

    def reference_loss(self, structure, labeling, target):
        random = rng(5)
        cost = torch.randint(0, 4, (self.classes, self.classes), generator=random)
        return float(int(labeling) != int(target)) * float(cost[int(target), int(labeling)])

    @pytest.mark.every_variant
    def test_the_first_index_is_the_target(self):
        cost = torch.zeros(3, 3)
        cost[0, 2] = 5.0
        structure = Multiclass(3, cost)
        assert structure.loss(torch.tensor([2]), torch.tensor([0])).tolist() == [5.0]
        assert structure.loss(torch.tensor([0]), torch.tensor([2])).tolist() == [0.0]


class LabelledTokensCase(StructureTestCase):
    """A label for every token, scored by its own potentials and those of pairs of tokens."""

    states = 3
    longest = 3
    shared = True
    padded = True
    options: dict = {}  # noqa: RUF012
    tokens, pairs = "emission", "transition"
    first_pair = -1  # how many more pairs than tokens there are

    def make_potentials(self, random, batch, integers, dtype):
        lengths = torch.randint(1, self.longest + 1, (batch,), generator=random)
        longest = int(lengths.max()) if self.padded else self.longest
        places = () if self.shared else (longest + self.first_pair,)

        def draw(*shape):
            if integers:
                return torch.randint(-1, 2, shape, generator=random).to(dtype)
            return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)

        pairs = batch, *places, self.states, self.states
        tensors = {self.tokens: draw(batch, longest, self.states), self.pairs: draw(*pairs)}
        if not self.padded:
            return Potentials(tensors)
        ragged = {self.tokens: 0} | ({} if self.shared else {self.pairs: self.first_pair})
        return Potentials(tensors, lengths, ragged=ragged)

    def random_target(self, structure, potentials, random):
        shape = potentials[self.tokens].shape[:2]
        labels = torch.randint(0, self.states, shape, generator=random)
        if potentials.lengths is None:
            return labels
        garbage = torch.randint(-2, self.states + 5, shape, generator=random)
        return torch.where(torch.arange(shape[1]) < potentials.lengths.unsqueeze(1), labels, garbage)

    def reference_loss(self, structure, labeling, target):
        wrong = sum(a != b for a, b in zip(labeling.tolist(), target.tolist(), strict=True))
        return wrong / len(target)

    def count(self, structure, potentials, row):
        length = potentials[self.tokens].shape[1] if potentials.lengths is None else int(potentials.lengths[row])
        return self.states**length

    def labels_of(self, target):
        return target

    def with_labels(self, target, labels):
        return labels

    def bad_targets(self, potentials, target):
        labels = self.labels_of(target)
        last = int(potentials.lengths[1]) - 1 if self.padded else labels.shape[1] - 1
        for label in (self.states, -1):
            wrong = labels.clone()
            wrong[1, last] = label
            yield self.with_labels(target, wrong), f"label {label} .*row 1"
        yield self.with_labels(target, labels[:, :-1]), "target must be int64"
        yield self.with_labels(target, labels[:2]), "target must be int64"
        yield self.with_labels(target, labels.double()), "float64"
        yield self.with_labels(target, labels.to(torch.int32)), "int32"

    def bad_potentials(self, potentials):
        tokens, pairs = potentials.tensors.values()
        yield Potentials(tokens)
        yield Potentials({self.tokens: tokens, f"{self.pairs}s": pairs})
        yield Potentials({self.tokens: tokens[:, :, 1:], self.pairs: pairs})
        yield Potentials({self.tokens: tokens, self.pairs: pairs[..., 1:]})
        yield Potentials({self.tokens: tokens.unsqueeze(3), self.pairs: pairs})
        yield Potentials({self.tokens: tokens, self.pairs: pairs.unsqueeze(1)})


class ChainCase(LabelledTokensCase):
    def make_structure(self):
        return Chain(self.states, shared=self.shared, **self.options)

    def reference_score(self, potentials, labeling):
        states = labeling.tolist()
        total = sum(float(potentials["emission"][t, state]) for t, state in enumerate(states))
        for t in range(len(states) - 1):
            pairs = potentials["transition"] if self.shared else potentials["transition"][t]
            total += float(pairs[states[t], states[t + 1]])
        return total

    def test_labelings_are_minus_one_in_the_padding(self):
        if not self.padded:
            pytest.skip("nothing is padded")
        structure, potentials, target = self.setting(2, 4)
        result = structure.argmax(potentials).labeling
        beyond = torch.arange(result.shape[1]) >= potentials.lengths.unsqueeze(1)
        assert bool(beyond.any())
        assert torch.equal(result == -1, beyond)
        assert torch.equal(self.labels_of(target) == -1, beyond)

    @pytest.mark.parametrize("length", [0, -1, 9])
    def test_lengths_outside_the_padding_are_refused(self, length):
        structure, potentials, target = self.setting(2, 3)
        lengths = torch.full((3,), potentials["emission"].shape[1])
        lengths[1] = length
        with pytest.raises(ValueError, match=f"lengths.*{length}"):
            structure.check_target(target, Potentials(potentials.tensors, lengths, ragged=potentials.ragged))


class ChainPositionsCase(ChainCase):
    shared = False


class ChainUnpaddedCase(ChainCase):
    padded = False
    states = 2
    longest = 4


class ChainPositionsUnpaddedCase(ChainCase):
    padded = False
    shared = False


class ChainCountsCase(ChainCase):
    """The plain Hamming loss, and long chains of two states."""

    states = 2
    longest = 5
    options = {"normalize": False}  # noqa: RUF012

    def reference_loss(self, structure, labeling, target):
        return sum(a != b for a, b in zip(labeling.tolist(), target.tolist(), strict=True))


class ChainClassWeightsCase(ChainCase):
    options = {"class_weight": torch.tensor([0.5, 0.0, 3.0])}  # noqa: RUF012

    def reference_loss(self, structure, labeling, target):
        weight = [0.5, 0.0, 3.0]
        return sum(weight[b] * (a != b) for a, b in zip(labeling.tolist(), target.tolist(), strict=True)) / len(target)


class ChainTransitionsCase(ChainCase):
    """Forbidden pairs, first and last states; no state precedes state 2 but 1, and a chain of one token is 1."""

    allowed = Transitions(
        torch.tensor([[True, True, False], [True, False, True], [True, True, False]]),
        first=torch.tensor([True, True, False]),
        last=torch.tensor([False, True, True]),
    )
    options = {"transitions": allowed}  # noqa: RUF012

    def random_target(self, structure, potentials, random):
        drawn = {name: torch.randn(t.shape, generator=random).double() for name, t in potentials.tensors.items()}
        labels = structure.decode(potentials.replace(drawn))
        garbage = torch.randint(-2, self.states + 5, labels.shape, generator=random)
        return torch.where(labels >= 0, labels, garbage)

    def is_allowed(self, states):
        return is_allowed(self.allowed, states)

    def count(self, structure, potentials, row):
        length = int(potentials.lengths[row])
        return sum(map(self.is_allowed, itertools.product(range(self.states), repeat=length)))

    def bad_targets(self, potentials, target):
        yield from super().bad_targets(potentials, target)
        yield torch.full_like(target, 2), "begins with state 2 in row 0.*transitions forbid"
        yield torch.full_like(target, 0), "ends with state 0 in row 0.*transitions forbid"

    @pytest.mark.every_variant
    @examples(15)
    @given(seed=st.integers(0, 2**31 - 1), integers=st.booleans())
    def test_what_is_found_is_allowed(self, seed, integers):
        structure, potentials, target = self.setting(seed, 4, integers)
        for results in (structure.argmax(potentials), structure.augmented_argmax(potentials, target)):
            for row in range(4):
                assert self.is_allowed(self.one(as_decoding(results).labeling, potentials, row).tolist())
        for labeling in structure.enumerate(potentials):
            assert all(self.is_allowed(self.one(labeling, potentials, row).tolist()) for row in range(4))


class ChainPositionsTransitionsCase(ChainTransitionsCase):
    shared = False


class ChainWeightedLabelsCase(ChainCase):
    """Tokens that weigh differently."""

    shared = False

    def random_target(self, structure, potentials, random):
        labels = super().random_target(structure, potentials, random)
        weights = torch.rand(labels.shape, generator=random, dtype=torch.float64)
        beyond = labels.new_zeros(labels.shape, dtype=torch.bool)
        if potentials.lengths is not None:
            beyond = torch.arange(labels.shape[1]) >= potentials.lengths.unsqueeze(1)
        return WeightedLabels(labels, weights.masked_fill(beyond, torch.nan))

    def one(self, labeling, potentials, row):
        if isinstance(labeling, WeightedLabels):
            length = labeling.labels.shape[1] if potentials.lengths is None else int(potentials.lengths[row])
            return WeightedLabels(labeling.labels[row, :length], labeling.weights[row, :length])
        return super().one(labeling, potentials, row)

    def alone(self, labeling, potentials, row):
        if isinstance(labeling, WeightedLabels):
            single = self.one(labeling, potentials, row)
            return WeightedLabels(single.labels.unsqueeze(0), single.weights.unsqueeze(0))
        return super().alone(labeling, potentials, row)

    def reference_loss(self, structure, labeling, target):
        rows = zip(labeling.tolist(), target.labels.tolist(), target.weights.tolist(), strict=True)
        return sum(weight * (a != b) for a, b, weight in rows) / len(target.labels)

    def labels_of(self, target):
        return target.labels

    def with_labels(self, target, labels):
        return WeightedLabels(labels, target.weights)

    def bad_targets(self, potentials, target):
        yield from super().bad_targets(potentials, target)
        for value in (-0.5, torch.nan, torch.inf):
            weights = target.weights.clone()
            weights[1, 0] = value
            yield WeightedLabels(target.labels, weights), "weights"
        yield WeightedLabels(target.labels, target.weights[:, 1:]), "weights must be"
