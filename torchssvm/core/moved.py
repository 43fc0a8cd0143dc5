"""Names that stood at the top level of the package: where they are now."""

from __future__ import annotations

import importlib
from typing import Any

from torchssvm.core.arguments import warn

_ROOMS = {
    "torchssvm.solvers.check": "CheckReport",
    "torchssvm.core.ranks": "RankError",
    "torchssvm.core.structure": "Decoding",
    "torchssvm.core.marginals": "Marginals",
    "torchssvm.structures.arborescence": "NonProjective Projective",
    "torchssvm.structures.chain": "Transitions",
    "torchssvm.structures.decisions": (
        "Assignment Decision DecisionOracle DecisionPotentials DecisionProblems IntegerProgram Knapsack OptModel "
        "Selection ShortestPath Situations SpanningTree"
    ),
    "torchssvm.structures.graph_cut": "GraphPotentials MinCut RoofDual Segmentation",
    "torchssvm.structures.matching": "EdgePotentials",
    "torchssvm.structures.multilabel": "BranchAndBound MessagePassing",
    "torchssvm.structures.pairwise_graph": "GraphLabels PairwisePotentials TreeReweighted",
    "torchssvm.structures.pose": "PoseMaps",
    "torchssvm.structures.ranking": "NDCG PairSwaps PrecisionAt RankingMeasure",
    "torchssvm.structures.slack_rescaling": "BruteForceSearch EveryClass EveryLossLevel SlackOracle",
    "torchssvm.solvers": (
        "Average SuffixAverage UniformAverage WeightedAverage Certificate Evaluation Objective primal "
        "RunReport Trainer EveryPasses WhenEstimated LatentReport LatentTrainer"
    ),
    "torchssvm.solvers.gdmm": (
        "AwayStep BlockGreedy BruteForce FactorwiseCertificate FullyCorrective PassReport Penalty "
        "ResidualBalancing SortedOracle"
    ),
    "torchssvm.solvers.kernel": "KernelSSVM RBF KernelChain KernelMulticlass Polynomial",
    "torchssvm.steps": "Away Hybrid LargestGap BoxQP CommonStep ExactSearch MaxOracle PredefinedStep ShortStep",
    "torchssvm.path": "Certified Heuristic LamChoice PathRun RegularizationPath",
}
MOVED = {name: room for room, names in _ROOMS.items() for name in names.split()}
"""The modules that have names which still exist. They are found by ``torchssvm.NAME`` too, with a warning."""

_BASELINE = "is a baseline to compare with, and lies in benchmarks/baselines of the repository; train by solve(...)"
_GRID = "is a baseline to compare with, and lies in benchmarks/baselines of the repository; use choose_lam(...)"
_BACKEND = "has gone: IntegerProgram asks SciPy's HiGHS; another solver is a DecisionOracle of your own"
LEFT = {
    **dict.fromkeys(("CPSAT", "HiGHS", "SCIP", "SciPyMilp"), _BACKEND),
    "AveragePrecision": "has gone: Ranking(PairSwaps()) and Ranking(NDCG()) reach a better average precision",
    "CuttingPlane": _BASELINE,
    "ExponentiatedGradient": _BASELINE,
    "GridPoint": _GRID,
    "grid_search": _GRID,
    "NSlack": _BASELINE,
    "OneSlack": _BASELINE,
    "LossScaleSearch": "has gone: SlackRescaling finds the exact oracle, or takes a SlackOracle of your own",
    "KeepDual": "has gone: choose_lam and regularization_path start warm",
    "KeepWeights": "has gone: choose_lam and regularization_path start warm",
    "Recipe": "has gone: give solver=Solver(direction=..., oracle=..., storage=..., bounds=...)",
    "RunOptions": "has gone: give solver=Solver(seed=..., order=..., schedule=..., batch_size=...)",
    "Subgradient": "is a baseline to compare with, and lies in benchmarks/baselines of the repository; train by "
    "StructuredHinge and an optimizer of torch",
}
"""What became of names that the package has no longer."""


def find(name: str) -> Any:
    """The object of a name that the top level has no longer.

    Raises:
        ImportError: It has left the package; not an AttributeError, of which ``from torchssvm import`` drops the words.
        AttributeError: There was never such a name.
    """
    if name in LEFT:
        raise ImportError(f"torchssvm.{name} {LEFT[name]}")
    if name not in MOVED:
        raise AttributeError(f"module 'torchssvm' has no attribute {name!r}")
    place = MOVED[name]
    warn(f"torchssvm.{name} is {place}.{name} now", DeprecationWarning)
    return getattr(importlib.import_module(place), name)
