"""An approximate max oracle of slack rescaling, made of the wrapped structure's own max oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.potentials import Potentials, conform, inner
from torchssvm.structures.base import Decoding, Labeling, Structure, as_decoding
from torchssvm.structures.slack_oracles import SlackOracle, better_of, choose, loss_and_factor


class LossScaleSearch(SlackOracle):
    r"""Approximate with an upper bound, for every structure: its own max oracle at several scales of the loss.

    Write ``g = L(y)`` and ``h = 1 + <p(y) - p(target), theta>``. Loss-augmented decoding with the loss scaled by
    ``c >= 0`` maximises ``h + c g`` (Sarawagi and Gupta, 2008; the lambda-oracle of Choi, Meshi and Srebro, 2016), and
    its maximum ``M(c)`` bounds every output: ``h <= M(c) - c g``. A few such lines and the largest loss ``G`` bound the
    product by

        ``max_{0 <= g <= G} g min_c (M(c) - c g)``,

    a concave problem in one variable, solved exactly. At its solution (g*, h*) the level curve of the product has slope
    ``-h*/g*``: the next scale to ask is ``c = h*/g*``, whose line either cuts the solution off or proves that no
    mixture of outputs is better. The bound falls with every call, to the largest product on the convex hull of all
    (g, h); of outputs inside the hull, which may be best, no such oracle knows. The labeling is the best one met.

    Args:
        calls: Most decodings of a batch, at least 3; fewer where the bound is reached before.
    """

    def __init__(self, calls: int = 10) -> None:
        if calls < 3:
            raise ValueError(f"calls={calls} must be at least 3: scores alone, loss alone, and a scale between them")
        self.calls = calls

    def check(self, structure: Structure) -> None:
        """All structures."""

    def __call__(self, structure: Structure, potentials: Potentials, target: Labeling) -> Decoding:
        """Search for the largest product.

        Returns:
            A decoding with ``bound``; ``exact`` only if the bound is reached, to rounding, for all examples.

        Raises:
            ValueError: The structure's own oracle is approximate, and gives no bound.
        """
        own = inner(conform(structure.parts(target), potentials, "parts(target)"), potentials.tensors)
        nothing = potentials.replace({name: torch.zeros_like(t) for name, t in potentials.tensors.items()})

        # The largest score, hence a line of slope 0 (no less than 1, the target's), and the largest loss.
        found = as_decoding(structure.argmax(potentials))
        loss, factor = loss_and_factor(structure, found.labeling, target, potentials)
        labeling, value = better_of(None, None, found.labeling, loss * factor)
        line = factor if (bound := _bound(found)) is None else 1.0 + bound - own
        slopes, heights = [torch.zeros_like(line)], [line]
        found = as_decoding(structure.augmented_argmax(nothing, target))
        loss, factor = loss_and_factor(structure, found.labeling, target, potentials)
        labeling, value = better_of(labeling, value, found.labeling, loss * factor)
        most = loss if (bound := _bound(found)) is None else bound

        where, ceiling = _highest(slopes, heights, most)
        for _ in range(self.calls - 2):
            if bool(_reached(value, ceiling).all()):
                break
            scale = torch.where(where > 0, ceiling / where.square(), 1.0).clamp(1e-12, 1e12)
            scaled = {
                name: (t / scale.view(-1, *[1] * (t.ndim - 1))).to(t.dtype) for name, t in potentials.tensors.items()
            }
            found = as_decoding(structure.augmented_argmax(potentials.replace(scaled), target))
            loss, factor = loss_and_factor(structure, found.labeling, target, potentials)
            labeling, value = better_of(labeling, value, found.labeling, loss * factor)
            slopes.append(scale)
            heights.append(factor + scale * loss if (bound := _bound(found)) is None else 1.0 + scale * bound - own)
            before = ceiling
            where, ceiling = _highest(slopes, heights, most)
            if bool(_reached(ceiling, before).all()):
                break  # no line cuts any more: this is the maximum over the convex hull
        # An oracle that is approximate itself may find nothing as good as the target, whose product is 0.
        if bool((worse := value < 0).any()):
            labels = target if type(target) is type(labeling) else getattr(target, "labels", target)
            labeling, value = choose(worse, labels, labeling), value.clamp(min=0.0)
        return Decoding(labeling, value, torch.maximum(ceiling, value), exact=bool(_reached(value, ceiling).all()))


def _bound(found: Decoding) -> Tensor | None:
    """An approximate oracle's upper bound; None of an exact one."""
    if found.exact and found.bound is None:
        return None
    if found.bound is None:
        raise ValueError("an oracle with exact=False must return bound, an upper bound of its maximum")
    return found.bound.to(torch.float64)


def _reached(value: Tensor, ceiling: Tensor) -> Tensor:
    return ceiling - value <= 1e-9 * (1.0 + ceiling)


def _highest(slopes: list[Tensor], heights: list[Tensor], most: Tensor) -> tuple[Tensor, Tensor]:
    """The maximiser of ``g min_j (heights_j - slopes_j g)`` over ``0 <= g <= most``, and the maximum; all ``[B]``.

    A minimum of concave parabolas: the maximum is at the top of one, where two of them meet, or at an end.
    """
    slope, height = torch.stack(slopes, 1), torch.stack(heights, 1)  # [B, J]
    tops = height / (2 * slope)
    meetings = (height.unsqueeze(2) - height.unsqueeze(1)) / (slope.unsqueeze(2) - slope.unsqueeze(1))
    candidates = torch.cat([tops, meetings.flatten(1), most.unsqueeze(1)], 1)
    candidates = torch.where(torch.isfinite(candidates), candidates, 0.0).clamp(min=0.0).minimum(most.unsqueeze(1))
    lowest = (height.unsqueeze(1) - slope.unsqueeze(1) * candidates.unsqueeze(2)).amin(2)
    maximum, place = (candidates * lowest).max(1)
    return candidates.gather(1, place.unsqueeze(1)).squeeze(1), maximum.clamp(min=0.0)
