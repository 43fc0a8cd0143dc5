"""Which rules work with which storage."""

from __future__ import annotations

from torchssvm.dual.storage import Storage
from torchssvm.steps.cache import OracleRule
from torchssvm.steps.direction import DirectionRule


def check_rules(direction: DirectionRule, oracle: OracleRule, storage: Storage) -> None:
    """Check that direction and oracle rule work with the storage.

    Raises:
        TypeError: One of them is a class, or not a rule.
        ValueError: One of them needs labelings, but the storage keeps none.
    """
    for name, rule, method, such in (
        ("direction", direction, "__call__", "Pairwise()"),
        ("oracle", oracle, "misses", "CacheOracle()"),
    ):
        if isinstance(rule, type) or not hasattr(rule, "needs_labelings") or not hasattr(rule, method):
            raise TypeError(f"{name}={rule!r} must be an object such as {such}")
        if rule.needs_labelings and not storage.keeps_labelings:
            raise ValueError(
                f"{name}={rule} moves between single labelings, and storage={type(storage).__name__}() does not keep "
                "them: use storage=Labelings()"
            )
