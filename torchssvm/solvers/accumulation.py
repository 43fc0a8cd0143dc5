"""The joint step of accumulated batches."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.on_host import on_host, read_together, upload
from torchssvm.core.ordered_sums import add_rows
from torchssvm.dual.state import DualState
from torchssvm.steps.proposal import Proposal


def merge(proposals: list[Proposal], dual: DualState) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Choose the steps of all batches together, as for one batch; an example counts at its first occurrence.

    Returns:
        The coefficients of the rows of each batch, the gradient, and the rows of each batch that count.
    """
    seen: set[int] = set()
    keep: list[Tensor] = []
    for proposal in proposals:
        index = on_host(proposal.index).tolist()
        fresh = [row for row in on_host(proposal.rows).tolist() if index[row] not in seen]
        seen.update(index[row] for row in fresh)
        keep.append(upload(torch.tensor(fresh, dtype=torch.int64), proposal.index.device))
    stacked = [
        torch.cat(
            [g if len(g) == len(rows) else g.index_select(0, rows) for g, rows in zip(several, keep, strict=True)]
        )
        for several in zip(*(p.gradients or [] for p in proposals), strict=True)
    ]
    stacked = [g.coalesce() if g.is_sparse else g for g in stacked]
    values = torch.cat([p.values[rows] for p, rows in zip(proposals, keep, strict=True)])
    weight = 1.0 / (dual.lam * dual.num_examples**2)
    gammas, combined, _ = proposals[0].block_steps.solve(stacked, values, weight, 1.0 / dual.num_examples)
    coefficients = [
        torch.zeros_like(proposal.gammas).index_put_((rows,), part)
        for proposal, rows, part in zip(proposals, keep, gammas.split([len(rows) for rows in keep]), strict=True)
    ]
    return coefficients, combined, keep


def largest_step(proposals: list[Proposal]) -> float:
    """The largest feasible step if each batch has chosen its own gammas.

    A batch whose loss was scaled by c moves by c of its direction at step 1. Moves of an example in several batches add
    up.
    """
    if len(proposals) == 1:
        return 1.0 / proposals[0].scale
    scales = torch.cat([torch.full((len(p.rows),), p.scale, dtype=p.gammas.dtype) for p in proposals])
    return 1.0 / float(add_rows(torch.zeros_like(scales), _examples(proposals), scales).max())


def farthest_step(proposals: list[Proposal], coefficients: list[Tensor]) -> float:
    """The largest feasible step if blocks move by ``coefficients`` at step 1."""
    moves = torch.cat(read_together(*(c[p.rows] for p, c in zip(proposals, coefficients, strict=True))))
    most = float(add_rows(torch.zeros_like(moves), _examples(proposals), moves).max())
    return 1.0 / most if most > 0.0 else 1.0


def _examples(proposals: list[Proposal]) -> Tensor:
    """A number for the example of each row that counts, on the CPU: 0 to the number of distinct examples less 1."""
    index = torch.cat([on_host(p.index)[on_host(p.rows)] for p in proposals])
    return index.unique(return_inverse=True)[1]
