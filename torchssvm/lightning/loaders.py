"""Lightning's training loader, and a loader for exact passes over the same examples."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.connectors.data_connector import _request_dataloader
from torch.utils.data import DataLoader

from torchssvm.core.batch import lengths_of, rows_in_order
from torchssvm.core.ranks import Ranks
from torchssvm.lightning.processes import own_loader
from torchssvm.steps.sampler import GapBatchSampler


def take_training_loader(trainer: L.Trainer) -> DataLoader:
    """The loader that Lightning will train from, before it is first iterated.

    ``configure_optimizers`` must know n, and a ``GapBatchSampler`` must know the dual before worker processes fetch
    ahead. ``trainer.fit_loop.setup_data`` would start them, so the loader is requested here, once, and stored where
    Lightning looks for it. Of several processes, each gets a loader of its own examples.

    Raises:
        TypeError: Training examples do not come from one DataLoader.
        ValueError: The trainer reloads its loaders during the run; or the loader cannot be restricted to the examples
            of each of several processes.
    """
    reload: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
    if reload:
        raise ValueError(
            f"reload_dataloaders_every_n_epochs={reload}: the dual has one block for each example of one dataset, so "
            "the training loader is made once; leave it 0"
        )
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
    """n, the size of the loader's dataset.

    Raises:
        TypeError: The dataset has no length.
        ValueError: The dataset is empty.
    """
    if not isinstance(loader.dataset, Sized):
        raise TypeError(
            f"the training dataset {type(loader.dataset).__name__} has no length: every example needs a dual block, so "
            "the dataset must be map-style"
        )
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

    Examples come in order, or by length if the dataset has an attribute ``lengths``, as in ``in_order``.

    Args:
        loader: The training loader, which gives dataset, collate function and workers.
        batch_size: Examples of a batch; None is four training batches, at least 64.
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
