"""Checks of the arguments of ``StructuredSVM``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from torchssvm.core.arguments import or_default
from torchssvm.lightning.joint_training import JointTraining
from torchssvm.solvers.choice import Solver
from torchssvm.solvers.compiled.applies import reason_not_compiled
from torchssvm.steps.direction import DirectionRule

Direction = DirectionRule | Callable[..., Any]
"""A direction rule. The ``Callable`` is for configuration files: jsonargparse reads a protocol whose ``__call__``
returns a Tensor as a factory of Tensors, and would refuse ``class_path: torchssvm.Pairwise``. ``Solver`` refuses any
other callable."""


def find_solver(module: Any, solver: Solver | None, one_by_one: Solver) -> Solver:
    """The solver of a model, from the argument ``solver`` or from the rules that were given one by one.

    Args:
        module: The ``StructuredSVM``, with head, structure, bounds and features.
        solver: The argument.
        one_by_one: The rules.

    Raises:
        TypeError: ``solver`` is not a Solver.
        ValueError: Both are given; features that are trained and a storage that cannot follow them; or
            ``compiled=True`` where the compiled loop cannot be used.
    """
    given = or_default(solver, Solver, "solver")
    if solver is not None and not one_by_one.is_default:
        raise ValueError(f"solver={solver} and rules of its own are given: write the rules into the solver")
    solver = one_by_one if solver is None else given
    rules, moves = solver.rules(), module.features_optimizer is not None
    moving = moves and not module.joint.envelope  # between two epochs of the head
    if moves and rules.storage.needs_gradients:
        raise ValueError(
            f"storage={type(rules.storage).__name__}() keeps weights of old features; features that are trained need "
            "storage=MeanParts() or Labelings()"
        )
    if solver.compiled and (
        reason := "the features are trained (features_optimizer)"
        if moving
        else reason_not_compiled(module.head, module.structure, rules, bounds=bool(module.bounds))
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
