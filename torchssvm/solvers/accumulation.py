"""One step along the directions of several batches, whose gradients were accumulated."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.operators import on_host, read_together, upload
from torchssvm.core.row_sparse import add_rows
from torchssvm.dual.state import DualState
from torchssvm.solvers.block_gap import Proposal


def merge(dual: DualState, batches: list[Proposal]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Choose the steps of all batches together, as for one batch; an example counts at its first occurrence.

    Returns the coefficients of the rows of each batch, the rows of each batch that count, and the gradient.
    """
    seen: set[int] = set()
    rows: list[Tensor] = []
    for batch in batches:
        index = on_host(batch.index).tolist()
        fresh = [row for row in on_host(batch.rows).tolist() if index[row] not in seen]
        seen.update(index[row] for row in fresh)
        rows.append(upload(torch.tensor(fresh, dtype=torch.int64), batch.index.device))
    stacked = [
        torch.cat(
            [g if len(g) == len(some) else g.index_select(0, some) for g, some in zip(several, rows, strict=True)]
        )
        for several in zip(*(batch.gradients or [] for batch in batches), strict=True)
    ]
    stacked = [g.coalesce() if g.is_sparse else g for g in stacked]
    values = torch.cat([batch.values[some] for batch, some in zip(batches, rows, strict=True)])
    weight = 1.0 / (dual.lam * dual.num_examples**2)
    gammas, combined, _ = batches[0].block_steps.solve(stacked, values, weight, 1.0 / dual.num_examples)
    coefficients = [
        torch.zeros_like(batch.gammas).index_put_((some,), part)
        for batch, some, part in zip(batches, rows, gammas.split([len(some) for some in rows]), strict=True)
    ]
    return coefficients, rows, combined


def largest_step(batches: list[Proposal]) -> float:
    """The largest feasible step of several batches that have chosen gammas; moves of a repeated example add up.

    A batch whose loss was scaled by c moves by c of its direction at step 1.
    """
    scales = torch.cat([torch.full((len(b.rows),), b.scale, dtype=b.gammas.dtype) for b in batches])
    return 1.0 / float(add_rows(torch.zeros_like(scales), _examples(batches), scales).max())


def farthest_step(batches: list[Proposal], coefficients: list[Tensor]) -> float:
    """The largest feasible step if blocks move by ``coefficients`` at step 1."""
    moves = torch.cat(read_together(*(c[b.rows] for b, c in zip(batches, coefficients, strict=True))))
    most = float(add_rows(torch.zeros_like(moves), _examples(batches), moves).max())
    return 1.0 / most if most > 0.0 else 1.0


def _examples(batches: list[Proposal]) -> Tensor:
    """A number for the example of each row that counts, on the CPU: 0 to the number of distinct examples less 1."""
    index = torch.cat([on_host(batch.index)[on_host(batch.rows)] for batch in batches])
    return index.unique(return_inverse=True)[1]
