"""The training loop of fixed features, compiled: blocks one after another, with no Python between them."""

from torchssvm.solvers.compiled.sequential import Sequential
from torchssvm.solvers.compiled.solver import CompiledBCFW

__all__ = ["CompiledBCFW", "Sequential"]
