"""Decoding, validation and test with features, a head and a structure."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.batch import Batch, apply_head, as_batch, to_device
from torchssvm.core.caller import warn
from torchssvm.core.features import apply_features
from torchssvm.core.potentials import Potentials, as_potentials
from torchssvm.core.precision import full_precision
from torchssvm.core.structure import Labeling, Structure, as_decoding
from torchssvm.lightning.loading import Loading
from torchssvm.lightning.resume import Resumable
from torchssvm.solvers.evaluation import count_errors
from torchssvm.solvers.training import device_of


class Predicting(Loading, Resumable):
    """Decodes, validates and tests; features that are not trained are in evaluation mode, without gradients.

    A subclass sets ``head``, ``features``, ``structure`` and ``lam``, and trains the head.
    """

    head: nn.Module
    features: nn.Module | None
    structure: Structure
    lam: float

    def forward(self, x: Any, lengths: Tensor | None = None) -> Potentials:
        """Input -> potentials, differentiable in the head's weights only, not in the features.

        Args:
            x: Input of the features, or of the head.
            lengths: ``[B]`` int64, where examples differ in length.
        """
        return self.potentials_of(self.extract(x, lengths), lengths)

    @torch.no_grad()
    def decode(self, x: Any, lengths: Tensor | None = None) -> Labeling:
        """The highest-scoring output of every example.

        Args:
            x: Input of the features, or of the head.
            lengths: ``[B]`` int64, where examples differ in length.
        """
        return self.structure.decode(self(x, lengths))

    def train(self, mode: bool = True) -> Predicting:
        """Set the mode; features that are not trained stay in evaluation mode."""
        super().train(mode)
        if not self._run.trains_features:
            self._rest()
        return self

    @contextmanager
    def overwriting(self, *, resumed: bool) -> Iterator[None]:
        """Make an optimizer inside; its warning that it overwrites the head's weights is replaced by one for a fit.

        Args:
            resumed: Whether the weights of a checkpoint are loaded next; then nothing is lost, and no warning is given.
        """
        before = [p.detach().clone() for p in self.head.parameters()]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the head's weights were not zero")
            yield
        kept = all(torch.equal(p, held.to(p)) for p, held in zip(self.head.parameters(), before, strict=True))
        if not (resumed or kept):
            warn(
                "the head's weights were not zero, and a fit starts anew: they are now those of a new dual. To go on "
                "with an earlier fit, save a checkpoint and give it to trainer.fit(..., ckpt_path=...)",
            )

    def _rest(self) -> None:
        if self.features is not None:
            self.features.eval()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log task loss and errors of plain decoding."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log task loss and errors of plain decoding."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Labeling:
        """The highest-scoring outputs of the batch."""
        batch = as_batch(batch)
        return self.decode(batch.x, batch.lengths)

    def _evaluate(self, batch: Batch, stage: str) -> None:
        batch = as_batch(batch)
        potentials = apply_head(self, batch)
        for name, mean in errors(self.structure, potentials, to_device(batch.y, potentials.device)).items():
            self.log(f"{stage}_{name}", mean.value, prog_bar=name == "loss", batch_size=mean.weight, sync_dist=True)

    def extract(self, x: Any, lengths: Tensor | None = None) -> Any:
        """The head's input: the features of ``x``, without gradients, in evaluation mode unless they are trained.

        Args:
            x: Input of the features, or of the head.
            lengths: ``[B]`` int64; features whose ``forward`` has a parameter ``lengths`` get them too.
        """
        if self.features is None:
            return x
        if self.features.training and not self._run.trains_features:
            self.features.eval()
        x, lengths = to_device((x, lengths), self.device)
        with torch.no_grad():
            return apply_features(self.features, x, lengths)

    def potentials_of(self, extracted: Any, lengths: Tensor | None) -> Potentials:
        """The head's potentials, in full precision."""
        device = device_of(self.head)  # the CPU while the compiled loop trains the head of a module that is elsewhere
        extracted, lengths = to_device((extracted, lengths), device)
        with full_precision(device):
            return as_potentials(self.head(extracted) if lengths is None else self.head(extracted, lengths))


class Mean(NamedTuple):
    """A mean over a batch, and the number of values in it."""

    value: Tensor
    weight: int


@torch.no_grad()
def errors(structure: Structure, potentials: Potentials, target: Any) -> dict[str, Mean]:
    """The mean task loss of decoding; for labelings of one integer a position also the shares of wrong tokens and
    of examples with a wrong token.
    """
    target = structure.check_target(target, potentials)
    labeling = as_decoding(structure.argmax(potentials)).labeling
    size = potentials.batch_size
    found = {"loss": Mean(structure.task_loss(labeling, target).mean(dtype=torch.float64).float(), size)}
    counts = count_errors(labeling, target)
    if counts is not None:
        wrong, tokens = counts
        total = max(int(tokens.sum()), 1)
        found["token_error"] = Mean(wrong.sum() / total, total)
        found["example_error"] = Mean((wrong > 0).float().mean(), size)
    return found
