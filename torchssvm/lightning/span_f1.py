"""The F1 of spans in validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from torchssvm.core.batch import as_batch
from torchssvm.core.ranks import Ranks
from torchssvm.datasets.text.chunk_f1 import Score, chunk_scores
from torchssvm.datasets.text.tag_schemes import to_bio


class SpanF1(Callback):
    """Logs ``val_f1``, the F1 of whole spans, beside the task loss that the module logs; it decodes once more for it.

    A span counts if type, first and last word are right, as in conlleval. ``EarlyStopping("val_f1", mode="max")`` and
    ``ModelCheckpoint`` may follow it. All of several processes log the F1 of all sentences; where their number cannot
    be divided, Lightning's sampler gives some sentences twice, here as in the task loss.

    Args:
        labels: The tag of every state or label, as ``["O", "B-LOC", "I-LOC"]``; BIOES tags too.

    Raises:
        ValueError: A tag is none of a scheme; or, when validation begins, the model has another number of states.

    Example:
        >>> chain = LinearChain(in_features=4, num_states=3)
        >>> f1 = SpanF1(["O", "B-X", "I-X"])
        >>> tagged = PaddedDataset(tokens, torch.zeros(len(tokens), tokens.shape[1], dtype=torch.int64))
        >>> batches = torch.utils.data.DataLoader(tagged, batch_size=10, collate_fn=tagged.collate)
        >>> trainer = L.Trainer(callbacks=[f1], **quiet)
        >>> figures = trainer.validate(StructuredSVM(chain, lam=0.1), batches, verbose=False)
        >>> figures[0]["val_f1"]
        0.0
    """

    def __init__(self, labels: Sequence[str]) -> None:
        to_bio(labels)  # here, where all processes raise an error
        self.labels = list(labels)
        self._true: list[list[str]] = []
        self._predicted: list[list[str]] = []

    @override
    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        states = getattr(pl_module.structure, "num_labels", len(self.labels))  # of segments
        states = getattr(pl_module.structure, "num_states", states)
        if states != len(self.labels):
            raise ValueError(f"labels={self.labels} has {len(self.labels)} tags, and the model {states} states")
        self._true, self._predicted = [], []

    @override
    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        batch = as_batch(batch)
        outputs = (
            pl_module.structure.by_position(output) for output in (pl_module.decode(batch.x, batch.lengths), batch.y)
        )
        tags, target = (getattr(output, "labels", output).cpu() for output in outputs)
        real = torch.ones_like(target, dtype=torch.bool)
        if batch.lengths is not None:
            real = torch.arange(target.shape[1]) < batch.lengths.cpu().unsqueeze(1)
        for predicted, true, kept in zip(tags, target, real, strict=True):
            self._predicted.append(self._bio(predicted[kept]))
            self._true.append(self._bio(true[kept]))

    @override
    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        score = chunk_scores(self._true, self._predicted).overall
        if ranks := Ranks.here():
            table = torch.tensor([score.correct, score.predicted, score.true], dtype=torch.float64)
            score = Score(*(int(count) for count in ranks.gather(table).sum(0).tolist()))
        pl_module.log("val_f1", score.f1, prog_bar=True, sync_dist=True)  # the same in all: it satisfies Lightning

    def _bio(self, states: torch.Tensor) -> list[str]:
        return to_bio([self.labels[state] for state in states.tolist()])
