"""Checks of the arguments of ``StructuredSVM``."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchssvm.core.arguments import or_default
from torchssvm.lightning.joint_training import JointTraining
from torchssvm.solvers.choice import compiled_form
from torchssvm.solvers.parameter_groups import check_bounds
from torchssvm.solvers.solver import Solver

_OF_THE_TRAINER = {
    "batch_size": "to the DataLoader",
    "order": "to a GapBatchSampler in the DataLoader",
    "seed": "to a GapBatchSampler in the DataLoader",
    "schedule": "to DualityGap",
}
"""What a Trainer has of its own, and where it is given."""


def find_solver(module: Any, solver: Solver | None) -> Solver:
    """The solver of a model: ``solver``, or one that leaves all to the library.

    Args:
        module: The ``StructuredSVM``, with head, structure and features.
        solver: The argument.

    Raises:
        TypeError: ``solver`` is not a Solver.
        ValueError: It has what the Trainer has too; features are trained and the storage cannot follow them; bounds do
            not fit the head; or ``compiled=True`` where the compiled loop cannot be used.
    """
    solver = or_default(solver, Solver, "solver")
    for name, where in _OF_THE_TRAINER.items():
        if getattr(solver, name):
            raise ValueError(f"Solver({name}={getattr(solver, name)}) is for solve: under a Trainer give it {where}")
    check_bounds(module.head, solver.bounds)
    rules, moves = solver.with_defaults(), module.features_optimizer is not None
    moving = moves and not module.joint.envelope  # between two epochs of the head
    if moves and rules.storage is not None and rules.storage.needs_gradients:
        raise ValueError(
            f"storage={type(rules.storage).__name__}() keeps weights of old features; features that are trained need "
            "storage=MeanParts() or Labelings()"
        )
    if solver.compiled and (
        reason := "the features are trained (features_optimizer)"
        if moving
        else compiled_form(module.head, module.structure, rules)[1]
    ):
        raise ValueError(f"compiled=True, and the compiled loop cannot be used: {reason}")
    return solver


def check_joint(joint: JointTraining, features: nn.Module | None, features_optimizer: Any) -> None:
    """Raise ValueError if there is nothing for ``joint`` to train, or another optimizer for it."""
    if features is None:
        raise ValueError(f"joint={joint} trains features and head together, and features=None: give the network")
    if features_optimizer is not None:
        raise ValueError(
            f"joint={joint} has an optimizer of its own for features and head, and features_optimizer is for "
            "Alternate(): give JointTraining(optimizer=...) in its place, or joint=Alternate(...)"
        )
