"""What every structure must do: inherit ``StructureTestCase``, say how to make its inputs, get the tests."""

from __future__ import annotations

import copy
import pickle
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases.labelings_cases import LabelingsTestCase
from cases.problems import examples, rng
from torchssvm.core.batch import tree_map, tree_tensors
from torchssvm.core.decoding import as_decoding, each_labeling
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import Parts, Potentials, conform, inner
from torchssvm.core.structure import Structure
from torchssvm.structures import HiddenStates

SEEDS = st.integers(0, 2**31 - 1)
BATCHES = st.integers(1, 4)


class StructureTestCase(LabelingsTestCase):
    """Small problems only: every output is listed.

    Tests draw a seed; with ``integers`` the potentials are small whole numbers, so that ties are common and sums are
    exact in every dtype.
    """

    mask = -1e30  # a score that no best output has
    positive: tuple[str, ...] = ()  # potentials that must not be negative
    rechecked = True  # what ``check_target`` returns, it takes too

    @abstractmethod
    def make_structure(self) -> Structure: ...

    @abstractmethod
    def make_potentials(self, random: torch.Generator, batch: int, integers: bool, dtype: torch.dtype) -> Potentials:
        """Potentials of a batch, of varied lengths if the structure has lengths."""

    @abstractmethod
    def random_target(self, structure: Structure, potentials: Potentials, random: torch.Generator) -> Any:
        """A target of each example as a user gives it, with garbage in the padding."""

    @abstractmethod
    def reference_score(self, potentials: Parts, labeling: Any) -> float:
        """The score of one example by its definition; all tensors without batch axis and padding."""

    @abstractmethod
    def reference_loss(self, structure: Structure, labeling: Any, target: Any) -> float:
        """The loss of one example by its definition."""

    @abstractmethod
    def count(self, structure: Structure, potentials: Potentials, row: int) -> int:
        """How many outputs an example has."""

    no_values: tuple[int, ...] = ()  # numbers that stand in no target

    def bad_targets(self, potentials: Potentials, target: Any) -> Iterable[tuple[Any, str]]:
        """Targets that must be refused, with words of the error."""
        for wrong in (target[:2], target[:, :-1], target.double()):
            yield wrong, "target"
        for number in self.no_values:
            wrong = target.clone()
            wrong[1].flatten()[0] = number
            yield wrong, "target"

    def bad_potentials(self, potentials: Potentials) -> Iterable[Potentials]:
        """Potentials that do not fit the structure, and must be refused."""
        for name, tensor in potentials.tensors.items():
            for wrong in (tensor[..., :-1], tensor.unsqueeze(-1)):
                yield potentials.replace({**potentials.tensors, name: wrong})
            yield potentials.replace({**potentials.tensors, "more": tensor})

    def one(self, labeling: Any, potentials: Potentials, row: int) -> Any:
        """The labeling or target of one example, without batch axis and padding."""
        labels = labeling[row]
        return labels if potentials.lengths is None else labels[: int(potentials.lengths[row])]

    def alone(self, labeling: Any, potentials: Potentials, row: int) -> Any:
        """The target of one example as a batch of one, cropped."""
        return self.one(labeling, potentials, row).unsqueeze(0)

    def on(self, potentials: Potentials, device: torch.device) -> Potentials:
        lengths = None if potentials.lengths is None else potentials.lengths.to(device)
        tensors = {name: tensor.to(device) for name, tensor in potentials.tensors.items()}
        return Potentials(tensors, lengths, ragged=potentials.ragged)

    def same(self, a: Any, b: Any) -> bool:
        """Whether two labelings are equal, tensor by tensor."""
        return all(torch.equal(one, other) for one, other in zip(tree_tensors(a), tree_tensors(b), strict=True))

    def setting(
        self, seed: int, batch: int = 3, integers: bool = False, dtype: torch.dtype = torch.float64
    ) -> tuple[Structure, Potentials, Any]:
        random = rng(seed)
        structure = self.make_structure()
        potentials = self.make_potentials(random, batch, integers, dtype)
        return (
            structure,
            potentials,
            structure.check_target(self.random_target(structure, potentials, random), potentials),
        )

    def score(self, structure: Structure, potentials: Potentials, labeling: Any) -> Tensor:
        return inner(conform(structure.parts(labeling), potentials, "parts"), potentials.tensors)

    def cropped(self, potentials: Potentials, row: int) -> Potentials:
        if potentials.lengths is None:
            return potentials.select(torch.tensor([row]))
        length = potentials.lengths[row : row + 1]
        tensors = {}
        for name, tensor in potentials.tensors.items():
            single = tensor[row : row + 1]
            tensors[name] = single[:, : int(length) + potentials.ragged[name]] if name in potentials.ragged else single
        return Potentials(tensors, length, ragged=potentials.ragged)

    def with_padding(self, potentials: Potentials, value: Callable[[Tensor], Any]) -> Potentials:
        """The potentials with other numbers beyond the lengths."""
        other = {name: tensor.clone() for name, tensor in potentials.tensors.items()}
        for name, rows in potentials.ragged.items():
            beyond = torch.arange(other[name].shape[1]) >= (potentials.lengths + rows).unsqueeze(1)
            other[name][beyond] = value(other[name][beyond])
        return potentials.replace(other)

    def best(self, structure: Structure, potentials: Potentials, target: Any | None) -> Tensor:
        best = torch.full((potentials.batch_size,), -torch.inf, dtype=torch.float64)
        for labeling in structure.enumerate(potentials):
            if target is None:
                value = self.score(structure, potentials, labeling)
            else:
                value = self.augmented_score(structure, potentials, labeling, target)
            best = torch.maximum(best, value)
        return best

    def augmented_score(self, structure: Structure, potentials: Potentials, labeling: Any, target: Any) -> Tensor:
        """What the max oracle of training maximises."""
        return self.score(structure, potentials, labeling) + structure.loss(labeling, target)

    @pytest.mark.every_variant
    @examples(10)
    @given(seed=SEEDS, batch=BATCHES, dtype=st.sampled_from([torch.float32, torch.float64]))
    def test_marginals_are_means_over_all_outputs(self, seed, batch, dtype):
        structure, potentials, _ = self.setting(seed, batch, dtype=dtype)
        if type(structure).marginals is Structure.marginals:
            with pytest.raises(NotImplementedError, match="marginals"):
                structure.marginals(potentials)
            return
        result = structure.marginals(potentials)
        together = potentials.replace(result.parts)
        for row in range(batch):
            alone, mean = self.cropped(potentials, row), self.cropped(together, row)
            outputs = [conform(structure.parts(y), alone, "parts") for y in structure.enumerate(alone)]
            scores = torch.cat([inner(parts, alone.tensors) for parts in outputs])
            for name, tensor in mean.tensors.items():
                pairs = zip(scores.softmax(0), outputs, strict=True)
                expected = sum(weight * parts[name].double() for weight, parts in pairs)
                torch.testing.assert_close(tensor.double(), expected, atol=1e-5, rtol=0)
                assert not result.parts[name][row].sum() > tensor.sum() + 1e-4  # nothing in the padding
            torch.testing.assert_close(result.log_partition[row], scores.logsumexp(0), atol=1e-4, rtol=1e-6)

    @examples(5)
    @given(seed=SEEDS, batch=BATCHES)
    def test_likelihood_and_entropy_are_sums_over_all_outputs(self, seed, batch):
        structure, potentials, target = self.setting(seed, batch)
        if type(structure).marginals is Structure.marginals or isinstance(structure, HiddenStates):
            return  # hidden targets have a test of their own
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in potentials.tensors.items()}
        value = structure.log_prob(potentials.replace(leaves), target)
        gradient = torch.autograd.grad(value.sum(), list(leaves.values()))
        true, mean = structure.parts(target), structure.marginals(potentials).parts
        true = conform(true, potentials, "parts")
        for name, slope in zip(leaves, gradient, strict=True):
            torch.testing.assert_close(slope, (true[name] - mean[name]).to(slope.dtype), atol=1e-9, rtol=0)
        entropies, scores = structure.entropy(potentials), self.score(structure, potentials, target)
        for row in range(batch):
            alone = self.cropped(potentials, row)
            logs = torch.cat([self.score(structure, alone, y) for y in structure.enumerate(alone)])
            torch.testing.assert_close(value[row].detach(), scores[row] - logs.logsumexp(0), atol=1e-8, rtol=0)
            logs = logs.log_softmax(0)
            torch.testing.assert_close(entropies[row], -(logs.exp() * logs).sum(), atol=1e-8, rtol=0)

    def test_samples_have_the_marginals(self):
        structure, potentials, _ = self.setting(3, 2)
        if type(structure)._sample is Structure._sample:
            with pytest.raises(NotImplementedError, match="no sampler"):
                structure.sample(potentials)
            return
        n, generator = 2000, torch.Generator().manual_seed(0)
        drawn = structure.sample(potentials, n, generator)
        each = [conform(structure.parts(y), potentials, "parts") for y in each_labeling(drawn)]
        for name, expected in structure.marginals(potentials).parts.items():
            parts = torch.stack([one[name] for one in each]).double()
            error = 5.0 * parts.std(0) / n**0.5 + 5.0 / n
            assert bool(((parts.mean(0) - expected).abs() <= error).all())
        again = structure.sample(potentials, n, torch.Generator().manual_seed(0))
        assert self.same(drawn, again)

    @pytest.mark.every_variant
    @examples(10)
    @given(seed=SEEDS, batch=BATCHES, integers=st.booleans(), dtype=st.sampled_from([torch.float32, torch.float64]))
    def test_max_marginals_are_margins_among_all_outputs(self, seed, batch, integers, dtype):
        structure, potentials, _ = self.setting(seed, batch, integers, dtype)
        result = structure.max_marginals(self.with_padding(potentials, lambda padded: torch.nan))
        assert result.dtype == torch.float64
        name, there = next(iter(potentials.tensors)), structure._state_parts[1]
        best = structure.decode(potentials)
        shown = conform(structure.parts(best), potentials, "parts")[name] == there
        assert not bool((result[shown] < 0).any()), "the states of the best output are as good as others"
        potentials = potentials.replace({key: tensor.double() for key, tensor in potentials.tensors.items()})
        together = potentials.replace({**potentials.tensors, name: result})
        for row in range(batch):
            alone, margins = self.cropped(potentials, row), self.cropped(together, row)[name]
            outputs = list(structure.enumerate(alone))
            scores = torch.cat([self.score(structure, alone, y) for y in outputs])
            has = torch.cat([conform(structure.parts(y), alone, "parts")[name] for y in outputs]) == there
            each = scores.view(-1, *[1] * (has.ndim - 1))
            with_it, without = (torch.where(where, each, -torch.inf).amax(0) for where in (has, ~has))
            tolerance = 1e-9 if dtype == torch.float64 else 1e-6  # of float32, the best output may have been rounded
            torch.testing.assert_close(margins[0], with_it - without, atol=tolerance, rtol=tolerance)

    @pytest.mark.every_variant
    @examples(10)
    @given(seed=SEEDS, batch=BATCHES, integers=st.booleans())
    def test_argmax_is_the_best_of_all_outputs(self, seed, batch, integers):
        structure, potentials, _ = self.setting(seed, batch, integers)
        result = as_decoding(structure.argmax(potentials))
        best = self.best(structure, potentials, None)
        torch.testing.assert_close(self.score(structure, potentials, result.labeling), best)
        if result.value is not None:
            torch.testing.assert_close(result.value.double(), best)
        assert result.exact

    @pytest.mark.every_variant
    @examples(50)
    @given(seed=SEEDS, batch=BATCHES, integers=st.booleans(), infinite=st.booleans())
    def test_scores_that_mask_leave_the_others_as_they_are(self, seed, batch, integers, infinite):
        structure, potentials, _ = self.setting(seed, batch, integers)
        random, mask = rng(seed), self.mask
        masked = {
            name: scores
            if name in self.positive or (infinite and structure.signed(name))
            else torch.where(torch.rand(scores.shape, generator=random) < 0.15, mask, scores)
            for name, scores in potentials.tensors.items()
        }
        best = self.best(structure, potentials.replace(masked), None)
        if infinite:
            masked = {name: scores.masked_fill(scores == mask, -torch.inf) for name, scores in masked.items()}
        result = as_decoding(structure.argmax(potentials.replace(masked)))
        possible = best > -1e6
        score = self.score(
            structure, potentials.replace({n: t.clamp(min=mask) for n, t in masked.items()}), result.labeling
        )
        torch.testing.assert_close(score[possible], best[possible])

    @pytest.mark.every_variant
    def test_parts_are_negative_only_where_the_structure_says_so(self):
        structure, potentials, _ = self.setting(3)
        for labeling in structure.enumerate(potentials):
            for name, part in conform(structure.parts(labeling), potentials, "parts").items():
                assert structure.signed(name) or bool((part >= 0).all())

    def test_infinite_scores_that_count_with_a_minus_are_refused(self):
        structure, potentials, _ = self.setting(3)
        for name, scores in potentials.tensors.items():
            if structure.signed(name):
                wrong = potentials.replace({**potentials.tensors, name: torch.full_like(scores, -torch.inf)})
                with pytest.raises(ValueError, match="potentials"):
                    structure.argmax(wrong)

    @pytest.mark.every_variant
    @examples(10)
    @given(seed=SEEDS, batch=BATCHES, integers=st.booleans())
    def test_augmented_argmax_is_the_best_of_all_outputs(self, seed, batch, integers):
        structure, potentials, target = self.setting(seed, batch, integers)
        result = as_decoding(structure.augmented_argmax(potentials, target))
        best = self.best(structure, potentials, target)
        value = self.augmented_score(structure, potentials, result.labeling, target)
        torch.testing.assert_close(value, best)
        if result.value is not None:
            torch.testing.assert_close(result.value.double(), best)

    def test_copies_and_pickles_decode_the_same(self):
        structure, potentials, _ = self.setting(0)
        decoded = structure.decode(potentials)
        for twins in (copy.deepcopy((structure, potentials)), pickle.loads(pickle.dumps((structure, potentials)))):
            assert self.same(twins[0].decode(twins[1]), decoded)

    @examples(6)
    @given(seed=SEEDS, batch=BATCHES)
    def test_all_outputs_are_listed(self, seed, batch):
        structure, potentials, _ = self.setting(seed, batch)
        listed = list(structure.enumerate(potentials))
        for row in range(batch):
            different = {tuple(self.one(labeling, potentials, row).flatten().tolist()) for labeling in listed}
            assert len(different) == self.count(structure, potentials, row)

    @pytest.mark.every_variant
    @examples(6)
    @given(seed=SEEDS, batch=BATCHES)
    def test_the_score_is_the_inner_product_with_the_parts(self, seed, batch):
        structure, potentials, _ = self.setting(seed, batch)
        cropped = [self.cropped(potentials, row).tensors for row in range(batch)]
        tensors_of = [{name: tensor[0] for name, tensor in tensors.items()} for tensors in cropped]
        for labeling in structure.enumerate(potentials):
            score = self.score(structure, potentials, labeling)
            for row in range(batch):
                expected = self.reference_score(tensors_of[row], self.one(labeling, potentials, row))
                assert float(score[row]) == pytest.approx(expected, abs=1e-10)

    @pytest.mark.every_variant
    @examples(6)
    @given(seed=SEEDS, batch=BATCHES)
    def test_the_loss_is_the_definition_and_its_potentials(self, seed, batch):
        structure, potentials, target = self.setting(seed, batch)
        delta, constant = structure.loss_potentials(target)
        delta = {next(iter(potentials.tensors)): delta} if isinstance(delta, Tensor) else delta
        for labeling in structure.enumerate(potentials):
            loss = structure.loss(labeling, target)
            assert loss.shape == (batch,)
            assert bool((loss >= 0).all())
            parts = conform(structure.parts(labeling), potentials, "parts")
            torch.testing.assert_close(inner({name: parts[name] for name in delta}, delta) + constant, loss.double())
            for row in range(batch):
                pair = self.one(labeling, potentials, row), self.one(target, potentials, row)
                assert float(loss[row]) == pytest.approx(self.reference_loss(structure, *pair), abs=1e-12)

    @examples(10)
    @given(seed=SEEDS, batch=BATCHES)
    def test_the_target_costs_nothing(self, seed, batch):
        structure, _, target = self.setting(seed, batch)
        assert structure.loss(target, target).tolist() == [0.0] * batch

    @examples(10)
    @given(seed=SEEDS, batch=BATCHES)
    def test_the_corner_is_the_structured_hinge(self, seed, batch):
        structure, potentials, target = self.setting(seed, batch)
        corner = find_corner(structure, potentials, target)
        hinge = self.best(structure, potentials, target) - self.score(structure, potentials, target)
        torch.testing.assert_close(corner.hinge, hinge)
        assert bool((corner.hinge >= -1e-12).all())
        assert torch.equal(corner.bound, corner.hinge)
        assert corner.exact
        expected = self.difference(structure, potentials, corner.labeling, target)
        for name, parts in corner.parts.items():
            assert parts.shape == potentials[name].shape
            assert torch.equal(parts, expected[name])
        assert torch.equal(corner.loss, structure.loss(corner.labeling, target).double())

    @examples(15)
    @given(seed=SEEDS, batch=BATCHES)
    def test_ties_are_broken_alike_in_a_batch_and_alone(self, seed, batch):
        """The potentials are small integers, and ties are common."""
        structure, potentials, target = self.setting(seed, batch, integers=True)
        together = as_decoding(structure.argmax(potentials)).labeling
        augmented = as_decoding(structure.augmented_argmax(potentials, target)).labeling
        for row in range(batch):
            cropped, alone = self.cropped(potentials, row), self.alone(target, potentials, row)
            single = as_decoding(structure.argmax(cropped)).labeling
            assert torch.equal(self.one(single, cropped, 0), self.one(together, potentials, row))
            single = as_decoding(structure.augmented_argmax(cropped, alone)).labeling
            assert torch.equal(self.one(single, cropped, 0), self.one(augmented, potentials, row))

    @pytest.mark.every_variant
    @examples(10)
    @given(seed=SEEDS, batch=BATCHES, noise=st.sampled_from([1.0, 1e6, -1e6]))
    def test_what_stands_in_the_padding_does_not_matter(self, seed, batch, noise):
        structure, potentials, target = self.setting(seed, batch)
        random = rng(seed)
        noisy = self.with_padding(
            potentials, lambda padded: noise * torch.randn(padded.shape, generator=random, dtype=padded.dtype)
        )
        corner, again = (find_corner(structure, p, target) for p in (potentials, noisy))
        assert self.same(again.labeling, corner.labeling)
        torch.testing.assert_close(again.hinge, corner.hinge)
        for name, tensor in corner.parts.items():
            assert torch.equal(tensor, again.parts[name])
        torch.testing.assert_close(
            as_decoding(structure.argmax(potentials)).labeling, as_decoding(structure.argmax(noisy)).labeling
        )

    @examples(10)
    @given(seed=SEEDS, batch=BATCHES)
    def test_an_example_has_the_same_hinge_alone(self, seed, batch):
        structure, potentials, target = self.setting(seed, batch)
        corner = find_corner(structure, potentials, target)
        for row in range(batch):
            alone = find_corner(structure, self.cropped(potentials, row), self.alone(target, potentials, row))
            torch.testing.assert_close(alone.hinge, corner.hinge[row : row + 1])
            torch.testing.assert_close(alone.loss, corner.loss[row : row + 1])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_dtypes(self, dtype):
        structure, potentials, target = self.setting(7, 4, integers=True, dtype=dtype)
        corner = find_corner(structure, potentials, target)
        _, wide, _ = self.setting(7, 4, integers=True)
        reference = find_corner(structure, wide, target)
        labels, expected = (as_decoding(structure.argmax(p)).labeling for p in (potentials, wide))
        assert self.same(labels, expected)  # whole numbers: the same ties in every dtype
        assert {tensor.dtype for tensor in corner.parts.values()} == {dtype}
        for scalar in (corner.hinge, corner.loss, corner.bound):
            assert scalar.dtype == torch.float64
        assert {tensor.dtype for tensor in tree_tensors(labels)} == {torch.int64}
        torch.testing.assert_close(corner.hinge, reference.hinge, rtol=1e-5, atol=1e-5)

    def test_devices(self, device):
        structure, potentials, target = self.setting(11, 4, integers=True)
        here = find_corner(structure, potentials, target)
        moved = self.on(potentials, device)
        fields = tree_map(lambda tensor: tensor.to(device), target)
        there = find_corner(structure, moved, structure.check_target(fields, moved) if self.rechecked else fields)
        assert {t.device.type for t in tree_tensors(there.labeling)} == {device.type}
        assert self.same(tree_map(lambda t: t.cpu(), there.labeling), here.labeling)
        # a device adds up in another order
        torch.testing.assert_close(there.hinge.cpu(), here.hinge, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(there.loss.cpu(), here.loss, rtol=1e-13, atol=1e-13)

    def test_targets_that_do_not_fit_are_refused(self):
        structure, potentials, target = self.setting(3, 3)
        cases = list(self.bad_targets(potentials, target))
        assert cases
        for wrong, words in cases:
            with pytest.raises(ValueError, match=words):
                structure.check_target(wrong, potentials)

    def test_potentials_that_do_not_fit_are_refused(self):
        structure, potentials, target = self.setting(3, 3)
        cases = list(self.bad_potentials(potentials))
        assert cases
        for wrong in cases:
            with pytest.raises(ValueError, match="potentials"):
                structure.check_target(target, wrong)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_scores_that_are_not_finite_are_not_decoded(self, value):
        structure, potentials, _ = self.setting(5, 3)
        potentials.index = torch.tensor([40, 17, 30])  # errors name the example
        oracles = [structure.argmax, structure.decode]
        if type(structure).marginals is not Structure.marginals:
            oracles.append(structure.marginals)
        places = structure.places(potentials)
        for name in potentials.tensors:
            rows = 1 if name not in potentials.ragged else int(potentials.lengths[1]) + potentials.ragged[name]
            if rows < 1 or (name in places and not places[name].expand_as(potentials[name])[1].any()):
                # the example has none, such as no edges
                continue
            tensors = {key: tensor.clone() for key, tensor in potentials.tensors.items()}
            tensors[name][1] = value
            for oracle in oracles:
                with pytest.raises(ValueError, match=r"examples \[17\] are not finite"):
                    oracle(potentials.replace(tensors))

    @examples(5)
    @given(seed=SEEDS, batch=BATCHES)
    def test_nan_in_the_padding_is_decoded(self, seed, batch):
        structure, potentials, _ = self.setting(seed, batch)
        noisy = self.with_padding(potentials, lambda padded: torch.nan)
        assert self.same(structure.decode(noisy), structure.decode(potentials))
