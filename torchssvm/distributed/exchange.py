"""A round: every rank brings a direction, and a box QP over the ranks chooses how far each of them moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.ranks import Ranks, sum_in_order
from torchssvm.core.row_sparse import dense, rows_of
from torchssvm.steps.box_qp import solve_box_qp

_SWEEPS = 50  # the QP has one variable for each rank
_FEW = 16  # of so many ranks, inner products take one message to each; of more, two with fewer bytes


class Figures(NamedTuple):
    """The numbers of a rank's direction that the others need.

    Attributes:
        value: Derivative of the dual along the direction, at the weights that all ranks hold.
        largest: Largest feasible step.
        loss: Sum of the losses of the rank's blocks, before the step.
        loss_change: Its change by a step of 1.
        gap: Sum of the gap estimates of the rank's blocks, after the step.
        calls: Examples decoded.
        hits: Labelings taken from the cache.
        moved: Blocks that move.
    """

    value: float
    largest: float
    loss: float
    loss_change: float
    gap: float
    calls: int
    hits: int
    moved: int


class Round(NamedTuple):
    """The directions of all ranks, combined.

    Attributes:
        gradients: ``d = sum_p beta_p d_p``, for each parameter; sparse where all ranks have few rows.
        beta: The share of this rank's direction, 0 to 1.
        figures: Those of d: ``value`` and ``loss_change`` are weighted by beta, ``largest`` is feasible for all ranks,
            the others are sums.
        squared_norm: ``|d|^2``.
        rho: ``|sum_p d_p|^2 / sum_p |d_p|^2``: 1 where the ranks do not disturb each other, P where all have the same
            direction.
    """

    gradients: list[Tensor]
    beta: float
    figures: Figures
    squared_norm: float
    rho: float


class Exchange:
    """Combines the directions of all ranks, with the same bits on each of them.

    A rank gets a slice of every rank's direction: of dense gradients a P-th of the numbers, of sparse ones the rows of
    a P-th of the parameter. The inner products of the slices are added in the order of the ranks. Every rank solves
    ``max beta^T v - beta^T G beta / 2`` over ``[0, 1]^P`` with ``G_pq = <d_p, d_q> / lam``, and the combined slices are
    gathered: each rank sends and receives as many bytes as in one all-reduce.

    Attributes:
        ranks: The processes.
        sent: Bytes that this rank has sent.
    """

    def __init__(self, ranks: Ranks, parameters: Sequence[Tensor]) -> None:
        self.ranks = ranks
        self.sent = 0
        self._like = [p.detach() for p in parameters]

    def __call__(
        self, make: Callable[[], tuple[list[Tensor], Figures]], lam: float, *, farthest: bool = False
    ) -> Round:
        """The round of the directions that ``make`` returns on each rank.

        Args:
            make: Checks and returns this rank's d_p for each parameter, sparse ones coalesced, with its figures.
            lam: Regularisation.
            farthest: Whether ``largest`` is all that is feasible, because a smaller beta allows a larger step: under
                bounds, where the box QP is only a lower bound of the dual.

        Raises:
            Exception: That of ``make``.
            RankError: ``make`` raised an error in another rank, or a rank cannot be reached. The caller has changed
                nothing until then.
        """
        ranks, size = self.ranks, self.ranks.size
        length = 1 + len(Figures._fields)
        with telling(ranks, len(self._like)):
            gradients, figures = make()
            header = _header(size, len(gradients))
            header[1:length] = torch.tensor(figures, dtype=torch.float64)
            header[length:] = torch.cat([self._counts(g) for g in gradients])
        table = self._gather(header)
        ranks.hear(table[:, 0])
        counts = table[:, length:].view(size, len(gradients), size)
        slices = self._scatter(gradients, counts)
        products = torch.stack([piece.gram() for piece in slices]).sum(0)
        widths = torch.tensor([float(piece.width) for piece in slices])
        if size <= _FEW:
            every = self._gather(torch.cat([products.flatten(), widths]))
            products, widths = sum_in_order(every[:, : size * size]).view(size, size), every[:, size * size :]
        else:
            products, widths = self._sum(products), self._gather(widths)
        beta = solve_box_qp(products / lam, table[:, 1], _SWEEPS)
        combined = self._collect(slices, beta, widths.to(torch.int64))
        separate = float(products.diagonal().sum())
        rho = float(products.sum()) / separate if separate > 0.0 else 1.0
        figures = _together(table[:, 1:length], beta, farthest)
        return Round(combined, float(beta[ranks.rank]), figures, float(beta @ products @ beta), rho)

    def _gather(self, numbers: Tensor) -> Tensor:
        self.sent += (self.ranks.size - 1) * numbers.numel() * numbers.element_size()
        return self.ranks.gather(numbers)

    def _sum(self, numbers: Tensor) -> Tensor:
        each = -(-numbers.numel() // self.ranks.size)
        self.sent += 2 * (self.ranks.size - 1) * each * numbers.element_size()
        return self.ranks.sum(numbers)

    def _send(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        away = sum(sent) - sent[self.ranks.rank]
        self.sent += away * rows[:1].numel() * rows.element_size()
        return self.ranks.exchange(rows, sent, received)

    def _counts(self, gradient: Tensor) -> Tensor:
        """The number of rows for each owner, ``[P]`` float64; -1 for a dense gradient."""
        if not gradient.is_sparse:
            return torch.full((self.ranks.size,), -1.0, dtype=torch.float64)
        owner = gradient.indices()[0] * self.ranks.size // gradient.shape[0]  # contiguous parts of the rows
        return torch.bincount(owner, minlength=self.ranks.size).to("cpu", torch.float64)

    def _scatter(self, gradients: list[Tensor], counts: Tensor) -> list[_Slice]:
        """This rank's slice of all directions: one for all dense gradients, and one for each sparse gradient.

        Args:
            gradients: d_p of this rank.
            counts: ``[P, parameters, P]``, the rows of each rank's gradients for each owner.
        """
        rank, size = self.ranks.rank, self.ranks.size
        as_rows = [
            bool((counts[:, j] >= 0).all()) and float(counts[:, j].sum()) < len(like)
            for j, like in enumerate(self._like)
        ]
        slices = []
        if full := [j for j, some in enumerate(as_rows) if not some]:
            flat = torch.cat([dense(gradients[j]).reshape(-1) for j in full])
            flat = torch.nn.functional.pad(flat, (0, -flat.numel() % size))
            slices.append(_Slice(self._send(flat.view(size, -1), [1] * size, [1] * size), full))
        for j in (j for j, some in enumerate(as_rows) if some):
            sent, received = counts[rank, j].int().tolist(), counts[:, j, rank].int().tolist()
            own = gradients[j]
            rows = self._send(own.indices()[0], sent, received)
            values = self._send(own.values().flatten(1) if own.ndim > 1 else own.values().unsqueeze(1), sent, received)
            known, local = rows.unique(return_inverse=True)
            source = torch.repeat_interleave(torch.arange(size), torch.tensor(received)).to(rows.device)
            numbers = values.new_zeros(size, len(known), values.shape[1])
            numbers[source, local] = values
            slices.append(_Slice(numbers.flatten(1), [j], known))
        return slices

    def _collect(self, slices: list[_Slice], beta: Tensor, widths: Tensor) -> list[Tensor]:
        """``sum_p beta_p d_p`` for each parameter, from the combined slices of all ranks.

        Args:
            slices: Those of this rank.
            beta: ``[P]``.
            widths: ``[P, slices]`` int64, the numbers or rows of each rank's slice.
        """
        size = self.ranks.size
        found: dict[int, Tensor] = {}
        for piece, received in zip(slices, widths.t().tolist(), strict=True):
            part, sent = beta.to(piece.numbers) @ piece.numbers, [piece.width] * size
            if piece.rows is None:
                flat, at = self._send(part.repeat(size), sent, received), 0
                for j in piece.parameters:
                    like = self._like[j]
                    found[j], at = flat[at : at + like.numel()].view(like.shape), at + like.numel()
            else:
                (j,) = piece.parameters
                rows = self._send(piece.rows.repeat(size), sent, received)
                values = self._send(part.view(piece.width, -1).repeat(size, 1), sent, received)
                shape = self._like[j].shape
                found[j] = rows_of(rows, values.view(len(rows), *shape[1:]), shape, coalesced=True)
        return [found[j] for j in range(len(found))]


@contextmanager
def telling(ranks: Ranks, parameters: int) -> Iterator[None]:
    """Tell an error in the block to the other ranks, who come to their next round: all of them refuse it.

    Args:
        ranks: The processes.
        parameters: Number of the head's parameters.
    """
    try:
        yield
    except Exception as error:
        if ranks:
            header = _header(ranks.size, parameters)
            header[0] = 1.0
            ranks.refuse(error, header)
        raise


def _header(size: int, parameters: int) -> Tensor:
    """What a rank sends first: whether it refuses, its figures, and how many rows of each parameter each rank gets."""
    return torch.zeros(1 + len(Figures._fields) + size * parameters, dtype=torch.float64)


def _together(every: Tensor, beta: Tensor, farthest: bool) -> Figures:
    """The figures of all directions combined; ``every`` ``[P, figures]`` are those of each rank."""
    value, largest, loss, change, gap, *counts = every.unbind(1)
    if farthest:
        largest = largest / beta  # infinite for a rank that does not move
    return Figures(
        float(beta @ value),
        float(largest.min()) if bool(beta.any()) else 1.0,
        float(sum_in_order(loss)),
        float(beta @ change),
        float(sum_in_order(gap)),
        *(int(count.sum()) for count in counts),
    )


class _Slice:
    """A slice of the directions of all ranks.

    Attributes:
        numbers: ``[P, numbers]``.
        parameters: The places of the parameters: all dense ones, or a sparse one.
        rows: ``[R]`` int64, the rows of the sparse parameter; None where it is dense.
    """

    def __init__(self, numbers: Tensor, parameters: list[int], rows: Tensor | None = None) -> None:
        self.numbers, self.parameters, self.rows = numbers, parameters, rows

    @property
    def width(self) -> int:
        """Rows, or numbers where it is dense."""
        return self.numbers.shape[1] if self.rows is None else len(self.rows)

    def gram(self) -> Tensor:
        """Inner products, ``[P, P]`` float64."""
        numbers = self.numbers.to(torch.float64)
        return (numbers @ numbers.t()).cpu()
