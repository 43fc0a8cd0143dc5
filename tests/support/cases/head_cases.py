"""What every head must do: inherit ``HeadTestCase``, say how to make the head and its input, get the tests."""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cases.any_order import on_a_device
from cases.lowered_precision import lowered
from cases.problems import examples, flat, rng
from torchssvm.core.gradients import adjoint, gram_product, per_example_adjoint
from torchssvm.core.potentials import Parts, Potentials, as_potentials

SEEDS = st.integers(0, 2**31 - 1)


class HeadTestCase(ABC):
    """Small heads; the input is ``(x,)`` or ``(x, lengths)``."""

    @abstractmethod
    def make_head(self) -> nn.Module: ...

    @abstractmethod
    def make_input(self, random: torch.Generator, batch: int) -> tuple[Tensor, ...]:
        """Features in float64 with garbage in the padding, and the lengths if there are any."""

    @abstractmethod
    def reference(self, head: nn.Module, x: Tensor) -> dict[str, Tensor]:
        """The potentials of one example without padding and batch axis, by their definition."""

    any_features = False  # whether ``make_head`` takes features of any shape

    def bad_inputs(self, inputs: tuple[Tensor, ...]) -> Any:
        """Inputs that must be refused, with the argument that the error names."""
        x, *lengths = inputs
        if not self.any_features:
            yield (x[..., :-1], *lengths), "x"
            yield (x[0], *lengths), "x"
        if x.ndim == 2:
            yield (x, torch.ones(len(x), dtype=torch.int64)), "lengths"
        if lengths:
            for wrong in ([1, 0, 1], [1, -1, 1], [1, x.shape[1] + 1, 1], [1, 2], [1.0, 2.0, 1.0]):
                yield (x, torch.tensor(wrong)), "lengths"

    def setting(self, seed: int, batch: int = 3) -> tuple[nn.Module, tuple[Tensor, ...]]:
        random = rng(seed)
        head = self.make_head().double()
        with torch.no_grad():
            for p in head.parameters():
                p.copy_(torch.randn(p.shape, generator=random, dtype=torch.float64))
        return head, self.make_input(random, batch)

    def single(self, potentials: Potentials, row: int) -> Parts:
        """The potentials of one example without padding."""
        result = {}
        for name, tensor in potentials.tensors.items():
            rows = None
            if name in potentials.ragged:
                rows = int(potentials.lengths[row]) + potentials.ragged[name]
            result[name] = tensor[row, :rows]
        return result

    def alone(self, inputs: tuple[Tensor, ...], row: int) -> tuple[Tensor, ...]:
        x, *lengths = inputs
        if not lengths:
            return (x[row : row + 1],)
        return x[row : row + 1, : int(lengths[0][row])], lengths[0][row : row + 1]

    def random_parts(self, potentials: Potentials, random: torch.Generator) -> Parts:
        """Zero in the padding, as every structure's are."""
        result = {}
        for name, tensor in potentials.tensors.items():
            parts = torch.randn(tensor.shape, generator=random, dtype=torch.float64).to(tensor.dtype)
            if name in potentials.ragged:
                beyond = torch.arange(tensor.shape[1]) >= (potentials.lengths + potentials.ragged[name]).unsqueeze(1)
                parts[beyond] = 0.0
            result[name] = parts
        return result

    def test_a_new_head_is_zero(self):
        head = self.make_head()
        assert flat(head.parameters()).count_nonzero() == 0
        potentials = head(*(t.float() if t.is_floating_point() else t for t in self.make_input(rng(0), 3)))
        for tensor in potentials.tensors.values():
            assert tensor.count_nonzero() == 0

    def test_copies_and_pickles_give_the_same_potentials(self):
        head, inputs = self.setting(0)
        potentials = head(*inputs)
        for way in (copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))):
            for twin in (way(head)(*inputs), way(potentials)):
                assert type(twin) is type(potentials)
                for name, tensor in potentials.tensors.items():
                    assert torch.equal(twin.tensors[name], tensor)

    @pytest.mark.every_variant
    @examples(7)
    @given(seed=SEEDS, batch=st.integers(1, 4))
    def test_potentials_are_the_definition(self, seed, batch):
        head, inputs = self.setting(seed, batch)
        potentials = as_potentials(head(*inputs))
        for row in range(batch):
            expected = self.reference(head, self.alone(inputs, row)[0][0])
            result = self.single(potentials, row)
            assert result.keys() == expected.keys()
            for name, tensor in result.items():
                torch.testing.assert_close(tensor, expected[name])

    @examples(7)
    @given(seed=SEEDS, a=st.floats(-3, 3), b=st.floats(-3, 3))
    def test_linear_in_the_weights(self, seed, a, b):
        head, inputs = self.setting(seed)
        other = self.setting(seed + 1)[0]
        both = copy.deepcopy(head)
        with torch.no_grad():
            for p, u, v in zip(both.parameters(), head.parameters(), other.parameters(), strict=True):
                p.copy_(a * u + b * v)
        at_u, at_v, at_both = (h(*inputs).tensors for h in (head, other, both))
        for name in at_both:
            torch.testing.assert_close(at_both[name], a * at_u[name] + b * at_v[name])

    @pytest.mark.every_variant
    @examples(7)
    @given(seed=SEEDS, batch=st.integers(1, 4))
    def test_the_adjoint_is_autograd_for_every_example(self, seed, batch):
        head, inputs = self.setting(seed, batch)
        potentials = head(*inputs)
        parameters = list(head.parameters())
        parts = self.random_parts(potentials, rng(seed + 1))
        gradients = per_example_adjoint(potentials, parts, parameters)
        for row in range(batch):
            only = {name: torch.zeros_like(tensor) for name, tensor in parts.items()}
            for name, tensor in parts.items():
                only[name][row] = tensor[row]
            for mine, true in zip(gradients, adjoint(potentials, only, parameters), strict=True):
                torch.testing.assert_close(mine[row], true)
        without = Potentials(potentials.tensors, potentials.lengths, ragged=potentials.ragged)
        for mine, general in zip(gradients, per_example_adjoint(without, parts, parameters), strict=True):
            torch.testing.assert_close(mine, general)

    @pytest.mark.every_variant
    @examples(5)
    @given(seed=SEEDS, batch=st.integers(1, 4))
    def test_the_gram_product_is_the_map_times_its_adjoint(self, seed, batch):
        """``Phi_i Phi_i^T`` of every example, Phi_i written out by the weights' unit vectors; with and without help."""
        head, inputs = self.setting(seed, batch)
        potentials = as_potentials(head(*inputs))
        parameters = list(head.parameters())
        parts = self.random_parts(potentials, rng(seed + 1))
        shapes = {name: tensor.shape[1:] for name, tensor in potentials.tensors.items()}
        columns = []
        unit = copy.deepcopy(head)
        with torch.no_grad():
            for row in torch.eye(flat(parameters).numel(), dtype=torch.float64):
                nn.utils.vector_to_parameters(row, unit.parameters())
                columns.append(torch.cat([t.flatten(1) for t in as_potentials(unit(*inputs)).tensors.values()], 1))
        maps = torch.stack(columns, 2)  # [B, p, d]
        flattened = torch.cat([parts[name].flatten(1) for name in shapes], 1).unsqueeze(2)
        expected = (maps @ (maps.mT @ flattened)).squeeze(2)
        without = Potentials(potentials.tensors, potentials.lengths, ragged=potentials.ragged)
        for given_potentials in (potentials, without):
            result = gram_product(given_potentials, parts, parameters)
            assert result.keys() == shapes.keys()
            together = Potentials(result, potentials.lengths, ragged=potentials.ragged)
            wanted = Potentials(
                {
                    name: part.view(batch, *shape)
                    for (name, shape), part in zip(
                        shapes.items(), expected.split([shape.numel() for shape in shapes.values()], 1), strict=True
                    )
                },
                potentials.lengths,
                ragged=potentials.ragged,
            )
            for row in range(batch):
                for name, tensor in self.single(together, row).items():
                    torch.testing.assert_close(tensor, self.single(wanted, row)[name])

    @examples(7)
    @given(seed=SEEDS)
    def test_an_example_has_the_same_potentials_and_adjoint_alone(self, seed):
        head, inputs = self.setting(seed)
        potentials = head(*inputs)
        parameters = list(head.parameters())
        parts = self.random_parts(potentials, rng(seed + 1))
        together = per_example_adjoint(potentials, parts, parameters)
        for row in range(3):
            alone = head(*self.alone(inputs, row))
            for name, tensor in self.single(potentials, row).items():
                torch.testing.assert_close(self.single(alone, 0)[name], tensor)
            cropped = {}
            for name, tensor in parts.items():
                shape = alone[name].shape[1:]
                cropped[name] = tensor[row][tuple(slice(size) for size in shape)].unsqueeze(0)
            for mine, other in zip(per_example_adjoint(alone, cropped, parameters), together, strict=True):
                torch.testing.assert_close(mine[0], other[row])

    @pytest.mark.every_variant
    @examples(7)
    @given(seed=SEEDS, noise=st.sampled_from([1.0, 1e6]))
    def test_features_in_the_padding_do_not_matter(self, seed, noise):
        head, inputs = self.setting(seed)
        x, *lengths = inputs
        if not lengths:
            pytest.skip("nothing is padded")
        beyond = torch.arange(x.shape[1]) >= lengths[0].unsqueeze(1)
        beyond = beyond.view(*beyond.shape, *[1] * (x.ndim - 2))
        other = torch.where(beyond, noise * torch.randn(x.shape, generator=rng(seed)).double(), x)
        potentials, again = head(x, *lengths), head(other, *lengths)
        parts = self.random_parts(potentials, rng(seed + 1))
        for row in range(3):
            for name, tensor in self.single(potentials, row).items():
                torch.testing.assert_close(self.single(again, row)[name], tensor)
        parameters = list(head.parameters())
        for mine, clean in zip(
            per_example_adjoint(again, parts, parameters),
            per_example_adjoint(potentials, parts, parameters),
            strict=True,
        ):
            torch.testing.assert_close(mine, clean)

    def test_gradcheck(self):
        head, inputs = self.setting(1)
        parameters = [p.detach().clone().requires_grad_() for p in head.parameters()]
        names = [name for name, _ in head.named_parameters()]
        x = inputs[0].clone().requires_grad_()

        def potentials(x, *weights):
            values = dict(zip(names, weights, strict=True))
            tensors = torch.func.functional_call(head, values, (x, *inputs[1:])).tensors
            return tuple(tensors.values())

        assert torch.autograd.gradcheck(potentials, (x, *parameters))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_potentials_have_the_dtype_of_the_weights(self, dtype):
        head, inputs = self.setting(2)
        reference = head(*inputs)
        head = head.to(dtype)
        for features in (torch.float64, torch.float32, torch.float16):
            potentials = head(inputs[0].to(features), *inputs[1:])
            assert potentials.dtype == dtype
            for row in range(3):
                for name, tensor in self.single(potentials, row).items():
                    torch.testing.assert_close(tensor.double(), self.single(reference, row)[name], rtol=5e-2, atol=5e-2)
            parts = self.random_parts(potentials, rng(3))
            gradients = per_example_adjoint(potentials, parts, list(head.parameters()))
            assert {g.dtype for g in gradients} == {dtype}

    def test_autocast_does_not_reach_the_head(self):
        head, inputs = self.setting(4)
        head = head.float()
        x = inputs[0].float()
        plain = head(x, *inputs[1:])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            under = head(x, *inputs[1:])
        for name, tensor in plain.tensors.items():
            assert under[name].dtype == torch.float32
            assert torch.equal(under[name], tensor)

    @pytest.mark.parametrize("setting", ["high", "medium"])
    def test_the_precision_of_the_process_does_not_reach_the_head(self, setting):
        """Nor its backward passes, which the user runs, nor its products of Gram matrices."""
        head, inputs = self.setting(4)
        head = head.float()
        x = inputs[0].float().requires_grad_() if inputs[0].is_floating_point() else inputs[0]
        leaves = [*head.parameters(), *([x] if x.is_floating_point() else [])]

        def everything() -> list[Tensor]:
            potentials = as_potentials(head(x, *inputs[1:]))
            parts = self.random_parts(potentials, rng(1))
            score = sum((parts[name] * tensor.square()).sum() for name, tensor in potentials.tensors.items())
            once = torch.autograd.grad(score, leaves, create_graph=True, allow_unused=True)
            once = [g for g in once if g is not None]
            twice = torch.autograd.grad(sum(g.square().sum() for g in once), leaves, allow_unused=True)
            result = [*potentials.tensors.values(), *once, *(g for g in twice if g is not None)]
            potentials = as_potentials(head(x, *inputs[1:]))
            without = Potentials(potentials.tensors, potentials.lengths, ragged=potentials.ragged)
            for known in (potentials, without):
                result += per_example_adjoint(known, parts, list(head.parameters()))
                result += gram_product(known, parts, list(head.parameters())).values()
            return [*result, *adjoint(potentials, parts, list(head.parameters()))]

        expected = everything()
        with lowered(setting) as seen:
            result = everything()
        assert not seen.rounded
        for mine, plain in zip(result, expected, strict=True):
            torch.testing.assert_close(mine, plain)

    def test_no_sum_depends_on_the_order_of_its_terms(self):
        """On a CUDA device it is another one each time, and a resumed run would not go on as the first one."""
        head, inputs = self.setting(5, 4)
        head, parameters = head.float(), list(head.parameters())

        def everything() -> list[Tensor]:
            potentials = as_potentials(head(*(t.float() if t.is_floating_point() else t for t in inputs)))
            parts = self.random_parts(potentials, rng(1))
            score = sum((parts[name] * tensor).sum() for name, tensor in potentials.tensors.items())
            result = torch.autograd.grad(score, parameters, retain_graph=True, allow_unused=True)
            return [
                *potentials.tensors.values(),
                *(torch.zeros(()) if g is None else g for g in result),
                *per_example_adjoint(potentials, parts, parameters),
                *gram_product(potentials, parts, parameters).values(),
            ]

        with on_a_device() as seen:
            result = everything()
        assert not seen.depend
        for mine, plain in zip(result, everything(), strict=True):
            torch.testing.assert_close(mine, plain)

    def test_devices(self, device):
        head, inputs = self.setting(6)
        here = head(*inputs)
        parts = self.random_parts(here, rng(1))
        expected = per_example_adjoint(here, parts, list(head.parameters()))
        moved = copy.deepcopy(head).to(device)
        there = moved(*(t.to(device) for t in inputs))
        for name, tensor in here.tensors.items():
            assert there[name].device.type == device.type
            torch.testing.assert_close(there[name].cpu(), tensor)
        gradients = per_example_adjoint(there, {k: t.to(device) for k, t in parts.items()}, list(moved.parameters()))
        for mine, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(mine.cpu(), other)

    def test_inputs_that_do_not_fit_are_refused(self):
        head, inputs = self.setting(8)
        for wrong, argument in self.bad_inputs(inputs):
            with pytest.raises(ValueError, match=argument):
                head(*wrong)
