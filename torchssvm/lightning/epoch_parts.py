"""The batches of an epoch in which the compiled loop draws the examples itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, RandomSampler, Sampler

from torchssvm.core.schema import Entry, Same, Schema, Stateful
from torchssvm.lightning.loaders import count_examples
from torchssvm.lightning.processes import OwnExamples, loaders_as_they_are
from torchssvm.solvers.compiled.draws import can_draw
from torchssvm.solvers.compiled.solver import CompiledBCFW, usual_visits
from torchssvm.steps.orders import Order, Permutation
from torchssvm.steps.sampler import GapBatchSampler

WHOLE = 1000  # most examples of an epoch in one part


class EpochPart(NamedTuple):
    """What a Lightning batch holds where the compiled loop has all features and draws the examples itself.

    Attributes:
        visits: How many examples to visit.
    """

    visits: int


class EpochParts(Sampler[int], Stateful):
    """An epoch of n visits in about four parts, one where n is at most 1000: the steps of ``CompiledBCFW.solve``.

    Of several processes, all make the same parts, whose visits are those of all together.

    Args:
        loop: The compiled loop, whose draws are part of the state.
    """

    state_name = "sampler"

    def __init__(self, loop: CompiledBCFW) -> None:
        self._draws, n = loop.draws, loop.dual.num_examples
        count = max(1, round(n / usual_visits(n, WHOLE)))
        self.parts = [EpochPart(n * (k + 1) // count - n * k // count) for k in range(count)]
        self._first = 0  # part that the next iteration begins with

    def __len__(self) -> int:
        """Number of parts in an epoch."""
        return len(self.parts)

    def __iter__(self) -> Iterator[int]:
        """The numbers of the parts of an epoch, or of those that are left of a restored one."""
        first, self._first = self._first, 0
        return iter(range(first, len(self)))

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect the draws of all ranks for the next ``state_dict()`` of the rank ``to``; all ranks call it."""
        self._draws.consolidate_state_dict(to)

    def state_dict(self, used: int = 0) -> dict[str, Any]:
        """The draws, and how many parts of this epoch training has ``used``; all of them are none of the next epoch."""
        return {"parts": len(self), "used": used % len(self), "draws": self._draws.state_dict()}

    def _schema(self) -> Schema:
        used = Entry(int, low=0, high=len(self) - 1)
        return {"parts": Same(len(self)), "used": used, "draws": self._draws.check_state}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`check_state` accepted."""
        self._first = state["used"]
        self._draws.restore(state["draws"])


def own_draws(trainer: L.Trainer, loader: DataLoader) -> tuple[Order, int] | None:
    """The order and the seed by which the compiled loop can draw in place of the training loader.

    None where it cannot: the loader has a sampler of another kind; the trainer counts batches (``max_steps``,
    ``limit_train_batches``, ``val_check_interval`` and the like), which are then those of the loader; or a callback
    has ``needs_batches = True``, as :class:`AveragedWeights`.
    """
    counts: Any = trainer
    usual = {"limit_train_batches": 1.0, "overfit_batches": 0.0, "max_steps": -1, "min_steps": None}
    by_epochs = all(getattr(counts, name) == value for name, value in usual.items())
    by_epochs &= getattr(counts, "val_check_interval", None) == 1.0 and counts.check_val_every_n_epoch is not None
    if not by_epochs or any(getattr(callback, "needs_batches", False) for callback in counts.callbacks):
        return None
    sampler = loader.batch_sampler
    if isinstance(sampler, GapBatchSampler):
        return (sampler.order, sampler.seed) if can_draw(sampler.order) else None
    if isinstance(own := loader.sampler, OwnExamples):
        return (Permutation(), own.seed) if own.shuffle and not loader.drop_last else None
    if type(loader.sampler) is not RandomSampler or loader.drop_last or loader.sampler.replacement:
        return None
    whole = len(loader.sampler) == count_examples(loader)
    return (Permutation(), torch.initial_seed() % 2**63) if whole else None


def replace_loader(trainer: L.Trainer, parts: EpochParts) -> None:
    """Let the fit loop take its batches from ``parts``; the workers of the training loader stop."""
    loop = trainer.fit_loop
    if loop._data_fetcher is not None:
        loop._data_fetcher.teardown()
    source: Any = parts.parts
    loop._data_source.instance = DataLoader(
        source, sampler=parts, batch_size=None, collate_fn=_as_it_is, generator=torch.Generator()
    )
    loop._combined_loader = None
    with warnings.catch_warnings(), loaders_as_they_are(trainer):  # of few workers, and of batches too few to be logged
        warnings.simplefilter("ignore")
        loop.setup_data()


def put_back(trainer: L.Trainer, loader: DataLoader) -> None:
    """Let ``trainer.train_dataloader`` be the training loader again, after the fit."""
    trainer.fit_loop._data_source.instance = loader
    trainer.fit_loop._combined_loader = CombinedLoader(loader, "max_size_cycle")


def _as_it_is(part: Any) -> Any:
    return part
