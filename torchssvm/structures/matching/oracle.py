"""The best matching of each bipartite graph of a batch: SciPy's assignment solver, or one Triton kernel on CUDA."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.extras import needs
from torchssvm.core.jit import triton_available


def best_matching(scores: Tensor, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
    """The matching with the highest total score in each bipartite graph.

    Nodes may stay unmatched, so edges with a score of 0 or less are never used: negative scores are raised to 0, an
    assignment of the smaller side is found exactly [1]_, and its edges of score 0 are dropped. SciPy breaks ties; its
    choice depends only on the example's own scores. CUDA tensors are solved on the device by the same algorithm, with
    the same ties, where Triton is installed and no side has more than 2048 nodes; otherwise on the CPU.

    Args:
        scores: ``[B, S, T]``; compared in float64. NaN counts as 0.
        rows: ``[B]`` int64, the number of rows of each example; None means S for all.
        columns: ``[B]`` int64, the number of columns of each example; None means T for all.

    Returns:
        ``[B, S, T]`` bool on the device of ``scores``.

    Raises:
        ImportError: SciPy is missing, and the problem is solved on the CPU.

    References:
        .. [1] D. F. Crouse. On implementing 2D rectangular assignment algorithms. IEEE Transactions on Aerospace and
           Electronic Systems, 2016.
    """
    if scores.is_cuda and triton_available():
        from torchssvm.structures.matching.triton import LARGEST, best_matching_triton

        if max(scores.shape[1:]) <= LARGEST:
            return best_matching_triton(scores, rows, columns)
    with needs("matchings need SciPy: pip install 'torchssvm[scipy]'", "scipy"):
        from scipy.optimize import linear_sum_assignment
    batch, most_rows, most_columns = scores.shape
    # The caller reports infinite scores as an error; here they must not stop the other examples.
    gains = np.nan_to_num(scores.detach().to("cpu", torch.float64).numpy().clip(min=0.0), posinf=1e300)
    heights = [most_rows] * batch if rows is None else rows.tolist()
    widths = [most_columns] * batch if columns is None else columns.tolist()
    chosen = np.zeros(gains.shape, dtype=bool)
    for example, (height, width) in enumerate(zip(heights, widths, strict=True)):
        own = gains[example, :height, :width]
        left, right = linear_sum_assignment(own, maximize=True)
        used = own[left, right] > 0.0
        chosen[example, left[used], right[used]] = True
    return torch.from_numpy(chosen).to(scores.device)
