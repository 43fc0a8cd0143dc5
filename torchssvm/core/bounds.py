"""Bounds on the weights ([G16] appendix H)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_tensor
from torchssvm.core.schema import Each, Entry, Field, Maybe, damaged

Bound = float | Tensor
"""A number, or a tensor that broadcasts to the weights; may be infinite."""


class Box:
    """``lower <= w <= upper``, weight by weight, for the parameters of a head.

    The dual blocks determine ``v = A alpha``; under bounds the weights are ``w = clip(v, lower, upper)``. Without
    bounds w is v itself: ``clip`` returns its arguments. Zero may lie outside the box: a new dual has v = 0, so its
    weights are the point of the box nearest to zero.

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
            if bool((empty := low > high).any()):
                place = tuple(empty.nonzero()[0].tolist())
                raise ValueError(
                    f"lower={_at(low, empty.shape, place)} is above upper={_at(high, empty.shape, place)}: swap them"
                )
            if bool((low == torch.inf).any()) or bool((high == -torch.inf).any()):
                raise ValueError(f"lower={lower}, upper={upper} leave no finite weight")
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

    def field(self, parameters: Sequence[nn.Parameter]) -> Field:
        """The entry of a checkpoint: bounds and v, which is None for parameters without bounds; or None without any."""
        bounds, unclipped = (
            Each(list, Maybe(Entry(Tensor, (...,)))),
            [Maybe(Entry(p.dtype, p.shape)) for p in parameters],
        )
        entries = {"lower": bounds, "upper": bounds, "unclipped": unclipped}

        def save(held: Sequence[Tensor]) -> dict[str, Any] | None:
            own = [None if lower is None else v for v, lower in zip(held, self.lower, strict=True)]
            tensors = zip(entries, (self.lower, self.upper, own), strict=True)
            state = {name: [None if t is None else t.clone() for t in several] for name, several in tensors}
            return state if self.has_bounds else None

        def load(state: dict[str, Any] | None) -> list[Tensor]:
            held = parameters if state is None else state["unclipped"]
            return self.separate(
                [p if v is None else v.to(p.device, copy=True) for v, p in zip(held, parameters, strict=True)],
                parameters,
            )

        return Field(Maybe(entries), "unclipped", save, load)

    def check_state(self, state: dict[str, Any] | None, parameters: Sequence[nn.Parameter], where: str) -> None:
        """Raise ValueError if an entry as declared has other bounds than this box, or contradicts itself."""
        there = Box(parameters)
        if state is not None:
            try:
                there = Box(parameters, list(zip(state["lower"], state["upper"], strict=True)))
            except (TypeError, ValueError) as error:
                raise damaged(f"{where} does not hold bounds of the weights: {error}") from error
        if not there.same_as(self):
            raise ValueError("the checkpoint is of another problem: its weights have other bounds. Give BCFW the same")
        if state is not None and any(
            value is None and bounded for value, bounded in zip(state["unclipped"], self.bounded, strict=True)
        ):
            raise damaged(f"{where}['unclipped'] is None for a parameter with bounds")

    def __repr__(self) -> str:
        return f"Box({sum(self.bounded)} of {len(self.lower)} parameters have bounds)"


def _as_bound(name: str, bound: Any, missing: float, parameter: nn.Parameter) -> Tensor:
    """A tensor of the parameter's dtype that broadcasts to it."""
    bound = missing if bound is None else bound
    real = isinstance(bound, Tensor) and not bound.is_complex() and bound.dtype != torch.bool
    if isinstance(bound, Tensor) and real:
        check_tensor(bound, name)
    if not real and (isinstance(bound, bool) or not isinstance(bound, int | float)):
        kind = bound.dtype if isinstance(bound, Tensor) else type(bound).__name__
        raise TypeError(f"{name} must be a number or a real tensor, not {kind}")
    tensor = torch.as_tensor(bound, dtype=parameter.dtype, device=parameter.device).detach().clone()
    if bool(tensor.isnan().any()):
        raise ValueError(f"{name}={bound} must not be NaN; leave it out, or give an infinite one, for no bound")
    try:
        fits = torch.broadcast_shapes(tensor.shape, parameter.shape) == parameter.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} {list(tensor.shape)} does not broadcast to weights {list(parameter.shape)}: give a number"
        )
    return tensor


def _at(bound: Tensor, shape: torch.Size, place: tuple[int, ...]) -> float:
    return float(bound.expand(shape)[place])
