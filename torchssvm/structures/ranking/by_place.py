"""Measures that add up what documents gain at their places: NDCG, and precision among the first."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.structure import reject_rows
from torchssvm.structures.ranking.measure import RankingMeasure, place_of

_ROUNDING = 1e-12


class ByPlace(RankingMeasure):
    """One minus ``sum_d gain_d discount[place_d]``, which is 1 for every order by descending grade.

    Scores are weighted by the same discounts (Chapelle et al., 2007; Le and Smola, 2007). The max oracle then assigns
    documents to places with the costs ``discount[place] (s_d - gain_d)``, which sorting by ``s_d - gain_d`` solves
    exactly (the rearrangement inequality), in O(N log N).
    """

    @abstractmethod
    def discount(self, places: Tensor) -> Tensor:
        """What a document at each place counts, float64; falling from the top down. ``places`` are 0 or more."""

    @abstractmethod
    def gain(self, grades: Tensor) -> Tensor:
        """What each grade gains, ``[B, N]`` float64, at least 0; not normalised. ``grades`` are 0 or more."""

    def check(self, grades: Tensor) -> None:
        """There must be something to gain."""
        reject_rows(
            ~(self.gain(grades.clamp(min=0)) > 0).any(1),
            f"target has no relevant document in {{rows}}, and {self!r} needs one: leave these lists out",
        )
        reject_rows(
            ~torch.isfinite(self.gain(grades.clamp(min=0)).sum(1)),
            f"target has grades in {{rows}} too large for {self!r}: number grades from 0",
        )

    def weights(self, places: Tensor, size: Tensor) -> Tensor:
        """The discounts."""
        return self.discount(places)

    def loss(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """One minus the discounted gains, relative to the largest that the grades allow."""
        found = 1.0 - (self.relative_gain(grades) * self.parts(labeling)).sum(1)
        return torch.where(found < _ROUNDING, 0.0, found)

    def worst(self, scores: Tensor, grades: Tensor) -> Tensor:
        """By descending score less gain, and of equal ones by score: small scores are lost beside gains."""
        order = scores.argsort(dim=1, descending=True, stable=True)
        costs, real = (scores - self.relative_gain(grades)).gather(1, order), (grades >= 0).gather(1, order)
        return torch.empty_like(order).scatter_(1, order, place_of(costs, real))

    def relative_gain(self, grades: Tensor) -> Tensor:
        """What each document gains, relative to the most that all can, ``[B, N]`` float64; 0 in the padding."""
        gain = self.gain(grades.clamp(min=0)).masked_fill(grades < 0, 0.0)
        places = torch.arange(grades.shape[1], device=grades.device)
        return gain / (gain.sort(1, descending=True).values * self.discount(places)).sum(1, keepdim=True)


class NDCG(ByPlace):
    """One minus the normalised discounted cumulative gain: gains ``2^grade - 1``, discounts ``1 / log2(place + 2)``.

    Args:
        k: Only the first k places count (NDCG@k); None counts all.

    Example:
        >>> structure, scores = Ranking(NDCG()), torch.tensor([[0.5, 0.7, 0.1]])
        >>> target = structure.check_target(torch.tensor([[2, 1, 0]]), scores)
        >>> structure.loss(structure.decode(scores), target)  # 1 - (1 + 3 / log2(3)) / (3 + 1 / log2(3))
        tensor([0.2033], dtype=torch.float64)
    """

    def __init__(self, k: int | None = None) -> None:
        self.k = None if k is None else check_whole(k, "k")

    def discount(self, places: Tensor) -> Tensor:
        """``1 / log2(place + 2)``, 0 beyond the first k."""
        found = 1.0 / torch.log2(places.to(torch.float64) + 2.0)
        return found if self.k is None else found.masked_fill(places >= self.k, 0.0)

    def gain(self, grades: Tensor) -> Tensor:
        """``2^grade - 1``."""
        return torch.exp2(grades.to(torch.float64)) - 1.0


class PrecisionAt(ByPlace):
    """One minus the share of relevant documents among the first k, of as many as can be there.

    Args:
        k: How many documents count.
        relevant: The smallest grade of a relevant document.

    Example:
        >>> structure, scores = Ranking(PrecisionAt(k=1)), torch.tensor([[0.5, 0.7, 0.1]])
        >>> target = structure.check_target(torch.tensor([[1, 0, 1]]), scores)
        >>> structure.loss(structure.decode(scores), target)
        tensor([1.], dtype=torch.float64)
    """

    def __init__(self, k: int, relevant: int = 1) -> None:
        self.k, self.relevant = check_whole(k, "k"), check_whole(relevant, "relevant")

    def levels(self, grades: Tensor) -> Tensor:
        """1 for relevant documents, 0 for others, -1 in the padding."""
        return (grades >= self.relevant).to(torch.int64).masked_fill(grades < 0, -1)

    def discount(self, places: Tensor) -> Tensor:
        """1 for the first k places, then 0."""
        return (places < self.k).to(torch.float64)

    def gain(self, grades: Tensor) -> Tensor:
        """1 for relevant documents."""
        return (grades >= self.relevant).to(torch.float64)
