"""The storage of [B13] Algorithm 4: a weight vector for every block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.decoding import Labeling, OracleResult
from torchssvm.core.operators import on_host, pick, read_together
from torchssvm.core.potentials import Parts, Potentials, scale
from torchssvm.core.probe import TOLERANCE, fingerprints
from torchssvm.core.states import Numbers, check_entries, copied
from torchssvm.dual.storage import Storage, Stored

_MOVED = (
    "examples {examples} came with other features than at their first visit: storage=Weights() needs fixed features, "
    "use MeanParts() or Labelings()"
)


class Weights(Storage):
    """Keeps ``w_i = (1/(lam n)) Phi_i^T psi_i`` for every example, so that ``w = sum_i w_i``.

    Memory is n times the number of weights: less than :class:`MeanParts` if potentials are large and weights are few
    (poses on a grid). Steps need the gradient of every example: two backward passes an example if the head has no
    ``adjoint`` and ``torch.func`` does not support it.

    Features must not change. A fingerprint of each example's features is kept from its first visit and compared at
    every later visit and in exact passes; changed features raise RuntimeError.

    Example:
        >>> solver = Solver(storage=Weights(), compiled=False)
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver, tolerance=Relative(0.1)).relative_gap <= 0.1
        True
    """

    needs_gradients = True
    per_example = ("blocks", "features")

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._features: Tensor | None = None  # [n] float64, infinite before the first visit

    def estimate(self, potentials: Potentials, target: Labeling = None) -> int:
        """``n * number of weights * bytes of a weight``."""
        return len(self.own) * sum(p.numel() * p.element_size() for p in self.parameters)

    @override
    def gather(self, index: Tensor, potentials: Potentials, target: Labeling = None) -> Stored:
        if not self._blocks:
            self.check_memory(
                potentials, target, "storage=MeanParts() takes as much as the potentials, which may be less"
            )
            blocks = [p.new_zeros(len(index), *p.shape).detach() for p in self.parameters]
        else:
            blocks = [block[index] for block in self._blocks]
        return _StoredWeights(self, index, blocks, potentials.detach(), target)

    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise RuntimeError if an example is in two batches with different features."""
        known: dict[int, float] = {}
        for batch, its in zip(batches, rows, strict=True):
            assert isinstance(batch, _StoredWeights)
            assert batch.features is not None
            values, sizes = (numbers.tolist() for numbers in read_together(*(t[its] for t in batch.features)))
            for example, value, size in zip(on_host(pick(batch.index, its)).tolist(), values, sizes, strict=True):
                if abs(known.setdefault(example, value) - value) > TOLERANCE * size:
                    raise RuntimeError(_MOVED.format(examples=[example + self.own.start]))

    def check_features(self, stored: Stored, potentials: Potentials, weights: Sequence[Tensor] | None = None) -> None:
        """Raise RuntimeError if an example's features differ from those of its first visit."""
        assert isinstance(stored, _StoredWeights)
        value, size = stored.features = fingerprints(
            potentials, self.structure, self.parameters if weights is None else weights
        )
        if self._features is None:
            return
        known = self._features[stored.index]
        moved = ((known - value).abs() > TOLERANCE * size) & ~known.isinf()
        if bool(moved.any()):
            raise RuntimeError(_MOVED.format(examples=(stored.index[moved][:5] + self.own.start).tolist()))

    @override
    def contribution(
        self, stored: Stored, potentials: Potentials, weights: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        assert isinstance(stored, _StoredWeights)
        return [block.sum(0, dtype=torch.float64) for block in stored.blocks]

    def add(self, index: Tensor, blocks: list[Tensor], features: Tensor) -> None:
        """``w_i += blocks_i`` for distinct examples, and keep their first fingerprints; the first call allocates.

        Args:
            index: ``[R]`` int64.
            blocks: ``[R, *shape]`` for each parameter.
            features: ``[R]`` float64, the fingerprints.
        """
        if self._features is None:
            self._blocks = [p.new_zeros(len(self.own), *p.shape).detach() for p in self.parameters]
            self._features = torch.full((len(self.own),), torch.inf, dtype=torch.float64, device=index.device)
        known = self._features[index]
        self._features[index] = torch.where(known.isinf(), features, known)
        for block, change in zip(self._blocks, blocks, strict=True):
            block.index_add_(0, index, change)

    def rescale(self, factor: float) -> None:
        """Nothing to do: ``w_i = psi_i / (lam n)`` up to the head's adjoint, and both are multiplied by ``factor``."""

    def change_lam(self, lam: float) -> None:
        """``w_i`` is proportional to ``1/lam``."""
        for block in self._blocks:
            block *= self.lam / lam

    def change_number(self, share: float) -> None:
        """``w_i`` is proportional to ``1/n``."""
        for block in self._blocks:
            block *= share

    @override
    def products(self) -> Tensor | None:
        if not self._blocks:
            return None
        total = torch.zeros(len(self.own), dtype=torch.float64, device=self._blocks[0].device)
        for block, parameter in zip(self._blocks, self.parameters, strict=True):
            total += block.flatten(1).to(torch.float64) @ parameter.detach().flatten().to(torch.float64)
        return self.lam * total

    @override
    def nbytes(self) -> int:
        return sum(block.numel() * block.element_size() for block in self._blocks)

    @override
    def to(self, device: torch.device) -> None:
        self._blocks = [block.to(device) for block in self._blocks]
        if self._features is not None:
            self._features = self._features.to(device)

    def _entries(self) -> dict[str, Any]:
        features = None if self._features is None else self._features.clone()
        return {"kind": "weights", "blocks": copied(self._blocks), "features": features}

    def _check_own(self, state: dict[str, Any]) -> None:
        n, dtype = len(self.own), self.parameters[0].dtype
        blocks: Any = state["blocks"] and [Numbers(dtype, (n, *p.shape)) for p in self.parameters]
        features = Numbers(torch.float64, (n,), high=math.inf) if state["blocks"] else None
        check_entries(state, {"kind": "weights", "blocks": blocks, "features": features}, "storage")

    def _restore_own(self, state: dict[str, Any]) -> None:
        self._blocks = [block.to(self._device, copy=True) for block in state["blocks"]]
        features = state["features"]
        self._features = None if features is None else features.to(self._device, copy=True)

    def merged_state(self, states: list[dict[str, Any]], parts: list[range]) -> dict[str, Any]:
        """The state of all examples, from those of consecutive parts of them; parts without blocks have zeros."""
        if any(state["blocks"] for state in states):
            for state, part in zip(states, parts, strict=True):
                if not state["blocks"]:
                    state["blocks"] = [p.new_zeros(len(part), *p.shape, device="cpu") for p in self.parameters]
                    state["features"] = torch.full((len(part),), torch.inf, dtype=torch.float64)
        return super().merged_state(states, parts)


class _StoredWeights(Stored):
    def __init__(
        self, storage: Weights, index: Tensor, blocks: list[Tensor], potentials: Potentials, target: Labeling
    ) -> None:
        self.blocks = blocks
        self._potentials, self._target = potentials, target
        self.features: tuple[Tensor, Tensor] | None = None
        self._storage = storage
        self.index = index
        self.num_examples = storage.num_examples

    def inner(self, potentials: Potentials) -> Tensor:
        # <psi_i, theta_i> / n = <Phi_i^T psi_i, w> / n = lam <w_i, w>
        total = torch.zeros(len(self.index), dtype=torch.float64, device=self.index.device)
        for block, parameter in zip(self.blocks, self._storage.parameters, strict=True):
            total += (block * parameter.detach()).flatten(1).sum(1, dtype=torch.float64)
        return self._storage.lam * total

    def combine(self, change: Tensor | None, corner: OracleResult) -> tuple[Parts, list[Tensor]]:
        storage, parts = self._storage, corner.made
        if parts is None:
            parts = storage.structure._difference(corner.labeling, self._target, self._potentials)
        factor = torch.full_like(corner.score, storage.num_examples * storage.lam)
        if change is not None:
            parts, factor = scale(parts, change[:, 1]), factor * -change[:, 0]
        return parts, [block * factor.to(block.dtype).view(-1, *[1] * (block.ndim - 1)) for block in self.blocks]

    def move(
        self, coefficients: Tensor, rows: Tensor, change: Tensor | None, parts: Parts, gradients: list[Tensor] | None
    ) -> None:
        # psi_i -= c Delta_i means w_i -= (c/(lam n)) Phi_i^T Delta_i
        assert gradients is not None
        assert self.features is not None
        factors = -coefficients / (self._storage.lam * self._storage.num_examples)
        self._storage.add(
            self.index[rows],
            [(g * factors.to(g.dtype).view(-1, *[1] * (g.ndim - 1)))[rows] for g in gradients],
            self.features[0][rows],
        )
