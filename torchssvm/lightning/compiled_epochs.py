"""The compiled loop under a Trainer: its choice, the features that it keeps, and the epochs in which it draws."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, RichProgressBar, TQDMProgressBar
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, RandomSampler, Sampler

from torchssvm.core.batch import Batch, as_batch, fetcher, lengths_of, rows_in_order
from torchssvm.core.gradients import evaluating
from torchssvm.core.random_state import RandomState
from torchssvm.core.ranks import Ranks
from torchssvm.core.states import Numbers, Stateful, check_entries
from torchssvm.lightning.loaders import OwnExamples, count_examples, exact_pass_loader, loaders_as_they_are
from torchssvm.solvers.compiled.draws import can_draw
from torchssvm.solvers.compiled.solver import CompiledBCFW, usual_visits
from torchssvm.solvers.trainer import Pacing
from torchssvm.solvers.training import CPU, STORAGES, Choice, Sample, choose, move, of_all_ranks
from torchssvm.steps.directions import Order, Permutation
from torchssvm.steps.sampler import GapBatchSampler

WHOLE = 1000  # most examples of an epoch in one part
_SAMPLED = 16  # examples from which the memory of all is estimated


class EpochPart(NamedTuple):
    """What a Lightning batch is where the compiled loop draws the examples itself: how many ``visits`` to make."""

    visits: int


class EpochParts(Sampler[int], Stateful):
    """An epoch of n visits in about four parts, one where n is at most 1000: the steps of ``CompiledBCFW.solve``.

    Of several processes, all make the same parts, whose visits are those of all together. The loop's draws are part of
    the state, and so is the place of ``at_once``, where it makes several epochs of one part.
    """

    state_name = "sampler"

    def __init__(self, loop: CompiledBCFW, *, at_once: EpochsAtOnce | None = None) -> None:
        self._at_once = at_once
        self._draws, n = loop.draws, loop.dual.num_examples
        count = max(1, round(n / usual_visits(n, WHOLE)))
        self.parts = [EpochPart(n * (k + 1) // count - n * k // count) for k in range(count)]
        self._first = 0  # part that the next iteration begins with
        self._len = 1 if at_once is not None else count

    def __len__(self) -> int:
        """Number of parts in an epoch."""
        return self._len

    def __iter__(self) -> Iterator[int]:
        """The numbers of the parts of an epoch, or of those that are left of a restored one."""
        first, self._first = self._first, 0
        return iter(range(first, len(self)))

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect the draws of all ranks for the next ``state_dict()`` of the rank ``to``; all ranks call it."""
        self._draws.consolidate_state_dict(to)

    def state_dict(self, used: int = 0) -> dict[str, Any]:
        """The draws, and how many parts of this epoch training has ``used``; all of them are none of the next epoch."""
        first, begin = (None, None) if self._at_once is None else (self._at_once.first, self._at_once.begin)
        draws = self._draws.state_dict()
        return {"parts": len(self.parts), "used": used % len(self), "first": first, "begin": begin, "draws": draws}

    def _entries(self) -> dict[str, Any]:
        return self.state_dict()

    def _check_own(self, state: dict[str, Any]) -> None:
        wanted = {
            "parts": len(self.parts),
            "used": Numbers(int, low=0, high=len(self.parts) - 1),
            "first": state["first"] if state["first"] is None else float,
            "begin": state["begin"] if state["begin"] is None else Numbers(int, low=0),
            "draws": dict,
        }
        check_entries(state, wanted, "sampler")
        self._draws.check_state(state["draws"])

    def _restore_own(self, state: dict[str, Any]) -> None:
        self._first = state["used"]
        self._draws.restore(state["draws"])
        if self._at_once is not None and state["first"] is not None:
            self._at_once.first, self._at_once.begin = state["first"], state["begin"]


class EpochsAtOnce:
    """The epochs between two exact passes in one call of Lightning's hooks, by the steps of ``CompiledBCFW.solve``.

    Lightning counts all of them. They end where a pass is due, but not within their first epoch; with the last epoch of
    the run or before the next validation; and after ``VISITS`` visits, so that a progress bar moves.

    Attributes:
        first: The epoch that the dual began with, a fraction where it had moved before.
        begin: The dual's visits when the call under way began; None between two calls.
    """

    VISITS = 20_000

    def __init__(self, trainer: L.Trainer, loop: CompiledBCFW, pacing: Pacing) -> None:
        self._trainer, self._loop, self._pacing = trainer, loop, pacing
        self.first = trainer.current_epoch - loop.dual.moved / loop.dual.num_examples
        self.begin: int | None = None

    @classmethod
    def of(cls, module: Any, loop: CompiledBCFW) -> EpochsAtOnce | None:
        """For a fit whose epochs nothing follows but the schedule of a ``DualityGap``; None for others."""
        trainer: Any = module.trainer
        found = (getattr(callback, "pacing", None) for callback in trainer.callbacks)
        pacing = next((pacing for pacing in found if isinstance(pacing, Pacing)), None)
        validates = trainer.enable_validation and trainer.check_val_every_n_epoch == 1
        bars = (TQDMProgressBar, RichProgressBar)
        others = [callback for callback in trainer.callbacks if type(callback) not in bars]
        if pacing is None or trainer.loggers or validates or _follows_epochs(module, L.LightningModule):
            return None
        return None if any(_follows_epochs(c, Callback) for c in others) else cls(trainer, loop, pacing)

    def visit(self, visit: Callable[[int], None]) -> None:
        """Make visits by ``visit(number)``, which takes a step, and let Lightning count their epochs."""
        trainer, loop = cast(Any, self._trainer), self._loop
        dual, n = loop.dual, loop.dual.num_examples
        self.begin = begin = dual.moved if self.begin is None else self.begin
        epoch = max(trainer.current_epoch, int(self.first + dual.moved / n + 1e-9))  # Lightning counts at the end
        every, last = trainer.check_val_every_n_epoch, trainer.max_epochs
        ends = [10**9 if last is None or last < 0 else last]
        if epoch < (trainer.min_epochs or 0):
            ends.append(trainer.min_epochs)
        if trainer.enable_validation:
            ends.append((epoch // every + 1) * every)
        end = round((min(ends) - self.first) * n)  # visits of the dual when the last of these epochs ends
        while True:
            before = dual.moved
            visit(min(loop.next_visits(), end - before))
            made, due = dual.moved - begin, self._pacing.due
            self._count(max(int(self.first + dual.moved / n + 1e-9), epoch + 1))
            over = self._pacing.spent or dual.moved in (before, end)
            if over or made >= (n if due else max(n, self.VISITS)):
                self.begin = None
                break

    def _count(self, epochs: int) -> None:
        """Let so many epochs be over when Lightning has counted the one under way."""
        progress = self._trainer.fit_loop.epoch_progress
        more = epochs - 1 - progress.current.completed
        for counts in (progress.total, progress.current):
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, getattr(counts, name) + more)


def _follows_epochs(thing: Any, base: type) -> bool:
    """Whether a module or callback has hooks for single epochs or batches; some classes say ``several_epochs``."""
    plain: Any = next((kind for kind in type(thing).__mro__ if "several_epochs" in vars(kind)), base)
    names = [n for n in dir(base) if n.startswith(("on_train_epoch", "on_train_batch", "on_before_", "on_after_"))]
    own = any(getattr(getattr(thing, n), "__func__", None) is not getattr(plain, n) for n in names)
    return own or not getattr(thing, "several_epochs", True)


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


def choose_solver(module: Any, loader: DataLoader, kind: str | None) -> Choice:
    """The solver of a fit that begins, of a ``StructuredSVM`` whose features stay as they are; see :func:`choose`.

    ``kind`` is that of the storage in the checkpoint that is resumed; None if it is not known.
    """
    hook, solver = _transfer_hook(module), module.solver
    if kind in STORAGES and solver.storage is None and solver.oracle is None and solver.direction is None:
        solver = dataclasses.replace(solver, storage=STORAGES[kind]())  # resumed: whatever memory is free now
    obstacle = None if hook is None else f"{hook} changes batches on their way"
    ranks = Ranks.here()
    if obstacle is None and ranks and not module.draws_in_loop(loader):
        obstacle = (
            "of several processes each draws its own examples, and the loader's batches count (max_steps, "
            "limit_train_batches, AveragedWeights, a sampler or a training_step of your own)"
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
    """The first hook that may change a batch between the loader and the module; None if there is none."""
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
        _batches(module, exact_pass_loader(loader)),
        direction=module.rules.direction,
        oracle=module.rules.oracle,
        order=order,
        seed=seed,
        round_visits=module.solver.round_visits,
    )


def _batches(module: Any, loader: DataLoader) -> Iterator[Batch]:
    """Every training example once, with the head's input as ``x``."""
    for batch in loader:
        batch = module.trainer.precision_plugin.convert_input(as_batch(batch))
        with module.trainer.precision_plugin.forward_context():
            module.look_at_padding(batch)
            yield batch.replace(x=module.extract(batch.x, batch.lengths))
