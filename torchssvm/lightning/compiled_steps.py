"""The compiled loop under a Trainer, on fixed features that are kept for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader

from torchssvm.core.batch import Batch, tree_tensors
from torchssvm.core.memory import available_memory
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.lightning.epoch_parts import own_draws
from torchssvm.lightning.loaders import count_examples, exact_pass_loader
from torchssvm.lightning.steps import check_batch
from torchssvm.solvers.compiled.head_adapter import find_adapter
from torchssvm.solvers.compiled.solver import CompiledBCFW, check_compiled
from torchssvm.steps.line_search import ExactSearch

_SHARE = 0.5  # largest share of the free memory for the features of all examples


def reason_not_compiled(module: Any) -> str | None:
    """Why the compiled loop cannot train a ``StructuredSVM``; None if it can."""
    if (hook := _transfer_hook(module)) is not None:
        return f"{hook} changes batches on their way"
    if module.features_optimizer is not None and not module.joint.envelope:
        return "the features are trained (features_optimizer)"
    if module.bounds:
        return f"weights have bounds ({sorted(module.bounds)})"
    if module.line_search is not None and type(module.line_search) is not ExactSearch:
        return f"line_search={module.line_search} is not ExactSearch()"
    if type(module.storage) not in (MeanParts, Labelings):
        return f"storage={type(module.storage).__name__}() is not compiled"
    try:
        check_compiled(module.direction, module.oracle)
        adapter = find_adapter(module.head)
    except (ImportError, TypeError) as error:
        return str(error)
    if not module.structure.same_as(adapter.structure):
        return f"structure={module.structure} is not that of the head, {adapter.structure}"
    return None


def _transfer_hook(module: Any) -> str | None:
    """The first hook that may change a batch between the loader and the module; None if there is none."""
    trainer = module._trainer
    data = None if trainer is None else getattr(trainer, "datamodule", None)
    for owner, plain in ((module, L.LightningModule), (data, L.LightningDataModule)):
        for name in ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"):
            if owner is not None and getattr(type(owner), name) is not getattr(plain, name):
                return f"{type(owner).__name__}.{name}"
    return None


def make_loop(module: Any, loader: DataLoader, *, required: bool) -> CompiledBCFW | None:
    """Read the training set once, keep its features, and make the loop for them, with the loader's order and seed.

    Args:
        module: A ``StructuredSVM`` in a fit, with its dual.
        loader: Its training loader.
        required: Raise if the features do not fit in memory.

    Returns:
        The loop; None if the features would take more than half of the free memory.

    Raises:
        MemoryError: The features would take more, and ``required``.
    """
    batches = _batches(module, exact_pass_loader(loader))
    first = next(batches)
    n = count_examples(loader)
    tensors = tree_tensors(first.x)
    needed = sum(t.numel() * t.element_size() for t in tensors) * n // max(len(first.index), 1)
    allowed = int(_SHARE * available_memory(tensors[0].device))
    if needed > allowed:
        message = (
            f"the features of {n} examples would take about {needed / 2**20:,.0f} MiB, and half of the memory that is "
            f"left is {allowed / 2**20:,.0f} MiB"
        )
        if required:
            raise MemoryError(f"{message}: use compiled=False, which computes them for every batch")
        rank_zero_info(f"{message}: every batch computes its own, without the compiled loop")
        return None

    def everything() -> Iterator[Batch]:
        yield first
        yield from batches

    order, seed = own_draws(module.trainer, loader) or (None, 0)
    return CompiledBCFW(
        module.head,
        module.dual,
        everything(),
        direction=module.direction,
        oracle=module.oracle,
        order=order,
        seed=seed,
    )


def _batches(module: Any, loader: DataLoader) -> Iterator[Batch]:
    """Every training example once, with the head's input as ``x``."""
    for batch in loader:
        batch = module.trainer.precision_plugin.convert_input(check_batch(batch))
        with module.trainer.precision_plugin.forward_context():
            yield batch.replace(x=module.extract(batch.x, batch.lengths))
