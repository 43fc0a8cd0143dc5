"""Predictions as a text file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import lightning as L
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor


class WritePredictions(BasePredictionWriter):
    """Writes a line of JSON for every example of ``Trainer.predict``: ``{"index": 7, "labeling": [14, 12, 12]}``.

    Of labelings with an attribute ``labels``, such as those of graph cuts, only the labels are written.

    Args:
        path: The file; its folder is made, and an existing file is replaced. Of several processes, each writes the
            examples that it predicts, and the number of the process is put before the suffix: ``predictions.1.jsonl``.

    Example:
        >>> from pathlib import Path
        >>> trainer = L.Trainer(callbacks=[WritePredictions("predictions.jsonl")], **quiet)
        >>> predictions = trainer.predict(StructuredSVM(LinearMulticlass(4, 3), lam=0.1), loader)
        >>> Path("predictions.jsonl").read_text().splitlines()[0]
        '{"index": 0, "labeling": 0}'
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(write_interval="batch")
        self.path = Path(path)
        self._file: TextIO | None = None

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        path = self.path
        if trainer.world_size > 1:
            path = path.with_name(f"{path.stem}.{trainer.global_rank}{path.suffix}")
        self._file = path.open("w", encoding="utf-8")

    def write_on_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write the examples of a batch."""
        assert self._file is not None
        for row, index in enumerate(batch.index.tolist()):
            length = None if batch.lengths is None else int(batch.lengths[row])
            print(json.dumps({"index": index, "labeling": _row(prediction, row, length)}), file=self._file)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _row(labeling: Any, row: int, length: int | None) -> Any:
    """One example's output as lists and numbers, without padding."""
    labeling = getattr(labeling, "labels", labeling)
    if isinstance(labeling, Tensor):
        found = labeling[row]
        return (found[:length] if found.ndim else found).tolist()
    if isinstance(labeling, dict):
        return {name: _row(part, row, length) for name, part in labeling.items()}
    return [_row(part, row, length) for part in labeling]
