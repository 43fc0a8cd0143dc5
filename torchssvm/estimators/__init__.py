"""Estimators of scikit-learn: ``fit(X, y)`` and ``predict(X)`` for classes, label sets, sequences, segments, graphs and
rankings.

``pip install "torchssvm[sklearn]"``; ``import torchssvm`` alone imports none of them.
"""

from torchssvm.core.arguments import needs

with needs(
    "torchssvm.estimators needs scikit-learn and scipy, which the extra sklearn has: pip install 'torchssvm[sklearn]'",
    "sklearn",
    "scipy",
):
    from torchssvm.estimators.chain import ChainSVC
    from torchssvm.estimators.graph import GraphSVC
    from torchssvm.estimators.multilabel import MultilabelSVC
    from torchssvm.estimators.multinomial import MultinomialSVC
    from torchssvm.estimators.predict_then_optimize import PredictThenOptimize
    from torchssvm.estimators.ranking import RankingSVC
    from torchssvm.estimators.segments import SegmentSVC

__all__ = ["ChainSVC", "GraphSVC", "MultilabelSVC", "MultinomialSVC", "PredictThenOptimize", "RankingSVC", "SegmentSVC"]
