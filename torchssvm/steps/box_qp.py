"""The steps of a batch's blocks: one common step, or the box QP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import add_row, dot, exact_dot, set_row
from torchssvm.core.arguments import check_type, check_whole
from torchssvm.core.gradients import combine
from torchssvm.core.launch import arrays, fits_numba
from torchssvm.core.row_sparse import gram_of_rows, rows_of, select_examples, squared_norm
from torchssvm.core.triton_support import triton_available


class BatchSteps(NamedTuple):
    """The steps of a batch's blocks, ``[R]`` float64 in [0, 1], and the direction that they combine to.

    ``combined`` is ``factor sum_i gamma_i g_i`` for each parameter; its squared norm is None on a device, where it
    would have to be read.
    """

    gammas: Tensor
    combined: list[Tensor]
    squared_norm: float | None


class BlockSteps(ABC):
    """Chooses the step of each block of a batch along its direction, before the line search over all of them."""

    needs_gradients = False
    """Whether it uses per-example gradients."""

    @abstractmethod
    def solve(self, gradients: Sequence[Tensor], values: Tensor, weight: float, factor: float = 1.0) -> BatchSteps:
        """The steps of a batch.

        Args:
            gradients: g_i for each parameter, ``[R, *parameter.shape]``; possibly sparse.
            values: v, ``[R]`` float64, the derivatives of the dual along the directions.
            weight: Positive; the dual grows by ``sum_i gamma_i v_i - weight/2 |sum_i gamma_i g_i|^2``.
            factor: Multiplies the combined gradient.
        """


class CommonStep(BlockSteps):
    """One common step for all blocks of a batch, by the line search along the sum of their directions.

    Example:
        >>> solver = Solver(block_steps=CommonStep())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver, tolerance=Relative(0.1)).relative_gap <= 0.1
        True
    """

    def solve(self, gradients: Sequence[Tensor], values: Tensor, weight: float, factor: float = 1.0) -> BatchSteps:
        """All gammas are 1."""
        return combine_steps(gradients, torch.ones_like(values), factor)

    def __repr__(self) -> str:
        return "CommonStep()"


def combine_steps(gradients: Sequence[Tensor], gammas: Tensor, factor: float) -> BatchSteps:
    """The combined direction of these gammas."""
    combined = combine(gradients, gammas * factor)
    return BatchSteps(gammas, combined, squared_norm(combined) if gammas.is_cpu else None)


def check_block_steps(block_steps: Any) -> BlockSteps:
    """``block_steps``; TypeError unless it is a BlockSteps."""
    return check_type(block_steps, BlockSteps, "block_steps", "an object such as BoxQP() or CommonStep()")


_CONVERGED = 1e-3  # more is of no use: the line search rescales the steps


class BoxQP(BlockSteps):
    """Gives each block of a batch its own step, by the box QP; for one block that is the step of [B13] section 4.

    It maximises ``sum_i gamma_i v_i - |sum_i gamma_i g_i|^2 / (2 lam n^2)`` over ``[0, 1]^B`` by coordinate ascent.
    Without per-example gradients all gammas are 1.

    Raises:
        ValueError: ``sweeps`` is less than 1.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> loss = BlockGap(DualState.for_head(head, num_examples=30, lam=0.1), block_steps=BoxQP(sweeps=10))
        >>> loss.block_steps
        BoxQP(sweeps=10)
    """

    needs_gradients = True

    def __init__(self, sweeps: int = 5) -> None:
        self.sweeps = check_whole(sweeps, "sweeps")

    def solve(self, gradients: Sequence[Tensor], values: Tensor, weight: float, factor: float = 1.0) -> BatchSteps:
        """See :func:`solve_batch`."""
        return solve_batch(gradients, values, weight, self.sweeps, factor)

    def gammas(self, gram: Tensor, values: Tensor, weight: float) -> Tensor:
        """The steps alone, ``[R]`` float64, from the inner products of the gradients, ``[R, R]``."""
        if len(values) < 2:
            return torch.ones_like(values)
        return solve_box_qp(gram.to(torch.float64) * weight, values, self.sweeps)

    def __repr__(self) -> str:
        return f"BoxQP(sweeps={self.sweeps})"


def solve_batch(
    gradients: Sequence[Tensor], values: Tensor, weight: float, sweeps: int, factor: float = 1.0
) -> BatchSteps:
    """The box QP with ``G_ij = weight <g_i, g_j>``, given the g_i; arguments as of ``BlockSteps.solve``.

    On the CPU only the result ``u = sum_i gamma_i g_i`` is updated: a sweep takes 4 operations for each number of the
    gradients, while G would take 2 R^2 d. Elsewhere G is one product of matrices.
    """
    if values.shape[0] < 2:
        return combine_steps(gradients, torch.ones_like(values), factor)
    dense, lists = [g for g in gradients if not g.is_sparse], [g for g in gradients if g.is_sparse]
    if len(lists) < 2 and values.is_cpu and len({g.dtype for g in gradients}) == 1:
        dense = [g.contiguous() for g in dense]
        if fits_numba(*dense, *(g.values() for g in lists)):
            return _ascend(gradients, dense, lists, values, weight, sweeps, factor)
    if lists:
        everyone = torch.arange(len(values), device=values.device)
        return combine_steps(gradients, solve_box_qp(gram(gradients, everyone) * weight, values, sweeps), factor)
    rows = torch.cat([g.flatten(1) for g in gradients], 1)
    steps = combine_steps([rows], solve_box_qp((rows @ rows.t()).to(torch.float64) * weight, values, sweeps), factor)
    sizes = [g.shape[1:].numel() for g in gradients]
    parts = [part.view(g.shape[1:]) for part, g in zip(steps.combined[0].split(sizes), gradients, strict=True)]
    return steps._replace(combined=parts)


def _ascend(
    gradients: Sequence[Tensor],
    dense: list[Tensor],
    lists: list[Tensor],
    values: Tensor,
    weight: float,
    sweeps: int,
    factor: float,
) -> BatchSteps:
    """Coordinate ascent on the gradients themselves, at most one of which is sparse."""
    size, widths = len(values), [g.shape[1:].numel() for g in dense] or [0]
    gammas, curvatures = torch.zeros_like(values), np.zeros(size)
    u = values.new_zeros(sum(widths), dtype=gradients[0].dtype)
    flat = [g.numpy().reshape(size, width) for g, width in zip(dense or [u], widths, strict=True)]
    if lists:
        starts, known, local, entries = _rows(lists[0], size)
        sums = entries.new_zeros(len(known), entries.shape[1])
        listed = arrays(starts, local, entries)
    else:
        sums = u.new_zeros(0, 1)
        listed = np.zeros(size + 1, np.int64), np.zeros(0, np.int64), sums.numpy()
    square = ascend_gradients(
        *(tuple(flat), *listed, values.numpy(), weight, sweeps, _CONVERGED, factor),
        *(gammas.numpy(), curvatures, u.numpy(), sums.numpy()),
    )
    _check_lengths(curvatures)
    parts = iter(u.split(widths))
    combined = [
        rows_of(known, sums.view(len(sums), *g.shape[2:]), g.shape[1:], coalesced=True)
        if g.is_sparse
        else next(parts).view(g.shape[1:])
        for g in gradients
    ]
    return BatchSteps(gammas, combined, square)


def _rows(gradients: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Start of each example's entries, the distinct rows, the position of each entry among these, and the values."""
    entries = gradients.values()
    entries = entries.flatten(1) if entries.ndim > 1 else entries.unsqueeze(1)
    example, row = gradients.indices()
    known, local = row.unique(return_inverse=True)
    starts = torch.nn.functional.pad(torch.bincount(example, minlength=size).cumsum(0), (1, 0))
    return starts, known, local, entries


def solve_box_qp(gram: Tensor, values: Tensor, sweeps: int) -> Tensor:
    """Maximise ``gamma^T v - gamma^T G gamma / 2`` over ``[0, 1]^R`` by cyclic coordinate ascent from 0.

    One sweep equals applying the corners one after another with exact, re-clipped steps. Solving stops early when a
    sweep moves no gamma by more than 1e-3. It runs in float64: on a CUDA device where Triton is installed, otherwise on
    the CPU, with the same bits.

    Args:
        gram: G, ``[R, R]``, positive semidefinite.
        values: v, ``[R]``.

    Returns:
        gamma, ``[R]`` float64, on the device of ``values``.

    Raises:
        ValueError: The shapes do not fit, or ``sweeps`` is negative.
    """
    if gram.shape != (*values.shape, *values.shape) or values.ndim != 1:
        raise ValueError(f"gram must be [R, R] and values [R], got {list(gram.shape)} and {list(values.shape)}")
    sweeps = check_whole(sweeps, "sweeps", 0)
    if gram.is_cuda and triton_available():
        from torchssvm.steps.box_qp_triton import ascend_triton

        return ascend_triton(gram, values, sweeps, _CONVERGED).to(values.device)
    matrix = gram.detach().to("cpu", torch.float64).contiguous().numpy()
    _check_lengths(matrix.diagonal())
    residual = values.detach().to("cpu", torch.float64).numpy().copy()
    gammas = np.zeros_like(residual)
    ascend_gram(matrix, residual, gammas, sweeps, _CONVERGED)
    return torch.from_numpy(gammas).to(values.device)


def _check_lengths(squares: NDArray[np.float64]) -> None:
    """Raise ValueError for squared lengths that overflow: such blocks would never move."""
    if not (fine := np.isfinite(squares)).all():
        raise ValueError(f"features of {int((~fine).sum())} of {len(fine)} examples overflow when squared: scale them")


def gram(gradients: Sequence[Tensor], rows: Tensor) -> Tensor:
    """Inner products of the per-example gradients of ``rows``, summed over the parameters: ``[R, R]``."""
    total: Tensor | float = 0.0
    for gradient in gradients:
        chosen = gradient if len(rows) == len(gradient) else select_examples(gradient, rows)
        if chosen.is_sparse:
            total = total + gram_of_rows(chosen)
        else:
            flat = chosen.flatten(1)
            total = total + flat @ flat.t()
    assert isinstance(total, Tensor)
    return total.to(torch.float64)


@njit
def clipped_step(old: float, slope: float, curvature: float) -> float:
    """The best coordinate in [0, 1] of the box QP, where the objective has this slope and curvature at ``old``."""
    if curvature > 0.0:
        new = old + slope / curvature
        return 0.0 if new < 0.0 else 1.0 if new > 1.0 else new
    return 1.0 if slope > 0.0 else old  # the weights do not move along this block: only its loss counts


@njit
def ascend_gram(matrix: Any, residual: Any, gammas: Any, sweeps: int, converged: float) -> None:
    """Coordinate ascent from 0 in the box QP; ``residual`` starts as v and stays ``v - G gamma``."""
    for _ in range(sweeps):
        largest = 0.0
        for i in range(len(residual)):
            old = gammas[i]
            new = clipped_step(old, residual[i], matrix[i, i])
            if new != old:
                gammas[i] = new
                row, change = matrix[i], new - old
                for k in range(len(row)):
                    residual[k] -= row[k] * change
                largest = max(largest, abs(new - old))
        if largest < converged:
            break


@njit
def ascend_gradients(
    matrices: Any,
    starts: Any,
    local: Any,
    entries: Any,
    values: Any,
    weight: float,
    sweeps: int,
    converged: float,
    factor: float,
    gammas: Any,
    curvatures: Any,
    u: Any,
    sums: Any,
) -> float:
    """:func:`ascend_gram` with ``G_ij = weight <g_i, g_j>``, given the g_i; a sweep reads each of them twice.

    Args:
        matrices: Dense parts of the gradients, ``[R, d]`` each.
        starts, local, entries: The rows of a sparse part: those of gradient i are ``entries[starts[i]:starts[i + 1]]``,
            ``[*, K]``, and belong to the rows ``local`` of ``sums``. Without a sparse part there are none.
        values: v.
        weight, sweeps, converged, factor: See :func:`solve_batch`.
        gammas, curvatures: ``[R]`` float64, zero; the first gets gamma.
        u, sums: Zero; they get ``factor sum_i gamma_i g_i``, of the dense parts one after another and of the rows.

    Returns:
        The squared norm of ``u`` and ``sums`` together.
    """
    for sweep in range(sweeps):
        largest = 0.0
        for i in range(len(values)):
            product, square, at = 0.0, 0.0, 0
            for matrix in matrices:
                row = matrix[i]
                product += dot(row, u[at:])
                square += dot(row, row) if sweep == 0 else 0.0
                at += len(row)
            for p in range(starts[i], starts[i + 1]):
                product += dot(entries[p], sums[local[p]])
                square += dot(entries[p], entries[p]) if sweep == 0 else 0.0
            curvatures[i] += weight * square
            old = gammas[i]
            new = clipped_step(old, values[i] - weight * product, curvatures[i])
            if new != old:
                gammas[i] = new
                change, at = u.dtype.type(new - old), 0
                for matrix in matrices:
                    add_row(u[at:], matrix[i], change)
                    at += matrix.shape[1]
                for p in range(starts[i], starts[i + 1]):
                    add_row(sums[local[p]], entries[p], change)
                largest = max(largest, abs(new - old))
        if largest < converged:
            break
    set_row(u, u, u.dtype.type(factor), None)
    set_row(sums, sums, u.dtype.type(factor), None)
    return exact_dot(u, u) + exact_dot(sums, sums)
