"""A training problem: its arguments, bounds on its weights ([G16] appendix H), and digests of its examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.compiler.jit import njit
from torchssvm.core.arguments import check_positive, check_tensor, check_type, check_whole
from torchssvm.core.batch import tree_tensors
from torchssvm.core.launch import fits_numba
from torchssvm.core.operators import on_host
from torchssvm.core.potentials import Potentials
from torchssvm.core.states import Numbers, check_entries
from torchssvm.core.structure import Structure


def check_problem(
    num_examples: int, lam: float, structure: Structure, parameters: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    """Check the arguments of :class:`torchssvm.DualState`; returns the parameters as a list."""
    check_whole(num_examples, "num_examples", advice=": is the dataset empty?")
    check_lam(lam)
    as_structure(structure)
    weights = list(parameters)
    if not weights:
        raise ValueError("the head has no parameters: give a head with weights to train")
    for weight in weights:
        check_tensor(weight, "a weight of the head")
    dtypes = {weight.dtype for weight in weights}
    if dtypes not in ({torch.float32}, {torch.float64}):
        raise TypeError(
            f"the head's weights have the dtypes {sorted(map(str, dtypes))}: use float32 or float64 for all"
        )
    check_range(lam, num_examples, weights[0].dtype)
    return weights


def check_lam(lam: Any) -> float:
    """``lam`` as a positive float."""
    return check_positive(lam, "lam")


def check_range(lam: float, num_examples: int, dtype: torch.dtype) -> None:
    """Raise ValueError unless ``lam``, ``lam n``, ``lam n^2`` and their inverses are in the range of ``dtype``."""
    limits, n = torch.finfo(dtype), num_examples
    scales = (lam, lam * n, lam * n * n)
    if not all(limits.tiny <= scale <= limits.max and 1.0 / scale <= limits.max for scale in scales):
        raise ValueError(
            f"lam={lam:g} with num_examples={n} is out of range in {dtype}: use 1e-6 to 1e3, or float64 weights"
        )


def find_structure(head: nn.Module, structure: Structure | None) -> Structure:
    """``structure``, or ``head.structure`` if it is None; TypeError if it is no structure."""
    return as_structure(structure if structure is not None else getattr(head, "structure", None))


def as_structure(structure: Any) -> Structure:
    """``structure``, or TypeError if it is something else, such as a class."""
    return check_type(structure, Structure, "structure", "a torchssvm.Structure, such as head.structure")


Bound = float | Tensor
"""A number, or a tensor that broadcasts to the weights; may be infinite."""


class Box:
    """``lower <= w <= upper``, weight by weight, for the parameters of a head.

    The dual blocks determine ``v = A alpha``; under bounds the weights are ``w = clip(v, lower, upper)``. Without
    bounds w is v: ``clip`` returns its arguments. A new dual has v = 0, so its weights are the point of the box nearest
    to zero.

    Args:
        parameters: The head's parameters.
        bounds: For each parameter ``(lower, upper)``, None for no bound; empty for no bounds at all. They are copied
            in the parameters' dtype.

    Attributes:
        lower, upper: For each parameter a tensor that broadcasts to it, or None if it has no bounds.
        bounded: For each parameter, whether any of its weights has a bound.
        has_bounds: Whether any weight has a bound.

    Raises:
        ValueError: A bound is NaN, of another shape than its parameter, or leaves no finite weight.
        TypeError: A bound is neither a number nor a real tensor.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], bounds: Sequence[tuple[Bound | None, Bound | None]] = ()
    ) -> None:
        self.lower: list[Tensor | None] = []
        self.upper: list[Tensor | None] = []
        for parameter, (lower, upper) in zip(parameters, bounds or [(None, None)] * len(parameters), strict=True):
            low = _as_bound("lower", lower, -torch.inf, parameter)
            high = _as_bound("upper", upper, torch.inf, parameter)
            if not bool(((low <= high) & (low < torch.inf) & (high > -torch.inf)).all()):  # false of NaN
                raise ValueError(f"lower={lower} and upper={upper} must leave a finite value: swap them, or remove NaN")
            free = bool(torch.isinf(low).all()) and bool(torch.isinf(high).all())
            self.lower.append(None if free else low)
            self.upper.append(None if free else high)
        self.bounded = [lower is not None for lower in self.lower]
        self.has_bounds = any(self.bounded)

    @property
    def is_cone(self) -> bool:
        """Whether every bound is 0 or infinite, so that ``clip(c v) = c clip(v)`` for every c > 0."""
        bounds = [bound for bound in (*self.lower, *self.upper) if bound is not None]
        return all(bool(((bound == 0.0) | torch.isinf(bound)).all()) for bound in bounds)

    def clip(self, values: Sequence[Tensor]) -> list[Tensor]:
        """``clip(v, lower, upper)`` for values shaped like the parameters, of any floating dtype."""
        return [
            value if lower is None else torch.clamp(value, lower, upper)
            for value, lower, upper in zip(values, self.lower, self.upper, strict=True)
        ]

    def holds(self, weights: Sequence[Tensor]) -> bool:
        """Whether the weights are within their bounds, up to rounding."""
        for weight, clipped in zip(weights, self.clip(weights), strict=True):
            if weight is not clipped:
                eps = torch.finfo(weight.dtype).eps
                if not bool(((weight - clipped).abs() <= 10 * eps * (1.0 + clipped.abs())).all()):
                    return False
        return True

    def same_as(self, other: Box) -> bool:
        """Whether both boxes have the same bounds."""
        for mine, others in ((self.lower, other.lower), (self.upper, other.upper)):
            for a, b in zip(mine, others, strict=True):
                if (a is None) != (b is None):
                    return False
                if a is not None and b is not None and not bool((a == b.to(a.device)).all()):
                    return False
        return True

    def to(self, device: torch.device) -> None:
        """Move the bounds to ``device``."""
        self.lower = [None if bound is None else bound.to(device) for bound in self.lower]
        self.upper = [None if bound is None else bound.to(device) for bound in self.upper]

    def separate(self, values: Sequence[Tensor], parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """The v of each parameter: the tensor of ``values`` if the parameter has bounds, else the parameter itself."""
        return [
            parameter if lower is None else value
            for value, parameter, lower in zip(values, parameters, self.lower, strict=True)
        ]

    def state(self, unclipped: Sequence[Tensor]) -> dict[str, Any] | None:
        """Bounds and v for a checkpoint, with None for parameters without bounds; None if there are no bounds."""
        if not self.has_bounds:
            return None
        kept = [v if bounded else None for v, bounded in zip(unclipped, self.bounded, strict=True)]
        tensors = {"lower": self.lower, "upper": self.upper, "unclipped": kept}
        return {name: [None if t is None else t.detach().clone() for t in each] for name, each in tensors.items()}

    def check_state(self, state: dict[str, Any] | None, parameters: Sequence[nn.Parameter]) -> None:
        """Raise ValueError if a state has other bounds than this box, or v of other shapes."""
        bounds = [] if state is None else list(zip(state["lower"], state["upper"], strict=True))
        if not Box(parameters, bounds).same_as(self):
            raise ValueError("the checkpoint is of another problem: its weights have other bounds. Give BCFW the same")
        if state is not None:
            pairs = zip(parameters, self.bounded, strict=True)
            wanted = [Numbers(p.dtype, tuple(p.shape)) if bounded else None for p, bounded in pairs]
            check_entries({"unclipped": state["unclipped"]}, {"unclipped": wanted}, "box")

    def load_state(self, state: dict[str, Any] | None, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Each parameter's v from a checked state; the parameter itself where it has no bounds."""
        if state is None:
            return list(parameters)
        pairs = zip(state["unclipped"], parameters, strict=True)
        return [p if v is None else v.to(p.device, copy=True) for v, p in pairs]

    def __repr__(self) -> str:
        return f"Box({sum(self.bounded)} of {len(self.lower)} parameters have bounds)"


def _as_bound(name: str, bound: Any, missing: float, parameter: nn.Parameter) -> Tensor:
    """A tensor of the parameter's dtype that broadcasts to it."""
    bound = missing if bound is None else bound
    real = isinstance(bound, Tensor) and not bound.is_complex() and bound.dtype != torch.bool
    if isinstance(bound, Tensor) and real:
        check_tensor(bound, name)
    if not real and (isinstance(bound, bool) or not isinstance(bound, int | float)):
        raise TypeError(f"{name}={bound!r} must be a number or a real tensor")
    tensor = torch.as_tensor(bound, dtype=parameter.dtype, device=parameter.device).detach().clone()
    try:
        tensor.expand(parameter.shape)  # torch.broadcast_shapes imports sympy: half a second in each process
    except RuntimeError:
        raise ValueError(
            f"{name} {list(tensor.shape)} does not broadcast to weights {list(parameter.shape)}: give a number"
        ) from None
    return tensor


_ODD = (-7046029254386353131, -4417276706812531889, 1609587929392839161)  # large, odd: products spread over all bits

_SIZE = 2**63 - 1  # all bits except the sign, so that -0.0 counts as 0

UNKNOWN = 0
"""Stands for a target that was not seen yet; no target has this digest."""

_FIRST_CARRIED = 1000  # the place of carried tensors: behind all tensors of a target

_NONE = np.empty(0, np.int64)


def digest_targets(target: Any, lengths: Tensor | None = None) -> Tensor:
    """A digest of each example's target, as ``check_target`` returns it: ``[B]`` int64 on the CPU; never ``UNKNOWN``.

    It depends on the length, and on all numbers and their places, except for padding values: 0 and negative integers.
    A target whose negative numbers are no padding has other tensors to digest in its attribute ``digested``.
    """
    given = getattr(target, "digested", target)
    leaves = [given] if isinstance(given, Tensor) else tree_tensors(given)
    if lengths is not None and lengths.shape != leaves[0].shape[:1]:
        raise ValueError(f"lengths must be [{len(leaves[0])}], one for each target, got {list(lengths.shape)}")
    sizes = None if lengths is None else on_host(lengths)
    digests = [_digest(on_host(leaf), place, sizes, leaf.dtype != torch.bool) for place, leaf in enumerate(leaves)]
    return sum(digests[1:], digests[0])


def digest_examples(target: Any, potentials: Potentials) -> Tensor:
    """A digest of each example's target, length and carried tensors, ``[B]`` int64 on the CPU; never ``UNKNOWN``.

    Carried tensors are edges, parents, capacities. Their padding is -1 in whole numbers, and 0 in others.
    """
    total = digest_targets(target, potentials.lengths)
    for place, name in enumerate(potentials.carried, _FIRST_CARRIED):
        if (carried := getattr(potentials, name)) is not None:
            carried = on_host(carried)
            numbers = carried if carried.is_floating_point() else carried.to(torch.int64) + 1
            total += _digest(numbers, place, None, False)
    return total


def _digest(leaf: Tensor, place: int, lengths: Tensor | None, signed: bool) -> Tensor:
    floating = leaf.is_floating_point()
    numbers = leaf.to(torch.float64).view(torch.int64) if floating else leaf.to(torch.int64)
    where = _places(place, leaf.shape[1:], leaf.device)
    return _sum(numbers.contiguous(), where, lengths, signed and not floating)


def _sum(numbers: Tensor, where: Tensor, lengths: Tensor | None, signed: bool) -> Tensor:
    """The sum of each example's numbers ``[B, ...]`` int64, mixed with their places ``where``, and of its length:
    ``[B]``.

    Numbers may be the bits of floating-point ones; ``signed`` says whether those below 0 are padding.
    """
    if fits_numba(numbers):
        sums, places = np.empty(len(numbers), np.int64), where.numpy().reshape(-1)
        sizes = _NONE if lengths is None else lengths.numpy()
        _sum_each(numbers.numpy().reshape(len(sums), len(places)), places, sizes, signed, sums)
        return torch.from_numpy(sums)
    counts = numbers > 0 if signed else numbers & _SIZE != 0
    found = torch.where(counts, _mix(numbers * _ODD[1] + where), 0)
    total = found.flatten(1).sum(1) if found.ndim > 1 else found
    if lengths is not None:
        total = total + _mix(lengths * _ODD[0])
    return torch.where(total == UNKNOWN, 1, total)


@njit
def _sum_each(numbers: Any, where: Any, lengths: Any, signed: bool, total: Any) -> None:
    for b in range(numbers.shape[0]):
        found = 0
        if len(lengths):
            found = lengths[b] * _ODD[0]
            found = (found ^ (found >> 29)) * _ODD[2]
            found = found ^ (found >> 32)
        for m in range(numbers.shape[1]):
            number = numbers[b, m]
            if (number > 0) if signed else (number & _SIZE != 0):
                mixed = number * _ODD[1] + where[m]
                mixed = (mixed ^ (mixed >> 29)) * _ODD[2]
                found += mixed ^ (mixed >> 32)
        total[b] = found if found != UNKNOWN else 1


@lru_cache(maxsize=64)
def _places(leaf: int, shape: Sequence[int], device: torch.device) -> Tensor:
    """A number for each place in a tensor, ``[1, *shape]`` int64, which does not depend on the padded size."""
    where = torch.full((1,) * (len(shape) + 1), leaf + 1, dtype=torch.int64, device=device)
    for axis, size in enumerate(shape, 1):
        along = torch.arange(1, size + 1, device=device)
        where = _mix(where * _ODD[0] + along.view([-1 if a == axis else 1 for a in range(len(shape) + 1)]))
    return where


def _mix(numbers: Tensor) -> Tensor:
    """Make low bits depend on high bits; in products only high bits depend on low ones."""
    numbers = (numbers ^ (numbers >> 29)) * _ODD[2]
    return numbers ^ (numbers >> 32)


NamedBounds = Mapping[str, tuple[Bound | None, Bound | None]]
"""``(lower, upper)`` by the name of a parameter of the head, None for no bound."""


def check_bounds(head: nn.Module, bounds: NamedBounds | None) -> NamedBounds:
    """``bounds`` as a dictionary; ValueError for an entry that is no pair, or names no parameter of the head."""
    named = dict(head.named_parameters())
    for name, pair in (bounds or {}).items():
        if name not in named or not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"bounds[{name!r}]={pair} must be a pair (lower, upper) for one of {sorted(named)}")
        Box([named[name]], [(pair[0], pair[1])])
    return dict(bounds or {})


def groups(head: nn.Module, bounds: NamedBounds) -> list[dict[str, Any]]:
    """The head's parameters as groups of ``BCFW``, one group for each bounded parameter."""
    named = dict(head.named_parameters())
    free = [p for name, p in named.items() if name not in bounds]
    bounded = [{"params": [named[name]], "lower": low, "upper": high} for name, (low, high) in bounds.items()]
    return [{"params": free}, *bounded] if free else bounded
