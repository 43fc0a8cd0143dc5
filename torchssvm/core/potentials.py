"""Potentials, which a head gives to a structure, and inner products of parts.

Notation: theta_i are the potentials of example i, linear in the head's weights, theta_i = Phi_i w; parts are arrays
shaped like them, and the score of an output y is ``<p(y), theta_i>``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from torchssvm.compiler.jit import njit_fastmath
from torchssvm.core.arguments import check_length_form, check_tensor, check_type, check_whole, read_numbers, row_names
from torchssvm.core.launch import fits_numba, once
from torchssvm.core.operators import apart, pick, plain
from torchssvm.core.threads import torch_threads
from torchssvm.core.triton_support import fits_triton

Parts = dict[str, Tensor]
"""Named arrays shaped like the potentials, each ``[B, ...]``."""

SINGLE = "potentials"
"""The name of the only tensor of a head that returns a bare tensor."""

Adjoint = Callable[[Parts], Sequence[Tensor]]
"""Maps parts to ``Phi_i^T parts_i``: for every parameter of the head, in their order, ``[B, *parameter.shape]``.

A parameter of which an example moves few rows may get a coalesced sparse tensor with two sparse axes, example and row.
"""

GramProduct = Callable[[Parts], Parts]
"""Maps parts to ``Phi_i Phi_i^T parts_i``, shaped like the potentials: how they change along their own gradient."""


class Potentials:
    """The potentials of a batch: named tensors, the examples' lengths, and the head's adjoint if it has one.

    Args:
        tensors: One tensor ``[B, ...]``, or several by name; float32 or float64, differentiable in the head's weights.
        lengths: ``[B]`` int64, how much of each padded axis belongs to the example; None where nothing is padded.
        ragged: For each tensor whose axis 1 is padded, the rows of an example of length T, as an offset to T (0 for one
            row a token, -1 for one row a pair of neighbours). Padded rows are not stored. Tensors that are not named
            are stored whole.
        adjoint: Optional. Parts ``[B, ...]`` -> for each of the head's parameters, in the order of
            ``head.parameters()``, the per-example gradients ``Phi_i^T parts_i``, ``[B, *parameter.shape]``. They give
            every block of a batch its step size (the box QP). Without it, ``torch.func`` makes them if it can, several
            times slower.
        gram_product: Optional. Parts ``[B, ...]`` -> ``Phi_i Phi_i^T parts_i``, shaped like the parts. Directions that
            need inner products of labelings (``Corrective``, ``Hybrid``) are faster with it.
        gram: Optional. Parts ``[B, ...]`` -> ``<Phi_i^T parts_i, Phi_j^T parts_j>``, ``[B, B]``, without the gradients,
            which are large for many features and classes. The box QP uses it on devices.
        weights: Optional. The head's parameters, in the order of ``head.parameters()``, if the potentials depend on no
            other trained tensor. With ``adjoint``, ``BlockGap`` then skips the backward pass through the head.
        min_length: Optional. The smallest length, if the head has read it already; ``lengths`` must not change.
        max_length: Optional. The largest length; given together with ``min_length``.

    Attributes:
        batch_size: Number of examples, B.
        dtype: Floating dtype of the potentials.
        device: Device of the potentials.
        index: ``[B]`` int64, the examples' places in the dataset, for errors; None if unknown.
        examined: Whether the scores were checked for NaN, so that oracles need not check them.

    Raises:
        TypeError: ``tensors`` is neither a tensor nor a mapping of tensors, or dtypes differ.
        ValueError: Batch sizes differ, or ``lengths`` or ``ragged`` does not fit the tensors.

    Example:
        >>> tensors = {"emission": torch.zeros(2, 5, 3), "transition": torch.zeros(2, 3, 3)}
        >>> potentials = Potentials(tensors, lengths=torch.tensor([5, 4]))
        >>> potentials["emission"].shape
        torch.Size([2, 5, 3])
        >>> potentials.lengths
        tensor([5, 4])
    """

    __slots__ = (
        "adjoint",
        "batch_size",
        "device",
        "dtype",
        "examined",
        "gram",
        "gram_product",
        "index",
        "lengths",
        "max_length",
        "min_length",
        "ragged",
        "tensors",
        "weights",
    )

    carried: ClassVar[tuple[str, ...]] = ()
    """Slots of a subclass with tensors ``[B, ...]`` or None that decide which outputs an example has.

    They are compared at every visit, as targets are. Padding is -1 in whole numbers, and 0 in others.
    """

    def __init__(
        self,
        tensors: Tensor | Mapping[str, Tensor],
        lengths: Tensor | None = None,
        *,
        ragged: Mapping[str, int] | None = None,
        adjoint: Adjoint | None = None,
        gram_product: GramProduct | None = None,
        gram: Callable[[Parts], Tensor] | None = None,
        weights: Sequence[Tensor] | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
    ) -> None:
        self.tensors: Parts = as_parts(tensors, "tensors")
        self.lengths = lengths = apart(lengths) if min_length is None else lengths
        if ragged is not None and not isinstance(ragged, Mapping):  # torch 2.6 cannot trace `Mapping | None`
            raise TypeError(f'ragged={ragged!r} must be a mapping such as {{"emission": 1}}')
        self.ragged = dict(ragged or {})
        self.adjoint = adjoint
        self.gram_product = gram_product
        self.gram = gram
        self.weights = weights
        self.index: Tensor | None = None
        self.examined = False
        self.min_length = self.max_length = None
        first = next(iter(self.tensors.values()))
        for tensor in self.tensors.values():
            if not tensor.ndim or tensor.shape[0] != first.shape[0]:
                raise ValueError(f"tensors={_shapes(self.tensors)} must share their first axis, the batch")
            if tensor.dtype is not first.dtype:
                raise TypeError(f"tensors={sorted({str(t.dtype) for t in self.tensors.values()})} must have one dtype")
            check_tensor(tensor, "potentials")
        self._note()
        for name, rows in self.ragged.items():
            if type(rows) is not int:  # the usual case is quick: this runs in every step
                self.ragged[name] = check_whole(rows, f"ragged[{name!r}]", -(2**63))
        if self.ragged and (lengths is None or not self.ragged.keys() <= self.tensors.keys()):
            raise ValueError(f"ragged={self.ragged} must name tensors of {sorted(self.tensors)}, and needs lengths")
        if lengths is not None:
            self.min_length, self.max_length = min_length, max_length
            check_length_form(lengths, self.batch_size)
            if not plain():
                self._check_lengths(lengths)

    def _note(self) -> None:
        first = next(iter(self.tensors.values()))
        self.batch_size, self.dtype, self.device = first.shape[0], first.dtype, first.device

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient can flow to the head."""
        return any(tensor.requires_grad for tensor in self.tensors.values())

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def single(self) -> Tensor:
        """The only tensor, for structures that have one kind of potential.

        Raises:
            ValueError: There are several.
        """
        if len(self.tensors) != 1:
            raise ValueError(f"potentials={sorted(self.tensors)}: this structure takes one tensor")
        return next(iter(self.tensors.values()))

    def replace(self, tensors: Parts) -> Potentials:
        """The same batch with other tensors, e.g. detached or loss-augmented ones; without the head's adjoint."""
        other = object.__new__(type(self))
        other.tensors, other.lengths, other.ragged = tensors, self.lengths, self.ragged
        other.min_length, other.max_length = self.min_length, self.max_length
        other.adjoint = other.gram_product = other.gram = other.weights = None
        other.index, other.examined = self.index, self.examined
        other._note()
        for name in self.carried:
            setattr(other, name, getattr(self, name))
        return other

    def detach(self) -> Potentials:
        """The same numbers, cut from the graph."""
        if not self.requires_grad and self.adjoint is None:
            return self
        return self.replace({name: tensor.detach() for name, tensor in self.tensors.items()})

    def examining(self) -> Potentials:
        """The same numbers, cut from the graph and marked as examined."""
        other = self.replace({name: tensor.detach() for name, tensor in self.tensors.items()})
        other.examined = True
        return other

    def select(self, rows: Tensor) -> Potentials:
        """The examples ``rows`` ([R] int64 or [B] bool) of the batch, without the head's adjoint."""
        other = self.replace({name: tensor[rows] for name, tensor in self.tensors.items()})
        if self.index is not None:
            other.index = self.index[rows] if self.index.device == rows.device else None  # copying would wait
        for name in ("lengths", *self.carried):
            tensor = getattr(self, name)
            setattr(other, name, None if tensor is None else pick(tensor, rows))
        other._read_lengths()
        return other

    def _check_lengths(self, lengths: Tensor) -> None:
        longest = min((self.tensors[n].shape[1] - rows for n, rows in self.ragged.items()), default=None)
        if self.min_length is None or self.max_length is None:
            self._read_lengths()
        low, high = self.min_length, self.max_length
        if low is not None and high is not None and (low < 1 or (longest is not None and high > longest)):
            allowed = "be at least 1" if longest is None else f"lie between 1 and the padded length {longest}"
            raise ValueError(f"lengths must {allowed}, got {lengths.tolist()}")

    def _read_lengths(self) -> None:
        numbers = (None if self.lengths is None else read_numbers(self.lengths)) or []
        self.min_length, self.max_length = min(numbers, default=None), max(numbers, default=None)

    def __getstate__(self) -> Any:
        """Copies and pickles have the numbers, cut from the graph, without the head's adjoint."""
        cut = {name: t.detach() if t.grad_fn is not None else t for name, t in self.tensors.items()}
        copy, kinds = self.replace(cut), reversed(type(self).__mro__)
        slots = [name for kind in kinds for name in vars(kind).get("__slots__", ())]
        return getattr(self, "__dict__", None), {name: getattr(copy, name) for name in slots}

    def __repr__(self) -> str:
        return f"Potentials({_shapes(self.tensors)}, lengths={'yes' if self.lengths is not None else None})"


def padding_of(potentials: Potentials, name: str) -> Tensor | None:
    """The padding of a tensor by ``ragged``, ``[B, N, 1, ...]`` bool; None if it is not padded."""
    if potentials.lengths is None or name not in potentials.ragged:
        return None
    tensor, more = potentials[name], potentials.ragged[name]
    rows = potentials.lengths + more if more else potentials.lengths
    padding = torch.arange(tensor.shape[1], device=tensor.device) >= rows.unsqueeze(1)
    return padding.view(*padding.shape, *[1] * (tensor.ndim - 2))


def as_potentials(value: Potentials | Tensor | Mapping[str, Tensor]) -> Potentials:
    """Accept any output of a head: Potentials, a tensor, or named tensors."""
    if isinstance(value, Potentials):
        return value
    tensors = (Tensor, Mapping)  # torch 2.6 cannot trace `Tensor | Mapping`
    return Potentials(check_type(value, tensors, "potentials", "Potentials or tensors, as a head returns them"))


def as_parts(value: Tensor | Mapping[str, Tensor], argument: str = "parts") -> Parts:
    """Accept one tensor or several by name; TypeError for anything else."""
    if isinstance(value, Tensor):
        return {SINGLE: value}
    if isinstance(value, Mapping) and value and all(isinstance(tensor, Tensor) for tensor in value.values()):
        return dict(value)
    raise TypeError(f"{argument} must be a tensor or a mapping of names to tensors, not {type(value).__name__}")


def own_weights(head: nn.Module) -> list[Tensor]:
    """The parameters of ``head`` without those of submodules, in order."""
    return [parameter for parameter in head._parameters.values() if parameter is not None]


def conform(parts: Tensor | Mapping[str, Tensor], potentials: Potentials, argument: str) -> Parts:
    """Parts with the names, shapes and dtype of ``potentials``, else ValueError; a bare tensor takes the only name."""
    named = as_parts(parts, argument)
    if isinstance(parts, Tensor) and len(potentials.tensors) == 1:
        named = {next(iter(potentials.tensors)): parts}
    if named.keys() != potentials.tensors.keys() or any(
        tensor.shape != potentials.tensors[name].shape for name, tensor in named.items()
    ):
        raise ValueError(
            f"{argument} must be shaped like the potentials {_shapes(potentials.tensors)}, got {_shapes(named)}"
        )
    return {name: named[name].to(tensor.dtype) for name, tensor in potentials.tensors.items()}


def inner(a: Parts, b: Parts, n: int = 1) -> Tensor:
    """Per-example inner products ``<a_i, b_i> / n``, summed over all names: ``[B]`` float64."""
    pairs = _pairs(a, b)
    if _on_device(pairs):
        from torchssvm.core.inner_triton import inner_triton

        return inner_triton(pairs, n)[0]
    values = [_row_products(one, other) for one, other in pairs]
    total = sum(values[1:], values[0])
    return total if n == 1 else total / n


def inner_and_sizes(a: Parts, b: Parts) -> tuple[Tensor, Tensor]:
    """:func:`inner`, and the sums of the absolute values of its terms."""
    pairs = _pairs(a, b)
    if _on_device(pairs):
        from torchssvm.core.inner_triton import inner_triton

        return tuple(inner_triton(pairs))
    values = [_row_products(one, other) for one, other in pairs]
    sizes = [_row_products(one.abs(), other.abs()) for one, other in pairs]
    return sum(values[1:], values[0]), sum(sizes[1:], sizes[0])


def _pairs(a: Parts, b: Parts) -> list[tuple[Tensor, Tensor]]:
    others = [b[name] for name in a]
    for one, other in zip(a.values(), others, strict=True):
        if one.shape != other.shape and (1, *one.shape[1:]) != other.shape:
            raise ValueError(f"parts must be shaped alike, got {list(one.shape)} and {list(other.shape)}")
    others = [other[:1] if other.stride(0) == 0 else other for other in others]  # one tensor seen B times
    return list(zip(a.values(), others, strict=True))


def _on_device(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    return pairs[0][0].is_cuda and all(
        len(a) and a.dtype == b.dtype and fits_triton(a, b) and not (a.requires_grad or b.requires_grad)
        for a, b in pairs
    )


def _row_products(a: Tensor, b: Tensor) -> Tensor:
    if fits_numba(a, b) and not (a.requires_grad or b.requires_grad) and a.dtype == b.dtype and len(a):
        total = np.empty(len(a))
        _inner(*(t.numpy().reshape(len(t), math.prod(t.shape[1:])) for t in (a, b)), total)
        return torch.from_numpy(total)
    return (a * b).flatten(1).sum(1, dtype=torch.float64)


@njit_fastmath
def _inner(a: Any, b: Any, total: Any) -> None:
    for i in range(a.shape[0]):
        x, y, product = a[i], b[i if b.shape[0] > 1 else 0], 0.0
        for k in range(a.shape[1]):
            product += x[k] * y[k]
        total[i] = product


def scale(parts: Parts, factors: Tensor) -> Parts:
    """Multiply example i by ``factors[i]``; ``factors`` is ``[B]``."""
    return {
        name: tensor * factors.to(tensor.dtype).view(-1, *[1] * (tensor.ndim - 1)) for name, tensor in parts.items()
    }


def subtract(a: Parts, b: Parts) -> Parts:
    """``a - b``, name by name."""
    return {name: tensor - b[name] for name, tensor in a.items()}


def _shapes(parts: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in parts.items()}


def check_scores_finite(
    potentials: Potentials, places: Callable[[Potentials], Parts], signed: Callable[[str], bool]
) -> None:
    """Raise ValueError if a score outside the padding is NaN or +inf, or -inf where parts may be negative.

    Valid scores cost one reduction and one wait for a device. ``places`` and ``signed`` are methods of the structure.
    """
    scores = {name: once(tensor) for name, tensor in potentials.tensors.items() if tensor.numel()}
    scores = {name: tensor.abs() if signed(name) else tensor for name, tensor in scores.items()}
    with torch_threads(sum(tensor.numel() for tensor in scores.values())):
        highest = [tensor.amax() for tensor in scores.values()]
    if not highest or isinstance(highest[0], FakeTensor):
        return
    if len(highest) > 1 and not highest[0].is_cpu:
        highest = [torch.stack(highest).amax()]
    for number in highest:
        if not number.item() < torch.inf:  # amax returns NaN if there is one
            break
    else:
        return
    masks = places(potentials)
    wrong = (_wrong_rows(name, potentials, tensor, masks.get(name)) for name, tensor in scores.items())
    rows = sorted({row for several in wrong for row in several})
    if rows:
        raise ValueError(
            f"the potentials of {row_names(rows)} are not finite: check features and weights (-inf may forbid a part, "
            "unless parts can be negative)"
        )


def _wrong_rows(name: str, potentials: Potentials, tensor: Tensor, real: Tensor | None) -> list[int]:
    wrong = ~(tensor < torch.inf).expand_as(potentials.tensors[name])
    if real is not None:
        wrong = wrong & real
    elif (padding := padding_of(potentials, name)) is not None:
        wrong = wrong & ~padding
    return wrong.flatten(1).any(1).nonzero().flatten().tolist()
