"""The measure that counts pairs of documents in the wrong order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from torchssvm.core.arguments import check_flags
from torchssvm.structures.ranking.measure import RankingMeasure, count_others, count_swaps, place_of


class PairSwaps(RankingMeasure):
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

    def weights(self, places: Tensor, size: Tensor) -> Tensor:
        """How many documents more stand below than above."""
        return (size - 1 - 2 * places).to(torch.float64)

    def difference(self, labeling: Tensor, grades: Tensor) -> Tensor:
        """The document's swaps as the less relevant one, less those as the more relevant one, divided by P."""
        above, below = self.swaps(labeling, grades)
        return (below - above).to(torch.float64) * self.share(grades).unsqueeze(1)

    def share(self, grades: Tensor) -> Tensor:
        """``1 / P``, ``[B]`` float64, for P pairs of documents of different grades; 1 if there is none.

        It is 1 for all lists if the loss is not normalised.
        """
        found = 1.0 / count_others(grades)[0].sum(1).clamp(min=1).to(torch.float64)
        return found if self.normalize else torch.ones_like(found)

    def output(self, places: Tensor) -> Tensor:
        """The same ranking twice."""
        real = (places >= 0).unsqueeze(2)
        return torch.stack([2 * places, 2 * places + 1], 2).masked_fill(~real, -1)

    def swaps(self, labeling: Tensor, grades: Tensor) -> tuple[Tensor, Tensor]:
        """How many less relevant documents stand above each document, and how many more relevant ones below it."""
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
