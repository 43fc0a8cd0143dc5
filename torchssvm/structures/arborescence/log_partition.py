"""Log-partitions of arborescences, with gradients: the inside algorithm and the matrix-tree theorem."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.structures.common import mask_of


def inside(scores: Tensor, lengths: Tensor | None, single_root: bool) -> Tensor:
    """``log Z`` of the projective arborescences, ``[B]``: the chart of Eisner (1996) with sums, O(N^3).

    Args:
        scores: ``[B, N, N+1]``, as for :func:`eisner`.
        lengths: ``[B]`` int64, 1 to N; None means N for all.
        single_root: Whether exactly one token has the root as head; otherwise at least one.
    """
    batch, longest, _ = scores.shape
    arcs = torch.nn.functional.pad(scores, (0, 0, 1, 0))  # [token, head], both from 0, the root
    # By width: spans that begin at 0, 1, ..., of which the left (right) end is the head of all others, or of the other.
    right, left, to_right, to_left = ([arcs.new_zeros(batch, longest + 1)] for _ in range(4))
    for width in range(1, longest + 1):
        count = longest + 1 - width
        halves = [right[k][:, :count] + left[width - 1 - k][:, k + 1 : k + 1 + count] for k in range(width)]
        both = torch.stack(halves).logsumexp(0)
        to_right.append(both + arcs.diagonal(-width, 1, 2))
        to_left.append(both + arcs.diagonal(width, 1, 2))
        spans = [to_right[k][:, :count] + right[width - k][:, k : k + count] for k in range(1, width + 1)]
        right.append(torch.stack(spans).logsumexp(0))
        spans = [left[k][:, :count] + to_left[width - k][:, k : k + count] for k in range(width)]
        left.append(torch.stack(spans).logsumexp(0))
    every = torch.full((batch,), longest, device=scores.device) if lengths is None else lengths
    if not single_root:
        whole = torch.stack([spans[:, 0] for spans in right], 1)  # from the root to each token
        return whole.gather(1, every.unsqueeze(1)).squeeze(1)
    totals = []
    for length in range(1, longest + 1):
        each = [left[k - 1][:, 1] + arcs[:, k, 0] + right[length - k][:, k] for k in range(1, length + 1)]
        totals.append(torch.stack(each).logsumexp(0))
    return torch.stack(totals, 1).gather(1, every.unsqueeze(1) - 1).squeeze(1)


def matrix_tree(scores: Tensor, lengths: Tensor | None, single_root: bool) -> Tensor:
    """``log Z`` of all arborescences, ``[B]``: a determinant (Koo et al. 2007, "Structured prediction models via the
    matrix-tree theorem"), O(N^3). Arguments are as in :func:`inside`.
    """
    real = mask_of(lengths, scores)
    token = torch.arange(scores.shape[1], device=scores.device)
    heads = torch.nn.functional.pad(real, (1, 0), value=True).unsqueeze(1)  # and the root
    allowed = real.unsqueeze(2) & heads & (token.unsqueeze(1) + 1 != torch.arange(len(token) + 1, device=scores.device))
    largest = scores.detach().masked_fill(~allowed, -torch.inf).amax(2).masked_fill(~real, 0.0)
    arcs = (scores - largest.unsqueeze(2)).masked_fill(~allowed, -torch.inf).exp()
    root, others = arcs[:, :, 0], arcs[:, :, 1:]
    if single_root:
        laplacian = others.sum(2).diag_embed() - others
        laplacian = torch.cat([root.unsqueeze(2), laplacian[:, :, 1:]], 2)
    else:
        laplacian = arcs.sum(2).diag_embed() - others
    laplacian = laplacian + (~real).to(arcs.dtype).diag_embed()
    return laplacian.slogdet().logabsdet + largest.sum(1)
