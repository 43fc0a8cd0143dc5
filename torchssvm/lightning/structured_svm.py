"""A LightningModule that trains a head by block-coordinate Frank-Wolfe, with or without features below it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, cast

from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from typing_extensions import override

from torchssvm.core.arguments import or_default
from torchssvm.core.batch import Batch, as_batch, fetcher
from torchssvm.core.precision import full_precision
from torchssvm.core.problem import check_bounds, check_lam, find_structure, groups
from torchssvm.core.ranks import Ranks
from torchssvm.core.structure import Structure
from torchssvm.dual.state import DualState
from torchssvm.lightning.compiled_loop import choose_solver, make_loop
from torchssvm.lightning.figures import figures_of, log, publish
from torchssvm.lightning.fit import alone, certify_by_torch, check_strategy
from torchssvm.lightning.joint_training import HeadChoice, JointRun, JointTraining
from torchssvm.lightning.predicting import Predicting
from torchssvm.lightning.refusals import training_modes
from torchssvm.lightning.training_batches import EpochPart, exact_pass_loader, own_draws
from torchssvm.solvers.advice import warn_if_estimated_far, warn_if_stiff
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate, weights_kept
from torchssvm.solvers.choice import compiled_form, print_choice
from torchssvm.solvers.compiled.proposed import ProposedVisits
from torchssvm.solvers.compiled.solver import CompiledBCFW
from torchssvm.solvers.solver import Solver
from torchssvm.solvers.trainer import IDLE_EPOCHS, Pacing
from torchssvm.solvers.training import move
from torchssvm.steps.directions import Corrective

_BAR_EVERY = 10
_OF_THE_TRAINER = {
    "batch_size": "to the DataLoader",
    "order": "to a GapBatchSampler in the DataLoader",
    "seed": "to a GapBatchSampler in the DataLoader",
    "schedule": "to DualityGap",
}
"""Options of a solver that are given elsewhere under a Trainer."""


def _check_solver(module: Any, solver: Solver | None) -> Solver:
    solver = or_default(solver, Solver, "solver")
    for name, where in _OF_THE_TRAINER.items():
        if getattr(solver, name):
            raise ValueError(f"Solver({name}={getattr(solver, name)}) is for solve: under a Trainer give it {where}")
    check_bounds(module.head, solver.bounds)
    if solver.compiled and (reason := compiled_form(module.head, module.structure, solver.with_defaults())[1]):
        raise ValueError(f"compiled=True, and the compiled loop cannot be used: {reason}")
    return solver


class StructuredSVM(Predicting):
    """Max-margin training of a head under a ``Trainer``: BCFW, no learning rate, one dual block for each example.

    Batches are :class:`torchssvm.Batch`; the training dataset is map-style, and an item knows its index. The dual state
    is made when a fit begins. The optimizer holds it and checkpoints save it; the module's ``state_dict`` does not
    contain it. A ``GapBatchSampler`` in the training loader is bound to it; runs can then be resumed within an epoch.

    The features are frozen, always in evaluation mode and without gradients, unless ``joint=JointTraining()`` is given:
    one optimizer first trains features and head together, then BCFW solves the head. They stay in evaluation mode after
    a fit, as ``LightningModule.freeze()`` leaves a module: call ``features.train()`` before another module trains them.

    An epoch is n visits, whatever takes them, and ``max_epochs`` counts them. Where the compiled loop draws the
    examples, an epoch has about four batches without data, one where n is at most 10,000, and as many as the loader has
    with ``JointTraining``.

    A fit refuses settings that contradict exact steps: clipping, accumulation, 16-bit weights, Lightning's averages
    (use :class:`AveragedWeights`), pruning, and searches for a learning rate or a batch size. Validation logs
    ``val_loss``, the mean task loss, and for labelings of one integer a position ``val_token_error`` and
    ``val_example_error``, the shares of wrong tokens and of examples with a wrong token; tests log the same as
    ``test_...``. ``load_from_checkpoint(path)`` rebuilds a model whose head is of this package.

    With ``Trainer(strategy="ddp", devices=4)`` each process holds the dual blocks of its examples, a contiguous
    part of the dataset, and the training loader is restricted to them: give it ``batch_size`` and ``shuffle=True``, or
    a ``GapBatchSampler``. ``batch_size`` counts the examples of one process. DDP averages the gradients of features
    that are trained, and BCFW combines the directions of the head. Certificates are of all examples, and the same in
    every process. A checkpoint holds all blocks, and another number of processes can go on with it from the end of an
    epoch.

    Args:
        head: Features -> potentials, linear in all its weights.
        lam: Regularisation of the head, the lambda of ``lam/2 |w|^2``.
        features: The module below the head, ``x`` -> features; None gives ``x`` to the head. A module whose
            ``forward`` has a parameter called ``lengths`` gets the lengths of the batch too.
        joint: How features and head are trained together before the head is solved; None trains the head alone.
        structure: What an output is; None is ``head.structure``.
        solver: What is given of the rules, the bounds on the weights and the memory; None gives nothing. When a fit
            begins, the rest is chosen as :func:`torchssvm.solve` does, and said with the reason. Order, seed, batch
            size and schedule are given to the loader and to :class:`DualityGap`. With the compiled loop, features are
            computed once and kept for the whole run: give ``Solver(compiled=False)`` if the dataset gives an example
            other features each time.

    Attributes:
        rules: The solver of the last fit, with every rule.

    Raises:
        ValueError: Arguments contradict each other (such as a direction that needs labelings and a storage that keeps
            none), a number is out of range, or bounds do not fit the head.
        TypeError: ``solver`` is not a Solver, or a bound is neither a number nor a tensor.

    Example:
        >>> model = StructuredSVM(head=LinearMulticlass(4, 3), lam=0.1)
        >>> gap = DualityGap()  # stops at 1 % of the primal
        >>> trainer = L.Trainer(max_epochs=200, callbacks=[gap], **quiet)
        >>> trainer.fit(model, loader)
        >>> gap.certificate.relative_gap <= 0.01
        True
        >>> model.decode(points[:3]).shape
        torch.Size([3])
    """

    def __init__(
        self,
        head: nn.Module,
        lam: float,
        features: nn.Module | None = None,
        joint: JointTraining | None = None,
        structure: Structure | None = None,
        solver: Solver | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if not (joint is None or isinstance(joint, JointTraining)):
            raise TypeError(f"joint={joint!r} must be JointTraining(...), or None for the head alone")
        if joint is not None and features is None:
            raise ValueError(f"joint={joint} trains features and head, and features=None: give features")
        lam = check_lam(lam)  # hyperparameters in checkpoints are plain numbers
        self.head = head
        self.features = features
        self.lam = lam
        self.structure = find_structure(head, structure)
        self.joint = joint
        self._stages = None if joint is None else JointRun()
        self.solver = _check_solver(self, solver)
        kept = {name: value for name in ("bounds", "memory_limit") if (value := getattr(self.solver, name)) is not None}
        self.save_hyperparameters({"lam": lam, **({"solver": kept} if kept else {})})
        self.rules: Any = self.solver.with_defaults()
        self._modes = {} if features is None else {name: part.training for name, part in features.named_modules()}
        self.train(self.training)

    # Steps

    def training_step(self, batch: Batch | EpochPart, batch_idx: int) -> None:
        """One step of BCFW on the head, or on features and head together; or visits of the compiled loop."""
        if isinstance(batch, EpochPart):
            self._visit(batch.visits)
            if batch_idx + 1 == self.trainer.num_training_batches:
                self._log_figures(on_step=False, on_epoch=True, batch_size=1)
            return
        batch = as_batch(batch)
        if self._run.trains_features:
            assert self._stages is not None
            self._stages.step(self, batch, batch_idx)
            return
        if (loop := self.compiled_loop()) is not None:
            loop.check_targets(batch)
            self._visit(batch.index)
            self._log_progress(batch_idx)
            return
        optimizer = self.optimizer_of(bcfw=True)
        optimizer.zero_grad()
        rules = self.rules
        loss = BlockGap(self.dual, rules.direction, oracle=rules.oracle, block_steps=rules.block_steps)
        self.look_at_padding(batch)
        extracted = self.extract(batch.x, batch.lengths)
        with full_precision(self.device):
            potentials = self.potentials_of(extracted, batch.lengths)
            with alone(self.trainer):
                self.manual_backward(loss(potentials, batch.y, batch.index))
            optimizer.step()
        self._log_progress(batch_idx)

    def _visit(self, visits: Tensor | int) -> None:
        """Let the compiled loop visit these examples, or so many that it draws."""
        loop, optimizer = self.compiled_loop(), self.optimizer_of(bcfw=True)
        assert loop is not None
        self._rest()
        optimizer.zero_grad()
        self.dual.mailbox.put(ProposedVisits(loop, visits))
        optimizer.step()

    def compiled_loop(self) -> CompiledBCFW | None:
        """The compiled loop of this fit, made at the first call; None if it cannot be used."""
        run = self._run
        if not run.compiled or run.batches is None:
            return None
        if run.loop is None or run.loop.dual is not self.dual:
            run.loop = None
            if self.trainer.state.fn != TrainerFn.FITTING or self.trainer.state.status != TrainerStatus.RUNNING:
                return None  # the run is over, and its features are no longer kept
            run.loop = make_loop(self, run.batches.loader)
        return run.loop

    def _log_progress(self, batch_idx: int) -> None:
        """Log figures for the bar, only every few steps: the dual's value costs a pass over all weights."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        last = batch_idx + 1 == self.trainer.num_training_batches  # callbacks may monitor these figures
        if batch_idx % _BAR_EVERY and self.trainer.global_step % max(every, 1) and not last:
            return
        self._log_figures()

    def _log_figures(self, **options: Any) -> None:
        figures, dual = self.figures(self._run.pacing), self.dual
        if getattr(self.rules.oracle, "needs_labelings", False):
            figures = {**figures, "cache_hits": float(dual.cache_hits)}
        if dual.ranks:
            figures = {**figures, "rho": dual.rho}
        publish(self.trainer, figures, ["dual"])
        log(self, figures, **options)

    # The run

    @override
    def setup(self, stage: str) -> None:
        if stage == "fit":
            check_strategy(self.trainer)

    @override
    def configure_optimizers(self) -> list[Optimizer]:
        run, n = self._run, self.begin_fit()
        resume, stages = run.resume, self._stages
        if stages is not None:
            stages.start(self, resumed=resume is not None)
            self._modes = training_modes(self._modes)
        choice = choose_solver(self, self.training_loader, run.kind)
        if not Ranks.here().rank:
            print_choice(choice)
        self.rules = choice.solver
        run.compiled = choice.adapter is not None
        dual = DualState.for_head(
            self.head,
            n,
            self.lam,
            structure=self.structure,
            storage=copy.deepcopy(self.rules.storage),
            memory_limit=self.solver.memory_limit,
        )
        with weights_kept(list(self.head.parameters())) if stages else nullcontext():
            if stages or resume:  # the weights of a checkpoint are loaded next
                self.zero_head()
            parameters = groups(self.head, check_bounds(self.head, self.solver.bounds))
            optimizers: list[Optimizer] = [BCFW(parameters, dual, line_search=self.rules.line_search)]
        if (
            self.features is None
            and resume is None
            and not Ranks.here().rank
            and (most := self.trainer.max_epochs or 0) > 0
        ):
            loader = self.training_loader
            damps = run.compiled and self.rules.storage.keeps_labelings and self.draws_in_loop(loader)
            if not (damps and isinstance(self.rules.direction, Corrective)):
                warn_if_stiff(self.head, dual, fetcher(loader.dataset, loader.collate_fn), most)
        batches = run.batches
        assert batches is not None
        if (sampler := batches.gap_sampler) is not None:
            sampler.bind(dual, by_permutation=self._features_turn)
        if resume is not None:
            resume.rewind(batches)
        follows = stages is not None or resume is None or not resume.in_loader_epoch
        if run.compiled and follows and self.draws_in_loop(batches.loader):
            batches.draw_in_parts(as_many=stages is not None)
        if stages is not None:
            optimizers.append(stages.joint.make_optimizer(cast(nn.Module, self.features), self.head))
        return optimizers

    @override
    def on_train_start(self) -> None:
        """Choose between features and head, and restore the state that a resumed run was saved in.

        Where the compiled loop can draw the examples itself, it does so from here on, and nothing more is loaded.
        """
        self._turn()
        self._solve_head()
        super().on_train_start()

    def _solve_head(self) -> None:
        """Begin to train the head by BCFW; this is where the second stage of ``JointTraining`` begins."""
        if self._stages is not None and not self._run.trains_features:
            self._stages.begin_solving(self)
        batches, resume = self._run.batches, self._run.resume
        if self.solves_head and batches is not None and batches.in_parts and not (resume and resume.in_loader_epoch):
            batches.loop = self.compiled_loop()

    def draws_in_loop(self, loader: DataLoader) -> bool:
        """Whether the compiled loop can draw the examples of this fit in place of the loader."""
        standard = type(self).training_step is StructuredSVM.training_step
        return standard and own_draws(self.trainer, loader) is not None

    @override
    def on_train_epoch_start(self) -> None:
        self._turn()
        if not self._run.trains_features and not self.solves_head:
            self._solve_head()

    @override
    def on_train_end(self) -> None:
        certifies = any(hasattr(callback, "stopped_because") for callback in self.trainer.callbacks)  # type: ignore
        if self.solves_head and not certifies and not self.dual.ranks.rank:
            warn_if_estimated_far(self.dual)
        super().on_train_end()
        self.choose_head()

    @override
    def on_fit_end(self) -> None:
        super().on_fit_end()
        self.choose_head()

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if self._stages is not None:
            self._stages.save(checkpoint)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if self._run.resume is not None and self._stages is not None:
            self._stages.load(checkpoint, self)

    def _features_turn(self) -> bool:
        return self.joint is not None and self.joint.trains_features(self.trainer.current_epoch)

    def _turn(self) -> None:
        """Follow the schedule for this epoch; features that are trained get back the modes of their submodules."""
        self._run.trains_features = self._features_turn()
        if self.features is None:
            return
        for name, part in self.features.named_modules():
            part.training = self._run.trains_features and self._modes.get(name, True)

    @override
    def teardown(self, stage: str) -> None:
        if stage == "fit":
            self._run.trains_features = False
            self._run.loop = None
            move(self.head, self.device)
            self._rest()

    # What callbacks and the stages of a fit need

    @property
    def solves_head(self) -> bool:
        """Whether the head holds the weights of the dual; while ``JointTraining`` trains both it does not."""
        return self._stages is None or self._stages.solves

    @property
    def choice(self) -> HeadChoice | None:
        """Which head the last fit with ``JointTraining`` kept; None without one, or without validation data."""
        return None if self._stages is None else self._stages.choice

    def choose_head(self) -> None:
        """After ``JointTraining``: keep the head that validates better; a second call does nothing."""
        if self._stages is not None:
            self._stages.choose(self)

    def pacing(self, **rules: Any) -> Pacing:
        """When exact passes are made, as in the loop that makes the steps."""
        idle = CompiledBCFW.idle_epochs if self._run.compiled else IDLE_EPOCHS
        self._run.pacing = Pacing(self.dual, idle_epochs=idle, value=self.dual.value, **rules)
        return self._run.pacing

    def figures(self, pacing: Pacing | None) -> dict[str, float]:
        """Dual, oracle calls and estimate of the gap after the last step, computed once."""
        run, step = self._run, self.trainer.global_step
        if run.figures is None or run.figures[0] != step:
            run.figures = step, figures_of(self.dual, pacing)
        return run.figures[1]

    def certify(self, batches: Iterable[Any] | None = None) -> Certificate:
        """An exact pass during or after a fit.

        Args:
            batches: Every training example once; None reads the training set. Unused if the compiled loop keeps it.
        """
        if (loop := self.compiled_loop()) is not None:
            return loop.certify()
        batches = exact_pass_loader(self.training_loader) if batches is None else batches
        return certify_by_torch(self.trainer, self, self.dual, batches)
