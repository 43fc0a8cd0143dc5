"""Rankings: an output is an order of the documents of a query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_int64, check_type
from torchssvm.core.decoding import Decoding
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.structure import Structure, fit, gated
from torchssvm.structures.common import check_potentials, mask_of, reject_entries
from torchssvm.structures.ranking.measure import PairSwaps, RankingMeasure, place_of

_ENUMERATED = 6  # documents whose 720 orders are listed


class Graded(NamedTuple):
    """A checked target of :class:`Ranking`."""

    grades: Tensor  # ``[B, N]`` int64, 0 or more; -1 in the padding


class Ranking(Structure):
    """Orders of the documents of a query, trained for a measure; potentials ``[B, N]``, the score of each document.

    An example is a query with a list of N documents; lists differ in length. A target has the grade of each document,
    int64 ``[B, N]``, 0 for not relevant and more for better; -1 marks padding. ``decode`` sorts by score and gives the
    place of each document, int64 ``[B, N]``, 0 on top.

    Documents of the same grade may stand in any order: the measure is the same for all of these orders. A target's
    parts are their mean.

    The measure is the loss, which need not be linear in the parts: each measure has a max oracle, and all are exact.

    Args:
        measure: What a wrong order costs: ``PairSwaps()`` (None), ``NDCG(k)`` or
            ``PrecisionAt(k)``.

    Raises:
        TypeError: ``measure`` is no measure.

    Example:
        >>> from torchssvm.structures.ranking import NDCG
        >>> structure = Ranking(NDCG(k=10))
        >>> structure.decode(torch.tensor([[0.5, 0.7, 0.1]]))  # the second document is on top
        tensor([[1, 0, 2]])
    """

    _quick_to_decode = True

    def __init__(self, measure: RankingMeasure | None = None) -> None:
        self.measure = PairSwaps() if measure is None else measure
        check_type(self.measure, RankingMeasure, "measure", "a RankingMeasure such as NDCG(k=10)")

    def argmax(self, potentials: Potentials) -> Decoding:
        """Documents by descending score; of equal ones the first stands above."""
        scores, real = potentials.single.detach(), _real(potentials)
        labeling = self.measure.output(place_of(scores, real))
        return Decoding(labeling, (self.measure.parts(labeling) * scores.masked_fill(~real, 0.0)).sum(1))

    @gated
    @torch.no_grad()
    def decode(self, potentials: Any) -> Tensor:
        """The place of each document by descending score, int64 ``[B, N]``, 0 on top; -1 in the padding."""
        return place_of(potentials.single, _real(potentials))

    @override
    def augmented_argmax(self, potentials: Potentials, target: Graded) -> Decoding:
        scores = potentials.single.detach().to(torch.float64).masked_fill(target.grades < 0, 0.0)
        return Decoding(self.measure.worst(scores, target.grades))

    def signed(self, name: str) -> bool:
        """Weights of scores are positive near the top and negative below."""
        return True

    @override
    def parts(self, labeling: Tensor | Graded) -> Tensor:
        return self.measure.ideal(labeling.grades) if isinstance(labeling, Graded) else self.measure.parts(labeling)

    @override
    def _difference(self, labeling: Tensor | Graded, target: Graded, potentials: Potentials) -> Parts:
        ((name, tensor),) = potentials.tensors.items()
        if isinstance(labeling, Graded):
            return {name: torch.zeros_like(tensor)}
        return {name: self.measure.difference(labeling, target.grades).to(tensor.dtype)}

    @override
    def max_marginals(self, potentials: Potentials) -> Tensor:
        raise TypeError("max_marginals: rankings have none, as parts are sums over pairs, not 0 or 1")

    @override
    def loss(self, labeling: Tensor | Graded, target: Graded) -> Tensor:
        if isinstance(labeling, Graded):
            return torch.zeros(len(labeling.grades), dtype=torch.float64, device=labeling.grades.device)
        return self.measure.loss(labeling, target.grades)

    def loss_potentials(self, target: Graded) -> tuple[Tensor, Tensor]:
        """There are none.

        Raises:
            NotImplementedError: Always: measures are not linear in the parts.
        """
        raise NotImplementedError("loss_potentials: measures of rankings are not linear in the parts")

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        check_potentials(potentials, ("B", "N"))

    def check_target(self, target: Tensor | Graded, potentials: Potentials) -> Graded:
        """Check that ``target`` has a grade for each document, and that the measure is defined for them.

        Raises:
            ValueError: The shape or dtype is another, a grade is negative, or a list has no relevant document where
                the measure needs one.
        """
        grades = target.grades if isinstance(target, Graded) else target
        check_int64(grades, "target", potentials.single.shape, ", a grade for each document")
        real = _real(potentials)
        allowed = "grades are 0 or more: leave documents without one out, or give the head lengths"
        reject_entries((grades < 0) & real, grades, "target has grade", allowed)
        grades = grades.masked_fill(~real, -1)
        self.measure.check(grades)
        return Graded(grades)

    @override
    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        return {next(iter(potentials.tensors)): _real(potentials)}

    @override
    def resize(self, labelings: Tensor, target: Graded) -> Tensor:
        return fit(labelings, self.measure.output(target.grades).shape[1:], self.padding)

    def enumerate(self, potentials: Potentials) -> Iterator[Tensor] | None:
        """All outputs that the measure is trained on; None for lists of more than 6 documents, 3 with PairSwaps."""
        real = _real(potentials)
        items = self.measure.output(real.to(torch.int64)).flatten(1).shape[1]
        return None if items > _ENUMERATED else self.measure.every(real)

    def __repr__(self) -> str:
        return f"Ranking({self.measure!r})"


def _real(potentials: Potentials) -> Tensor:
    """The documents of each list, ``[B, N]`` bool."""
    return mask_of(potentials.lengths, potentials.single)
