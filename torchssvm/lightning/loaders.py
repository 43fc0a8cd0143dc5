"""The loaders of a fit, the processes that share it, and exact passes over all examples."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.connectors.data_connector import _request_dataloader
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.data import _update_dataloader
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from torchssvm.core.batch import lengths_of, rows_in_order
from torchssvm.core.gradients import evaluating
from torchssvm.core.ranks import Ranks
from torchssvm.dual.state import DualState
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.certificate import Certificate, certify
from torchssvm.solvers.evaluation import Evaluation, merge_evaluations
from torchssvm.solvers.trainer import Pacing
from torchssvm.steps.sampler import GapBatchSampler


def take_training_loader(trainer: L.Trainer) -> DataLoader:
    """The loader that Lightning will train from, before it is first iterated.

    ``configure_optimizers`` must know n, and a ``GapBatchSampler`` must know the dual before worker processes fetch
    ahead. ``trainer.fit_loop.setup_data`` would start them, so the loader is requested here, once, and stored where
    Lightning looks for it. Of several processes, each gets a loader of its own examples.

    Raises:
        TypeError: Training examples do not come from one DataLoader.
        ValueError: The trainer reloads its loaders during the run; or as :func:`own_loader`.
    """
    reload: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
    if reload:
        raise ValueError(f"reload_dataloaders_every_n_epochs={reload}: the dual is of one dataset; leave it 0")
    loader: Any = trainer.train_dataloader
    if loader is None:
        source = trainer.fit_loop._data_source
        loader = _request_dataloader(source)
        if isinstance(loader, DataLoader):
            loader = own_loader(loader, Ranks.here())
        source.instance = loader
    if not isinstance(loader, DataLoader):
        raise TypeError(f"training takes its examples from one torch DataLoader, not from a {type(loader).__name__}")
    return loader


def count_examples(loader: DataLoader) -> int:
    """n, the size of the loader's dataset; TypeError if it has no length, ValueError if it is empty."""
    if not isinstance(loader.dataset, Sized):
        raise TypeError(f"the training dataset {type(loader.dataset).__name__} has no length: it must be map-style")
    n = len(loader.dataset)
    if n < 1:
        raise ValueError("the training dataset is empty")
    return n


def gap_sampler(loader: DataLoader) -> GapBatchSampler | None:
    """The loader's ``GapBatchSampler``, if it has one."""
    sampler = loader.batch_sampler
    return sampler if isinstance(sampler, GapBatchSampler) else None


def exact_pass_loader(loader: DataLoader, batch_size: int | None = None) -> DataLoader:
    """A loader of every training example once; it leaves torch's global random state alone.

    Examples come in order, or by length if the dataset has an attribute ``lengths``, as in ``in_order``. A batch of
    None is as large as four training batches, at least 64.
    """
    if batch_size is None:
        size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size or 1
        batch_size = max(64, 4 * size)
    dataset: Any = loader.dataset
    own = Ranks.here().own(len(dataset))
    return DataLoader(
        dataset,
        batch_sampler=[list(rows) for rows in rows_in_order(own, batch_size, lengths_of(dataset))],
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if loader.num_workers else None,
        generator=torch.Generator(),
        persistent_workers=loader.num_workers > 0,
    )


class OwnExamples(DistributedSampler):
    """The examples whose dual blocks this process holds, once in an epoch, in random order or in that of the dataset.

    Every process gives as many: one with an example less than another repeats its first one. Lightning leaves loaders
    with a ``DistributedSampler`` as they are, and sets its epoch. The seed is that of the orders of all epochs.
    """

    def __init__(self, dataset: Any, ranks: Ranks, *, shuffle: bool, seed: int = 0) -> None:
        super().__init__(dataset, ranks.size, ranks.rank, shuffle=shuffle, seed=seed)
        self.own = ranks.own(len(dataset))

    def __iter__(self) -> Iterator[int]:
        order = torch.arange(len(self.own))
        if self.shuffle:
            order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(self.seed + self.epoch))]
        order = torch.cat([order, order[: self.num_samples - len(order)]])
        return iter((order + self.own.start).tolist())


def own_loader(loader: DataLoader, ranks: Ranks) -> DataLoader:
    """A loader like the given one that gives examples of this process alone, in batches of the same size.

    ValueError if its sampler is of a kind that cannot be restricted; or there are fewer examples than processes.
    """
    dataset: Any = loader.dataset
    if not ranks or isinstance(loader.sampler, OwnExamples):
        return loader
    batches, examples = loader.batch_sampler, loader.sampler
    seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
    own = OwnExamples(dataset, ranks, shuffle=type(examples) is RandomSampler, seed=seed)
    if isinstance(batches, GapBatchSampler):  # which draws own examples; the sampler beside it is never asked
        loader = copy.copy(loader)
        vars(loader)["sampler"] = own
        return loader
    whole = isinstance(examples, RandomSampler | SequentialSampler) and len(examples) == len(dataset)
    if type(batches) is not BatchSampler or not whole or getattr(examples, "replacement", False):
        kind = type(examples if type(batches) is BatchSampler else batches).__name__
        raise ValueError(
            f"the training loader draws by a {kind}, and {ranks.size} processes draw from their own examples: give "
            "DataLoader(train, batch_size=..., shuffle=True), or batch_sampler=GapBatchSampler(...)"
        )
    return _update_dataloader(loader, own, RunningStage.TRAINING)


@contextmanager
def loaders_as_they_are(trainer: L.Trainer) -> Iterator[None]:
    """Inside, Lightning divides the examples of no loader among the processes."""
    connector = trainer._accelerator_connector
    before = connector.use_distributed_sampler
    connector.use_distributed_sampler = False
    try:
        yield
    finally:
        connector.use_distributed_sampler = before


def check_strategy(trainer: L.Trainer) -> None:
    """Raise ValueError if several processes do not all hold the whole model."""
    if trainer.world_size > 1 and not isinstance(trainer.strategy, DDPStrategy):
        raise ValueError(
            f"Trainer(strategy={type(trainer.strategy).__name__}) with {trainer.world_size} processes: a round of BCFW "
            "changes all weights of the head in every process, so give strategy='ddp'"
        )


def alone(trainer: L.Trainer) -> AbstractContextManager[None]:
    """Inside, DDP averages no gradients: BCFW combines the directions of the processes itself."""
    block: Any = getattr(trainer.strategy, "block_backward_sync", nullcontext)
    return block()


def share_of(size: int) -> float:
    """``B_p P / sum_q B_q``: times the mean loss of B_p examples, DDP averages the gradients of all examples alike."""
    ranks = Ranks.here()
    if not ranks:
        return 1.0
    return size * ranks.size / float(ranks.gather(torch.tensor(float(size), dtype=torch.float64)).sum())


@torch.no_grad()
def same_buffers(module: nn.Module | None) -> None:
    """Give all processes the buffers of the first, such as running means: DDP does so before a step, not after it."""
    ranks = Ranks.here()
    if ranks and module is not None:
        for buffer in module.buffers():
            buffer.copy_(ranks.gather(buffer)[0])


def of_all(found: Evaluation) -> Evaluation:
    """The evaluation of the examples of all processes."""
    ranks = Ranks.here()
    if not ranks:
        return found
    names = ("loss", "token_error", "example_error", "num_examples", "num_tokens")
    own = [float(getattr(found, name) or 0) for name in names]
    parts = []
    shared = ranks.gather(torch.tensor([*own, found.exact], dtype=torch.float64))
    for *rates, examples, tokens, exact in shared.tolist():
        numbers = (*rates, int(examples), None if found.num_tokens is None else int(tokens))
        shown: dict[str, Any] = dict(zip(names, numbers, strict=True))
        parts.append(replace(found, exact=bool(exact), losses=None, **shown))
    return merge_evaluations(parts)


class Fit:
    """What callbacks ask of a fit: here of a module of the user's own, with BCFW, whose ``forward`` gives potentials.

    The modules of this package have the same properties and methods.

    Attributes:
        dual: The training problem: n, lam, structure and parameters; with BCFW also the dual.
        solves_head: Whether the head holds weights of the dual; only these are certified.
    """

    solves_head = True

    def __init__(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.dual = find_dual(trainer)
        self._trainer, self._module = trainer, module

    @property
    def passes(self) -> float:
        """Effective passes so far."""
        return self.dual.passes

    @property
    def training_loader(self) -> DataLoader:
        """The training loader; TypeError if training does not take its examples from one DataLoader."""
        loader: Any = self._trainer.train_dataloader
        if not isinstance(loader, DataLoader):
            raise TypeError(f"training must take its examples from one DataLoader, not a {type(loader).__name__}")
        return loader

    def pacing(self, **rules: Any) -> Pacing | None:
        """Says when exact passes are made, by these rules; None where epochs say it."""
        return Pacing(self.dual, **rules)

    def certify(self, batches: Iterable[Any]) -> Certificate:
        """An exact pass, from whose weights the next step starts; ``batches`` have every training example once."""
        return certify_by_torch(self._trainer, self._module, self.dual, batches)


def fit_of(trainer: L.Trainer, module: L.LightningModule) -> Fit:
    """What callbacks ask: the module itself, if it is of this package. RuntimeError before a fit."""
    found: Any = module if hasattr(module, "solves_head") else Fit(trainer, module)
    return found


def find_dual(trainer: L.Trainer) -> DualState:
    """The dual of the trainer's BCFW; RuntimeError if it has none (yet)."""
    for optimizer in trainer.optimizers:
        if isinstance(optimizer, BCFW):
            return optimizer.dual
    raise RuntimeError("the trainer has no BCFW optimizer, so there is no dual: a fit has to begin first")


def certify_by_torch(
    trainer: L.Trainer, module: L.LightningModule, dual: DualState, batches: Iterable[Any]
) -> Certificate:
    """Certify the module's weights on its current features, in the trainer's precision, whose bar shows the pass."""
    batches = map(trainer.precision_plugin.convert_input, visible(trainer, batches, "Certifying"))
    with evaluating(module):
        return certify(in_precision(trainer, module), dual, batches, refresh=True)


class _InPrecision(nn.Module):
    def __init__(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        super().__init__()
        self.module, self._precision = module, trainer.precision_plugin

    def forward(self, *args: Any) -> Any:
        with self._precision.forward_context():
            return self.module(*self._precision.convert_input(args))


def in_precision(trainer: L.Trainer, module: L.LightningModule) -> nn.Module:
    """The module's forward under the trainer's autocast, which ends before the potentials are used."""
    return _InPrecision(trainer, module)


def visible(trainer: L.Trainer, loader: Iterable[Any], description: str) -> Iterator[Any]:
    """The batches, with a progress bar of their own if the trainer shows one."""
    bar = trainer.progress_bar_callback
    total = len(loader) if isinstance(loader, Sized) else None
    if isinstance(bar, TQDMProgressBar) and bar.is_enabled:
        from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

        yield from Tqdm(loader, desc=description, total=total, leave=False, dynamic_ncols=True, position=1)
    elif isinstance(bar, RichProgressBar) and bar.is_enabled and bar.progress is not None:
        task = bar._add_task(total or 0, description)
        try:
            for number, batch in enumerate(loader, 1):
                yield batch
                bar.progress.update(task, completed=number)
        finally:
            bar.progress.remove_task(task)
            bar.refresh()
    else:
        yield from loader
