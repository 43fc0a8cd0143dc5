"""The default storage: the mean parts of every block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.dual.rows import RowBuffer
from torchssvm.dual.storage import Found, Storage, Stored, require
from torchssvm.potentials import Parts, Potentials, adjoint, inner, scale
from torchssvm.structures.base import Labeling


class MeanParts(Storage):
    """Keeps ``psi_i = p(y_i) - mu_i`` in the shape of the potentials.

    Its size is that of the potentials, whatever the number of weights, and it keeps its meaning when the features
    change. For examples of length T with K states that share transitions: T K + K^2 numbers each.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, RowBuffer] = {}

    def estimate(self, potentials: Potentials) -> int:
        """Bytes for all examples, if their mean length is that of this batch."""
        total = 0.0
        for name, tensor in potentials.tensors.items():
            rows = _rows(potentials, name)
            longest = _row_view(potentials, name).shape[1]
            share = 1.0 if rows is None or not longest else float(rows.to(torch.float64).mean()) / longest
            total += share * tensor[:1].numel() * tensor.element_size()
        return int(total * self.num_examples)

    def gather(self, index: Tensor, potentials: Potentials, target: Labeling) -> StoredParts:
        """The blocks of a batch."""
        if not self._buffers:
            self.check_memory(
                potentials, "storage=Weights() takes num_examples times the number of weights, which may be less"
            )
            return _Fresh(self, index, potentials)
        if self._buffers.keys() != potentials.tensors.keys():
            raise ValueError(f"the dual holds blocks for {sorted(self._buffers)}, and the potentials are {potentials}")
        psi, places = {}, {}
        for name, buffer in self._buffers.items():
            view = _row_view(potentials, name)
            held = buffer.values.shape[1:]
            if held != view.shape[2:] and (potentials.lengths is None or len(held) != view.ndim - 2):
                raise ValueError(
                    f"the blocks of {name} hold {list(held)} numbers a row, and example {int(index[0])} came with "
                    f"{list(view.shape[2:])}: examples of different sizes need lengths, in every batch"
                )
            rows = _rows(potentials, name)
            if rows is not None and bool((wrong := (buffer.rows[index] != rows) & (buffer.start[index] > 0)).any()):
                example = int(index[wrong][0])
                raise ValueError(
                    f"example {example} came with {int(rows[index == example][0])} rows of {name}, and its dual block "
                    f"has {int(buffer.rows[example])}: an index must always name the same example, at the same length"
                )
            found = buffer.start[index].unsqueeze(1) if rows is None else buffer.locate(index, view.shape[1])
            psi[name] = buffer.read(found, view.shape[2:]).view(potentials[name].shape)
            if buffer.complete:
                places[name] = found
        return StoredParts(self, index, potentials, psi, places)

    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise ValueError if an example is in two batches with different numbers of rows."""
        pairs: dict[tuple[str, int], int] = {}
        for batch in batches:
            assert isinstance(batch, StoredParts)
            for name in batch.psi:
                counts = _rows(batch.potentials, name)
                for example, count in zip(
                    batch.index.tolist(), [] if counts is None else counts.tolist(), strict=False
                ):
                    if pairs.setdefault((name, example), count) != count:
                        raise ValueError(
                            f"example {example} came with {count} rows of {name} and with {pairs[name, example]} "
                            "before it: an index must always name the same example, at the same length"
                        )

    def contribution(self, stored: Stored, potentials: Potentials) -> list[Tensor]:
        """One backward pass of the head."""
        assert isinstance(stored, StoredParts)
        weight = 1.0 / (self.lam * self.num_examples)
        return [g.to(torch.float64) * weight for g in adjoint(potentials, stored.psi, self.parameters)]

    def add(self, index: Tensor, potentials: Potentials, parts: Parts, places: Parts | None = None) -> None:
        """``psi_i += parts_i`` for distinct examples; the first call allocates."""
        for name, values in parts.items():
            if name not in self._buffers:
                self._buffers[name] = RowBuffer(self.num_examples, values.dtype, values.device)
            known = places.get(name) if places else None
            view = values.view(_row_view(potentials, name).shape)
            self._buffers[name].add(index, _rows(potentials, name), view, known)

    def write(self, index: Tensor, potentials: Potentials, parts: Parts) -> None:
        """``psi_i = parts_i`` for distinct examples that were added to before."""
        for name, values in parts.items():
            self._buffers[name].write(index, values.view(_row_view(potentials, name).shape))

    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(buffer.nbytes() for buffer in self._buffers.values())

    def to(self, device: torch.device) -> None:
        """Move the blocks."""
        for buffer in self._buffers.values():
            buffer.to(device)

    def state_dict(self) -> dict[str, Any]:
        """The buffers by name."""
        return {"kind": "mean_parts", "buffers": {name: b.state_dict() for name, b in self._buffers.items()}}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ValueError if ``state`` is another storage's or damaged."""
        self._parse(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the blocks to the bit."""
        self._buffers = self._parse(state)

    def _parse(self, state: dict[str, Any]) -> dict[str, RowBuffer]:
        if require(state, "kind", str, "storage") != "mean_parts":
            raise ValueError(f"the checkpoint holds storage {state['kind']!r}, and the dual was made with MeanParts()")
        device, dtype = self.parameters[0].device, self.parameters[0].dtype
        return {
            name: RowBuffer.from_state_dict(entry, self.num_examples, dtype, device, f"storage[{name!r}]")
            for name, entry in require(state, "buffers", dict, "storage").items()
        }


class StoredParts(Stored):
    """Blocks as ``psi``, in the shapes of the potentials."""

    def __init__(
        self, storage: MeanParts, index: Tensor, potentials: Potentials, psi: Parts, places: Parts | None = None
    ) -> None:
        self.psi = psi
        self._places = places
        self._storage = storage
        self.index = index
        self.potentials = potentials.detach()

        self.num_examples = storage.num_examples

    def inner(self, potentials: Potentials) -> Tensor:
        """``<psi_i, theta_i> / n``."""
        return inner(self.psi, potentials.detach().tensors) / self.num_examples

    def combine(self, change: Tensor, found: Found) -> tuple[Parts, None]:
        """Corner and block, weighted."""
        assert found.parts is not None
        parts, psi = found.parts, self.psi
        check_padding(parts, self.potentials)
        if not bool((change[:, 1] == 1.0).all()):
            parts, psi = scale(parts, change[:, 1]), scale(psi, -change[:, 0])
        return {name: tensor + psi[name] for name, tensor in parts.items()}, None

    def move(
        self, coefficients: Tensor, rows: Tensor, change: Tensor, parts: Parts, gradients: list[Tensor] | None
    ) -> None:
        """``psi_i -= coefficients_i Delta_i``."""
        moved = scale(parts, -coefficients)
        if len(rows) == len(self.index):
            self._storage.add(self.index, self.potentials, moved, self._places)
        else:
            moved = {name: tensor[rows] for name, tensor in moved.items()}
            self._storage.add(self.index[rows], self.potentials.select(rows), moved)


class _Fresh(StoredParts):
    """Blocks of a dual that has not moved: all zero, and not allocated."""

    def __init__(self, storage: MeanParts, index: Tensor, potentials: Potentials) -> None:
        psi = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in potentials.tensors.items()}
        super().__init__(storage, index, potentials, psi)


def check_padding(parts: Parts, potentials: Potentials) -> None:
    """Raise ValueError if parts are not zero beyond an example's rows: nothing is stored there."""
    for name, tensor in parts.items():
        rows = _rows(potentials, name)
        if rows is not None and tensor.shape[1]:
            padding = torch.arange(tensor.shape[1], device=tensor.device) >= rows.unsqueeze(1)
            if bool(tensor[padding].any()):
                raise ValueError(f"parts {name!r} are not zero in the padding, beyond the examples' lengths")


def _row_view(potentials: Potentials, name: str) -> Tensor:
    """The tensor as ``[B, rows, *trailing]``: one row where axis 1 is not ragged."""
    tensor = potentials[name]
    return tensor if name in potentials.ragged else tensor.unsqueeze(1)


def _rows(potentials: Potentials, name: str) -> Tensor | None:
    """How many rows of the tensor belong to each example, ``[B]``; None for one each."""
    if name not in potentials.ragged or potentials.lengths is None:
        return None
    return (potentials.lengths + potentials.ragged[name]).clamp(min=0)
