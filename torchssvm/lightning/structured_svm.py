"""A LightningModule that trains a head by block-coordinate Frank-Wolfe, with or without features below it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from torchssvm.batch import Batch, apply_head
from torchssvm.certificate import recompute_weights
from torchssvm.directions import DirectionRule
from torchssvm.dual import DualState
from torchssvm.dual.storage import Storage
from torchssvm.lightning.alternate import Alternate
from torchssvm.lightning.exact_pass import evaluating, find_bcfw
from torchssvm.lightning.loaders import count_examples, exact_pass_loader, gap_sampler, take_training_loader
from torchssvm.lightning.resume import RandomState, ResumePoint
from torchssvm.losses import BlockGap, StructuredHinge
from torchssvm.optim import BCFW
from torchssvm.potentials import Potentials, as_potentials
from torchssvm.report import count_errors
from torchssvm.sampling import GapBatchSampler
from torchssvm.structures import Structure
from torchssvm.structures.base import Labeling, as_decoding

_KEY = "torchssvm"
_BAR_EVERY = 10

# What Lightning says of situations that are right here, word for word at the start of its messages.
_MISPLACED_ADVICE = (
    r"Using ModelCheckpoint with manual optimization and every_n_train_steps",
    r"Found \d+ module\(s\) in eval mode at the start of training",
)
_NOT_RESUMABLE = r"You're resuming from a checkpoint that ended before the epoch ended and your dataloader is"


class StructuredSVM(L.LightningModule):
    """Max-margin training of a head under a ``Trainer``: BCFW, no learning rate, one dual block for each example.

    Batches are :class:`torchssvm.Batch`; the training dataset is map-style, and an item knows its index. The dual state
    is made when a fit begins, lives in the optimizer and travels in checkpoints, never in the module's ``state_dict``.
    A ``GapBatchSampler`` in the training loader is bound to it, and makes runs resumable in the middle of an epoch.

    Features are either none, or frozen (without ``features_optimizer``: evaluation mode and no gradients, always), or
    trained in turn with the head: their optimizer descends the structured hinge with the head's weights held, and the
    head's weights are recomputed from the dual before BCFW continues.

    Args:
        head: Features -> potentials, linear in all its weights.
        lam: Regularisation of the head, the lambda of ``lam/2 |w|^2``.
        features: What is below the head, ``x`` -> features; None gives ``x`` to the head.
        features_optimizer: ``parameters -> torch.optim.Optimizer``; trains the features too.
        joint: Which epochs train which; None is ``Alternate()``. Only with ``features_optimizer``.
        structure: What an output is; None is ``head.structure``.
        storage: How dual blocks are kept; None is ``MeanParts()``, the only one that can follow moving features.
        sweeps: Sweeps of the box QP over a batch's blocks; see :class:`torchssvm.BlockGap`.
        direction: Which direction to take; None is ``FrankWolfe()``.
        memory_limit: Bytes that the dual blocks may take; None is what the device has left.

    Raises:
        ValueError: Arguments contradict each other.
    """

    def __init__(
        self,
        head: nn.Module,
        lam: float,
        features: nn.Module | None = None,
        features_optimizer: Callable[[Iterable], Optimizer] | None = None,
        joint: Alternate | None = None,
        structure: Structure | None = None,
        storage: Storage | None = None,
        sweeps: int = 10,
        direction: DirectionRule | None = None,
        memory_limit: int | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if features is None and features_optimizer is not None:
            raise ValueError("features_optimizer is given, and features=None: there is nothing for it to train")
        if joint is not None and features_optimizer is None:
            raise ValueError(f"joint={joint} needs features_optimizer; without it the features are frozen")
        if features_optimizer is not None and storage is not None and storage.needs_gradients:
            raise ValueError(
                f"storage={type(storage).__name__}() keeps weights of old features; features that are trained need "
                "storage=MeanParts()"
            )
        structure = structure if structure is not None else getattr(head, "structure", None)
        if structure is None:
            raise ValueError(
                f"structure=None, and {type(head).__name__} has no attribute `structure`: pass one of them"
            )
        self.save_hyperparameters("lam", "sweeps", "memory_limit")
        self.head = head
        self.features = features
        self.lam = lam
        self.structure: Structure = structure
        self.features_optimizer = features_optimizer
        self.joint = (joint or Alternate()) if features_optimizer is not None else None
        self.storage = storage
        self.sweeps = sweeps
        self.direction = direction
        self.memory_limit = memory_limit
        self._run = _Run()
        self._modes = {} if features is None else {name: part.training for name, part in features.named_modules()}
        self.train(self.training)

    # What users call

    @property
    def dual(self) -> DualState:
        """The dual state of the fit under way, or of the last one.

        Raises:
            RuntimeError: No fit has begun.
        """
        return find_bcfw(self.trainer).dual

    def forward(self, x: Any, lengths: Tensor | None = None) -> Potentials:
        """Input -> potentials, differentiable in the head's weights; the features are not trained through it.

        Args:
            x: Input of the features, or of the head.
            lengths: ``[B]`` int64, where examples differ in length.
        """
        return self._apply_head(self._extract(x), lengths)

    @torch.no_grad()
    def decode(self, x: Any, lengths: Tensor | None = None) -> Labeling:
        """The highest-scoring output of every example.

        Args:
            x: Input of the features, or of the head.
            lengths: ``[B]`` int64, where examples differ in length.
        """
        return as_decoding(self.structure.argmax(self(x, lengths))).labeling

    def train(self, mode: bool = True) -> StructuredSVM:
        """Set the mode; features that are not being trained stay in evaluation mode."""
        super().train(mode)
        if not self._run.trains_features:
            self._rest()
        return self

    def _rest(self) -> None:
        if self.features is not None:
            self.features.eval()

    # Steps

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step of BCFW on the head, or of the features' optimizer on the hinge."""
        batch = _check_batch(batch)
        if self._run.trains_features:
            self._train_features(batch)
            return
        optimizer = self._optimizer(BCFW)
        optimizer.zero_grad()
        loss = BlockGap(self.dual, self.direction, sweeps=self.sweeps)
        self.manual_backward(loss(apply_head(self, batch), batch.y, batch.index))
        optimizer.step()
        self._log_progress(batch_idx)

    def _train_features(self, batch: Batch) -> None:
        assert self.features is not None
        optimizer = next(o for o in self._optimizers() if not isinstance(o, BCFW))
        held = [(p, p.requires_grad) for p in self.head.parameters()]
        optimizer.zero_grad()
        try:
            for parameter, _ in held:
                parameter.requires_grad_(False)
            hinge = StructuredHinge(self.structure)(self._apply_head(self.features(batch.x), batch.lengths), batch.y)
            self.manual_backward(hinge)
        finally:
            for parameter, required in held:
                parameter.requires_grad_(required)
        self._run.features_moved = True
        optimizer.step()
        self.log("hinge", hinge.detach(), prog_bar=True, batch_size=len(batch.index))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log task loss and errors of plain decoding."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log task loss and errors of plain decoding."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Labeling:
        """The decoded outputs of the batch."""
        batch = _check_batch(batch)
        return self.decode(batch.x, batch.lengths)

    @torch.no_grad()
    def _evaluate(self, batch: Batch, stage: str) -> None:
        batch = _check_batch(batch)
        potentials = apply_head(self, batch)
        target = self.structure.check_target(batch.y, potentials)
        labeling = as_decoding(self.structure.argmax(potentials)).labeling
        size = potentials.batch_size
        loss = self.structure.loss(labeling, target).mean(dtype=torch.float64)
        self.log(f"{stage}_loss", loss.float(), prog_bar=True, batch_size=size)
        counts = count_errors(labeling, target)
        if counts is not None:
            wrong, tokens = counts
            total = max(int(tokens.sum()), 1)
            self.log(f"{stage}_token_error", wrong.sum() / total, batch_size=total)
            self.log(f"{stage}_word_error", (wrong / tokens.clamp(min=1)).mean(), batch_size=size)

    def _extract(self, x: Any) -> Any:
        if self.features is None:
            return x
        if self.features.training and not self._run.trains_features:
            self.features.eval()
        with torch.no_grad():
            return self.features(x)

    def _apply_head(self, extracted: Any, lengths: Tensor | None) -> Potentials:
        with torch.autocast(self.device.type, enabled=False):
            return as_potentials(self.head(extracted) if lengths is None else self.head(extracted, lengths))

    def _log_progress(self, batch_idx: int) -> None:
        """Figures for the bar; not in every step, because the dual's value is a pass over all weights."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if batch_idx % _BAR_EVERY and self.trainer.global_step % max(every, 1):
            return
        dual = self.dual
        self.log("dual", dual.value(), prog_bar=True)
        self.log("oracle_calls", float(dual.oracle_calls), prog_bar=True)
        estimate = dual.gap_estimate
        if estimate < float("inf"):  # every block has been seen
            self.log("gap_estimate", estimate, prog_bar=True)

    # The run

    def setup(self, stage: str) -> None:
        """Refuse what cannot work."""
        if stage != "fit":
            return
        if self.trainer.world_size > 1:
            raise ValueError(
                f"world size {self.trainer.world_size}: StructuredSVM trains in one process for now, so that every "
                "dual block has one owner; use Trainer(devices=1)"
            )
        if str(self.trainer.precision) == "16-mixed":
            raise ValueError(
                "precision='16-mixed' rescales gradients, and BCFW needs exact ones: use 'bf16-mixed' or 32"
            )

    def configure_optimizers(self) -> list[Optimizer]:
        """BCFW with a new dual state for the training dataset, and the features' optimizer if there is one."""
        run = self._run
        run.start(take_training_loader(self.trainer))
        n = count_examples(run.training_loader)
        resume = run.resume
        if resume is not None and resume.num_examples != n:
            raise ValueError(
                f"the checkpoint was trained on {resume.num_examples} examples, and the training dataset has {n}"
            )
        dual = DualState.for_head(
            self.head,
            n,
            self.lam,
            structure=self.structure,
            storage=copy.deepcopy(self.storage),
            memory_limit=self.memory_limit,
        )
        if resume is not None:  # BCFW would warn of weights that it is about to restore
            with torch.no_grad():
                for parameter in self.head.parameters():
                    parameter.zero_()
            run.features_moved = resume.features_moved
        optimizers: list[Optimizer] = [BCFW(self.head.parameters(), dual)]
        if run.sampler is not None:
            run.sampler.bind(dual)
        if resume is not None:
            resume.rewind(run.sampler)
        if self.features is not None and self.features_optimizer is not None:
            optimizers.append(self.features_optimizer(self.features.parameters()))
        elif self.features is not None:
            run.frozen = [p for p in self.features.parameters() if p.requires_grad]
            self.features.requires_grad_(False)
        return optimizers

    def on_fit_start(self) -> None:
        """Silence advice that does not apply."""
        patterns = list(_MISPLACED_ADVICE)
        if self._run.sampler is not None:
            patterns.append(_NOT_RESUMABLE)
        for pattern in patterns:
            warnings.filterwarnings("ignore", message=pattern)

    def on_train_start(self) -> None:
        """In a resumed run, go back to the moment of the checkpoint: the callbacks may have made up for an exact pass.

        The loader's iterator was made before that; worker processes have fetched ahead already.
        """
        resume, run = self._run.resume, self._run
        self._turn()
        if resume is None:
            return
        if not resume.in_epoch and not run.trains_features:
            self.follow_features()
        resume.rewind(run.sampler)
        if (fetcher := self.trainer.fit_loop._data_fetcher) is not None:
            iter(fetcher)
        if run.sampler is not None:  # a validation loop may yet be passed over, which draws random numbers
            run.at_first_batch = resume.random if resume.in_epoch else RandomState()

    def on_train_epoch_start(self) -> None:
        """Turn to the features or to the head; weights follow the features first."""
        self._turn()
        if not self._run.trains_features:
            self.follow_features()

    def _turn(self) -> None:
        """Begin what the schedule has for this epoch; trained features are in the modes that they were given in."""
        self._run.trains_features = self.joint is not None and self.joint.trains_features(self.trainer.current_epoch)
        if self.features is None:
            return
        for name, part in self.features.named_modules():
            part.training = self._run.trains_features and self._modes.get(name, True)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """From here on checkpoints are of this run."""
        if self._run.at_first_batch is not None:
            self._run.at_first_batch.restore()
        self._run.resume = self._run.at_first_batch = None

    def on_train_epoch_end(self) -> None:
        """A run that was resumed after the last batch of an epoch has not begun the next one."""
        if self._run.resume is not None:
            self._run.resume.rewind(self._run.sampler)
            self._run.at_first_batch = None

    def on_validation_model_zero_grad(self) -> None:
        """Validation leaves the random state as it was: a run resumed after it must find the same."""
        super().on_validation_model_zero_grad()
        self._run.before_validation = RandomState()

    def on_validation_epoch_end(self) -> None:
        """See ``on_validation_model_zero_grad``."""
        if self._run.before_validation is not None:
            self._run.before_validation.restore()
            self._run.before_validation = None

    def teardown(self, stage: str) -> None:
        """Give frozen features their gradients back."""
        if stage == "fit":
            for parameter in self._run.frozen:
                parameter.requires_grad_(True)
            self._run.frozen = []
            self._run.trains_features = False
            self._rest()

    def follow_features(self) -> None:
        """Recompute the weights from the dual if the features have been trained since; else do nothing."""
        if not self._run.features_moved:
            return
        with evaluating(self), self.trainer.precision_plugin.forward_context():
            recompute_weights(self, self.dual, exact_pass_loader(self._run.training_loader))
        self._run.features_moved = False

    @property
    def training_loader(self) -> DataLoader:
        """The loader of the fit under way, or of the last one."""
        return self._run.training_loader

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add where the run is: random state, sampler, and whether the features have moved."""
        run = self._run
        if run.loader is None or "optimizer_states" not in checkpoint:
            return
        point = run.resume
        if point is None:
            used: int = self.trainer.fit_loop.epoch_loop.batch_progress.current.processed  # type: ignore[attr-defined]
            left = used < self.trainer.num_training_batches
            point = ResumePoint.now(count_examples(run.loader), run.features_moved, run.sampler, used, left)
        checkpoint[_KEY] = point.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep where the run was until training continues."""
        state = checkpoint.get(_KEY)
        self._run.resume = None if state is None else ResumePoint.from_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """Copies are of the model, not of the run: the loader's sampler knows the dual."""
        return {**super().__getstate__(), "_run": _Run()}

    def _optimizers(self) -> list[Any]:
        found = self.optimizers()
        return found if isinstance(found, list) else [found]

    def _optimizer(self, kind: type[Optimizer]) -> LightningOptimizer | Any:
        return next(o for o in self._optimizers() if isinstance(o, kind))


class _Run:
    """What belongs to a fit and not to the model."""

    def __init__(self) -> None:
        self.loader: DataLoader | None = None
        self.sampler: GapBatchSampler | None = None
        self.resume: ResumePoint | None = None
        self.at_first_batch: RandomState | None = None
        self.before_validation: RandomState | None = None
        self.frozen: list[nn.Parameter] = []
        self.features_moved = False
        self.trains_features = False

    def start(self, loader: DataLoader) -> None:
        self.loader, self.sampler = loader, gap_sampler(loader)
        self.features_moved = self.trains_features = False
        self.before_validation = self.at_first_batch = None

    @property
    def training_loader(self) -> DataLoader:
        if self.loader is None:
            raise RuntimeError("no fit has begun: there is no training loader yet")
        return self.loader


def _check_batch(batch: Any) -> Batch:
    if not isinstance(batch, Batch):
        raise TypeError(
            f"a batch must be a torchssvm.Batch(x, y, index, lengths), not a {type(batch).__name__}: give the "
            "DataLoader a collate_fn that makes one"
        )
    return batch
