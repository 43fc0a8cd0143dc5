"""The compiled loop under a Trainer: its choice, and the features that it keeps."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader

from torchssvm.core.batch import as_batch, fetcher, lengths_of, rows_in_order
from torchssvm.core.modules import evaluating
from torchssvm.core.random_state import RandomState
from torchssvm.core.ranks import Ranks
from torchssvm.lightning.training_batches import count_examples, exact_pass_loader, own_draws
from torchssvm.solvers.choice import CPU, STORAGES, Choice, Sample, choose, of_all_ranks
from torchssvm.solvers.compiled.solver import CompiledBCFW
from torchssvm.solvers.training import move

_SAMPLED = 16  # examples from which the memory of all is estimated


def choose_solver(module: Any, loader: DataLoader, kind: str | None) -> Choice:
    """The solver of a fit that begins, of a ``StructuredSVM`` whose features stay as they are; see :func:`choose`.

    ``kind`` is the storage's kind in the checkpoint that is resumed; None if it is not known.
    """
    hook, solver = _transfer_hook(module), module.solver
    if kind in STORAGES and solver.storage is None and solver.oracle is None and solver.direction is None:
        solver = dataclasses.replace(solver, storage=STORAGES[kind]())  # resumed: whatever memory is free now
    obstacle = None if hook is None else f"{hook} changes batches on their way"
    ranks = Ranks.here()
    if obstacle is None and ranks and not module.draws_in_loop(loader):
        obstacle = (
            "several processes draw from the loader's batches here (max_steps, limit_train_batches, AveragedWeights, "
            "another sampler or another training_step)"
        )
    chosen = partial(
        choose,
        head=module.head,
        structure=module.structure,
        num_examples=count_examples(loader),
        sample=_sample(module, loader),
        obstacle=obstacle,
    )
    return of_all_ranks(chosen(solver), solver, chosen, ranks)


@torch.no_grad()
def _sample(module: Any, loader: DataLoader) -> Sample:
    """The first examples; what they draw at random leaves no trace."""
    random, trainer = RandomState(), module.trainer
    rows = rows_in_order(Ranks.here().own(count_examples(loader)), _SAMPLED, lengths_of(loader.dataset))[0]
    batch = as_batch(fetcher(loader.dataset, loader.collate_fn)(rows))
    batch = trainer.precision_plugin.convert_input(trainer.strategy.batch_to_device(batch))
    with evaluating(module):
        with trainer.precision_plugin.forward_context():
            x = module.extract(batch.x, batch.lengths)
        potentials = module.potentials_of(x, batch.lengths)
    random.restore()
    return Sample(x, potentials, len(rows))


def _transfer_hook(module: Any) -> str | None:
    """The first hook that may change a batch between the loader and the module, or None."""
    data = getattr(module.trainer, "datamodule", None)
    for owner, plain in ((module, L.LightningModule), (data, L.LightningDataModule)):
        for name in ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"):
            if owner is not None and getattr(type(owner), name) is not getattr(plain, name):
                return f"{type(owner).__name__}.{name}"
    return None


def make_loop(module: Any, loader: DataLoader) -> CompiledBCFW:
    """Read the training set once, keep its features, and make the loop for them, with the loader's order and seed.

    The features are computed on the module's device; the head is on the CPU from here until the fit is over.
    """
    move(module.head, CPU)
    order, seed = own_draws(module.trainer, loader) or (None, 0)
    return CompiledBCFW(
        module.head,
        module.dual,
        module.extracted(exact_pass_loader(loader)),
        direction=module.rules.direction,
        oracle=module.rules.oracle,
        order=order,
        seed=seed,
        round_visits=module.solver.round_visits,
    )
