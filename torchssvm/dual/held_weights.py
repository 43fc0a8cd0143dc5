"""The weights of a dual: v, which follows from the blocks, and w, which the head holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from torchssvm.core.bounds import Box
from torchssvm.core.row_sparse import add_to, products, squared_norm
from torchssvm.core.undisturbed import undisturbed

_LARGE = 1 << 17  # more weights than this are not all read in every step, ...
_PER_BLOCK = 1000  # ... but on average at most so many for each block that moves


class HeldWeights:
    """The part of ``DualState`` that moves v and ``w = clip(v)``, and notices writes by others.

    Attributes:
        parameters: w, the head's parameters.
        dtype: Dtype of the weights when the dual was made; they must keep it.
        box: Bounds of the weights; the optimizer sets them.
        unclipped: v, for each parameter; the parameter itself where it has no bounds.
        recomputed: v as an exact pass has recomputed it, from which the next step starts; None otherwise.
        held_norm: Norm of the weights after the last step.
        version: Counts changes of blocks or weights; a direction is valid for the version that it was computed at.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.dtype = parameters[0].dtype
        self.box = Box(parameters)
        self.unclipped: list[Tensor] = list(parameters)
        self.recomputed: list[Tensor] | None = None
        self.held_norm = self._held_square = 0.0
        self._written = [-1 for _ in parameters]
        self._numbers = sum(p.numel() for p in parameters)
        self._unread = 0  # blocks moved since all weights were read
        self.version = 0

    def check_dtype(self) -> None:
        """Raise TypeError if the weights have another dtype than at the start, as after ``head.half()``."""
        for parameter in self.parameters:
            if parameter.dtype is not self.dtype:
                raise TypeError(
                    f"the head's weights are {parameter.dtype}, and were {self.dtype} when the dual was made: blocks "
                    f"and weights must agree. Call head.to({self.dtype}) and load the weights again, or convert the "
                    "head to torch.float32 or torch.float64 first and make a new DualState and BCFW"
                )

    @undisturbed()
    @torch.no_grad()
    def set_weights(self, unclipped: Iterable[Tensor]) -> None:
        """Set v, rounded to the weights' dtype, and the weights to ``clip(v)``."""
        for held, value in zip(self.unclipped, unclipped, strict=True):
            held.copy_(value)
        if self.box.has_bounds:
            for parameter, weights in zip(self.parameters, self.box.clip(self.unclipped), strict=True):
                if parameter is not weights:
                    parameter.copy_(weights)
        self.recomputed = None
        self.remember_weights()

    @torch.no_grad()
    def move_weights(
        self, directions: Sequence[Tensor], rate: float, known: tuple[float, float, float] | None = None
    ) -> None:
        """``v += rate d``, starting from ``recomputed`` if it is not None; then ``w = clip(v)``.

        Args:
            directions: d, for each parameter; sparse ones coalesced.
            rate: The factor of d.
            known: ``|w|^2``, ``<w, d>`` and ``|d|^2``, if already computed.
        """
        if self.recomputed is not None:
            self.set_weights(torch.add(v, d, alpha=rate) for v, d in zip(self.recomputed, directions, strict=True))
        elif not any(d.is_sparse for d in directions):
            if self.box.has_bounds:
                self.set_weights(torch.add(v, d, alpha=rate) for v, d in zip(self.unclipped, directions, strict=True))
            else:
                torch._foreach_add_(self.unclipped, list(directions), alpha=rate)
                self.remember_weights(None if known is None or self.parameters[0].is_cpu else _moved(*known, rate))
        elif self.box.has_bounds:
            self.remember_weights(self._held_square + self._move_each(directions, rate))
        else:
            inner, squared = products(self.parameters, directions) if known is None else known[1:]
            for held, direction in zip(self.unclipped, directions, strict=True):
                add_to(held, direction, rate)
            self.remember_weights(self._held_square + rate * (2.0 * inner + rate * squared))

    def _move_each(self, directions: Sequence[Tensor], rate: float) -> float:
        """Move v by directions of which some are sparse, under bounds; returns the change of ``|w|^2``."""
        change = 0.0
        clipped = self.box.bounded
        for place, (held, direction) in enumerate(zip(self.unclipped, directions, strict=True)):
            weights = self.parameters[place]
            if not clipped[place]:
                inner, squared = products([weights], [direction])
                change += rate * (2.0 * inner + rate * squared)
                add_to(held, direction, rate)
                continue
            change -= squared_norm([weights])
            add_to(held, direction, rate)
            weights.copy_(self.box.clip(self.unclipped)[place])
            change += squared_norm([weights])
        return change

    def norm_changed(self, norm: float) -> bool:
        """Whether ``norm`` differs from that of the weights after the last step by more than rounding."""
        return abs(norm - self.held_norm) > 1e-5 * max(norm, self.held_norm)

    def written_to(self) -> bool:
        """Whether the weights were written to since :meth:`remember_weights`, by torch's version counters.

        These miss writes through ``.data`` or numpy.
        """
        return [p._version for p in self.parameters] != self._written

    @property
    def is_large(self) -> bool:
        """Whether there are so many weights that their norm is updated instead of computed in every step."""
        return self._numbers > _LARGE

    def remember_weights(self, squared: float | None = None, blocks: int = 1) -> None:
        """Accept the current weights as those of the dual; directions computed earlier become invalid.

        Args:
            squared: ``|w|^2`` if it was updated, up to rounding; large weights, and those on a device, are then read
                only now and then.
            blocks: Blocks moved since the last call.
        """
        self.version += 1
        self._unread += blocks
        self._written = [p._version for p in self.parameters]
        often = self._unread * _PER_BLOCK >= self._numbers if self.is_large else self.parameters[0].is_cpu
        if squared is None or often:
            squared, self._unread = squared_norm(self.parameters), 0
        self._held_square = max(squared, 0.0)
        self.held_norm = math.sqrt(self._held_square)


def _moved(squared: float, inner: float, along: float, rate: float) -> float | None:
    """``|w + rate d|^2`` from ``|w|^2``, ``<w, d>`` and ``|d|^2``; None where w and rate d cancel, up to rounding."""
    found = squared + rate * (2.0 * inner + rate * along)
    return found if found > 1e-3 * (squared + rate**2 * along) else None
