"""Alternation: epochs on the features and on the head in turn."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from torchssvm.core.arguments import check_flags
from torchssvm.core.batch import Batch
from torchssvm.core.head_call import apply_features
from torchssvm.core.potentials import Potentials
from torchssvm.dual.labelings import StoredLabelings
from torchssvm.dual.mean_parts import StoredParts
from torchssvm.dual.state import DualState
from torchssvm.lightning.loaders import share_of
from torchssvm.lightning.predicting import Predicting
from torchssvm.lightning.refusals import check_start
from torchssvm.solvers.feature_losses import StructuredHinge


def envelope(dual: DualState, potentials: Potentials, batch: Batch) -> Tensor:
    """The batch's share of ``(1/n) sum_i [mean loss_i + <mu_i - p(y_i), theta_i>]``, with the dual's mean parts mu_i.

    The optimum of the head's problem depends on the features through theta alone. At an optimal w and alpha its
    gradient in the features is that of this sum with w and mu_i held fixed (Danskin's theorem), and the sum is the mean
    hinge. Nothing is decoded. Where the head is nearly solved, value and gradient are nearly right.

    It holds for the features that the head was solved on only. With blocks that stay as they are while the features
    move, the dual bounds nothing that is worth descending: it falls without end as the features grow. So take one step
    of the features, with the gradient of all examples, and solve the head again.

    The storage keeps mean parts or labelings, and the head's weights should require no gradient. Returns a scalar.
    """
    target = dual.structure.check_target(batch.y, potentials)
    stored: Any = dual.storage.gather(batch.index, potentials.detach(), target)
    assert isinstance(stored, StoredParts | StoredLabelings)
    value = dual.loss[batch.index].sum()
    for name, tensor in potentials.tensors.items():
        value = value - (stored.psi[name] * tensor).sum() / dual.num_examples
    return value.to(potentials.dtype)


_KEY = "torchssvm_gradients"

_SOLVING = 10  # fewest epochs of the head that solve it well enough for the envelope gradient


@dataclass(frozen=True)
class Alternate:
    """``head`` epochs of BCFW on the head, then ``features`` epochs of the features' optimizer, repeated.

    The head comes first: while its weights are zero, the hinge has no gradient for the features.

    With ``envelope=True`` the features follow the gradient of the head's optimum. At a solved head, that is the
    gradient of ``(1/n) sum_i <mu_i - p(y_i), theta_i>`` with the dual's mean parts mu_i (Danskin's theorem), without
    decoding. It holds for the features that the head was solved on alone, so an epoch of the features is one step of
    their optimizer, with the gradient of all examples and the features in evaluation mode; then the head is solved
    again, by the compiled loop where it applies. A fit has to end with the head. This lowers the certified optimum of
    the training set; it need not be what predicts best: see :class:`JointTraining`.

    Args:
        features: Epochs of each round that train the features; 1 with ``envelope``.
        head: Epochs of each round that train the head; at least 10 with ``envelope``.
        envelope: Whether the features follow the gradient of the optimum, not that of the structured hinge.

    Raises:
        ValueError: A number is not a positive whole number, or does not fit ``envelope``.

    Example:
        >>> network, head = torch.nn.Linear(4, 8), LinearMulticlass(8, 3)
        >>> alternate = Alternate(features=1, head=2)
        >>> model = StructuredSVM(head, lam=0.1, features=network, features_optimizer=torch.optim.Adam, joint=alternate)
        >>> trainer = L.Trainer(max_epochs=5, **quiet)
        >>> trainer.fit(model, loader)
        >>> trainer.current_epoch
        5
    """

    features: int = 1
    head: int = 4
    envelope: bool = False

    def __post_init__(self) -> None:
        for name in ("features", "head"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be a positive number of epochs")
        check_flags(envelope=self.envelope)
        if self.envelope and self.features != 1:
            raise ValueError(f"features={self.features} must be 1 with envelope=True, which needs a solved head")
        if self.envelope and self.head < _SOLVING:
            raise ValueError(f"head={self.head} must be at least {_SOLVING} with envelope=True, to be solved")

    def trains_features(self, epoch: int) -> bool:
        """Whether epoch number ``epoch``, counted from 0, trains the features."""
        return epoch % (self.head + self.features) >= self.head

    def check_end(self, max_epochs: int | None) -> None:
        """Raise ValueError if a fit of so many epochs does not end with a solved head; None or -1 is no limit."""
        if not self.envelope or max_epochs is None or max_epochs < 0:
            return
        rounds, left = divmod(max_epochs, self.head + self.features)
        if left != self.head:
            fits = max(rounds, left > self.head) * (self.head + self.features) + self.head
            raise ValueError(
                f"Trainer(max_epochs={max_epochs}) does not end with a solved head, as {self} does at {fits}"
            )


class HeadAlone:
    """A fit on fixed features: the head always holds the weights of the dual. Others override what they do more."""

    choice: Any = None

    @property
    def solves(self) -> bool:
        """Whether the head holds the weights of the dual."""
        return True

    def start(self, module: Predicting, *, resumed: bool) -> None:
        """Begin a fit, or go on with one from a checkpoint that was loaded."""

    def starting_head(self, module: Predicting, *, resumed: bool) -> AbstractContextManager[None]:
        """Inside, BCFW is made, which sets the head to the weights of a new dual."""
        return module.overwriting(resumed=resumed)

    def make_optimizers(self, module: Predicting) -> list[Optimizer]:
        """The optimizers beside BCFW."""
        return []

    def step(self, module: Predicting, batch: Batch, batch_idx: int) -> None:
        """A step on the features."""

    def begin_solving(self, module: Predicting) -> None:
        """Called when epochs on the head begin."""

    def choose(self, module: Predicting) -> None:
        """Choose the head that the model keeps, at the end of a fit."""

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Add what later steps depend on."""

    def load(self, checkpoint: dict[str, Any], module: Predicting) -> None:
        """Read it again."""


class AlternatingRun(HeadAlone):
    """The state of a fit with :class:`Alternate`."""

    joint: Alternate  # of this fit

    def __init__(self) -> None:
        self._gradients: dict[str, Tensor] = {}  # of an epoch that ends with one step of the features

    def start(self, module: Predicting, *, resumed: bool) -> None:
        """Begin a fit; ValueError if it ends before the head is solved again, or starts at absurd weights."""
        trainer, features = cast(Any, module.trainer), cast(nn.Module, module.features)
        self.joint = module.joint
        self.joint.check_end(None if trainer.fast_dev_run else trainer.max_epochs)
        check_start(features)

    def make_optimizers(self, module: Predicting) -> list[Optimizer]:
        """The optimizer of the features."""
        assert module.features_optimizer is not None
        return [module.features_optimizer(cast(nn.Module, module.features).parameters())]

    def step(self, module: Predicting, batch: Batch, batch_idx: int) -> None:
        """Descend the hinge, or add up the envelope gradient, which ends in one step after the epoch's last batch."""
        optimizer, whole = module.optimizer_of(bcfw=False), self.joint.envelope
        held = [(p, p.requires_grad) for p in module.head.parameters()]
        optimizer.zero_grad()
        try:
            for parameter, _ in held:
                parameter.requires_grad_(False)
            extracted = apply_features(cast(nn.Module, module.features), batch.x, batch.lengths)
            potentials = module.potentials_of(extracted, batch.lengths)
            if whole:
                value = envelope(module.dual, potentials, batch)
                hinge = value * module.dual.num_examples / len(batch.index)
            else:
                value = hinge = StructuredHinge(module.structure)(potentials, batch.y)
            module.manual_backward(value if whole else share_of(len(batch.index)) * value)
        finally:
            for parameter, required in held:
                parameter.requires_grad_(required)
        if not whole or self._add_up(module, batch_idx):
            module.features_have_moved()
            optimizer.step()
        module.log("hinge", hinge.detach(), prog_bar=True, batch_size=len(batch.index))

    def _add_up(self, module: Predicting, batch_idx: int) -> bool:
        """Add the gradients of the features to those of earlier batches; whether this was the epoch's last batch."""
        named = dict(cast(nn.Module, module.features).named_parameters())
        before = self._gradients if batch_idx else {}
        self._gradients = {n: p.grad + before.get(n, 0.0) for n, p in named.items() if p.grad is not None}
        if batch_idx + 1 < module.trainer.num_training_batches:
            return False
        for name, total in self._gradients.items():
            named[name].grad = total
        self._gradients = {}
        return True

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Add the gradients of an epoch under way."""
        if self._gradients:
            checkpoint[_KEY] = self._gradients

    def load(self, checkpoint: dict[str, Any], module: Predicting) -> None:
        """Read them again."""
        self._gradients = {name: g.to(module.device) for name, g in checkpoint.get(_KEY, {}).items()}
