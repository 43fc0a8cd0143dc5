"""Greedy direction method of multipliers: training with decoupled factors [Y16].

To read beside the paper: ``solver`` is the outer loop, passes and steps of the multipliers; ``chain_pass`` and
``label_set_pass`` are one pass of Algorithm 4; ``blocks`` is how one block moves (equation 25, Algorithm 2); ``walks``
is the factorwise oracle of appendix C, on ``sorted_entries``.

Chains and label sets share these, the weights of pairs, the training set, and visits, states and the hand-over to BCFW
(``problem``). Their passes differ. A token has features of its own and keeps a few of K labels; its two factors are
fixed and keep a few of K^2 pairs. Chains have no cycles, so that P' is P. The labels of a set are on or off, and share
one row of features, which is scored and updated for all of them at once; a factor has four configurations, and is made
when the oracle finds it. The factors have cycles, so that P' may be above P.
"""

from torchssvm.solvers.gdmm import chains, label_sets  # noqa: F401  (they name the heads that they train)
from torchssvm.solvers.gdmm.reports import FactorwiseCertificate, PassReport
from torchssvm.solvers.gdmm.rules import (
    AwayStep,
    BlockGreedy,
    BruteForce,
    FullyCorrective,
    Penalty,
    ResidualBalancing,
    SortedOracle,
)
from torchssvm.solvers.gdmm.solver import GDMM

__all__ = [
    "GDMM",
    "AwayStep",
    "BlockGreedy",
    "BruteForce",
    "FactorwiseCertificate",
    "FullyCorrective",
    "PassReport",
    "Penalty",
    "ResidualBalancing",
    "SortedOracle",
]
