"""Exact resumption of interrupted runs: what a fit remembers, and what its checkpoints add to those of Lightning."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from torchssvm.core.packages import warn
from torchssvm.core.random_state import RandomState
from torchssvm.core.ranks import Ranks
from torchssvm.core.schema import Each, Maybe, check
from torchssvm.dual.state import DualState
from torchssvm.lightning.compiled_epochs import EpochParts, EpochsAtOnce
from torchssvm.lightning.loaders import count_examples, find_dual, gap_sampler, take_training_loader
from torchssvm.solvers.compiled.solver import CompiledBCFW
from torchssvm.steps.sampler import GapBatchSampler

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

Draws = GapBatchSampler | EpochParts | None


@dataclass
class ResumePoint:
    """The point of a run at which a checkpoint was taken; kept until the resumed run trains its first batch.

    ``random`` is the random state, of several processes as a list ``ranks``; ``sampler`` that of the
    ``GapBatchSampler`` or of the ``EpochParts``, of all processes, None if there were none; ``in_epoch`` says whether
    the epoch under way has batches left, and ``rules`` what the model says of its steps, by argument.
    """

    num_examples: int
    random: dict[str, Any]
    sampler: dict[str, Any] | None
    in_epoch: bool
    rules: dict[str, str]

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> ResumePoint:
        """The point from its ``state_dict``; ValueError if the state is damaged."""
        schema = {
            "num_examples": int,
            "random": dict,
            "sampler": Maybe(dict),
            "in_epoch": bool,
            "rules": Each(dict, str),
        }
        if isinstance(state, dict) and state.get("features_moved") is False:  # of before 0.2; True named another run
            state = {name: entry for name, entry in state.items() if name != "features_moved"}
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
        """The random state for this process; ValueError if the state is damaged."""
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
        """Restore sampler and random state. That of another kind of sampler, from the end of an epoch, is left out."""
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


@dataclass
class Run:
    """The state of a fit, apart from the model.

    Attributes:
        loader: The training loader; None before the first fit.
        sampler: What draws the examples: the loader's ``GapBatchSampler``, or the compiled loop in ``EpochParts``.
        resume: The point to resume from, until the resumed run trains its first batch.
        at_first_batch: The random state to set before that batch.
        before_validation: The random state to set after validation.
        trains_features: Whether this epoch trains the features.
        loop: The compiled loop, if it is used.
        at_once: How it makes several epochs at once, where it does.
        compiled: Whether the compiled loop was chosen for this fit.
        kind: The kind of the storage in the checkpoint that is resumed; None if it is not known.
        looked: Whether it is known that padding does not change the features of ids.
    """

    loader: DataLoader | None = None
    sampler: GapBatchSampler | EpochParts | None = None
    resume: ResumePoint | None = None
    at_first_batch: RandomState | None = None
    before_validation: RandomState | None = None
    trains_features: bool = False
    loop: CompiledBCFW | None = None
    at_once: EpochsAtOnce | None = None
    compiled: bool = False
    kind: str | None = None
    looked: bool = False

    def start(self, loader: DataLoader, *, resumed: bool) -> None:
        """Begin a fit; with ``resumed``, a checkpoint has been loaded for it."""
        self.resume = self.resume if resumed else None
        self.kind = self.kind if resumed else None
        self.loader, self.sampler = loader, gap_sampler(loader)
        self.trains_features = self.compiled = self.looked = False
        self.at_first_batch = self.before_validation = self.loop = self.at_once = None


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
        self._run.start(take_training_loader(self.trainer), resumed=self.trainer.ckpt_path is not None)
        n, resume = count_examples(self.training_loader), self._run.resume
        if resume is not None and resume.num_examples != n:
            raise ValueError(f"the checkpoint was trained on {resume.num_examples} examples, and the dataset has {n}")
        return n

    @property
    def training_loader(self) -> DataLoader:
        """The loader of the fit under way, or of the last one; RuntimeError before."""
        if self._run.loader is None:
            raise RuntimeError("no fit has begun: there is no training loader yet")
        return self._run.loader

    @property
    def _rules(self) -> dict[str, str]:
        """What decides about the steps of a run, by argument."""
        return {}

    def on_fit_start(self) -> None:
        """Silence advice that does not apply."""
        patterns = list(_MISPLACED_ADVICE)
        if self._run.sampler is not None:
            patterns.append(_NOT_RESUMABLE)
        for pattern in patterns:
            warnings.filterwarnings("ignore", message=pattern)

    def on_train_start(self) -> None:
        """In a resumed run, restore the state of the checkpoint, which callbacks may have changed by an exact pass.

        The loader's iterator is made again: its workers have fetched batches by the former state.
        """
        resume, run = self._run.resume, self._run
        if resume is None:
            return
        resume.check_batches(run.sampler)
        resume.check_rules(self._rules)
        _begin_next_epoch(self.trainer)
        resume.rewind(run.sampler)
        if (fetcher := self.trainer.fit_loop._data_fetcher) is not None:
            iter(fetcher)
        if run.sampler is not None:  # Lightning may still skip through a validation loop, which draws random numbers
            run.at_first_batch = resume.own_random() if resume.in_epoch else RandomState()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """End the resumption: from here on checkpoints describe this run."""
        if self._run.at_first_batch is not None:
            self._run.at_first_batch.restore()
        self._run.resume = self._run.at_first_batch = None

    def on_train_epoch_end(self) -> None:
        """Restore the checkpoint's state again if the run was resumed after the last batch of an epoch."""
        if self._run.resume is not None:
            self._run.resume.rewind(self._run.sampler)
            self._run.at_first_batch = None

    def on_validation_model_zero_grad(self) -> None:
        """Keep the random state, which validation must not change: a run that is resumed after it skips it."""
        super().on_validation_model_zero_grad()
        self._run.before_validation = RandomState()

    def on_validation_epoch_end(self) -> None:
        """Restore the random state from before validation."""
        if self._run.before_validation is not None:
            self._run.before_validation.restore()
            self._run.before_validation = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add random state and sampler."""
        run = self._run
        if run.loader is None or "optimizer_states" not in checkpoint:
            return
        point = run.resume
        if point is None:  # of several processes, all make one, and that of the first is whole
            used: int = self.trainer.fit_loop.epoch_loop.batch_progress.current.processed  # type: ignore[attr-defined]
            left = used < self.trainer.num_training_batches
            point = ResumePoint(
                num_examples=count_examples(run.loader),
                sampler=None if run.sampler is None else _whole(run.sampler, used if left else len(run.sampler)),
                random=_of_all(RandomState().state_dict()),
                in_epoch=left and used > 0,
                rules=self._rules,
            )
        checkpoint[_KEY] = dict(vars(point))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the resume point until training continues."""
        fitting = self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        state = checkpoint.get(_KEY) if fitting else None
        self._run.resume = None if state is None else ResumePoint.from_state_dict(state)
        self._run.kind = _kind_of_storage(checkpoint)

    def __getstate__(self) -> dict[str, Any]:
        """Copies contain the model, not the run, whose sampler refers to the dual."""
        return {**super().__getstate__(), "_run": Run()}


def _kind_of_storage(checkpoint: dict[str, Any]) -> str | None:
    for state in checkpoint.get("optimizer_states", []):
        with suppress(KeyError, TypeError):
            return str(state["dual"]["storage"]["kind"])
    return None


def _begin_next_epoch(trainer: L.Trainer) -> None:
    """After a checkpoint of the last batch of an epoch, have Lightning begin the next epoch as usual.

    Lightning takes the next epoch as begun already and does not count it: the counter of begun epochs would stay one
    behind, and the checkpoints of this run would be misread.
    """
    loop = trainer.fit_loop
    begun: Any = loop.epoch_progress.total
    if loop.restarted_mid_epoch and begun.started == begun.processed:
        loop.reset_restart_stage()
