"""Joint training: one optimizer on network and head first, then the head alone to a certificate."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer

from torchssvm.core.arguments import as_number, check_number, check_share, check_whole
from torchssvm.core.batch import Batch
from torchssvm.core.modules import apply_features, evaluating
from torchssvm.core.packages import warn
from torchssvm.core.random_state import RandomState
from torchssvm.core.structure import Structure
from torchssvm.lightning.fit import InPrecision, of_all, same_buffers, share_of
from torchssvm.lightning.predicting import Predicting
from torchssvm.lightning.trainer_internals import validation_loaders
from torchssvm.solvers.certificate import weights_kept, write
from torchssvm.solvers.evaluation import evaluate
from torchssvm.solvers.feature_losses import SoftmaxMargin, StructuredHinge, has_marginals

_KEY = "torchssvm_joint"


@dataclass(frozen=True)
class JointTraining:
    """Two stages of one fit: network and head together, then the head alone on the frozen network.

    In the first ``epochs`` epochs one optimizer descends ``loss + lam/2 |w|^2`` in the features and the head's weights
    w, with a learning rate that falls linearly to 0; every epoch visits every example once. It starts from the weights
    that head and features have: pretrain the features. All later epochs, to the end of the fit, solve the head by BCFW
    on the features as they are then; ``DualityGap`` certifies in these only.

    At the end of the fit, the head of the first stage and the solved one are validated on the same features by the mean
    task loss over the trainer's validation data; the better one stays in the model, the solved one where they are
    equal. ``model.choice`` says which, and both losses. The solved head is certified. Without validation
    data the solved head stays, and ``model.choice`` is None.

    Args:
        epochs: Epochs of the first stage; the trainer's ``max_epochs`` must be larger.
        lr: Learning rate of the network.
        head_lr: Learning rate of the head; None is ``lr``. A head that begins at zero needs a larger one than a
            pretrained network: ten times ``lr`` is a good start.
        loss: Makes the loss of the first stage from the structure: ``SoftmaxMargin``, ``StructuredHinge``, or a
            function that returns a module ``(potentials, target) -> scalar``. None is ``SoftmaxMargin`` with
            temperature 1 where the structure has marginals, else ``StructuredHinge``.
        optimizer: ``(parameters, lr=...) -> torch.optim.Optimizer``, such as ``functools.partial(torch.optim.AdamW,
            weight_decay=0.01)``; weight decay is for the features alone. None is ``torch.optim.Adam``.
        clip: The largest norm of a step's gradient, network and head together; None is any.
        accumulate: Batches of one step, whose gradients are averaged.
        warmup: The share of the first stage in which the learning rate rises to ``lr``.

    Raises:
        ValueError: A number is out of range.
        TypeError: ``loss`` or ``optimizer`` cannot be called, or ``epochs`` is not a whole number.

    Example:
        >>> network, head = torch.nn.Linear(4, 8), LinearMulticlass(8, 3)
        >>> model = StructuredSVM(head, lam=0.1, features=network, joint=JointTraining(epochs=2))
        >>> gap = DualityGap()
        >>> trainer = L.Trainer(max_epochs=100, callbacks=[gap], **quiet)
        >>> trainer.fit(model, loader, loader)  # both for two epochs, then the head; the second loader validates
        >>> gap.certificate.relative_gap <= 0.01
        True
    """

    epochs: int = 10
    lr: float = 1e-3
    head_lr: float | None = None
    loss: Callable[[Structure], nn.Module] | None = None
    optimizer: Callable[..., Optimizer] | None = None
    clip: float | None = None
    accumulate: int = 1
    warmup: float = 0.0

    def __post_init__(self) -> None:
        check_whole(self.epochs, "epochs")
        check_number(self.lr, "lr", above=0.0)
        check_whole(self.accumulate, "accumulate")
        if as_number(self.warmup, "warmup"):
            check_share(self.warmup, "warmup")
        for name in ("head_lr", "clip"):
            if (number := getattr(self, name)) is not None:
                check_number(number, name, above=0.0)
        for name, expected in (("loss", "SoftmaxMargin or StructuredHinge"), ("optimizer", "torch.optim.Adam")):
            given = getattr(self, name)
            if given is not None and (isinstance(given, nn.Module | Optimizer) or not callable(given)):
                raise TypeError(f"{name}={given!r} must be a function that makes a {name}, such as {expected}")

    def trains_features(self, epoch: int) -> bool:
        """Whether epoch number ``epoch``, counted from 0, trains the features."""
        return epoch < self.epochs

    def rate(self, done: float, step: float) -> float:
        """The learning rate as a share of ``lr``: it rises in the warm-up, and falls linearly to 0.

        Args:
            done: The share of the first stage that is behind.
        """
        falling = (1.0 - done) / (1.0 - self.warmup)
        return falling if done >= self.warmup else min((done + step) / self.warmup, falling)

    def make_loss(self, structure: Structure) -> nn.Module:
        """The loss of the first stage."""
        if self.loss is not None:
            return self.loss(structure)
        return SoftmaxMargin(structure) if has_marginals(structure) else StructuredHinge(structure)

    def make_optimizer(self, features: nn.Module, head: nn.Module) -> Optimizer:
        """The optimizer of the first stage; each group notes the learning rate that it starts with."""
        head_lr = self.lr if self.head_lr is None else self.head_lr
        groups: list[dict[str, Any]] = [
            {"params": list(features.parameters())},
            {"params": list(head.parameters()), "weight_decay": 0.0, "lr": head_lr},
        ]
        optimizer = (self.optimizer or torch.optim.Adam)([group for group in groups if group["params"]], lr=self.lr)
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        return optimizer


class HeadChoice(NamedTuple):
    """Which head stays in the model, and why.

    Attributes:
        kept: ``"joint"``, the head that was trained with the network, or ``"solved"``, the one that was solved on it.
        joint_loss: Mean task loss of the jointly trained head on the validation data.
        solved_loss: Mean task loss of the solved head on the validation data.

    Example:
        >>> joint = JointTraining(epochs=1)
        >>> model = StructuredSVM(LinearMulticlass(8, 3), lam=0.1, features=torch.nn.Linear(4, 8), joint=joint)
        >>> L.Trainer(max_epochs=20, **quiet).fit(model, loader, loader)
        >>> model.choice.solved_loss >= 0.0
        True
    """

    kept: str
    joint_loss: float
    solved_loss: float

    def __str__(self) -> str:
        other = "joint" if self.kept == "solved" else "solved"
        losses = f"solved {self.solved_loss:.6g}, joint {self.joint_loss:.6g}"
        text = f"the {self.kept} head is kept, the {other} one validates no better (mean task loss: {losses})"
        later = "; checkpoints of the fit hold the solved head, trainer.save_checkpoint(...) saves the kept one"
        return text + (later if self.kept == "joint" else "")


class JointRun:
    """The state of a fit with :class:`JointTraining`.

    ``weights`` are the head's at the end of the first stage, ``choice`` says which head was kept; None until then.
    """

    joint: JointTraining  # of this fit

    def __init__(self) -> None:
        self.weights: list[Tensor] | None = None
        self.choice: HeadChoice | None = None
        self._ended = False
        self._loss: nn.Module | None = None

    @property
    def solves(self) -> bool:
        """Whether the second stage has begun: the head holds the weights of the dual."""
        return self.weights is not None

    def start(self, module: Predicting, *, resumed: bool) -> None:
        """Begin a fit, or go on with one from a checkpoint that was loaded.

        ValueError if the trainer ends before the second stage.
        """
        self.joint = joint = module.joint
        trainer = cast(Any, module.trainer)
        most = trainer.max_epochs
        if most is not None and 0 <= most <= joint.epochs and not trainer.fast_dev_run:
            raise ValueError(
                f"Trainer(max_epochs={most}) ends before the head is solved: give more than joint.epochs="
                f"{joint.epochs}, such as {joint.epochs + 200}"
            )
        self._loss = joint.make_loss(module.structure)
        self.choice, self._ended = None, False
        if not resumed:
            self.weights = None

    def step(self, module: Predicting, batch: Batch, batch_idx: int) -> None:
        """One step on network and head, and their learning rate."""
        joint, optimizer, batches = self.joint, module.optimizer_of(bcfw=False), module.trainer.num_training_batches
        assert self._loss is not None
        place = batch_idx % joint.accumulate
        together = min(joint.accumulate, int(batches) - batch_idx + place)  # fewer in an epoch's last step
        if not place:
            done = (module.trainer.current_epoch + batch_idx / batches) / joint.epochs
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * joint.rate(done, together / (batches * joint.epochs))
            _clip(module)
            optimizer.zero_grad()
        module.look_at_padding(batch)
        extracted = apply_features(cast(nn.Module, module.features), batch.x, batch.lengths)
        potentials = module.potentials_of(extracted, batch.lengths)
        loss = self._loss(potentials, batch.y)
        structure = module.structure
        if not module.trainer.current_epoch and type(structure)._check_chosen is not Structure._check_chosen:
            target = structure.check_target(batch.y, potentials)  # the loss may sum over hidden parts, BCFW cannot
            structure._check_chosen(batch.y, target, potentials.index)
        squares = [parameter.square().sum() for parameter in module.head.parameters()]
        value = share_of(len(batch.index)) * loss + module.lam / 2 * sum(squares)
        module.manual_backward(value / together)
        if place + 1 == together:
            if joint.clip is not None:
                nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], joint.clip)
            optimizer.step()
            _clip(module)
        module.log("joint_loss", loss.detach(), prog_bar=True, batch_size=len(batch.index))

    def begin_solving(self, module: Predicting) -> None:
        """Keep the head of the first stage, and give the head the weights of the dual, which has taken no step."""
        if self.solves:
            return
        module.head.zero_grad()
        same_buffers(module.features)
        self.weights = [parameter.detach().clone() for parameter in module.head.parameters()]
        module.dual.set_weights([torch.zeros_like(weights) for weights in self.weights])

    @torch.no_grad()
    def choose(self, module: Predicting) -> None:
        """Leave the head in the model that validates better; a second call does nothing."""
        if self._ended:
            return
        self._ended = True
        if self.weights is None:
            warn(
                "the fit ended while network and head were trained together: the head is not solved, and has no "
                "certificate"
            )
            return
        if not (loaders := validation_loaders(module.trainer)):
            rank_zero_info("no validation data: the solved head is kept, and not compared with the joint one")
            return
        random, weights = RandomState(), list(module.head.parameters())
        solved_loss = _validate(module, loaders)
        try:
            with weights_kept(weights):
                write(self.weights, weights)
                joint_loss = _validate(module, loaders)
        finally:
            module.dual.remember_weights()  # the same bits
        kept = "joint" if joint_loss < solved_loss else "solved"
        if kept == "joint":
            write(self.weights, weights)
        self.choice = choice = HeadChoice(kept, joint_loss, solved_loss)
        random.restore()
        rank_zero_info(str(choice))

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Add the head of the first stage."""
        checkpoint[_KEY] = {"weights": self.weights}

    def load(self, checkpoint: dict[str, Any], module: Predicting) -> None:
        """Read the head; ValueError if the checkpoint has none."""
        state = checkpoint.get(_KEY)
        if state is None:
            raise ValueError("the checkpoint is not of JointTraining: resume with its joint=, or begin a new fit")
        weights = state["weights"]
        self.weights = weights and [tensor.to(module.device) for tensor in weights]


def _clip(module: Predicting) -> None:
    """Put the head's weights within their bounds."""
    if (box := module.dual.box).has_bounds:
        write(box.clip([parameter.detach() for parameter in module.head.parameters()]), module.head.parameters())


def _validate(module: Predicting, loaders: list[tuple[Any, int | float]]) -> float:
    """The mean task loss of the module's outputs, over the examples of all loaders."""
    parts = [itertools.islice(loader, None if most == float("inf") else int(most)) for loader, most in loaders]
    batches = itertools.chain.from_iterable(parts)
    with evaluating(module):
        return of_all(evaluate(InPrecision(module.trainer, module), module.structure, batches, module.device)).loss
