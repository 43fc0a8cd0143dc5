"""The measures of rankings that papers report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchssvm.core.arguments import as_number, check_int64, check_several, check_tensor, check_whole
from torchssvm.core.structure import reject_rows
from torchssvm.structures.ranking.measure import NDCG


@dataclass(frozen=True)
class RankingScores:
    """Means over some lists.

    Attributes:
        ndcg: NDCG@k by k.
        mean_average_precision: MAP.
        num_lists: Number of lists.

    Example:
        >>> scores = ranking_scores(torch.tensor([[2, 0, 1]]), places=torch.tensor([[0, 1, 2]]), ks=(1, 3))
        >>> print(scores)
        NDCG@1 1.0000  NDCG@3 0.9639  MAP 0.8333  of 1 lists
    """

    ndcg: dict[int, float]
    mean_average_precision: float
    num_lists: int

    def __str__(self) -> str:
        shown = "  ".join(f"NDCG@{k} {value:.4f}" for k, value in self.ndcg.items())
        return f"{shown}  MAP {self.mean_average_precision:.4f}  of {self.num_lists} lists"


def ranking_scores(
    grades: Tensor,
    places: Tensor,
    *,
    ks: Sequence[int] = (1, 3, 5, 10),
    relevant: int = 1,
    without_relevant: float | None = None,
) -> RankingScores:
    """NDCG@k and mean average precision of rankings.

    Args:
        grades: int64 ``[n, N]``, 0 or more, -1 in the padding.
        places: int64 ``[n, N]``, the place of each document, 0 on top, as ``Ranking.decode`` gives it.
        ks: How many places NDCG counts.
        relevant: The smallest grade of a relevant document, for average precision.
        without_relevant: What NDCG and average precision are in a list without a relevant document, 0 to 1: 1 in
            LightGBM, 0 in LETOR's script. None refuses such lists.

    Raises:
        ValueError: Shapes differ, two documents have one place, or a list has no relevant document, and
            ``without_relevant`` does not say what it counts.

    Example:
        >>> ranking_scores(torch.tensor([[2, 0, 1]]), torch.tensor([[0, 2, 1]])).ndcg[3]
        1.0
    """
    check_several(ks, "ks")
    check_tensor(grades, "grades")
    check_int64(grades, "grades", (len(grades), grades.shape[-1]), ", of the documents of each list")
    check_int64(places, "places", grades.shape, ", a place for each document")
    if bool(((places < 0) != (grades < 0)).any()):
        raise ValueError("places and grades are padded in different ways: both must be -1 beyond the same documents")
    size = grades.shape[1]
    each = torch.arange(size, device=grades.device)
    each = each.where(each < (grades >= 0).sum(1, keepdim=True), size)
    if bool((wrong := (places.where(places >= 0, size).sort(1).values != each).any(1)).any()):
        raise ValueError(
            f"places of list {int(wrong.nonzero()[0])} must be 0, 1, 2 and so on, each once: "
            "give scores.argsort(1, descending=True).argsort(1)"
        )
    if without_relevant is not None and not 0.0 <= as_number(without_relevant, "without_relevant") <= 1.0:
        raise ValueError(f"without_relevant={without_relevant} must be 0 to 1: what such lists count in a mean")

    def mean(of_lists: Callable[[Tensor, Tensor], Tensor], least: int, otherwise: float) -> float:
        """The mean over lists; a list without a grade of ``least`` or more has the value ``otherwise``."""
        some = (grades >= least).any(1) if without_relevant is not None else slice(None)
        values = torch.full((len(grades),), otherwise, dtype=torch.float64, device=grades.device)
        values[some] = of_lists(places[some], grades[some])
        return float(values.mean())

    def lost(places: Tensor, grades: Tensor, measure: NDCG) -> Tensor:
        measure.check(grades)
        return measure.loss(places, grades)

    relevant, counted = check_whole(relevant, "relevant"), without_relevant or 0.0
    return RankingScores(
        ndcg={k: 1.0 - mean(partial(lost, measure=NDCG(k)), 1, 1.0 - counted) for k in ks},
        mean_average_precision=mean(partial(_average_precision, relevant=relevant), relevant, counted),
        num_lists=len(grades),
    )


def _average_precision(places: Tensor, grades: Tensor, relevant: int) -> Tensor:
    """The mean, over a list's relevant documents, of the share of such documents among those down to it, ``[n]``."""
    hits = grades >= relevant
    reject_rows(~hits.any(1), f"grades have no document of grade {relevant} or more in {{rows}}: lower relevant")
    last = torch.where(grades >= 0, places, grades.shape[1] - 1)  # the padding is not relevant, wherever it stands
    by_place = torch.zeros_like(grades, dtype=torch.float64).scatter_reduce(1, last, hits.double(), "amax")
    ranks = torch.arange(1, grades.shape[1] + 1, device=grades.device)
    return (by_place * by_place.cumsum(1) / ranks).sum(1) / hits.sum(1)
