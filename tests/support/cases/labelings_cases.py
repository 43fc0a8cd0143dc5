"""How a structure deals with several labelings of an example: what active sets and caches are made of.

Every structure inherits these tests through ``StructureTestCase``; structures that are tested in another way inherit
``LabelingsTestCase`` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases.any_order import on_a_device
from cases.problems import examples, rng
from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.decoding import as_decoding, each_labeling
from torchssvm.core.potentials import Parts, Potentials, conform, inner
from torchssvm.core.structure import Structure, fit


class LabelingsTestCase(ABC):
    """A structure may look things up; here everything is made of the parts."""

    @abstractmethod
    def setting(self, seed: int, batch: int = 3, integers: bool = False) -> tuple[Structure, Potentials, Any]:
        """Structure, potentials and checked target of a random batch."""

    def difference(self, structure: Structure, potentials: Potentials, labeling: Any, target: Any) -> Parts:
        """The parts of a corner."""
        parts = conform(structure.parts(labeling), potentials, "parts")
        truth = conform(structure.parts(target), potentials, "parts")
        return {name: parts[name] - truth[name] for name in parts}

    def alone(self, labeling: Any, potentials: Potentials, row: int) -> Any:
        """The target of one example as a batch of one, without padding if the structure batches so."""
        return tree_map(lambda tensor: tensor[row : row + 1], labeling)

    def cropped(self, potentials: Potentials, row: int) -> Potentials:
        """The potentials of one example as a batch of one, in the padding of ``alone``."""
        return potentials.select(torch.tensor([row]))

    def several(self, structure: Structure, potentials: Potentials, seed: int, count: int) -> Any:
        """Labelings ``[B, C, ...]`` as the oracle gives them, at random potentials."""
        random, results = rng(seed + 1), []
        for _ in range(count):
            noise = {
                name: torch.randn(tensor.shape, generator=random, dtype=torch.float64).to(tensor.dtype)
                for name, tensor in potentials.tensors.items()
            }
            results.append(as_decoding(structure.argmax(potentials.replace(noise))).labeling)
        stacked = [torch.stack(several, 1) for several in zip(*map(tree_tensors, results), strict=True)]
        return tree_replace(results[0], stacked)

    @pytest.mark.every_variant
    @examples(10)
    @given(seed=st.integers(0, 2**31 - 1), batch=st.integers(1, 4), count=st.integers(1, 4))
    def test_cached_labelings_score_what_their_parts_do(self, seed, batch, count):
        structure, potentials, target = self.setting(seed, batch)
        labelings = self.several(structure, potentials, seed, count)
        result = structure.relative_scores(labelings, target, potentials)
        assert result.shape == (batch, count)
        assert result.dtype == torch.float64
        for column, labeling in enumerate(each_labeling(labelings)):
            parts = self.difference(structure, potentials, labeling, target)
            torch.testing.assert_close(result[:, column], inner(parts, potentials.tensors))

    @examples(10)
    @given(seed=st.integers(0, 2**31 - 1), batch=st.integers(1, 4), count=st.integers(1, 4))
    def test_the_mean_of_labelings_is_the_mean_of_their_parts(self, seed, batch, count):
        structure, potentials, target = self.setting(seed, batch)
        labelings = self.several(structure, potentials, seed, count)
        mass = torch.randn(batch, count, generator=rng(seed), dtype=torch.float64)
        result = structure.mean_difference(labelings, mass, target, potentials)
        expected = {name: torch.zeros_like(tensor) for name, tensor in potentials.tensors.items()}
        for column, labeling in enumerate(each_labeling(labelings)):
            for name, tensor in self.difference(structure, potentials, labeling, target).items():
                expected[name] += mass[:, column].view(-1, *[1] * (tensor.ndim - 1)).to(tensor.dtype) * tensor
        assert result.keys() == expected.keys()
        for name, tensor in result.items():
            assert tensor.dtype == potentials.dtype
            torch.testing.assert_close(tensor, expected[name])

    @examples(10)
    @given(seed=st.integers(0, 2**31 - 1), batch=st.integers(1, 4))
    def test_no_sum_depends_on_the_order_of_its_terms(self, seed, batch):
        """On a CUDA device it is another one each time, and a resumed run would not go on as the first one."""
        structure, potentials, target = self.setting(seed, batch)
        potentials = potentials.replace({name: tensor.float() for name, tensor in potentials.tensors.items()})
        labelings = self.several(structure, potentials, seed, 5)
        mass = torch.rand(batch, 5, generator=rng(seed), dtype=torch.float64)
        one = next(iter(each_labeling(labelings)))

        def everything() -> list[torch.Tensor]:
            zeros = {name: torch.zeros_like(tensor) for name, tensor in potentials.tensors.items()}
            result = [
                structure.mean_difference(labelings, mass, target, potentials),
                structure._difference(one, target, potentials),
                structure._add_difference(zeros, one, target, potentials),
                conform(structure.parts(one), potentials, "parts"),
            ]
            scores = structure.relative_scores(labelings, target, potentials)
            return [scores, *(tensor for parts in result for tensor in parts.values())]

        with on_a_device() as seen:
            result = everything()
        assert not seen.depend
        for mine, plain in zip(result, everything(), strict=True):
            torch.testing.assert_close(mine, plain)

    @examples(10)
    @given(seed=st.integers(0, 2**31 - 1), batch=st.integers(1, 4), more=st.integers(0, 3))
    def test_stored_labelings_take_the_padding_of_any_batch(self, seed, batch, more):
        """They come wider from the store, go with an example alone, and are what they were in the batch again."""
        structure, potentials, target = self.setting(seed, batch)
        labelings = self.several(structure, potentials, seed, 2)
        scores = structure.relative_scores(labelings, target, potentials)

        def wider(tensor: torch.Tensor) -> torch.Tensor:
            return fit(tensor, [size + more for size in tensor.shape[2:]], structure.padding)

        def same(result: Any, expected: Any) -> None:
            for mine, theirs in zip(tree_tensors(result), tree_tensors(expected), strict=True):
                assert torch.equal(mine, theirs)

        same(structure.resize(tree_map(wider, labelings), target), labelings)
        for row in range(batch):
            single = tree_map(lambda tensor, row=row: tensor[row : row + 1], labelings)
            alone, only = self.alone(target, potentials, row), self.cropped(potentials, row)
            resized = structure.resize(tree_map(wider, single), alone)
            torch.testing.assert_close(structure.relative_scores(resized, alone, only), scores[row : row + 1])
            same(structure.resize(resized, tree_map(lambda tensor, row=row: tensor[row : row + 1], target)), single)
