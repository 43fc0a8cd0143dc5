"""Exact resumption of interrupted runs: what a fit remembers, and what it adds to Lightning's checkpoints."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader
from typing_extensions import override

from torchssvm.core.random_state import RandomState
from torchssvm.core.ranks import Ranks
from torchssvm.dual.state import DualState
from torchssvm.lightning.fit import find_dual
from torchssvm.lightning.trainer_internals import batches_used, begin_next_epoch
from torchssvm.lightning.training_batches import TrainingBatches, count_examples, of_ranks, take_training_batches
from torchssvm.solvers.compiled.solver import CompiledBCFW
from torchssvm.solvers.trainer import Pacing

_KEY = "torchssvm"

# Figures that are the same in all processes.
_SAME = "dual|primal|gap|exact|gap_age|passes|oracle_calls|gap_estimate|rho|cache_hits"

# The beginnings of Lightning's warnings that do not apply here.
_MISPLACED_ADVICE = (
    r"Using ModelCheckpoint with manual optimization and every_n_train_steps",
    r"Found \d+ module\(s\) in eval mode at the start of training",
    rf"It is recommended to use `self\.log\('({_SAME})', \.\.\., sync_dist=True\)`",
)
_NOT_RESUMABLE = r"You're resuming from a checkpoint that ended before the epoch ended and your dataloader is"


@dataclass
class ResumePoint:
    """The point of a run at which a checkpoint was taken; kept until the resumed run trains its first batch.

    ``random`` is the random state, of several processes as a list ``ranks``; ``sampler`` is the state of the draws of
    all processes, None if they have none; ``in_epoch`` says whether the epoch under way has batches left.
    """

    num_examples: int
    random: dict[str, Any]
    sampler: dict[str, Any] | None
    in_epoch: bool

    @property
    def _processes(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = self.random.get("ranks") or [self.random]
        return states

    def random_here(self) -> RandomState:
        """The random state of this process."""
        states = self._processes
        return RandomState(states[Ranks.here().rank % len(states)])

    @property
    def in_parts(self) -> bool:
        """Whether the compiled loop drew the examples, in the parts of an epoch."""
        return self.sampler is not None and "parts" in self.sampler

    @property
    def in_loader_epoch(self) -> bool:
        """Whether the epoch under way has batches of the training loader left."""
        return self.in_epoch and not self.in_parts

    def rewind(self, batches: TrainingBatches) -> None:
        """Restore draws and random state."""
        batches.load_draws(self.sampler)
        self.random_here().restore()

    def check_batches(self, batches: TrainingBatches) -> None:
        """Raise ValueError if the rest of the epoch has other batches than the epoch began with."""
        if self.in_epoch and not self.in_parts and len(self._processes) != (size := Ranks.here().size):
            raise ValueError(
                f"the checkpoint is from the middle of an epoch of {len(self._processes)} processes, not {size}: "
                "resume with as many, or from the end of an epoch"
            )
        if self.in_epoch and self.in_parts and not batches.in_parts:
            raise ValueError(
                "the compiled loop drew the examples of the checkpoint's epoch: resume with compiled=None, or from the "
                "end of an epoch"
            )


@dataclass
class Run:
    """The state of a fit, apart from the model.

    Attributes:
        batches: What the fit iterates; None before the first fit.
        resume: The point to resume from, until the resumed run trains its first batch.
        at_first_batch: The random state to set before that batch.
        before_validation: The random state to set after validation.
        trains_features: Whether this epoch trains the features.
        loop: The compiled loop, if it is used.
        compiled: Whether the compiled loop was chosen for this fit.
        kind: The kind of the storage in the checkpoint that is resumed; None if it is not known.
        pacing: Says when exact passes are made, where the schedule of a ``DualityGap`` does.
        figures: The number of the last step, and its figures; None before.
        looked: Whether it is known that padding does not change the features of ids.
    """

    batches: TrainingBatches | None = None
    resume: ResumePoint | None = None
    at_first_batch: RandomState | None = None
    before_validation: RandomState | None = None
    trains_features: bool = False
    loop: CompiledBCFW | None = None
    compiled: bool = False
    kind: str | None = None
    pacing: Pacing | None = None
    figures: tuple[int, dict[str, float]] | None = None
    looked: bool = False

    def start(self, batches: TrainingBatches, *, resumed: bool) -> None:
        """Begin a fit; with ``resumed``, a checkpoint has been loaded for it."""
        vars(self).update(vars(Run(batches, self.resume if resumed else None, kind=self.kind if resumed else None)))


class Resumable(L.LightningModule):
    """Saves the state of sampler and random generators in every checkpoint, and restores it when a run is resumed.

    A run that was killed and resumed ends with the same bits as an uninterrupted one: from checkpoints anywhere in an
    epoch with a ``GapBatchSampler``, from those at the end of an epoch with any loader. This covers steps that
    Lightning skips on resuming: validation, and the end of an epoch that was saved at its last batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self._run = Run()

    @property
    def dual(self) -> DualState:
        """The dual state of the fit under way, or of the last one; RuntimeError before."""
        return find_dual(self.trainer)

    @property
    def passes(self) -> float:
        """Effective passes of the fit under way, or of the last one."""
        return self.dual.passes

    def begin_fit(self) -> int:
        """Take the training loader, and return n; ValueError if the fit goes on from another number of examples."""
        self._run.start(take_training_batches(self.trainer), resumed=self.trainer.ckpt_path is not None)
        n, resume = count_examples(self.training_loader), self._run.resume
        if resume is not None and resume.num_examples != n:
            raise ValueError(f"the checkpoint was trained on {resume.num_examples} examples, and the dataset has {n}")
        return n

    @property
    def training_loader(self) -> DataLoader:
        """The loader of the fit under way, or of the last one."""
        assert self._run.batches is not None
        return self._run.batches.loader

    @override
    def on_fit_start(self) -> None:
        patterns = list(_MISPLACED_ADVICE)
        if self._run.batches is not None and (self._run.batches.has_state or self._run.batches.in_parts):
            patterns.append(_NOT_RESUMABLE)
        for pattern in patterns:
            warnings.filterwarnings("ignore", message=pattern)

    @override
    def on_train_start(self) -> None:
        resume, run = self._run.resume, self._run
        if resume is None or run.batches is None:
            return
        resume.check_batches(run.batches)
        begin_next_epoch(self.trainer)
        resume.rewind(run.batches)
        if run.batches.has_state:  # Lightning may still skip through a validation loop, which draws random numbers
            if resume.in_epoch:
                run.at_first_batch = resume.random_here()
            else:
                run.batches.random = RandomState()

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self._run.at_first_batch is not None:
            self._run.at_first_batch.restore()
        self._run.resume = self._run.at_first_batch = None

    @override
    def on_train_epoch_end(self) -> None:
        if self._run.resume is not None and self._run.batches is not None:
            self._run.resume.rewind(self._run.batches)
            self._run.at_first_batch = self._run.batches.random = None

    @override
    def on_validation_model_zero_grad(self) -> None:
        super().on_validation_model_zero_grad()
        self._run.before_validation = RandomState()

    @override
    def on_validation_epoch_end(self) -> None:
        if self._run.before_validation is not None:
            self._run.before_validation.restore()
            self._run.before_validation = None

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        run = self._run
        if run.batches is None or "optimizer_states" not in checkpoint:
            return
        point = run.resume
        if point is None:  # every process makes one; the first process's is whole
            used = batches_used(self.trainer)
            left = used < self.trainer.num_training_batches
            point = ResumePoint(
                num_examples=count_examples(run.batches.loader),
                sampler=run.batches.saved_draws(used if left else len(run.batches)),
                random=of_ranks(RandomState().state_dict()),
                in_epoch=left and used > 0,
            )
        checkpoint[_KEY] = dict(vars(point))

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = None
        with suppress(RuntimeError):  # a model that is loaded has no trainer
            state = checkpoint.get(_KEY) if self.trainer.state.fn == TrainerFn.FITTING else None
        names = [entry.name for entry in fields(ResumePoint)]  # earlier checkpoints have others too
        self._run.resume = None if state is None else ResumePoint(**{name: state[name] for name in names})
        self._run.kind = _kind_of_storage(checkpoint)

    def __getstate__(self) -> dict[str, Any]:
        """Copies contain the model, not the run, whose sampler refers to the dual."""
        return {**super().__getstate__(), "_run": Run()}


def _kind_of_storage(checkpoint: dict[str, Any]) -> str | None:
    for state in checkpoint.get("optimizer_states", []):
        with suppress(KeyError, TypeError):
            return str(state["dual"]["storage"]["kind"])
    return None
