"""Orders of the documents of a query."""

from torchssvm.structures.ranking.head import LinearRanking
from torchssvm.structures.ranking.measure import NDCG, PairSwaps, PrecisionAt, RankingMeasure
from torchssvm.structures.ranking.structure import Ranking

__all__ = [
    "NDCG",
    "LinearRanking",
    "PairSwaps",
    "PrecisionAt",
    "Ranking",
    "RankingMeasure",
]
