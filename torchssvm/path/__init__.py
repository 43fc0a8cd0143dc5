"""Regularisation paths: weights with a guaranteed gap for every lambda, and the choice of one."""

from torchssvm.path.choose_lam import HeldOutPoint, LamChoice, choose_lam
from torchssvm.path.result import Breakpoint, RegularizationPath, plot
from torchssvm.path.run import Certified, Heuristic, PathRun, regularization_path, start_at_largest_lam
from torchssvm.solvers.guess_lam import guess_lam

__all__ = [
    "Breakpoint",
    "Certified",
    "HeldOutPoint",
    "Heuristic",
    "LamChoice",
    "PathRun",
    "RegularizationPath",
    "choose_lam",
    "guess_lam",
    "plot",
    "regularization_path",
    "start_at_largest_lam",
]
