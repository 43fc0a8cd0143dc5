"""The output of a frozen network, computed once and presented as a dataset."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from torchssvm.core.arguments import check_length_form, check_whole
from torchssvm.core.batch import OUTPUT_SIZES, numbered, to_device
from torchssvm.core.modules import apply_features, check_padded_ids, evaluating

from .padded import PADDING, PaddedDataset, padded


class PrecomputedFeatures(PaddedDataset):
    """A dataset whose ``x`` was replaced by ``features(x)``, computed once; all else is unchanged.

    The module is called with a batch's padded ``x``, in evaluation mode and without gradients, on the device
    of its parameters; afterwards each submodule has its former mode. If its ``forward`` has a parameter called
    ``lengths``, as a packed LSTM does, it is called as ``features(x, lengths=lengths)`` where batches have
    lengths, and with ``attention_mask=`` where it has that, as an ``AutoModel`` of transformers, of which
    ``last_hidden_state`` is taken. Features at padded positions are set to zero. Each example is padded to the longest
    of its batch; a module that depends on padding, such as a convolution along the sequence, must handle this itself.
    Where ``x`` are ids, it is looked at whether the first padded example has the features that it has alone.

    Args:
        dataset: any map-style dataset with a ``collate`` that makes a :class:`torchssvm.core.batch.Batch`.
        features: maps [B, N, ...] to [B, N, D], or [B, ...] to [B, D] where batches have no lengths; and takes
            ``lengths``, [B] int64, if its ``forward`` has a parameter of this name.
        batch_size: examples in a call of ``features``.
        device: where the features are stored; default: on the CPU. Targets, lengths and numbers are on the CPU, where a
            training step checks them without waiting for a device.

    Raises:
        ValueError: Features have another shape than the targets; or ids, padded, have others than alone.

    Example:
        >>> words = PaddedDataset(x=torch.zeros(5, 3, 4), y=torch.zeros(5, 3, dtype=torch.long))
        >>> features = PrecomputedFeatures(words, torch.nn.Linear(4, 8))
        >>> features[0].x.shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        features: nn.Module,
        batch_size: int = 256,
        device: torch.device | str | None = None,
    ):
        batch_size = check_whole(batch_size, "batch_size")
        if not isinstance(features, nn.Module):
            raise TypeError(f"features is a {type(features).__name__}, and must be a module, such as a network")
        dataset = numbered(dataset)
        collate = getattr(dataset, "collate", None)
        if collate is None:
            raise TypeError(f"dataset has no `collate`, which makes its batches: {type(dataset).__name__}")
        target = torch.device("cpu" if device is None else device)
        parameter = next(features.parameters(), None)
        xs: list[Tensor] = []
        ys: list[Tensor] = []
        indices: list[Tensor] = []
        lengths: list[Tensor] = []
        looked = False
        with evaluating(features), torch.no_grad():
            for batch in DataLoader(dataset, batch_size=batch_size, collate_fn=collate):
                if batch.lengths is not None:
                    check_length_form(batch.lengths, len(batch.index))
                inputs = batch.x, batch.lengths
                if parameter is not None:
                    inputs = to_device(inputs, parameter.device)
                out = apply_features(features, *inputs)
                leading = batch.y.shape[: 1 if batch.lengths is None else 2]
                if out.shape[: len(leading)] != leading:
                    raise ValueError(
                        f"features returned {list(out.shape)}, and its first sizes must be {list(leading)}"
                    )
                if batch.lengths is not None:
                    beyond = torch.arange(leading[1]) >= batch.lengths.cpu()[:, None]
                    out = out.masked_fill(beyond.view(*leading, *[1] * (out.dim() - 2)).to(out.device), 0)
                    looked = looked or check_padded_ids(features, inputs[0], batch.lengths)
                    lengths.append(batch.lengths.cpu())
                xs.append(out.to(target))
                ys.append(batch.y.cpu())
                indices.append(batch.index.cpu())
        if not xs:
            raise ValueError("dataset is empty")
        super().__init__(
            x=padded([row for batch in xs for row in batch], 0) if lengths else torch.cat(xs),
            y=padded([row for batch in ys for row in batch], PADDING) if lengths else torch.cat(ys),
            lengths=torch.cat(lengths) if lengths else None,
            index=torch.cat(indices),
        )
        for name in OUTPUT_SIZES:
            if isinstance(size := getattr(dataset, name, None), int):
                setattr(self, name, size)
