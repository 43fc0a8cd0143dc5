"""States of which every rank has a part."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torchssvm.core.ranks import Ranks
from torchssvm.core.schema import Stateful, damaged


class ByRank(Stateful):
    """An object whose state is a part of that in checkpoints, if several processes train together.

    All ranks call ``consolidate_state_dict()``, one of them then ``state_dict()``: torch's ``ZeroRedundancyOptimizer``
    has the same two methods, and Lightning calls them. :func:`torchssvm.save_checkpoint` does it by itself. Every rank
    loads the whole state and takes its part.
    """

    _whole: dict[str, Any] | None = None
    _collected: Any = None  # the progress at which _whole was collected

    @property
    @abstractmethod
    def _group(self) -> Ranks:
        """The processes."""

    @abstractmethod
    def own_state(self) -> dict[str, Any]:
        """The state of this process."""

    def _progress(self) -> Any:
        """What changes with every step, so that a state collected before one is not taken for that after it."""
        return None

    def _merge(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The whole state, from those of all ranks in their order."""
        return {"ranks": parts}

    def _part(self, state: Any, where: str) -> dict[str, Any]:
        """The part of this process in a state; the state itself if it is one."""
        parts = state.get("ranks") if isinstance(state, dict) else None
        if not isinstance(parts, list) or not parts:
            if not self._group or not isinstance(state, dict):
                return state
            parts = [state]
        return parts[self._group.rank] if len(parts) == self._group.size else self._restarted(parts)

    def _restarted(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The part of this process, where the state is of another number of processes."""
        raise ValueError(
            f"the {self.state_name} was saved by {len(parts)} processes, and there are {self._group.size} now"
        )

    def kept(self) -> dict[str, Any]:
        """The state of this process, as ``load_state_dict`` takes it."""
        return {"ranks": [self.own_state()] * self._group.size} if self._group else self.own_state()

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect the state of all ranks for the next ``state_dict()`` of the rank ``to``; all ranks call it.

        Raises:
            RankError: A rank cannot be reached.
        """
        if self._group:
            parts = self._group.collect(self.own_state(), to)
            self._whole = None if parts is None else self._merge(parts)
            self._collected = self._progress()

    def state_dict(self) -> dict[str, Any]:
        """The whole state, as tensors, numbers and strings.

        Raises:
            RuntimeError: There are several processes, and ``consolidate_state_dict()`` was not called just before.
        """
        if not self._group:
            return self.own_state()
        whole, self._whole = self._whole, None
        if whole is None or self._collected != self._progress():
            raise RuntimeError(
                f"rank {self._group.rank} has a part of the {self.state_name} alone: call consolidate_state_dict() on "
                "every rank, then state_dict() on rank 0; or save_checkpoint(...) on every rank, which does both"
            )
        return whole

    def check_state(self, state: Any, where: str | None = None) -> None:
        """As :meth:`Stateful.check_state`; of the state of all ranks, only the part of this one is checked."""
        where = where or self.state_name
        try:
            part = self._part(state, where)
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(f"{where} has no part for rank {self._group.rank} of {self._group.size}") from error
        super().check_state(part, where)
