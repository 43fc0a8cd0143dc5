"""Measures whose score compares pairs of documents: swapped pairs, and average precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from torchssvm.core.arguments import check_flags, check_whole
from torchssvm.core.structure import reject_rows
from torchssvm.structures.ranking.measure import RankingMeasure, count_others, count_swaps, place_of, relevance


class ByPairs(RankingMeasure):
    """A measure whose score compares pairs of documents of different grades: a swap adds ``(s_j - s_i) / P``."""

    def weights(self, places: Tensor, size: Tensor) -> Tensor:
        """How many documents more stand below than above."""
        return (size - 1 - 2 * places).to(torch.float64)

    def difference(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """The document's swaps as the less relevant one, less those as the more relevant one, divided by P."""
        above, below = self.swaps(labeling, grades)
        return (below - above).to(torch.float64) * self.share(grades).unsqueeze(1)

    def swaps(self, labeling: Tensor, grades: Tensor) -> tuple[Tensor, Tensor]:
        """How many less relevant documents stand above each document, and how many more relevant ones below it."""
        return count_swaps(labeling, labeling, self.levels(grades))

    def share(self, grades: Tensor) -> Tensor:
        """``1 / P``, ``[B]`` float64, for P pairs of documents of different grades; 1 if there is none."""
        return 1.0 / count_others(self.levels(grades))[0].sum(1).clamp(min=1).to(torch.float64)


class PairSwaps(ByPairs):
    """The share of pairs in the wrong order, as svm_rank (Joachims, 2002, 2006).

    The hinge is that of each pair on its own, ``(1/P) sum max(0, 1 - (s_i - s_j))``, over the P pairs in which i has a
    higher grade than j. With more than two grades the swaps that it finds need not be those of a ranking: outputs of
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

    def share(self, grades: Tensor) -> Tensor:
        """``1 / P``, or 1 if the loss is not normalised."""
        found = super().share(grades)
        return found if self.normalize else torch.ones_like(found)

    def output(self, places: Tensor) -> Tensor:
        """The same ranking twice."""
        real = (places >= 0).unsqueeze(2)
        return torch.stack([2 * places, 2 * places + 1], 2).masked_fill(~real, -1)

    def swaps(self, labeling: Tensor, grades: Tensor) -> tuple[Tensor, Tensor]:
        """Those between the two rankings."""
        return count_swaps(labeling[..., 0], labeling[..., 1], grades)

    def parts(self, labeling: Tensor) -> Tensor:
        """Half of how many documents more stand below than above, in both roles."""
        better, worse = labeling.unbind(2)
        real = better >= 0
        own = place_of(-better.to(torch.float64), real) + place_of(-worse.to(torch.float64), real)  # among their role
        found = real.sum(1, keepdim=True) - better - worse + own
        return found.to(torch.float64).masked_fill(~real, 0.0)

    def loss(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """Swapped pairs, divided by P."""
        return self.swaps(labeling, grades)[0].sum(1) * self.share(grades)

    def worst(self, scores: Tensor, grades: Tensor) -> Tensor:
        """All pairs with a margin of less than 1 are swapped."""
        real = grades >= 0
        places = place_of(torch.cat([scores - 0.5, scores + 0.5], 1), torch.cat([real, real], 1))
        return torch.stack(places.chunk(2, 1), 2)

    def every(self, real: Tensor) -> Iterator[Tensor]:
        """All pairs of rankings."""
        both = torch.cat([real, real], 1)
        for order in itertools.permutations(range(both.shape[1])):
            height = torch.tensor(order, dtype=torch.float64, device=real.device).expand(both.shape)
            yield torch.stack(place_of(height, both).chunk(2, 1), 2)


class AveragePrecision(ByPairs):
    """One minus the average precision, for documents that are relevant or not (Yue et al., 2007).

    The oracle is theirs, exact: relevant and other documents are each sorted by score, and a running sum over the R
    relevant ones says where each other document stands among them, O(R (N - R)). Lists without a relevant document
    are refused; those without others cost nothing.

    Args:
        relevant: The smallest grade of a relevant document.

    Example:
        >>> structure, scores = Ranking(AveragePrecision(relevant=2)), torch.tensor([[0.5, 0.7, 0.1]])
        >>> target = structure.check_target(torch.tensor([[2, 1, 0]]), scores)
        >>> structure.loss(structure.decode(scores), target)  # the only relevant document is second
        tensor([0.5000], dtype=torch.float64)
    """

    def __init__(self, relevant: int = 1) -> None:
        self.relevant = check_whole(relevant, "relevant")

    def levels(self, grades: Tensor) -> Tensor:
        """1 for relevant documents, 0 for others, -1 in the padding."""
        return relevance(grades, self.relevant)

    def check(self, grades: Tensor) -> None:
        """There must be a relevant document."""
        reject_rows(
            ~(grades >= self.relevant).any(1),
            f"target has no document of grade {self.relevant} or more in {{rows}}, and average "
            "precision needs one: leave these lists out, or lower AveragePrecision(relevant=...)",
        )

    def loss(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """The mean over relevant documents of the share of others among those down to it."""
        relevant = grades >= self.relevant
        above = self.swaps(labeling, grades)[0].to(torch.float64)
        above = above.masked_fill(~relevant, torch.inf).sort(1).values  # infinite beyond the relevant ones
        rank = torch.arange(1, above.shape[1] + 1, device=above.device)
        return torch.where(above < torch.inf, above / (above + rank), 0.0).sum(1) / relevant.sum(1)

    def worst(self, scores: Tensor, grades: Tensor) -> Tensor:
        """Each other document stands above those relevant ones that it gains most from passing."""
        good, bad = grades >= self.relevant, (grades >= 0) & (grades < self.relevant)
        rank, other = place_of(scores, good), place_of(scores, bad)  # among their own kind
        size, most = good.sum(1, keepdim=True), int(good.sum(1).max())
        k = torch.arange(1, most + 1, dtype=torch.float64, device=scores.device).view(1, -1, 1)
        others = max(int(bad.sum(1).max()), 1)
        j = torch.arange(1, others + 1, dtype=torch.float64, device=scores.device).view(1, 1, -1)
        # What passing the k-th relevant document gains the j-th other one, after j - 1 others have passed it.
        gain = (j / (j + k) - (j - 1) / (j + k - 1)) / size.unsqueeze(2)
        margin = _at(scores, rank, k.numel()).unsqueeze(2) - _at(scores, other, j.numel()).unsqueeze(1)
        gain = (gain - margin * self.share(grades).view(-1, 1, 1)).masked_fill(k > size.unsqueeze(2), 0.0)
        total = torch.nn.functional.pad(gain.flip(1).cumsum(1), (0, 0, 1, 0))  # of the last 0, 1, ... of all k
        passed = (total.argmax(1) - (most - size)).clamp(min=0).gather(1, other.clamp(min=0))
        height = torch.where(good, -rank.to(torch.float64), passed - size + 0.5)
        return place_of(height, grades >= 0)


def _at(scores: Tensor, places: Tensor, count: int) -> Tensor:
    """The scores of the documents at the places 0 to ``count - 1``, ``[B, count]``; 0 where there is none."""
    found = scores.new_zeros(len(scores), count + 1)
    return found.scatter_(1, torch.where(places < 0, count, places), scores)[:, :-1]
