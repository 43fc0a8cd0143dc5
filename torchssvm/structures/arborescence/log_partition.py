"""Log-partitions of arborescences, with gradients: the inside algorithm and the matrix-tree theorem."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.marginals import FORBIDDEN
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
    """``log Z`` of all arborescences, ``[B]``, O(N^3); arguments are as in :func:`inside`.

    It is the logarithm of a determinant, by the matrix-tree theorem (Koo et al. 2007, "Structured prediction models via
    the matrix-tree theorem"). Tokens are eliminated one after another, and the paths through each become arcs. All
    terms are positive, so their logarithms lose no digits where a determinant cancels.
    """
    real = mask_of(lengths, scores)
    heads = torch.nn.functional.pad(real, (1, 0), value=True).unsqueeze(1)  # and the root
    token = torch.arange(scores.shape[1], device=scores.device)
    arcs = scores.masked_fill(~(real.unsqueeze(2) & heads), FORBIDDEN)
    root, others = arcs[:, :, 0], arcs[:, :, 1:]
    least = cost = arcs.new_zeros(len(arcs))
    if single_root:  # a second arc from the root costs more than all other arcs can make up for
        known = arcs.detach() > FORBIDDEN / 2
        known.diagonal(1, 1, 2).fill_(False)
        none = ~known.any(2)
        low = arcs.detach().masked_fill(~known, torch.inf).amin(2).masked_fill(none, 0.0)
        high = arcs.detach().masked_fill(~known, -torch.inf).amax(2).masked_fill(none, 0.0)
        least, cost = low.sum(1) - 1.0, (high - low).sum(1) + 100.0
        root = root - cost.unsqueeze(1)
    root = root.masked_fill(~real, 0.0)  # the padding is below the root
    arcs = torch.cat([root.unsqueeze(2), others], 2)
    total = torch.zeros_like(least)
    for left in range(len(token), 0, -1):  # tokens, of which the first is eliminated
        row = torch.cat([arcs[:, 0, :1], arcs[:, 0, 2:]], 1)
        mass = row.logsumexp(1)
        total = total + mass
        through = arcs[:, 1:, 1:2] + (row - mass.unsqueeze(1)).unsqueeze(1)
        arcs = torch.logaddexp(torch.cat([arcs[:, 1:, :1], arcs[:, 1:, 2:]], 2), through)
        own = token[: left - 1].unsqueeze(1) + 1 == torch.arange(left, device=scores.device)
        arcs = arcs.masked_fill(own, FORBIDDEN)
    if not single_root:
        return total
    return (total + cost).masked_fill(total + cost < least, -torch.inf)
