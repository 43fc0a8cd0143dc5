"""The default storage: the mean parts of every block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchssvm.core.gradients import adjoint
from torchssvm.core.on_host import on_host, pick
from torchssvm.core.potentials import Parts, Potentials, inner, scale
from torchssvm.core.row_sparse import doubled
from torchssvm.core.schema import Each, New, Same, Schema
from torchssvm.core.structure import Labeling, OracleResult, check_padding
from torchssvm.dual.rows import RowBuffer
from torchssvm.dual.storage import Storage, Stored, other_length


class MeanParts(Storage):
    """Keeps ``psi_i = p(y_i) - mu_i`` in the shape of the potentials.

    The size is that of the potentials and does not depend on the number of weights: T K + K^2 numbers for a chain of
    length T with K states and shared transitions. Blocks remain valid when features change.

    Example:
        >>> solve(LinearChain(4, 3), chains, lam=0.1, solver=Solver(storage=MeanParts())).relative_gap <= 0.01
        True
    """

    def __init__(self) -> None:
        self.buffers: dict[str, RowBuffer] = {}

    def estimate(self, potentials: Potentials, target: Labeling = None) -> int:
        """Bytes for all examples, if their mean length is that of the batch."""
        total = 0.0
        for name, tensor in potentials.tensors.items():
            rows = _rows(potentials, name)
            longest = _row_view(potentials, name).shape[1]
            share = 1.0 if rows is None or not longest else float(rows.to(torch.float64).mean()) / longest
            total += share * tensor[:1].numel() * self.parameters[0].element_size()
        return int(total * len(self.own))

    def gather(self, index: Tensor, potentials: Potentials, target: Labeling = None) -> StoredParts:
        """The blocks of a batch."""
        if not self.buffers:
            self.check_memory(
                potentials,
                target,
                "storage=Weights() takes num_examples times the number of weights, which may be less",
            )
            zeros = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in potentials.tensors.items()}
            return StoredParts(self, index, potentials, zeros, target)
        if self.buffers.keys() != potentials.tensors.keys():
            raise ValueError(f"the dual holds blocks for {sorted(self.buffers)}, and the potentials are {potentials}")
        psi = {}
        counts = {name: _rows(potentials, name) for name in self.buffers}
        for name, rows in counts.items():
            buffer, shape = self.buffers[name], potentials.tensors[name].shape
            longest, trailing = (shape[1], shape[2:]) if name in potentials.ragged else (1, shape[1:])
            held = buffer.values.shape[1:]
            if held != trailing and (potentials.lengths is None or len(held) != len(trailing)):
                example = int(on_host(index)[0]) + self.own.start
                raise ValueError(
                    f"the blocks of {name} hold {list(held)} numbers a row, and example {example} came with "
                    f"{list(trailing)}: examples of different sizes need lengths, in every batch"
                )
            found, wrong = buffer.read(index, rows, longest, trailing)
            if wrong >= 0 and rows is not None:
                example, more = int(on_host(index)[wrong]), potentials.ragged[name]  # rows than the length
                now, before = int(rows[wrong]) - more, int(buffer.rows[example]) - more
                raise other_length(example + self.own.start, now, before)
            psi[name] = found.view(shape).to(potentials.dtype)
        return StoredParts(self, index, potentials, psi, target)

    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise ValueError if an example is in two batches with different numbers of rows."""
        pairs: dict[tuple[str, int], int] = {}
        for batch in batches:
            assert isinstance(batch, StoredParts)
            for name in batch.psi:
                counts = _rows(batch.potentials, name)
                for example, count in zip(
                    on_host(batch.index).tolist(), [] if counts is None else counts.tolist(), strict=False
                ):
                    if (before := pairs.setdefault((name, example), count)) != count:
                        more = batch.potentials.ragged[name]
                        raise other_length(example + self.own.start, count - more, before - more)

    def contribution(
        self, stored: Stored, potentials: Potentials, weights: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """One backward pass of the head."""
        assert isinstance(stored, StoredParts)
        found = adjoint(potentials, stored.psi, self.parameters if weights is None else weights, sparse=True)
        return doubled(found, 1.0 / (self.lam * self.num_examples))

    def add(self, index: Tensor, potentials: Potentials, parts: Parts, factors: Tensor | None = None) -> None:
        """``psi_i += factors_i parts_i`` for distinct examples, ``factors=None`` is 1; the first call allocates."""
        if factors is None:
            factors = torch.ones(len(index), dtype=torch.float64, device=index.device)
        counts = {name: _rows(potentials, name) for name in parts}
        for name, rows in counts.items():
            values = parts[name] if name in potentials.ragged else parts[name].unsqueeze(1)
            if name not in self.buffers:
                self.buffers[name] = RowBuffer(len(self.own), values.dtype, values.device)
            self.buffers[name].add(index, rows, values, factors)

    def rescale(self, factor: float) -> None:
        """``psi_i *= factor``."""
        for buffer in self.buffers.values():
            buffer.values *= factor

    def widen(self, potentials: Potentials) -> None:
        """What is new is zero."""
        for name, buffer in self.buffers.items():
            buffer.widen(_row_view(potentials, name).shape[2:])

    def write(self, index: Tensor, potentials: Potentials, parts: Parts) -> None:
        """``psi_i = parts_i`` for distinct examples that :meth:`add` has seen."""
        for name, values in parts.items():
            self.buffers[name].write(index, values.view(_row_view(potentials, name).shape))

    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(buffer.nbytes() for buffer in self.buffers.values())

    def to(self, device: torch.device) -> None:
        """Move the blocks."""
        for buffer in self.buffers.values():
            buffer.to(device)

    def _schema(self) -> Schema:
        def rows() -> RowBuffer:
            return RowBuffer(len(self.own), self.parameters[0].dtype, self._device)

        return {"kind": Same("mean_parts"), "buffers": Each(dict, New(rows))}


class StoredParts(Stored):
    """Blocks as ``psi``, in the shapes of the potentials."""

    def __init__(
        self, storage: MeanParts, index: Tensor, potentials: Potentials, psi: Parts, target: Labeling = None
    ) -> None:
        self.psi = psi
        self._storage = storage
        self._target = target
        self.index = index
        self.potentials = potentials.detach()
        self.num_examples = storage.num_examples

    def inner(self, potentials: Potentials) -> Tensor:
        """``<psi_i, theta_i> / n``."""
        return inner(self.psi, potentials.detach().tensors) / self.num_examples

    def mean_loss(self, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        """From ``psi``."""
        return self._storage.structure.mean_loss(self.psi, self._target, potentials)

    def combine(self, change: Tensor | None, found: OracleResult) -> tuple[Parts, None]:
        """Corner and block, weighted by ``change``; if that is None, this may write into ``psi``."""
        structure, psi = self._storage.structure, self.psi
        if found.made is None and change is None:
            return structure.add_difference(psi, found.labeling, self._target, self.potentials), None
        parts = found.made
        if parts is None:
            parts = structure.difference(found.labeling, self._target, self.potentials)
        check_padding(parts, self.potentials)
        if change is not None:
            parts, psi = scale(parts, change[:, 1]), scale(psi, -change[:, 0])
        return {name: tensor + psi[name] for name, tensor in parts.items()}, None

    def move(
        self, coefficients: Tensor, rows: Tensor, change: Tensor | None, parts: Parts, gradients: list[Tensor] | None
    ) -> None:
        """``psi_i -= coefficients_i Delta_i``."""
        index, potentials = self.index, self.potentials
        if len(rows) < len(index):
            index, potentials, coefficients = pick(index, rows), potentials.select(rows), coefficients[rows]
            parts = {name: tensor[rows] for name, tensor in parts.items()}
        self._storage.add(index, potentials, parts, -coefficients)


def _row_view(potentials: Potentials, name: str) -> Tensor:
    """The tensor as ``[B, rows, *trailing]``, with one row if axis 1 is not ragged."""
    tensor = potentials.tensors[name]
    return tensor if name in potentials.ragged else tensor.unsqueeze(1)


def _rows(potentials: Potentials, name: str) -> Tensor | None:
    """Number of rows of each example, ``[B]`` int64 on the CPU; None for one each."""
    if name not in potentials.ragged or potentials.lengths is None:
        return None
    offset, lengths = potentials.ragged[name], on_host(potentials.lengths)
    return (lengths + offset).clamp(min=0) if offset else lengths
