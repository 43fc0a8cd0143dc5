"""A fit in which epochs on the features and on the head alternate."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from torchssvm.core.batch import Batch
from torchssvm.core.features import apply_features
from torchssvm.lightning.processes import share_of
from torchssvm.lightning.refusals import check_start
from torchssvm.solvers.envelope import envelope
from torchssvm.solvers.structured_hinge import StructuredHinge

_KEY = "torchssvm_gradients"


class AlternatingRun:
    """The state of a fit with :class:`Alternate`: the head always holds the weights of the dual."""

    solves = True
    choice = None

    def __init__(self) -> None:
        self._gradients: dict[str, Tensor] = {}  # of an epoch that ends with one step of the features

    def start(self, module: Any, *, resumed: bool) -> None:
        """Begin a fit.

        Raises:
            ValueError: The trainer ends before the head is solved again, or weights to start from are not finite or
                absurd.
        """
        module.joint.check_end(None if module.trainer.fast_dev_run else module.trainer.max_epochs)
        check_start(module.features)

    def starting_head(self, module: Any, *, resumed: bool) -> AbstractContextManager[None]:
        """Inside, BCFW is made, which sets the head to the weights of a new dual."""
        return module._overwriting(resumed=resumed)

    def make_optimizer(self, module: Any) -> Optimizer:
        """The optimizer of the features."""
        return module.features_optimizer(module.features.parameters())

    def step(self, module: Any, batch: Batch, batch_idx: int) -> None:
        """Descend the hinge, or add up the envelope gradient, which ends in one step after the epoch's last batch."""
        optimizer, whole = module._optimizer(bcfw=False), module.joint.envelope
        held = [(p, p.requires_grad) for p in module.head.parameters()]
        optimizer.zero_grad()
        try:
            for parameter, _ in held:
                parameter.requires_grad_(False)
            extracted = apply_features(module.features, batch.x, batch.lengths)
            potentials = module._apply_head(extracted, batch.lengths)
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
            module._run.features_moved = True
            module._run.loop = None  # it holds the features as they were
            optimizer.step()
        module.log("hinge", hinge.detach(), prog_bar=True, batch_size=len(batch.index))

    def _add_up(self, module: Any, batch_idx: int) -> bool:
        """Add the gradients of the features to those of earlier batches; whether this was the epoch's last batch."""
        named = dict(module.features.named_parameters())
        before = self._gradients if batch_idx else {}
        self._gradients = {n: p.grad + before.get(n, 0.0) for n, p in named.items() if p.grad is not None}
        if batch_idx + 1 < module.trainer.num_training_batches:
            return False
        for name, total in self._gradients.items():
            named[name].grad = total
        self._gradients = {}
        return True

    def begin_solving(self, module: Any) -> None:
        """Do nothing: the head holds the weights of the dual."""

    def choose(self, module: Any) -> None:
        """Do nothing: there is one head."""

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Add the gradients of an epoch under way."""
        if self._gradients:
            checkpoint[_KEY] = self._gradients

    def load(self, checkpoint: dict[str, Any], module: Any) -> None:
        """Read them again."""
        self._gradients = {name: g.to(module.device) for name, g in checkpoint.get(_KEY, {}).items()}
