"""An approximate max oracle of slack rescaling that calls the wrapped structure's own max oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.batch import tree_replace, tree_tensors
from torchssvm.core.potentials import Potentials, conform, inner
from torchssvm.core.structure import Decoding, Labeling, Structure, as_decoding
from torchssvm.structures.hidden_states.structure import Completed
from torchssvm.structures.slack_rescaling.oracles import SlackOracle, better_of, choose, loss_and_factor


class LossScaleSearch(SlackOracle):
    r"""Approximate with an upper bound, for every structure: calls its max oracle with several scales of the loss.

    Write ``g = L(y)`` and ``h = 1 + <p(y) - p(target), theta>``. Loss-augmented decoding with the loss scaled by
    ``c >= 0`` maximises ``h + c g`` (Sarawagi and Gupta, 2008; the lambda-oracle of Choi, Meshi and Srebro, 2016), and
    its maximum ``M(c)`` bounds every output: ``h <= M(c) - c g``. A few of these lines and the largest loss G bound the
    product by

        ``max_{0 <= g <= G} g min_c (M(c) - c g)``,

    a concave problem in one variable, solved exactly. Its solution lies above the chord between two known outputs
    (g, h). The chord's slope is the next scale: the oracle finds an output above the chord or proves that there is
    none. The bound thus falls to the largest product on the convex hull of all (g, h). The oracle cannot find outputs
    inside the hull, one of which may be optimal; the labeling is the best one found. Use an exact oracle if there is
    one.

    Args:
        calls: The most decodings of a batch, at least 3; it stops earlier at the hull. ``oracle_calls`` counts them as
            one.

    Example:
        >>> structure = SlackRescaling(Chain(3), LossScaleSearch(calls=5))
        >>> hinge = StructuredHinge(structure)
        >>> round(hinge(LinearChain(4, 3)(tokens), tags).item(), 3)
        1.0
    """

    def __init__(self, calls: int = 10) -> None:
        self.calls = check_whole(calls, "calls", 3, advice=": scores alone, loss alone, and a scale between them")

    def check(self, structure: Structure) -> None:
        """All structures."""

    def __call__(self, structure: Structure, potentials: Potentials, target: Labeling) -> Decoding:
        """Search for the largest product.

        Returns:
            A decoding with ``bound``; ``exact`` only if all examples reach their bounds, up to rounding.

        Raises:
            ValueError: The structure's own oracle is approximate and returns no bound.
        """
        search = _Search(structure, potentials, target)
        search.highest_score()
        search.largest_loss()
        where, ceiling = search.ceiling()
        slope: Tensor | None = None
        for _ in range(self.calls - 2):
            before, slope = slope, search.chord(where, ceiling)
            if bool(_reached(search.value, ceiling).all()) or (before is not None and torch.equal(before, slope)):
                break  # the same chords again are edges of the hull: the maximum over the hull is reached
            search.ask(slope)
            where, ceiling = search.ceiling()
        labeling, value = search.labeling, search.value
        if bool((worse := value < 0).any()):  # an approximate oracle may find only outputs worse than the target
            held = tree_tensors(labeling)
            own = target.states if isinstance(target, Completed) else target  # others begin with their labeling
            own = tree_replace(labeling, tree_tensors(own)[: len(held)])
            labeling, value = choose(worse, own, labeling), value.clamp(min=0.0)
        exact = bool(_reached(value, ceiling).all())
        return Decoding(labeling, value, torch.maximum(ceiling, value), exact, search.relaxed)


class _Search:
    """The outputs found so far, the best of them, and the upper-bound lines, for a batch."""

    def __init__(self, structure: Structure, potentials: Potentials, target: Labeling) -> None:
        self.structure, self.potentials, self.target = structure, potentials, target
        self.own = inner(conform(structure.parts(target), potentials, "parts(target)"), potentials.tensors)
        self.labeling: Labeling = None
        self.relaxed = False
        self.value: Tensor = torch.full_like(self.own, -torch.inf)
        self.most: Tensor = self.own  # the largest loss, once known
        self.points: list[tuple[Tensor, Tensor]] = []  # (g, h)
        self.lines: list[tuple[Tensor, Tensor]] = []  # (c, M(c))

    def highest_score(self) -> None:
        """Add the line of slope 0, from the highest score."""
        found = as_decoding(self.structure.argmax(self.potentials))
        _, factor = self._meet(found)
        self.lines.append((torch.zeros_like(self.own), _bound(found, factor, offset=1.0 - self.own)))

    def largest_loss(self) -> None:
        """Set ``most``, the largest loss: the vertical line."""
        found = as_decoding(self.structure.augmented_argmax(self._scaled(torch.zeros_like(self.own)), self.target))
        loss, _ = self._meet(found)
        self.most = _bound(found, loss)

    def ask(self, slope: Tensor) -> None:
        """Add the line of this slope: the oracle for ``theta/c + L`` maximises ``h/c + g``."""
        found = as_decoding(self.structure.augmented_argmax(self._scaled(1.0 / slope), self.target))
        loss, factor = self._meet(found)
        self.lines.append((slope, _bound(found, factor + slope * loss, factor=slope, offset=1.0 - self.own)))

    def ceiling(self) -> tuple[Tensor, Tensor]:
        """The maximiser g of ``g min_c (M(c) - c g)`` over ``0 <= g <= G``, and the maximum, ``[B]`` each.

        The minimum of concave parabolas has its maximum at a vertex, at a crossing of two, or at an end.
        """
        slope, height = (torch.stack(several, 1) for several in zip(*self.lines, strict=True))  # [B, lines]
        tops = height / (2 * slope)
        meetings = (height.unsqueeze(2) - height.unsqueeze(1)) / (slope.unsqueeze(2) - slope.unsqueeze(1))
        most = self.most.unsqueeze(1)
        candidates = torch.cat([tops, meetings.flatten(1), most], 1)
        candidates = torch.where(torch.isfinite(candidates), candidates, 0.0).clamp(min=0.0).minimum(most)
        lowest = (height.unsqueeze(1) - slope.unsqueeze(1) * candidates.unsqueeze(2)).amin(2)
        maximum, place = (candidates * lowest).max(1)
        return candidates.gather(1, place.unsqueeze(1)).squeeze(1), maximum.clamp(min=0.0)

    def chord(self, where: Tensor, ceiling: Tensor) -> Tensor:
        """The slope of the chord below g = ``where``, or of the product's level curve if there is no chord."""
        g, h = (torch.stack(several, 1) for several in zip(*self.points, strict=True))  # [B, points]
        left = torch.where(g < where.unsqueeze(1), g, -torch.inf).amax(1)
        right = torch.where(g >= where.unsqueeze(1), g, torch.inf).amin(1)
        ends = [torch.where(g == end.unsqueeze(1), h, -torch.inf).amax(1) for end in (left, right)]
        slope = (ends[0] - ends[1]) / (right - left)
        curve = torch.where(where > 0, ceiling / where.square(), 1.0)
        return torch.where(torch.isfinite(slope) & (slope > 0), slope, curve).clamp(1e-9, 1e9)

    def _meet(self, found: Decoding) -> tuple[Tensor, Tensor]:
        self.relaxed |= found.relaxed
        loss, factor = loss_and_factor(self.structure, found.labeling, self.target, self.potentials)
        held = None if self.labeling is None else self.value
        self.labeling, self.value = better_of(self.labeling, held, found.labeling, loss * factor)
        self.points.append((loss, factor))
        return loss, factor

    def _scaled(self, factors: Tensor) -> Potentials:
        return self.potentials.replace(
            {name: t * factors.to(t.dtype).view(-1, *[1] * (t.ndim - 1)) for name, t in self.potentials.tensors.items()}
        )


def _bound(found: Decoding, reached: Tensor, factor: float | Tensor = 1.0, offset: float | Tensor = 0.0) -> Tensor:
    """An upper bound: ``reached`` for an exact oracle, else ``factor * found.bound + offset``."""
    if found.bound is None and not found.exact:
        raise ValueError("an oracle with exact=False must return bound, an upper bound of its maximum")
    return reached if found.bound is None else torch.maximum(factor * found.bound.to(torch.float64) + offset, reached)


def _reached(value: Tensor, ceiling: Tensor) -> Tensor:
    return ceiling - value <= 1e-9 * ceiling
