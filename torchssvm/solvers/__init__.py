"""Solvers: BCFW and its losses, compiled loops, GDMM, kernel models and certificates."""

from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate, certify, recompute_weights
from torchssvm.solvers.choice import choose
from torchssvm.solvers.compiled.solver import CompiledBCFW
from torchssvm.solvers.concave_convex import LatentReport, LatentTrainer
from torchssvm.solvers.evaluation import Evaluation
from torchssvm.solvers.exact_pass import Objective, primal
from torchssvm.solvers.feature_losses import PerturbedFenchelYoung, SoftmaxMargin, StructuredHinge
from torchssvm.solvers.gdmm.solver import GDMM
from torchssvm.solvers.report import RunReport
from torchssvm.solvers.running_average import Average, SuffixAverage, UniformAverage, WeightedAverage
from torchssvm.solvers.solver import EveryPasses, Relative, Solver, WhenEstimated
from torchssvm.solvers.torch_loop import TorchLoop
from torchssvm.solvers.trainer import Trainer
from torchssvm.solvers.training import make_trainer, solve

__all__ = [
    "BCFW",
    "GDMM",
    "Average",
    "BlockGap",
    "Certificate",
    "CompiledBCFW",
    "Evaluation",
    "EveryPasses",
    "LatentReport",
    "LatentTrainer",
    "Objective",
    "PerturbedFenchelYoung",
    "Relative",
    "RunReport",
    "SoftmaxMargin",
    "Solver",
    "StructuredHinge",
    "SuffixAverage",
    "TorchLoop",
    "Trainer",
    "UniformAverage",
    "WeightedAverage",
    "WhenEstimated",
    "certify",
    "choose",
    "make_trainer",
    "primal",
    "recompute_weights",
    "solve",
]
