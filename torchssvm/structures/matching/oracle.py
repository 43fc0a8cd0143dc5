"""The best matching of each bipartite graph of a batch: one kernel on the CPU, and one on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.arguments import check_int64
from torchssvm.core.jit import triton_available
from torchssvm.structures.matching.numba import best_matchings, make_room


def best_matching(scores: Tensor, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
    """The matching with the highest total score in each bipartite graph.

    Nodes may stay unmatched, so edges with a score of 0 or less are never used: negative scores are raised to 0, an
    assignment of the smaller side is found exactly [1]_, and its edges of score 0 are dropped. Ties are those of
    SciPy's ``linear_sum_assignment``, and depend only on the example's own scores. CUDA tensors are solved on the
    device by the same algorithm, with the same ties, where Triton is installed and no side has more than 2048 nodes;
    otherwise on the CPU.

    Args:
        scores: ``[B, S, T]``; compared in float64. NaN counts as 0.
        rows: ``[B]`` int64, the number of rows of each example; None means S for all.
        columns: ``[B]`` int64, the number of columns of each example; None means T for all.

    Returns:
        ``[B, S, T]`` bool on the device of ``scores``.

    Raises:
        ValueError: ``rows`` or ``columns`` is not int64 ``[B]``.

    References:
        .. [1] D. F. Crouse. On implementing 2D rectangular assignment algorithms. IEEE Transactions on Aerospace and
           Electronic Systems, 2016.
    """
    if scores.is_cuda and triton_available():
        from torchssvm.structures.matching.triton import LARGEST, best_matching_triton

        if max(scores.shape[1:]) <= LARGEST:
            return best_matching_triton(scores, rows, columns)
    batch, left, right = scores.shape
    sizes = []
    for name, given, most in (("rows", rows, left), ("columns", columns, right)):
        if given is None:
            sizes.append(torch.full((batch,), most))
        else:
            check_int64(given, name, (batch,), ", the nodes of each example")
            sizes.append(given.cpu().clamp(0, most))  # in memory of its own
    chosen = torch.zeros(scores.shape, dtype=torch.bool)
    own = scores.detach().to("cpu", torch.float64).contiguous()
    arrays = (tensor.numpy() for tensor in (own, *sizes))
    best_matchings(*arrays, *make_room(left, right), chosen.numpy())
    return chosen.to(scores.device)
