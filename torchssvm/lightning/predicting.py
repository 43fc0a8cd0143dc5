"""Decoding, validation and test with features, a head and a structure."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import warn
from torchssvm.core.batch import Batch, as_batch, device_of, to_device
from torchssvm.core.gradients import apply_features
from torchssvm.core.potentials import Potentials, as_potentials
from torchssvm.core.precision import full_precision
from torchssvm.core.structure import Labeling, Structure
from torchssvm.lightning.loading import Loading
from torchssvm.lightning.resume import Resumable
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.evaluation import evaluate


class Predicting(Loading, Resumable):
    """Decodes, validates and tests; features that are not trained are in evaluation mode, without gradients.

    A subclass sets ``head``, ``features``, ``structure`` and ``lam``, and trains the head.
    """

    head: nn.Module
    features: nn.Module | None
    structure: Structure
    lam: float
    joint: Any

    def forward(self, x: Any, lengths: Tensor | None = None) -> Potentials:
        """Input of the features, or of the head -> potentials, differentiable in the head's weights only.

        ``lengths`` are ``[B]`` int64, where examples differ in length.
        """
        return self.potentials_of(self.extract(x, lengths), lengths)

    @torch.no_grad()
    def decode(self, x: Any, lengths: Tensor | None = None) -> Labeling:
        """The highest-scoring output of every example; arguments as of :meth:`forward`."""
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

        There is none for a ``resumed`` fit, for which the weights of a checkpoint are loaded next: nothing is lost.
        """
        before = [p.detach().clone() for p in self.head.parameters()]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the head's weights were not zero")
            yield
        kept = all(torch.equal(p, held.to(p)) for p, held in zip(self.head.parameters(), before, strict=True))
        if not (resumed or kept):
            warn(
                "the head's weights were not zero, and a fit starts anew: they are now those of a new dual. To go on "
                "with an earlier fit, save a checkpoint and give it to trainer.fit(..., ckpt_path=...)"
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
        found = evaluate(self, self.structure, [batch])
        examples, tokens = found.num_examples, max(found.num_tokens or 0, 1)
        weights = {"loss": examples, "token_error": tokens, "example_error": examples}
        for name, weight in weights.items():
            if (value := getattr(found, name)) is not None:
                self.log(f"{stage}_{name}", value, prog_bar=name == "loss", batch_size=weight, sync_dist=True)

    def optimizer_of(self, *, bcfw: bool) -> Any:
        """Lightning's optimizer of the head's dual, or the other one."""
        found = self.optimizers()
        return next(o for o in (found if isinstance(found, list) else [found]) if isinstance(o, BCFW) == bcfw)

    def extract(self, x: Any, lengths: Tensor | None = None) -> Any:
        """The head's input: the features of ``x``, without gradients, in evaluation mode unless they are trained.

        Features whose ``forward`` has a parameter ``lengths`` get them too.
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
