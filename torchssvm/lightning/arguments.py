"""Checks of the arguments of ``StructuredSVM``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from torchssvm.core.bounds import Bound, Box
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.storage import Storage
from torchssvm.lightning.joint_training import JointTraining
from torchssvm.steps.cache import MaxOracle, OracleRule
from torchssvm.steps.direction import DirectionRule
from torchssvm.steps.frank_wolfe import FrankWolfe
from torchssvm.steps.rules import check_rules

Direction = DirectionRule | Callable[..., Any]
"""A direction rule. The ``Callable`` is for configuration files: jsonargparse reads a protocol whose ``__call__``
returns a Tensor as a factory of Tensors, and would refuse ``class_path: torchssvm.Pairwise``. ``choose_rules`` refuses
any other callable."""


def choose_rules(
    direction: Direction | None, oracle: OracleRule | None, storage: Storage | None, *, features_move: bool
) -> tuple[DirectionRule, OracleRule, Storage]:
    """Direction, oracle rule and an empty storage that fit together; None takes the default.

    Args:
        direction: None is ``FrankWolfe()``.
        oracle: None is ``MaxOracle()``.
        storage: None is ``Labelings()`` if direction or oracle need labelings, else ``MeanParts()``.
        features_move: Whether the features below the head are trained.

    Raises:
        TypeError: An argument is a class, or not an object of its kind.
        ValueError: Direction or oracle need labelings and the storage keeps none; the features are trained and the
            storage cannot follow them; or the storage already belongs to a dual.
    """
    chosen: Any = direction if direction is not None else FrankWolfe()
    oracle = oracle if oracle is not None else MaxOracle()
    if storage is None:
        needed = getattr(chosen, "needs_labelings", False) or getattr(oracle, "needs_labelings", False)
        storage = Labelings() if needed else MeanParts()
    if not isinstance(storage, Storage):
        raise TypeError(f"storage={storage} must be an object such as MeanParts(), Labelings() or Weights()")
    check_rules(chosen, oracle, storage)
    if features_move and storage.needs_gradients:
        raise ValueError(
            f"storage={type(storage).__name__}() keeps weights of old features; features that are trained need "
            "storage=MeanParts() or Labelings()"
        )
    if hasattr(storage, "num_examples"):
        raise ValueError(
            f"storage={type(storage).__name__}() already belongs to a DualState: give a new one, which every fit copies"
        )
    return chosen, oracle, storage


def check_joint(joint: JointTraining, features: nn.Module | None, features_optimizer: Any) -> None:
    """Raise ValueError if there is nothing for ``joint`` to train, or another optimizer for it."""
    if features is None:
        raise ValueError(f"joint={joint} trains features and head together, and features=None: give the network")
    if features_optimizer is not None:
        raise ValueError(
            f"joint={joint} has an optimizer of its own for features and head, and features_optimizer is for "
            "Alternate(): give JointTraining(optimizer=...) in its place, or joint=Alternate(...)"
        )


def check_bounds(head: nn.Module, bounds: dict[str, tuple[Bound | None, Bound | None]]) -> None:
    """Raise unless every entry of ``bounds`` is a pair that fits the parameter it names."""
    named = dict(head.named_parameters())
    for name, pair in bounds.items():
        if name not in named:
            raise ValueError(f"bounds names {name!r}, and the parameters of the head are {sorted(named)}")
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"bounds[{name!r}]={pair} must be a pair (lower, upper), None for no bound")
        Box([named[name]], [(pair[0], pair[1])])
