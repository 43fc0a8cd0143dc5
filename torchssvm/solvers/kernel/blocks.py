"""The blocks of a kernel model: read a batch, choose its step, take the step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.gradients import combine, per_example_adjoint
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.ordered_sums import add_rows
from torchssvm.core.potentials import Parts, Potentials, inner, scale
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.schema import Entry, Schema
from torchssvm.core.structure import Labeling
from torchssvm.core.undisturbed import undisturbed
from torchssvm.dual.mean_parts import MeanParts, StoredParts
from torchssvm.dual.state import DualState
from torchssvm.solvers.certificate import write
from torchssvm.solvers.kernel.data import TrainingSet
from torchssvm.solvers.kernel.directions import KernelBatch, KernelDirection, Move
from torchssvm.solvers.kernel.functions import GramRows, name_of
from torchssvm.solvers.kernel.head import KernelHead
from torchssvm.solvers.kernel.support import SupportLabelings
from torchssvm.steps.box_qp import gram, solve_box_qp
from torchssvm.steps.line_search import exact_step


class TokenParts(MeanParts):
    """Mean parts whose unary rows, the coefficients of the kernel expansion, can be read token by token."""

    def check_memory(self, potentials: Potentials, target: Labeling, advice: str) -> None:
        """Raise MemoryError if the blocks would not fit."""
        super().check_memory(potentials, target, "take a larger memory_limit, float32 features, or fewer examples")

    def table(self, name: str, counts: Tensor, like: Tensor) -> Tensor:
        """The psi of every training token, example after example: ``[N, K]``.

        ``counts`` ``[n]`` int64 are tokens of each example; ``like`` ``[..., K]`` gives dtype and K while nothing is
        stored.
        """
        buffer = self.buffers.get(name)
        if buffer is None:
            return like.new_zeros(int(counts.sum()), like.shape[-1])
        longest = int(counts.max())
        real = torch.arange(longest, device=counts.device) < counts.unsqueeze(1)
        places = buffer.locate(torch.arange(len(counts), device=counts.device), longest)[real]
        return buffer.values[places]


class KernelDual(DualState):
    """``D = sum_i l_i - lam/2 (|w_k|^2 + |w|^2)``: w_k is the kernel expansion, w are the explicit weights.

    Attributes:
        kernel_squared_norm: ``|w_k|^2``, updated by every step and recomputed by exact passes.
    """

    kernel_squared_norm = 0.0

    def value(self) -> float:
        """The dual objective."""
        return super().value() - self.lam / 2 * self.kernel_squared_norm

    def _schema(self) -> Schema:
        return {**super()._schema(), "kernel_squared_norm": Entry(float, low=0.0)}


class BlockStep(NamedTuple):
    """The directions of a batch, and the step size of each."""

    move: Move
    parts: Parts
    gradients: list[Tensor]  # of the explicit weights
    implicit: Tensor  # [B, B] float64: inner products of the directions in the kernel's space, times n^2
    losses: Tensor  # [B] float64: change of l_i at step 1
    sizes: Tensor  # [B] float64


@dataclass
class KernelBlocks:
    """Everything that a step reads and changes."""

    head: KernelHead  # a step moves its explicit weights, but not its support tokens
    data: TrainingSet
    dual: KernelDual
    gram: GramRows  # kernel rows of the training tokens
    support: SupportLabelings

    def check_weights(self) -> None:
        """Raise RuntimeError if the explicit weights are not as the last step left them."""
        held, found = self.dual.held_norm, math.sqrt(squared_norm(self.dual.parameters))
        if self.dual.norm_changed(found):
            raise RuntimeError(
                f"the head's explicit weights have changed since the last step (their norm was {held:.6g} and is "
                f"{found:.6g}): they are a function of the dual blocks. certify() sets them back"
            )

    def read(self, index: Tensor, table: Tensor) -> KernelBatch:
        """Potentials, corners and block gaps of distinct examples ``[B]``; ``table`` holds the blocks of all tokens."""
        dual, n, unary = self.dual, self.dual.num_examples, self.head.unary
        rows, explicit, target = self.gram.rows(index), self.data.explicit(index), self.data.targets(index)
        tensors = explicit.detach().tensors
        with torch.no_grad():
            kernel = self.data.scatter(rows @ table / (dual.lam * n), tensors[unary], index)
            potentials = explicit.replace({**tensors, unary: tensors[unary] + kernel})
            corner = find_corner(dual.structure, potentials, target)
            stored = dual.storage.gather(index, potentials, target)
            assert isinstance(stored, StoredParts)
            gaps = corner.hinge / n + stored.inner(potentials) - dual.loss[index]
        known = dual.loss[index], gaps, rows, explicit, kernel
        return KernelBatch(index, target, potentials, corner, stored, *known, dual.structure, self.support, n)

    def choose(self, batch: KernelBatch, direction: KernelDirection, sweeps: int) -> BlockStep:
        """Choose the directions and their step sizes; changes nothing.

        Raises:
            ValueError: A direction has a negative squared length: the kernel is not positive semidefinite.
        """
        dual, n = self.dual, self.dual.num_examples
        with torch.no_grad():
            move = direction(batch)
            block = scale(batch.stored.psi, move.decay)
            parts = {name: tensor + block[name] for name, tensor in move.parts.items()}
            changes = move.loss - move.decay * batch.loss
            values = move.slopes + move.decay * batch.stored.inner(batch.potentials) + changes
        gradients = per_example_adjoint(batch.explicit, parts, dual.parameters)
        with torch.no_grad():
            implicit = self._inner_products(batch, parts[self.head.unary])
            # G_ij = <D_i, D_j> / lam
            curvature = (implicit + gram(gradients, torch.arange(len(values)))) / (dual.lam * n**2)
            gammas = torch.ones_like(values)
            if sweeps and len(values) > 1:
                gammas = solve_box_qp(curvature, values, sweeps)
            squared = dual.lam * float(gammas @ curvature @ gammas)
            if squared < -1e3 * torch.finfo(self.head.dtype).eps * dual.lam * float(curvature.abs().sum()):
                raise ValueError(
                    f"kernel={name_of(self.head.kernel)} is not positive semidefinite: a direction has the squared "
                    f"length {squared:.3g}"
                )
            sizes = gammas * exact_step(float(gammas @ values), max(squared, 0.0), dual.lam)
        return BlockStep(move, parts, gradients, implicit, changes, sizes)

    def _inner_products(self, batch: KernelBatch, unary: Tensor) -> Tensor:
        """``sum_tu K(x_t, x_u) <Delta_it, Delta_ju>`` for all pairs of blocks, ``[B, B]`` float64."""
        index, size = batch.index, len(batch.index)
        tokens = self.data.gather(unary, index)
        matrix = batch.rows[:, self.gram.places(index)] * (tokens @ tokens.t())
        owner = torch.repeat_interleave(self.data.counts[index])
        summed = add_rows(matrix.new_zeros(size, len(owner)), owner, matrix)
        return add_rows(matrix.new_zeros(size, size), owner, summed.t()).t().to(torch.float64)

    @torch.no_grad()
    def take(self, batch: KernelBatch, step: BlockStep) -> None:
        """Move blocks, weights, losses and masses."""
        dual, index, sizes = self.dual, batch.index, step.sizes
        scaled = sizes / (dual.lam * dual.num_examples)
        # |w_k - d_k/lam|^2, from <w_k, d_k> and |d_k|^2
        along = float(scaled @ inner({"": batch.kernel}, {"": step.parts[self.head.unary]}))
        norm = dual.kernel_squared_norm - 2.0 * along + float(scaled @ step.implicit @ scaled)
        dual.kernel_squared_norm = max(norm, 0.0)
        for parameter, change in zip(dual.parameters, combine(step.gradients, scaled), strict=True):
            parameter.sub_(change)
        everyone = torch.arange(len(index), device=index.device)
        batch.stored.move(sizes, everyone, torch.empty(0), step.parts, None)
        dual.loss.index_add_(0, index, sizes * step.losses)  # of distinct examples
        dual.gap_estimates[index] = batch.gaps.clamp(min=0.0)
        moved = sizes > 0.0
        self.support.move(
            index[moved],
            batch.corner.labeling[moved],
            batch.corner.loss[moved],
            kept=1.0 - (sizes * step.move.decay)[moved],
            away=None if step.move.away is None else step.move.away[moved],
            taken=(sizes * step.move.mass)[moved],
        )
        dual.relaxed |= batch.corner.relaxed
        dual.oracle_calls += len(index)
        dual.steps += 1
        dual.visits += 1
        dual.remember_weights()

    def table(self) -> Tensor:
        """The psi of every training token, ``[N, K]``."""
        storage = self.dual.storage
        assert isinstance(storage, TokenParts)
        return storage.table(self.head.unary, self.data.counts, self.head.coefficients)

    def is_support(self, table: Tensor) -> Tensor:
        """Tokens with nonzero coefficients; what rounding leaves of removed masses counts as zero."""
        return table.abs().amax(1) > 4 * torch.finfo(table.dtype).eps

    @contextmanager
    def recomputed(self) -> Iterator[float]:
        """Recompute the explicit weights from the blocks; undone if the ``with`` block raises.

        Yields:
            The relative change of the weights.
        """
        dual = self.dual
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in dual.parameters]
        for index in torch.arange(dual.num_examples, device=self.data.device).split(1024):
            explicit = self.data.explicit(index)
            stored = dual.storage.gather(index, explicit, self.data.targets(index))
            for total, part in zip(totals, dual.storage.contribution(stored, explicit), strict=True):
                total += part
        size = squared_norm(totals)
        change = squared_norm(p - t for p, t in zip(dual.parameters, totals, strict=True))
        held, norm = [p.clone() for p in dual.parameters], dual.held_norm
        try:
            with undisturbed():
                write(totals, dual.parameters)
                dual.remember_weights()
            yield (change / size) ** 0.5 if size > 0.0 else change**0.5
        except BaseException:
            with undisturbed():
                write(held, dual.parameters)
                dual.held_norm = norm
            raise
