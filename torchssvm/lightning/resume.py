"""The point of a run at which a checkpoint was taken: sampler and random state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchssvm.core.random_state import RandomState
from torchssvm.core.schema import Maybe, check
from torchssvm.steps.sampler import GapBatchSampler


@dataclass
class ResumePoint:
    """The point of a run at which a checkpoint was taken; kept until the resumed run trains its first batch.

    Attributes:
        num_examples: n.
        features_moved: Whether the features were trained since the weights were last computed from the dual.
        random: Random state.
        sampler: State of the ``GapBatchSampler``; None if there was none.
        in_epoch: Whether the epoch under way has batches left.
    """

    num_examples: int
    features_moved: bool
    random: RandomState
    sampler: dict[str, Any] | None
    in_epoch: bool

    @classmethod
    def now(
        cls, num_examples: int, features_moved: bool, sampler: GapBatchSampler | None, used: int, left: bool
    ) -> ResumePoint:
        """The current point.

        Args:
            num_examples: n.
            features_moved: See the class.
            sampler: The training loader's, if it is a ``GapBatchSampler``.
            used: Batches of this epoch that training has used.
            left: Whether this epoch has batches left.
        """
        state = None
        if sampler is not None:
            state = sampler.state_dict(used=used if left else len(sampler))
        return cls(num_examples, features_moved, RandomState(), state, left and used > 0)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers only."""
        return {
            "num_examples": self.num_examples,
            "features_moved": self.features_moved,
            "random": self.random.state_dict(),
            "sampler": self.sampler,
            "in_epoch": self.in_epoch,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> ResumePoint:
        """The point from its ``state_dict``.

        Raises:
            ValueError: The state is damaged.
        """
        schema = {
            "num_examples": int,
            "features_moved": bool,
            "random": dict,
            "sampler": Maybe(dict),
            "in_epoch": bool,
        }
        check(state, schema, "torchssvm")
        return cls(**{**state, "random": RandomState(state["random"])})

    def rewind(self, sampler: GapBatchSampler | None) -> None:
        """Restore sampler and random state."""
        if sampler is not None and self.sampler is not None:
            sampler.load_state_dict(self.sampler)
        self.random.restore()
