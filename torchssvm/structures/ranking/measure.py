"""Measures of rankings: swapped pairs, and gains by place."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_whole
from torchssvm.core.structure import reject_rows


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
            equal = grades == grade
            lower = _count_up_to(worse, (grades >= 0) & (grades < grade))
            above = torch.where(equal, lower.gather(1, better.clamp(min=0)), above)
            higher = _count_up_to(better, grades > grade)
            below = torch.where(equal, higher[:, -1:] - higher.gather(1, worse.clamp(min=0)), below)
    return above, below


def _count_up_to(places: Tensor, chosen: Tensor) -> Tensor:
    """The number of chosen documents at or above each place, ``[B, M]`` int64, for M places."""
    most = 2 * places.shape[1]
    count = torch.zeros(len(places), most + 1, dtype=torch.int64, device=places.device)
    count.scatter_(1, torch.where(chosen, places, most), 1)
    return count[:, :-1].cumsum(1)


def count_others(grades: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of documents of a lower and of a higher grade, for each document: ``[B, N]`` int64 each."""
    ordered = grades.sort(1).values
    below = torch.searchsorted(ordered, grades)
    higher = grades.shape[1] - torch.searchsorted(ordered, grades, right=True)
    return (below - (grades < 0).sum(1, keepdim=True)).clamp(min=0), higher


class RankingMeasure(ABC):
    """Loss and score of a ranking, and the oracle of the worst one.

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
        """The loss of the output, ``[B]`` float64, at least 0; 0 for every order by descending level."""

    @abstractmethod
    def worst(self, scores: Tensor, grades: Tensor) -> Tensor:
        """The output with the largest ``loss(y) + <difference(y), scores>``: the max oracle of training, exact.

        Args:
            scores: ``[B, N]`` float64; those in the padding are 0.
            grades: ``[B, N]`` int64.
        """

    def difference(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """The weights of the scores, less the target's, ``[B, N]`` float64; 0 in the padding."""
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


_ROUNDING = 1e-12


class ByPlace(RankingMeasure):
    """One minus ``sum_d gain_d discount[place_d]``, which is 1 for every order by descending grade.

    Scores are weighted by the same discounts (Chapelle et al., 2007; Le and Smola, 2007). The max oracle then assigns
    documents to places with the costs ``discount[place] (s_d - gain_d)``, which sorting by ``s_d - gain_d`` solves
    exactly (the rearrangement inequality), in O(N log N).
    """

    @abstractmethod
    def discount(self, places: Tensor) -> Tensor:
        """The discount of each place, float64, descending. ``places`` are 0 or more."""

    @abstractmethod
    def gain(self, grades: Tensor) -> Tensor:
        """The gain of each grade, ``[B, N]`` float64, at least 0; not normalised. ``grades`` are 0 or more."""

    @override
    def check(self, grades: Tensor) -> None:
        reject_rows(
            ~(self.gain(grades.clamp(min=0)) > 0).any(1),
            f"target has no relevant document in {{rows}}, and {self!r} needs one: leave the lists out",
        )
        reject_rows(
            ~torch.isfinite(self.gain(grades.clamp(min=0)).sum(1)),
            f"target has grades in {{rows}} too large for {self!r}: number grades from 0",
        )

    @override
    def weights(self, places: Tensor, size: Tensor) -> Tensor:
        return self.discount(places)

    def loss(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """One minus the discounted gains, relative to the largest that the grades allow."""
        loss = 1.0 - (self.relative_gain(grades) * self.parts(labeling)).sum(1)
        return torch.where(loss < _ROUNDING, 0.0, loss)

    def worst(self, scores: Tensor, grades: Tensor) -> Tensor:
        """By descending score less gain, and of equal ones by score: small scores are lost beside gains."""
        order = scores.argsort(dim=1, descending=True, stable=True)
        costs, real = (scores - self.relative_gain(grades)).gather(1, order), (grades >= 0).gather(1, order)
        return torch.empty_like(order).scatter_(1, order, place_of(costs, real))

    def relative_gain(self, grades: Tensor) -> Tensor:
        """The gain of each document over the largest possible total, ``[B, N]`` float64; 0 in the padding."""
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
        discount = 1.0 / torch.log2(places.to(torch.float64) + 2.0)
        return discount if self.k is None else discount.masked_fill(places >= self.k, 0.0)

    def gain(self, grades: Tensor) -> Tensor:
        """``2^grade - 1``."""
        return torch.exp2(grades.to(torch.float64)) - 1.0


class PrecisionAt(ByPlace):
    """One minus the share of relevant documents among the first k, of as many as can be there.

    Args:
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


class PairSwaps(RankingMeasure):
    """The share of pairs in the wrong order, as svm_rank (Joachims, 2002, 2006).

    The hinge is a mean over pairs, ``(1/P) sum max(0, 1 - (s_i - s_j))``, over the P pairs in which i has a
    higher grade than j. With more than two grades no single ranking need have the worst swaps: outputs of
    training are two rankings, in which a document is the more and the less relevant one of its pairs. They are int64
    ``[B, N, 2]``, the places among 2N; ``Ranking.decode`` gives the places of one ranking. The oracle is exact, and
    takes O(N log N), and O(G N) to count for G grades. Lists without a pair cost nothing.

    Args:
        normalize: Divide by P; False counts the swapped pairs.

    Example:
        >>> structure, scores = Ranking(PairSwaps()), torch.tensor([[0.5, 0.7, 0.1]])
        >>> structure.decode(scores)  # the second document is on top
        tensor([[1, 0, 2]])
        >>> target = structure.check_target(torch.tensor([[2, 1, 0]]), scores)
        >>> structure.loss(structure.argmax(scores).labeling, target)
        tensor([0.3333], dtype=torch.float64)
    """

    def __init__(self, normalize: bool = True) -> None:
        check_flags(normalize=normalize)
        self.normalize = normalize

    @override
    def weights(self, places: Tensor, size: Tensor) -> Tensor:
        return (size - 1 - 2 * places).to(torch.float64)

    def difference(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """The document's swaps as the less relevant one, less those as the more relevant one, divided by P."""
        above, below = self.swaps(labeling, grades)
        return (below - above).to(torch.float64) * self.share(grades).unsqueeze(1)

    def share(self, grades: Tensor) -> Tensor:
        """``1 / P``, ``[B]`` float64, for P pairs of documents of different grades; 1 if there is none.

        It is 1 for all lists if the loss is not normalised.
        """
        share = 1.0 / count_others(grades)[0].sum(1).clamp(min=1).to(torch.float64)
        return share if self.normalize else torch.ones_like(share)

    def output(self, places: Tensor) -> Tensor:
        """The same ranking twice."""
        real = (places >= 0).unsqueeze(2)
        return torch.stack([2 * places, 2 * places + 1], 2).masked_fill(~real, -1)

    def swaps(self, labeling: Tensor, grades: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of less relevant documents above each document, and of more relevant ones below it."""
        return count_swaps(labeling[..., 0], labeling[..., 1], grades)

    @override
    def parts(self, labeling: Tensor) -> Tensor:
        better, worse = labeling.unbind(2)
        real = better >= 0
        within = place_of(-better.to(torch.float64), real) + place_of(-worse.to(torch.float64), real)  # by role
        more = real.sum(1, keepdim=True) - better - worse + within
        return more.to(torch.float64).masked_fill(~real, 0.0)

    @override
    def loss(self, labeling: Tensor, grades: Tensor) -> Tensor:
        return self.swaps(labeling, grades)[0].sum(1) * self.share(grades)

    def worst(self, scores: Tensor, grades: Tensor) -> Tensor:
        """All pairs with a margin of less than 1 are swapped."""
        real = grades >= 0
        places = place_of(torch.cat([scores - 0.5, scores + 0.5], 1), torch.cat([real, real], 1))
        return torch.stack(places.chunk(2, 1), 2)

    @override
    def every(self, real: Tensor) -> Iterator[Tensor]:
        both = torch.cat([real, real], 1)
        for order in itertools.permutations(range(both.shape[1])):
            height = torch.tensor(order, dtype=torch.float64, device=real.device).expand(both.shape)
            yield torch.stack(place_of(height, both).chunk(2, 1), 2)
