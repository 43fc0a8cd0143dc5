"""A round: every rank brings a direction, and a box QP over the ranks chooses how far each of them moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
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
    """The directions of all ranks, combined to ``gradients``: ``d = sum_p beta_p d_p``, sparse where all ranks have few
    rows.

    ``beta`` is the share of this rank, 0 to 1. Of d's ``figures``, ``value`` and ``loss_change`` are weighted by beta,
    ``largest`` is feasible for all ranks, the others are sums. ``squared_norm`` is ``|d|^2``, and ``rho`` ``|sum_p
    d_p|^2 / sum_p |d_p|^2``: 1 where the ranks do not disturb each other, P where all have the same direction.
    """

    gradients: list[Tensor]
    beta: float
    figures: Figures
    squared_norm: float
    rho: float


class Exchange:
    """Combines the directions of all ranks, with the same bits on each of them.

    Every rank solves ``max beta^T v - beta^T G beta / 2`` over ``[0, 1]^P`` with ``G_pq = <d_p, d_q> / lam``.

    Where the head is small, every rank gets the directions of all ranks, in one message. Else a rank gets a slice of
    every rank's direction: of dense gradients a P-th of the numbers, of sparse ones the rows of a P-th of the
    parameter. The inner products of the slices are added in the order of the ranks, and the combined slices are
    gathered: each rank sends and receives as many bytes as in one all-reduce.
    """

    def __init__(self, ranks: Ranks, parameters: Sequence[Tensor]) -> None:
        self.ranks = ranks
        self._like = [p.detach() for p in parameters]

    def __call__(
        self, make: Callable[[], tuple[list[Tensor], Figures]], lam: float, *, farthest: bool = False
    ) -> Round:
        """The round of the directions that ``make`` returns on each rank; the caller has changed nothing until then.

        Args:
            make: Checks and returns this rank's d_p for each parameter, sparse ones coalesced, with its figures.
            farthest: Whether ``largest`` is all that is feasible, because a smaller beta allows a larger step: under
                bounds, where the box QP is only a lower bound of the dual.

        Raises:
            RankError: ``make`` raised an error in another rank, or a rank cannot be reached.
        """
        small = self.ranks.is_small(sum(p.numel() for p in self._like))

        def tell() -> tuple[list[Tensor], Tensor]:
            gradients, figures = make()
            numbers = torch.cat([dense(g).reshape(-1) if small else self._counts(g) for g in gradients])
            return gradients, torch.cat([torch.tensor(figures, dtype=torch.float64), numbers.cpu()])

        gradients, table = self.ranks.share(tell, _length(self.ranks, self._like))
        every, numbers = table.tensor_split([len(Figures._fields)], 1)
        values, combine = every[:, 0], self._in_one_message if small else self._in_slices
        combined, beta, products = combine(gradients, numbers, lambda gram: solve_box_qp(gram / lam, values, _SWEEPS))
        separate = float(products.diagonal().sum())
        rho = max(float(products.sum()), 0.0) / separate if separate > 0.0 else 1.0
        squared = max(float(beta @ products @ beta), 0.0)  # directions that cancel leave rounding of either sign
        return Round(combined, float(beta[self.ranks.rank]), _combined(every, beta, farthest), squared, rho)

    def _in_one_message(
        self, gradients: list[Tensor], every: Tensor, solve: Callable[[Tensor], Tensor]
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """The combined direction, beta and the inner products, from the directions of all ranks ``[P, numbers]``.

        Every rank adds in one order, so that machines of other makes get the same bits.
        """
        products = torch.zeros(len(every), len(every), dtype=torch.float64)
        add_products(every.t().contiguous().numpy(), products.numpy())
        beta = solve(products)
        flat = sum_in_order(every * beta.unsqueeze(1))
        parts = flat.split([like.numel() for like in self._like])
        return [part.view(like.shape).to(like) for part, like in zip(parts, self._like, strict=True)], beta, products

    def _in_slices(
        self, gradients: list[Tensor], counts: Tensor, solve: Callable[[Tensor], Tensor]
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """The combined direction, beta and the inner products; ``counts`` are the rows of each rank for each owner."""
        size = self.ranks.size
        slices = self._scatter(gradients, counts.view(size, len(gradients), size))
        products = torch.stack([piece.gram() for piece in slices]).sum(0)
        widths = torch.tensor([piece.width for piece in slices], dtype=torch.float64)
        if size <= _FEW:
            every = self.ranks.gather(torch.cat([products.flatten(), widths]))
            products, widths = sum_in_order(every[:, : size * size]).view(size, size), every[:, size * size :]
        else:
            products, widths = self.ranks.sum(products), self.ranks.gather(widths)
        beta = solve(products)
        return self._collect(slices, beta, widths.to(torch.int64)), beta, products

    def _counts(self, gradient: Tensor) -> Tensor:
        """The number of rows for each owner, ``[P]`` float64; -1 for a dense gradient."""
        if not gradient.is_sparse:
            return torch.full((self.ranks.size,), -1.0, dtype=torch.float64)
        owner = gradient.indices()[0] * self.ranks.size // gradient.shape[0]  # contiguous parts of the rows
        return torch.bincount(owner, minlength=self.ranks.size).to("cpu", torch.float64)

    def _scatter(self, gradients: list[Tensor], counts: Tensor) -> list[_Slice]:
        """This rank's slice of all directions: one for all dense gradients, and one for each sparse gradient.

        ``counts`` ``[P, parameters, P]`` are the rows of each rank's gradients for each owner.
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
            slices.append(_Slice(self.ranks.exchange(flat.view(size, -1), [1] * size, [1] * size), full))
        for j in (j for j, some in enumerate(as_rows) if some):
            sent, received = counts[rank, j].int().tolist(), counts[:, j, rank].int().tolist()
            rows = self.ranks.exchange(gradients[j].indices()[0], sent, received)
            numbers = gradients[j].values()
            values = self.ranks.exchange(
                numbers.flatten(1) if numbers.ndim > 1 else numbers.unsqueeze(1), sent, received
            )
            known, local = rows.unique(return_inverse=True)
            source = torch.repeat_interleave(torch.arange(size), torch.tensor(received)).to(rows.device)
            numbers = values.new_zeros(size, len(known), values.shape[1])
            numbers[source, local] = values
            slices.append(_Slice(numbers.flatten(1), [j], known))
        return slices

    def _collect(self, slices: list[_Slice], beta: Tensor, widths: Tensor) -> list[Tensor]:
        """``sum_p beta_p d_p`` for each parameter, from the combined slices of all ranks.

        ``widths`` ``[P, slices]`` int64 are the numbers or rows of each rank's slice.
        """
        size = self.ranks.size
        combined: dict[int, Tensor] = {}
        for piece, received in zip(slices, widths.t().tolist(), strict=True):
            part, sent = beta.to(piece.numbers) @ piece.numbers, [piece.width] * size
            if piece.rows is None:
                flat, at = self.ranks.exchange(part.repeat(size), sent, received), 0
                for j in piece.parameters:
                    like = self._like[j]
                    combined[j], at = flat[at : at + like.numel()].view(like.shape), at + like.numel()
            else:
                (j,) = piece.parameters
                rows = self.ranks.exchange(piece.rows.repeat(size), sent, received)
                values = self.ranks.exchange(part.view(piece.width, -1).repeat(size, 1), sent, received)
                shape = self._like[j].shape
                combined[j] = rows_of(rows, values.view(len(rows), *shape[1:]), shape, coalesced=True)
        return [combined[j] for j in range(len(combined))]


@contextmanager
def refusing_on_all(ranks: Ranks, parameters: Sequence[Tensor]) -> Iterator[None]:
    """Tell an error in the block to the other ranks, who come to their next round: all of them refuse it."""
    try:
        yield
    except Exception as error:
        if ranks:
            ranks.refuse(error, _length(ranks, parameters))
        raise


def _length(ranks: Ranks, parameters: Sequence[Tensor]) -> int:
    """Numbers that a rank sends first: its figures, and its direction or how many of its rows each rank gets."""
    weights = sum(p.numel() for p in parameters)
    return len(Figures._fields) + (weights if ranks.is_small(weights) else ranks.size * len(parameters))


@njit
def add_products(columns: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
    """Add the inner products of the columns of ``[N, P]`` to ``[P, P]``."""
    for i in range(len(columns)):
        for p in range(len(out)):
            for q in range(len(out)):
                out[p, q] += columns[i, p] * columns[i, q]


def _combined(every: Tensor, beta: Tensor, farthest: bool) -> Figures:
    """Combine the figures of all ranks, ``every`` ``[P, figures]``."""
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
    """A slice of the directions of all ranks, ``numbers`` ``[P, numbers]``.

    ``parameters`` are the places of all dense ones, or of a sparse one, whose ``rows`` are ``[R]`` int64.
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
