"""The recipe of joint training: one optimizer on network and head first, then the head alone to a certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchssvm.core.arguments import check_number, check_whole
from torchssvm.core.structure import Structure
from torchssvm.solvers.softmax_margin import SoftmaxMargin, has_marginals
from torchssvm.solvers.structured_hinge import StructuredHinge


@dataclass(frozen=True)
class JointTraining:
    """Two stages of one fit: network and head together, then the head alone on the frozen network.

    In the first ``epochs`` epochs one optimizer descends ``loss + lam/2 |w|^2`` in the features and the head's weights
    w, with a learning rate that falls linearly to 0; every epoch visits every example once. It starts from the weights
    that head and features have: pretrain the features. All later epochs, to the end of the fit, solve the head by BCFW
    on the features as they are then; ``DualityGap`` certifies in these only.

    At the end of the fit, the head of the first stage and the solved one are validated on the same features by the mean
    task loss over the trainer's validation data; the better one stays in the model, the solved one where they are
    equal. ``model.choice`` says which, and both losses. The certificate is that of the solved head. Without validation
    data the solved head stays, and ``model.choice`` is None.

    Args:
        epochs: Epochs of the first stage; the trainer's ``max_epochs`` must be larger.
        lr: Learning rate of its first step.
        head_lr: That of the head; None is ``lr``. A head that begins at zero needs a larger one than a pretrained
            network: ten times ``lr`` is a good start.
        loss: Makes the loss of the first stage from the structure: ``SoftmaxMargin``, ``StructuredHinge``, or a
            function that returns a module ``(potentials, target) -> scalar``. None is ``SoftmaxMargin`` with
            temperature 1 where the structure has marginals, else ``StructuredHinge``.
        optimizer: ``(parameters, lr=...) -> torch.optim.Optimizer``, such as ``functools.partial(torch.optim.AdamW,
            weight_decay=0.01)``; weight decay is for the features alone. None is ``torch.optim.Adam``.

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

    def __post_init__(self) -> None:
        check_whole(self.epochs, "epochs")
        check_number(self.lr, "lr", above=0.0)
        if self.head_lr is not None:
            check_number(self.head_lr, "head_lr", above=0.0)
        for name, expected in (("loss", "SoftmaxMargin or StructuredHinge"), ("optimizer", "torch.optim.Adam")):
            given = getattr(self, name)
            if given is not None and (isinstance(given, nn.Module | Optimizer) or not callable(given)):
                raise TypeError(f"{name}={given!r} must be a function that makes one, such as {expected}")

    def trains_features(self, epoch: int) -> bool:
        """Whether epoch number ``epoch``, counted from 0, trains the features."""
        return epoch < self.epochs

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
