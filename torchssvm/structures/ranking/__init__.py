"""Orders of the documents of a query."""

from torchssvm.structures.ranking.by_place import NDCG, PrecisionAt
from torchssvm.structures.ranking.head import LinearRanking
from torchssvm.structures.ranking.measure import RankingMeasure
from torchssvm.structures.ranking.pairs import PairSwaps
from torchssvm.structures.ranking.structure import Ranking

__all__ = [
    "NDCG",
    "LinearRanking",
    "PairSwaps",
    "PrecisionAt",
    "Ranking",
    "RankingMeasure",
]
