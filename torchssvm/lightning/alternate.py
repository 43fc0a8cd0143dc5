"""The schedule of joint training: epochs on the features and on the head."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alternate:
    """``head`` epochs of BCFW on the head, then ``features`` epochs of the features' optimizer, repeated.

    The head comes first: while its weights are zero, the hinge has no gradient for the features.

    Args:
        features: Epochs of each round that train the features.
        head: Epochs of each round that train the head.

    Raises:
        ValueError: A number is not a positive whole number.
    """

    features: int = 1
    head: int = 4

    def __post_init__(self) -> None:
        for name in ("features", "head"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be a positive number of epochs")

    def trains_features(self, epoch: int) -> bool:
        """Whether epoch number ``epoch``, counted from 0, trains the features."""
        return epoch % (self.head + self.features) >= self.head
