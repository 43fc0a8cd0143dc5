"""What a measure of rankings must say: what an output costs, how it is scored, and how the worst one is found."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor


def place_of(scores: Tensor, real: Tensor) -> Tensor:
    """The place of each document by descending score, ``[B, N]`` int64, 0 on top; -1 where ``real`` is False.

    Of equal scores the first document stands above.
    """
    order = scores.masked_fill(~real, -torch.inf).argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, (~real).gather(1, order).to(torch.int8).argsort(dim=1, stable=True))  # the padding last
    places = torch.empty_like(order)
    places.scatter_(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    return places.masked_fill(~real, -1)


def count_swaps(better: Tensor, worse: Tensor, grades: Tensor) -> tuple[Tensor, Tensor]:
    """How often each document is swapped with another: the less relevant one of a pair stands above the other.

    By one running sum over the places for each grade, O(G N).

    Args:
        better: ``[B, N]`` int64, the place of each document as the more relevant one of a pair; 0 on top.
        worse: ``[B, N]`` int64, its place as the less relevant one. No two documents have the same place.
        grades: ``[B, N]`` int64; negative in the padding, which takes part in no pair.

    Returns:
        How many less relevant documents stand above each document, and how many more relevant ones below it,
        ``[B, N]`` int64 each.
    """
    above, below = torch.zeros_like(grades), torch.zeros_like(grades)
    for grade in grades.unique().tolist():
        if grade >= 0:
            own = grades == grade
            lower = _count_up_to(worse, (grades >= 0) & (grades < grade))
            above = torch.where(own, lower.gather(1, better.clamp(min=0)), above)
            higher = _count_up_to(better, grades > grade)
            below = torch.where(own, higher[:, -1:] - higher.gather(1, worse.clamp(min=0)), below)
    return above, below


def _count_up_to(places: Tensor, chosen: Tensor) -> Tensor:
    """The number of chosen documents at or above each place, ``[B, M]`` int64, for M places."""
    most = 2 * places.shape[1]
    held = torch.zeros(len(places), most + 1, dtype=torch.int64, device=places.device)
    held.scatter_(1, torch.where(chosen, places, most), 1)
    return held[:, :-1].cumsum(1)


def count_others(grades: Tensor) -> tuple[Tensor, Tensor]:
    """How many documents of a lower and of a higher grade each document has beside it, ``[B, N]`` int64 each."""
    ordered = grades.sort(1).values
    below = torch.searchsorted(ordered, grades)
    higher = grades.shape[1] - torch.searchsorted(ordered, grades, right=True)
    return (below - (grades < 0).sum(1, keepdim=True)).clamp(min=0), higher


MEASURES = """\
  PairSwaps()     the share of pairs in the wrong order, as svm_rank
  NDCG(k)         discounted cumulative gain of graded documents, of all or of the first k
  PrecisionAt(k)  the share of relevant documents among the first k
or a RankingMeasure of your own"""


class RankingMeasure(ABC):
    """What a ranking costs, how it is scored, and the oracle that finds the worst one.

    A ranking is the place of each document, int64 ``[B, N]``, 0 on top, -1 in the padding. Its score is
    ``sum_d weights[place_d] s_d`` with weights that fall from the top down, so that documents sorted by their scores
    have the highest score. Grades are int64 ``[B, N]``, 0 or more, -1 in the padding.

    Example:
        >>> measures = PairSwaps(), NDCG(k=5), PrecisionAt(k=3)
        >>> all(isinstance(measure, RankingMeasure) for measure in measures)
        True
        >>> Ranking(NDCG(k=5)).measure
        NDCG(k=5)
    """

    def check(self, grades: Tensor) -> None:  # noqa: B027  # most measures are defined for all grades
        """Raise ValueError if the measure is not defined for these grades."""

    def levels(self, grades: Tensor) -> Tensor:
        """The grades that the measure tells apart, int64 ``[B, N]``; -1 in the padding."""
        return grades

    @abstractmethod
    def weights(self, places: Tensor, size: Tensor) -> Tensor:
        """The weight that a score has at each place, ``[B, N]`` float64; falling from the top down.

        Args:
            places: ``[B, N]`` int64, 0 or more.
            size: ``[B, 1]`` int64, the number of documents.
        """

    @abstractmethod
    def loss(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """What the output costs, ``[B]`` float64, at least 0; 0 for every order by descending level."""

    @abstractmethod
    def worst(self, scores: Tensor, grades: Tensor) -> Tensor:
        """The output with the largest ``loss(y) + <difference(y), scores>``: the max oracle of training, exact.

        Args:
            scores: ``[B, N]`` float64; those in the padding are 0.
            grades: ``[B, N]`` int64.
        """

    def difference(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """The weights of the scores, less those of the target, ``[B, N]`` float64; 0 in the padding."""
        return self.parts(labeling) - self.ideal(grades)

    def parts(self, labeling: Tensor) -> Tensor:
        """The weights of the scores, ``[B, N]`` float64; 0 in the padding."""
        real = labeling >= 0
        return self.weights(labeling.clamp(min=0), real.sum(1, keepdim=True)).masked_fill(~real, 0.0)

    def ideal(self, grades: Tensor) -> Tensor:
        """The mean parts of all orders by descending level, ``[B, N]`` float64; 0 in the padding."""
        real = grades >= 0
        size = real.sum(1, keepdim=True)
        lower, higher = count_others(self.levels(grades))
        equal = (size - lower - higher).clamp(min=1)
        places = torch.arange(grades.shape[1], device=grades.device).expand_as(grades)
        total = torch.nn.functional.pad(self.weights(places, size).cumsum(1), (1, 0))
        sums = total.gather(1, (higher + equal).clamp(max=grades.shape[1])) - total.gather(1, higher)
        return (sums / equal).masked_fill(~real, 0.0)

    def output(self, places: Tensor) -> Tensor:
        """The output that is this ranking; the oracle's may be others."""
        return places

    def every(self, real: Tensor) -> Iterator[Tensor]:
        """All outputs: each yields a labeling of every list. ``real`` is the mask of the documents, ``[B, N]``."""
        for order in itertools.permutations(range(real.shape[1])):
            yield place_of(torch.tensor(order, dtype=torch.float64, device=real.device).expand(real.shape), real)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({shown})"
