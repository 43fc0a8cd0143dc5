"""The point of a run at which a checkpoint was taken: sampler and random state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchssvm.core.caller import warn
from torchssvm.core.random_state import RandomState
from torchssvm.core.ranks import Ranks
from torchssvm.core.schema import Each, Maybe, check
from torchssvm.lightning.epoch_parts import EpochParts
from torchssvm.steps.sampler import GapBatchSampler

Draws = GapBatchSampler | EpochParts | None


@dataclass
class ResumePoint:
    """The point of a run at which a checkpoint was taken; kept until the resumed run trains its first batch.

    Attributes:
        num_examples: n.
        features_moved: Whether the features were trained since the weights were last computed from the dual.
        random: The random state, of several processes as a list ``ranks``.
        sampler: State of the ``GapBatchSampler`` or of the ``EpochParts``, of all processes; None if there were none.
        in_epoch: Whether the epoch under way has batches left.
        rules: What the model says of its steps, by argument.
    """

    num_examples: int
    features_moved: bool
    random: dict[str, Any]
    sampler: dict[str, Any] | None
    in_epoch: bool
    rules: dict[str, str]

    @classmethod
    def now(
        cls, num_examples: int, features_moved: bool, sampler: Draws, used: int, left: bool, rules: dict[str, str]
    ) -> ResumePoint:
        """The current point; of several processes, all call it, and that of the first is whole.

        Args:
            num_examples: n.
            features_moved: See the class.
            sampler: What draws the examples, if it has a state.
            used: Batches of this epoch that training has used.
            left: Whether this epoch has batches left.
            rules: See the class.
        """
        state = None if sampler is None else _whole(sampler, used if left else len(sampler))
        random = _of_all(RandomState().state_dict())
        return cls(num_examples, features_moved, random, state, left and used > 0, rules)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers only."""
        return {
            "num_examples": self.num_examples,
            "features_moved": self.features_moved,
            "random": self.random,
            "sampler": self.sampler,
            "in_epoch": self.in_epoch,
            "rules": self.rules,
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
            "rules": Each(dict, str),
        }
        check(state, schema, "torchssvm")
        point = cls(**state)
        point.own_random()
        return point

    @property
    def _processes(self) -> list[dict[str, Any]]:
        """The random state of each process that saved the point."""
        every: list[dict[str, Any]] = self.random.get("ranks") or [self.random]
        return every

    def own_random(self) -> RandomState:
        """The random state for this process.

        Raises:
            ValueError: The state is damaged.
        """
        every = self._processes
        return RandomState(every[Ranks.here().rank % len(every)])

    @property
    def in_parts(self) -> bool:
        """Whether the compiled loop drew the examples, in the parts of an epoch."""
        return self.sampler is not None and "parts" in self.sampler

    def check_rules(self, rules: dict[str, str]) -> None:
        """Warn if the run goes on with other rules than it was saved with."""
        for name, rule in rules.items():
            if (before := self.rules.get(name, rule)) != rule:
                warn(
                    f"the checkpoint was trained with {name}={before}, and this model goes on with {rule}: give the "
                    "model the same rule for the same steps"
                )

    def rewind(self, sampler: Draws) -> None:
        """Restore sampler and random state. A state of another kind of sampler, from the end of an epoch, is left out.

        Raises:
            ValueError: The state does not fit the sampler.
        """
        if sampler is not None and self.sampler is not None and isinstance(sampler, EpochParts) == self.in_parts:
            sampler.load_state_dict(self.sampler)
        self.own_random().restore()

    def check_batches(self, sampler: Draws) -> None:
        """Raise ValueError if the rest of the epoch has other batches than the epoch began with."""
        if self.in_epoch and not self.in_parts and len(self._processes) != (size := Ranks.here().size):
            raise ValueError(
                f"the checkpoint is from the middle of an epoch of {len(self._processes)} processes, and now there are "
                f"{size}, whose batches are others: resume with as many, or from the end of an epoch"
            )
        if self.in_epoch and isinstance(sampler, EpochParts) != self.in_parts:
            drew = ("the training loader", "the compiled loop")
            raise ValueError(
                f"the checkpoint is from the middle of an epoch for which {drew[self.in_parts]} drew the examples, and "
                f"now {drew[not self.in_parts]} does: resume with the same compiled=, loader and trainer settings, or "
                "from the end of an epoch"
            )


def _of_all(state: dict[str, Any]) -> dict[str, Any]:
    """The state; of several processes those of all, in the first of them."""
    ranks = Ranks.here()
    return {"ranks": ranks.collect(state)} if ranks else state


def _whole(sampler: GapBatchSampler | EpochParts, used: int) -> dict[str, Any] | None:
    """The state of what draws the examples; of several processes that of all, in the first of them."""
    if isinstance(sampler, GapBatchSampler):
        return _of_all(sampler.own_state(used))
    sampler.consolidate_state_dict()
    return None if Ranks.here().rank else sampler.state_dict(used)
