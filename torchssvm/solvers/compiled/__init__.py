"""The compiled training loop for fixed features: blocks one after another, without Python in between."""

from torchssvm.solvers.compiled.solver import CompiledBCFW

__all__ = ["CompiledBCFW"]
