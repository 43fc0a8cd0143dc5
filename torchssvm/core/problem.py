"""A training problem: its arguments, and bounds on its weights ([G16] appendix H)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_positive, check_tensor, check_type, check_whole
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
    """``structure``, or ``head.structure`` if it is None; TypeError for anything else, ValueError if there is none."""
    if structure is None and (structure := getattr(head, "structure", None)) is None:
        raise ValueError(f"head={type(head).__name__} has no attribute structure: give structure=...")
    return as_structure(structure)


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
