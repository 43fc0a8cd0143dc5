"""Decoding, validation and test with features, a head and a structure."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import lightning as L
import torch
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.callbacks import BasePredictionWriter, Callback
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.batch import Batch, as_batch, device_of, to_device
from torchssvm.core.decoding import Labeling
from torchssvm.core.modules import apply_features, check_padded_ids
from torchssvm.core.potentials import Potentials, as_potentials
from torchssvm.core.precision import full_precision
from torchssvm.core.structure import Structure
from torchssvm.deployment.files import describe, rebuild
from torchssvm.lightning.refusals import check_trainer
from torchssvm.lightning.resume import Resumable
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.evaluation import evaluate
from torchssvm.solvers.solver import Solver

_KEY = "torchssvm_model"
_FORMAT = 2


def _entry(thing: Any) -> dict[str, Any]:
    return {"class": type(thing).__name__, "recipe": describe(thing)}


def _read(path: Any, weights_only: bool) -> dict[str, Any]:
    """The checkpoint; a file is memory-mapped, so that only the entries in use are read."""
    options: dict[str, Any] = {"map_location": "cpu", "weights_only": weights_only}
    if isinstance(path, str | Path):
        if Path(path).is_file():
            return torch.load(path, mmap=True, **options)
        with get_filesystem(path).open(str(path), "rb") as file:
            return torch.load(file, **options)
    start = path.tell()
    checkpoint = torch.load(path, **options)
    path.seek(start)
    return checkpoint


def _parts(cls: type, saved: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Head and structure, unless given; features cannot be rebuilt, and must be given where the model had some."""
    call = f"{cls.__name__}.load_from_checkpoint(path"
    made: dict[str, Any] = {}
    if saved and saved.get("format") != _FORMAT:
        raise ValueError(
            f"the checkpoint's model has format {saved.get('format', 1)}, and this version reads {_FORMAT}"
        )
    for name in ("head", "features", "structure"):
        entry = saved.get(name) or ({"class": "module"} if name == "head" else None)
        if entry is None or name in given:
            continue
        if entry.get("recipe") is None:
            kind = entry["class"]
            raise ValueError(f"the checkpoint cannot rebuild its {name}, a {kind}: pass it, {call}, {name}=...)")
        made[name] = rebuild(entry["recipe"])
    return made


class Predicting(Resumable):
    """Decodes, validates and tests; features that are not trained are in evaluation mode, without gradients.

    Checkpoints describe head, features and structure, which are made again where this is possible. A subclass sets
    ``head``, ``features``, ``structure`` and ``lam``, has arguments of the first three names, and trains the head.
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

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        of_head = getattr(self.head, "structure", None)
        checkpoint[_KEY] = {
            "format": _FORMAT,
            "head": _entry(self.head),
            "features": None if self.features is None else {"class": type(self.features).__name__},
            "structure": None if self.structure is of_head else _entry(self.structure),
        }

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = True,
        **arguments: Any,
    ) -> Any:
        """The model of a checkpoint, for predictions; ``trainer.fit(..., ckpt_path=...)`` continues its training.

        A head of this package is rebuilt from the checkpoint. Pass ``head=`` for any other head, ``features=`` if the
        model had features, and ``structure=`` if it was yours; the checkpoint's weights are loaded into them.
        Subclasses with an ``__init__`` are made as Lightning makes them, from ``hparams``.

        Args:
            map_location: As in Lightning; so are the next two.
            hparams_file: Hyperparameters that replace the checkpoint's.
            strict: Whether the names of the weights must match.
            weights_only: Whether to read only tensors and plain values; None is True.
            arguments: Arguments of the class that replace the checkpoint's.

        Raises:
            ValueError: The checkpoint cannot rebuild head, features or structure and they are not passed, is of
                another version, or names import paths of classes to make.
            RuntimeError: The weights do not fit the model.
        """
        weights_only = True if weights_only is None else weights_only
        owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
        if owner.__module__.startswith("torchssvm.lightning."):
            checkpoint = _read(checkpoint_path, weights_only)
            hyperparameters = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_KEY, {})
            if "_instantiator" in hyperparameters:
                raise ValueError(
                    "the checkpoint's hyperparameters name import paths (_instantiator): make the model, and give the "
                    "file to trainer.predict(..., ckpt_path=...)"
                )
            saved = copy.deepcopy(checkpoint.get(_KEY, {}))  # its tensors are mapped from the file, which may change
            kept = copy.deepcopy(hyperparameters.get("solver"))
            solver = {"solver": Solver(**kept)} if kept else {}
            arguments = {**_parts(cls, saved, arguments), **solver, **arguments}
        return super().load_from_checkpoint(
            checkpoint_path,
            map_location=map_location,
            hparams_file=hparams_file,
            strict=strict,
            weights_only=weights_only,
            **arguments,
        )

    @override
    def configure_callbacks(self) -> list[Callback]:
        check_trainer(self.trainer)
        return []

    def zero_head(self) -> None:
        """Zero the head for a new optimizer, which begins at zero weights."""
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def _rest(self) -> None:
        if self.features is not None and self.features.training:  # eval() visits every submodule
            self.features.eval()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log task loss and errors of plain decoding."""
        self._evaluate(batch, "val")

    @override
    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, "test")

    @override
    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Labeling:
        batch = as_batch(batch)
        return self.decode(batch.x, batch.lengths)

    def _evaluate(self, batch: Batch, stage: str) -> None:
        evaluation = evaluate(self, self.structure, [batch])
        examples, tokens = evaluation.num_examples, max(evaluation.num_tokens or 0, 1)
        weights = {"loss": examples, "token_error": tokens, "example_error": examples}
        for name, weight in weights.items():
            if (value := getattr(evaluation, name)) is not None:
                self.log(f"{stage}_{name}", value, prog_bar=name == "loss", batch_size=weight, sync_dist=True)

    def optimizer_of(self, *, bcfw: bool) -> Any:
        """Lightning's optimizer of the head's dual, or the other one."""
        given = self.optimizers()
        return next(o for o in (given if isinstance(given, list) else [given]) if isinstance(o, BCFW) == bcfw)

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

    def look_at_padding(self, batch: Batch) -> None:
        """Raise ValueError, once a fit, if padding changes the features of ids."""
        if self.features is not None and not self._run.looked:
            self._run.looked = check_padded_ids(self.features, batch.x, batch.lengths)

    def extracted(self, loader: Iterable[Any]) -> Iterator[Batch]:
        """The batches of a loader with features in the place of ``x``, in the trainer's precision."""
        precision = self.trainer.precision_plugin
        for batch in loader:
            batch = precision.convert_input(as_batch(batch))
            with precision.forward_context():
                self.look_at_padding(batch)
                x = self.extract(batch.x, batch.lengths)
            yield batch.replace(x=x)

    def potentials_of(self, extracted: Any, lengths: Tensor | None) -> Potentials:
        """The head's potentials, in full precision."""
        device = device_of(self.head)  # the CPU while the compiled loop trains the head of a module that is elsewhere
        extracted, lengths = to_device((extracted, lengths), device)
        with full_precision(device):
            return as_potentials(self.head(extracted) if lengths is None else self.head(extracted, lengths))


class WritePredictions(BasePredictionWriter):
    """Writes a line of JSON for every example of ``Trainer.predict``: ``{"index": 7, "labeling": [14, 12, 12]}``.

    Of labelings with an attribute ``labels``, as graph cuts have, only the labels are written.

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

    @override
    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        path = self.path
        if trainer.world_size > 1:
            path = path.with_name(f"{path.stem}.{trainer.global_rank}{path.suffix}")
        self._file = path.open("w", encoding="utf-8")

    @override
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
        assert self._file is not None
        for row, index in enumerate(batch.index.tolist()):
            length = None if batch.lengths is None else int(batch.lengths[row])
            print(json.dumps({"index": index, "labeling": _row(prediction, row, length)}), file=self._file)

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _row(labeling: Any, row: int, length: int | None) -> Any:
    """One example's output as lists and numbers, without padding."""
    labeling = getattr(labeling, "labels", labeling)
    if isinstance(labeling, Tensor):
        output = labeling[row]
        return (output[:length] if output.ndim else output).tolist()
    if isinstance(labeling, dict):
        return {name: _row(part, row, length) for name, part in labeling.items()}
    return [_row(part, row, length) for part in labeling]
