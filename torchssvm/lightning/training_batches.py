"""The batches of a fit: from the training loader, or parts of an epoch in which the compiled loop draws."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sized
from typing import Any, NamedTuple

import lightning as L
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from torchssvm.core.batch import lengths_of, rows_in_order
from torchssvm.core.random_state import RandomState
from torchssvm.core.ranks import Ranks
from torchssvm.lightning.trainer_internals import replace_training_loader
from torchssvm.solvers.compiled.draws import can_draw
from torchssvm.solvers.compiled.solver import CompiledBCFW, usual_visits
from torchssvm.steps.directions import Order, Permutation
from torchssvm.steps.sampler import GapBatchSampler

WHOLE = 10_000  # most examples of an epoch in one part


class EpochPart(NamedTuple):
    """A Lightning batch where the compiled loop draws the examples: the number of ``visits`` to make."""

    visits: int


class TrainingBatches:
    """The iterable of a fit. It reads nothing before the first batch of an epoch is asked for.

    By then the sampler knows the dual, and a resumed run has its draws again. After :meth:`draw_in_parts` an epoch is n
    visits in parts, for which nothing is loaded, from the moment that ``loop`` is set.

    Attributes:
        loader: The training loader; of several processes, it gives the examples of this process.
        loop: The compiled loop that draws the examples; None while the loader does.
        random: The random state to set when the next epoch begins: a DataLoader draws a number at its beginning.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.loop: CompiledBCFW | None = None
        self.random: RandomState | None = None
        self._parts: list[EpochPart] = []
        self._first = 0  # part that the next epoch begins with

    @property
    def dataset(self) -> Any:
        """The training set."""
        return self.loader.dataset

    @property
    def sampler(self) -> Any:
        """The sampler of the loader; Lightning tells it the epoch."""
        return self.loader.sampler

    @property
    def gap_sampler(self) -> GapBatchSampler | None:
        """The loader's ``GapBatchSampler``, where that draws the examples."""
        batches = self.loader.batch_sampler
        return batches if isinstance(batches, GapBatchSampler) and self.loop is None else None

    @property
    def has_state(self) -> bool:
        """Whether the draws can go on within an epoch."""
        return self.loop is not None or self.gap_sampler is not None

    def draw_in_parts(self, *, as_many: bool) -> None:
        """Cut an epoch into about four parts, one where n is at most ``WHOLE``, or ``as_many`` as the loader has."""
        n = count_examples(self.loader)
        count = len(self.loader) if as_many else max(1, round(n / usual_visits(n, WHOLE)))
        self._parts = [EpochPart(n * (k + 1) // count - n * k // count) for k in range(count)]

    @property
    def in_parts(self) -> bool:
        """Whether the compiled loop draws, now or later in this fit."""
        return bool(self._parts)

    def __len__(self) -> int:
        return len(self._parts) or len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        random, self.random = self.random, None
        if random is not None:
            random.restore()
        if self.loop is None:
            yield from self.loader
            return
        first, self._first = self._first, 0
        yield from self._parts[first:]

    def saved_draws(self, used: int) -> dict[str, Any] | None:
        """The draws, after ``used`` batches of this epoch; the first of several processes has the draws of all."""
        if self.loop is not None:
            draws = self.loop.draws
            draws.consolidate_state_dict()
            if Ranks.here().rank:
                return None
            return {"parts": len(self._parts), "used": used % len(self._parts), "draws": draws.state_dict()}
        sampler = self.gap_sampler
        return None if sampler is None else of_ranks(sampler.own_state(used))

    def load_draws(self, state: dict[str, Any] | None) -> None:
        """Go on with the draws; a state of another kind of draws, from the end of an epoch, is left out."""
        if state is None or ("parts" in state) != (self.loop is not None):
            return
        if self.loop is None:
            if self.gap_sampler is not None:
                self.gap_sampler.load_state_dict(state)
            return
        if state["used"] and state["parts"] != len(self._parts):
            raise ValueError(f"the checkpoint's epoch has {state['parts']} parts, and this one {len(self._parts)}")
        self.loop.draws.load_state_dict(state["draws"])
        self._first = state["used"]


def of_ranks(state: dict[str, Any]) -> dict[str, Any]:
    """The state; of several processes, a list of all states in the first of them."""
    ranks = Ranks.here()
    return {"ranks": ranks.collect(state)} if ranks else state


def take_training_batches(trainer: L.Trainer) -> TrainingBatches:
    """The batches that Lightning will train from; each of several processes gets a part of the examples.

    TypeError if they do not come from one DataLoader; ValueError if the trainer reloads it, or its sampler is unknown.
    """
    reload: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
    if reload:
        raise ValueError(f"reload_dataloaders_every_n_epochs={reload}: the dual is of one dataset; leave it 0")

    def replace(loader: Any) -> TrainingBatches:
        loader = check_loader(loader)
        if trainer.overfit_batches and type(loader.sampler) is RandomSampler:  # type: ignore[attr-defined]
            loader = _like(loader, SequentialSampler(loader.dataset))
        return TrainingBatches(_loader_of_rank(loader, Ranks.here()))

    return replace_training_loader(trainer, replace)


def check_loader(loader: Any) -> DataLoader:
    """The training loader; TypeError if it is not one DataLoader."""
    if not isinstance(loader, DataLoader):
        raise TypeError(f"training takes its examples from one DataLoader, not from a {type(loader).__name__}")
    return loader


def count_examples(loader: DataLoader) -> int:
    """n, the size of the loader's dataset; ValueError if it has no length or is empty."""
    if not isinstance(dataset := loader.dataset, Sized) or not len(dataset):
        raise ValueError(f"{type(dataset).__name__} is empty, or has no length: give a map-style dataset")
    return len(dataset)


def _workers(loader: DataLoader) -> dict[str, Any]:
    names = ["collate_fn", "num_workers", "pin_memory", "worker_init_fn"]
    names += ["multiprocessing_context", "prefetch_factor"] if loader.num_workers else []
    return {name: getattr(loader, name) for name in names}


def exact_pass_loader(loader: DataLoader, batch_size: int | None = None) -> DataLoader:
    """A loader of every example of this process once; it leaves torch's global random state alone.

    Examples come in order, or by length if the dataset has an attribute ``lengths``. A ``batch_size`` of None is as
    large as four training batches, at least 64.
    """
    if batch_size is None:
        size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size or 1
        batch_size = max(64, 4 * size)
    dataset: Any = loader.dataset
    local_rows = Ranks.here().own(len(dataset))
    rows = [list(rows) for rows in rows_in_order(local_rows, batch_size, lengths_of(dataset))]
    options = _workers(loader) | {"generator": torch.Generator(), "persistent_workers": loader.num_workers > 0}
    return DataLoader(dataset, batch_sampler=rows, **options)


class OwnExamples(Sampler[int]):
    """The examples whose dual blocks this process holds, once in an epoch, in random order or in the dataset's.

    Every process gives as many: one with an example less than another repeats its first one.
    """

    def __init__(self, num_examples: int, ranks: Ranks, *, shuffle: bool, seed: int = 0) -> None:
        self._rows, self._size = ranks.own(num_examples), -(-num_examples // ranks.size)
        self.shuffle, self.seed, self._epoch = shuffle, seed, 0

    def __len__(self) -> int:
        return self._size

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = torch.arange(len(self._rows))
        if self.shuffle:
            order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(self.seed + self._epoch))]
        order = torch.cat([order, order[: self._size - len(order)]])
        return iter((order + self._rows.start).tolist())


def _like(loader: DataLoader, sampler: Sampler[int]) -> DataLoader:
    options = _workers(loader) | {"persistent_workers": loader.persistent_workers, "drop_last": loader.drop_last}
    return DataLoader(loader.dataset, loader.batch_size, sampler=sampler, **options)


def _loader_of_rank(loader: DataLoader, ranks: Ranks) -> DataLoader:
    """The loader, or one that gives the examples of this process alone, in batches of the same size."""
    batches, examples, dataset = loader.batch_sampler, loader.sampler, loader.dataset
    if not ranks or isinstance(batches, GapBatchSampler):  # which draws the examples of its process
        return loader
    whole = isinstance(examples, RandomSampler | SequentialSampler) and len(examples) == len(dataset)  # type: ignore
    if type(batches) is not BatchSampler or not whole or getattr(examples, "replacement", False):
        kind = type(examples if type(batches) is BatchSampler else batches).__name__
        raise ValueError(
            f"a {kind} cannot draw for {ranks.size} processes: give the training loader shuffle=True, or "
            "batch_sampler=GapBatchSampler(...)"
        )
    seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
    shuffle = isinstance(examples, RandomSampler)
    return _like(loader, OwnExamples(count_examples(loader), ranks, shuffle=shuffle, seed=seed))


def own_draws(trainer: L.Trainer, loader: DataLoader) -> tuple[Order, int] | None:
    """The order and the seed by which the compiled loop can draw in place of the training loader.

    None where it cannot: the loader has a sampler of another kind; the trainer counts batches (``max_steps``,
    ``limit_train_batches``, ``val_check_interval`` and the like), which are then the loader's; or a callback
    has ``needs_batches = True``, as :class:`AveragedWeights`.
    """
    counts: Any = trainer
    usual = {"limit_train_batches": 1.0, "overfit_batches": 0.0, "max_steps": -1, "min_steps": None}
    by_epochs = all(getattr(counts, name) == value for name, value in usual.items())
    by_epochs &= getattr(counts, "val_check_interval", None) == 1.0 and counts.check_val_every_n_epoch is not None
    if not by_epochs or any(getattr(callback, "needs_batches", False) for callback in counts.callbacks):
        return None
    batches, examples = loader.batch_sampler, loader.sampler
    if isinstance(batches, GapBatchSampler):
        return (batches.order, batches.seed) if can_draw(batches.order) else None
    if loader.drop_last:
        return None
    if isinstance(examples, OwnExamples):
        return (Permutation(), examples.seed) if examples.shuffle else None
    if type(examples) is not RandomSampler or examples.replacement or len(examples) != count_examples(loader):
        return None
    return Permutation(), torch.initial_seed() % 2**63
