"""Storages of dual blocks.

The weights are w = (1/(lam n)) sum_i Phi_i^T psi_i. Here psi_i = p(y_i) - mu_i is the difference of the target's parts
and the mean parts of the block's dual distribution. A storage keeps psi_i, or data that determine Phi_i^T psi_i.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import OLD_NUMBERS
from torchssvm.core.batch import tree_tensors
from torchssvm.core.gradients import adjoint
from torchssvm.core.memory import available_memory
from torchssvm.core.operators import on_host, pick
from torchssvm.core.potentials import Parts, Potentials, inner, scale
from torchssvm.core.row_sparse import doubled
from torchssvm.core.states import Stateful, check_entries
from torchssvm.core.structure import Labeling, OracleResult, Structure, check_padding
from torchssvm.dual.rows import RowBuffer


def check_memory(needed: int, device: torch.device, limit: int | None, what: str, advice: str) -> None:
    """Raise MemoryError if ``needed`` bytes exceed ``limit`` (None means the available memory of ``device``)."""
    allowed = available_memory(device) if limit is None else limit
    if needed > allowed:
        raise MemoryError(
            f"{what} takes about {needed / 2**20:,.1f} MiB of {allowed / 2**20:,.1f} MiB allowed on {device}: {advice}"
        )


class Stored(ABC):
    """The blocks of one batch; rows are those of the batch."""

    num_examples: int

    @abstractmethod
    def inner(self, potentials: Potentials) -> Tensor:
        """``<psi_i, theta_i> / n``, ``[B]`` float64."""

    def atoms(self, potentials: Potentials, losses: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mass, score, loss and validity of the blocks' atoms, ``[B, A]``; see ``Atoms``. ``losses`` are l_i."""
        mass = torch.ones(len(losses), 1, dtype=torch.float64, device=losses.device)
        n = self.num_examples
        scores, losses = (-n * self.inner(potentials)).unsqueeze(1), (n * losses).unsqueeze(1)
        return mass, scores, losses, torch.ones_like(mass, dtype=torch.bool)

    def mean_loss(self, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        """``n l_i`` computed from the blocks, as in ``Structure.mean_loss``; None if they do not determine it."""
        return None

    def lookup(self, labeling: Labeling) -> Tensor:
        """The column of the atom that equals each labeling, ``[B]`` int64; 0 where there is none."""
        return torch.zeros(len(tree_tensors(labeling)[0]), dtype=torch.int64, device=tree_tensors(labeling)[0].device)

    def cached(self, columns: Tensor) -> Labeling:
        """The labelings of the atoms ``columns``, ``[B]``, each at least 1."""
        raise NotImplementedError

    def curvature(self, corner: OracleResult, respond: Callable[[Parts], Parts]) -> Tensor:
        """Inner products of atoms and corner, ``[B, A + 1, A + 1]`` float64, without the factor 1/(lam n^2).

        The corner becomes the last column; ``respond`` maps parts to ``Phi_i Phi_i^T parts_i``.
        """
        raise NotImplementedError

    @abstractmethod
    def combine(self, change: Tensor | None, corner: OracleResult) -> tuple[Parts, list[Tensor] | None]:
        """The direction in parts space for a change of the masses. Called once, after :meth:`inner` and :meth:`atoms`.

        Args:
            change: ``[B, A + 1]`` float64; the last column is that of the corner. None moves all mass to the corner, if
                the storage keeps no labelings.

        Returns:
            Parts, still to go through the head's adjoint, and gradients to add (``[B, *parameter.shape]`` for each
            parameter, or None); both without the factor 1/n.
        """

    @abstractmethod
    def move(
        self, coefficients: Tensor, rows: Tensor, change: Tensor | None, parts: Parts, gradients: list[Tensor] | None
    ) -> None:
        """Move the batch's ``rows`` by ``coefficients_i`` times their direction; the only method that changes blocks.

        Args:
            coefficients: ``[B]`` float64.
            rows: ``[R]`` int64, rows of the batch, of distinct examples.
            change: The argument of ``combine``.
            parts: The first value of ``combine``.
            gradients: ``Phi_i^T Delta_i``, ``[B, *parameter.shape]`` for each parameter; None unless
                ``needs_gradients``.
        """


class Storage(Stateful):
    """Keeps the dual blocks of all examples of the problem that ``DualState`` binds it to."""

    state_name = "storage"

    needs_gradients = False
    """Whether steps need the gradient of every example."""

    keeps_labelings = False
    """Whether blocks are kept as labelings with mass, so that mass can move between labelings."""

    num_examples: int
    own: range
    lam: float
    structure: Structure
    parameters: list[torch.nn.Parameter]
    memory_limit: int | None

    def bind(
        self,
        num_examples: int,
        lam: float,
        structure: Structure,
        parameters: Sequence[torch.nn.Parameter],
        memory_limit: int | None,
        own: range | None = None,
    ) -> None:
        """Set the problem, of which the blocks of the examples ``own`` are kept (None is all); allocates no blocks."""
        if hasattr(self, "num_examples"):
            raise ValueError(f"storage={type(self).__name__}() already belongs to a DualState: make a new one")
        self.num_examples = num_examples
        self.own = range(num_examples) if own is None else own
        self.lam = lam
        self.structure = structure
        self.parameters = list(parameters)
        self.memory_limit = memory_limit

    def unbound(self) -> Storage:
        """A new storage of the same kind, for another dual."""
        return type(self)()

    @abstractmethod
    def estimate(self, potentials: Potentials, target: Labeling = None) -> int:
        """Bytes that the blocks of all examples will take, extrapolated from this batch; its target may be None."""

    @abstractmethod
    def gather(self, index: Tensor, potentials: Potentials, target: Labeling) -> Stored:
        """The blocks of a batch; changes nothing. ``target`` comes from ``structure.check_target``.

        Potentials carry no graph.

        Potentials may be float64 where the parameters are float32: blocks then take part in float64.

        Raises:
            ValueError: An example came with another shape than before.
        """

    @abstractmethod
    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise ValueError if one step cannot move these ``rows`` of the batches together; changes nothing."""

    def remember(self, stored: Stored, corner: OracleResult) -> Callable[[], None] | None:
        """A function that caches the corners, without mass; None if there is nothing to cache."""
        return None

    def check_features(self, stored: Stored, potentials: Potentials, weights: Sequence[Tensor] | None = None) -> None:
        """Raise RuntimeError if the features have changed and the storage needs fixed ones.

        ``weights`` are as in :meth:`contribution`.
        """
        return

    def keep_curvature(self) -> None:
        """Keep the inner products of each block's labelings; for storages that keep labelings."""
        raise ValueError(f"storage={type(self).__name__}() keeps no labelings: use storage=Labelings()")

    def forget_features(self) -> None:
        """Drop data that depend on features; called when the features have moved."""
        return

    @abstractmethod
    def contribution(
        self, stored: Stored, potentials: Potentials, weights: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """``(1/(lam n)) sum_i Phi_i^T psi_i`` of a batch, gathered for these potentials, float64, for every parameter.

        ``weights`` are the leaves of the graph, in the order of the parameters; None means the parameters.
        """

    @abstractmethod
    def rescale(self, factor: float) -> None:
        """``psi_i *= factor`` in every block; the caller then multiplies :attr:`lam` by it too, and weights stay.

        Dual variables become ``alpha_i(y) *= factor`` for ``y != y_i``; the target gets the rest.
        """

    def change_lam(self, lam: float) -> None:
        """Adapt data that depend on ``lam``, for the same psi_i; the caller then sets :attr:`lam`."""
        return

    def widen(self, potentials: Potentials) -> None:
        """Make room for rows as wide as the potentials', which new labels have widened."""
        return

    def change_number(self, share: float) -> None:
        """Adapt data that depend on n, for the same psi_i: ``share`` is the old n over the new one."""
        return

    def products(self) -> Tensor | None:
        """``lam <w, w_i>`` of every block, ``[n]`` float64; None if the blocks alone do not determine it."""
        return None

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in use."""

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move all tensors to the device."""

    @property
    def _device(self) -> torch.device:
        return self.parameters[0].device

    def check_memory(self, potentials: Potentials, target: Labeling, advice: str) -> None:
        """Raise MemoryError, naming a cheaper storage, if the estimate is over the limit."""
        needed, what = self.estimate(potentials, target), f"storage={type(self).__name__}()"
        check_memory(needed, potentials.device, self.memory_limit, what, advice)


def other_length(example: int, now: int, before: int) -> ValueError:
    """The error for an example that came with another length than before."""
    return ValueError(
        f"example {example} came with length {now}, and before with {before}: an index must always name the same "
        f"example ({OLD_NUMBERS})"
    )


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

    @override
    def gather(self, index: Tensor, potentials: Potentials, target: Labeling = None) -> StoredParts:
        if not self.buffers:
            self.check_memory(
                potentials,
                target,
                "storage=Weights() may take less",
            )
            zeros = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in potentials.tensors.items()}
            return StoredParts(self, index, potentials, zeros, target)
        if self.buffers.keys() != potentials.tensors.keys():
            raise ValueError(f"potentials={potentials} must have the names of earlier batches, {sorted(self.buffers)}")
        psi = {}
        counts = {name: _rows(potentials, name) for name in self.buffers}
        for name, rows in counts.items():
            buffer, shape = self.buffers[name], potentials.tensors[name].shape
            longest, trailing = (shape[1], shape[2:]) if name in potentials.ragged else (1, shape[1:])
            trailing_before = buffer.values.shape[1:]
            if trailing_before != trailing and (potentials.lengths is None or len(trailing_before) != len(trailing)):
                example = int(on_host(index)[0]) + self.own.start
                raise ValueError(
                    f"{name} of example {example} has rows of {list(trailing)}, not {list(trailing_before)}: examples "
                    "of different sizes need lengths"
                )
            values, wrong = buffer.read(index, rows, longest, trailing)
            if wrong >= 0 and rows is not None:
                example, more = int(on_host(index)[wrong]), potentials.ragged[name]  # rows than the length
                now, before = int(rows[wrong]) - more, int(buffer.rows[example]) - more
                raise other_length(example + self.own.start, now, before)
            psi[name] = values.view(shape).to(potentials.dtype)
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
        gradients = adjoint(potentials, stored.psi, self.parameters if weights is None else weights, sparse=True)
        return doubled(gradients, 1.0 / (self.lam * self.num_examples))

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

    @override
    def rescale(self, factor: float) -> None:
        for buffer in self.buffers.values():
            buffer.values *= factor

    @override
    def widen(self, potentials: Potentials) -> None:
        for name, buffer in self.buffers.items():
            buffer.widen(_row_view(potentials, name).shape[2:])

    def write(self, index: Tensor, potentials: Potentials, parts: Parts) -> None:
        """``psi_i = parts_i`` for distinct examples that :meth:`add` has seen."""
        for name, values in parts.items():
            self.buffers[name].write(index, values.view(_row_view(potentials, name).shape))

    @override
    def nbytes(self) -> int:
        return sum(buffer.nbytes() for buffer in self.buffers.values())

    @override
    def to(self, device: torch.device) -> None:
        for buffer in self.buffers.values():
            buffer.to(device)

    def _entries(self) -> dict[str, Any]:
        return {"kind": "mean_parts", "buffers": {name: rows.state_dict() for name, rows in self.buffers.items()}}

    def _check_own(self, state: dict[str, Any]) -> None:
        check_entries(state, {"kind": "mean_parts", "buffers": dict}, "storage")
        for rows in state["buffers"].values():
            self._new_rows().check_state(rows)

    def _restore_own(self, state: dict[str, Any]) -> None:
        self.buffers = {name: self._new_rows() for name in state["buffers"]}
        for name, rows in state["buffers"].items():
            self.buffers[name].restore(rows)

    @override
    def part_of_state(self, state: dict[str, Any], own: range | Tensor) -> dict[str, Any]:
        like = self._new_rows()
        return {**state, "buffers": {name: like.part_of_state(rows, own) for name, rows in state["buffers"].items()}}

    def merged_state(self, states: list[dict[str, Any]], parts: list[range]) -> dict[str, Any]:
        """The state of all examples; parts without rows have zeros."""
        like, several = self._new_rows(), [state["buffers"] for state in states]
        names = dict.fromkeys(name for buffers in several for name in buffers)
        merged = {name: like.merged_state([buffers.get(name) for buffers in several], parts) for name in names}
        return {**states[0], "buffers": merged}

    def _new_rows(self) -> RowBuffer:
        return RowBuffer(len(self.own), self.parameters[0].dtype, self._device)


class StoredParts(Stored):
    """Blocks as ``psi``, in the shapes of the potentials."""

    def __init__(
        self, storage: MeanParts, index: Tensor, potentials: Potentials, psi: Parts, target: Labeling = None
    ) -> None:
        self.psi = psi
        self._storage = storage
        self._target = target
        self.index = index
        self.potentials = potentials
        self.num_examples = storage.num_examples

    @override
    def inner(self, potentials: Potentials) -> Tensor:
        return inner(self.psi, potentials.tensors, self.num_examples)

    @override
    def mean_loss(self, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        return self._storage.structure.mean_loss(self.psi, self._target, potentials)

    def combine(self, change: Tensor | None, corner: OracleResult) -> tuple[Parts, None]:
        """Corner and block, weighted by ``change``; if that is None, this may write into ``psi``."""
        structure, psi = self._storage.structure, self.psi
        if corner.made is None and change is None:
            return structure.add_difference(psi, corner.labeling, self._target, self.potentials), None
        parts = corner.made
        if parts is None:
            parts = structure.difference(corner.labeling, self._target, self.potentials)
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
