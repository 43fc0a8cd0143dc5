"""Eisner's algorithm: the best projective arborescence of every sentence of a batch, one torch operator."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_scores
from torchssvm.core.jit import triton_available
from torchssvm.core.launch import compiles, launch
from torchssvm.core.on_host import apart
from torchssvm.core.operators import define
from torchssvm.structures.arborescence.numba import decode


def eisner(scores: Tensor, lengths: Tensor | None = None, single_root: bool = False) -> tuple[Tensor, Tensor]:
    """The projective arborescence with the highest score over the tokens 1 to T of each sentence.

    Token 0 is the artificial root, left of all others; no two arcs cross, including those of the root. Eisner's dynamic
    program over spans (Eisner 1996; McDonald et al. 2005, "Online large-margin training of dependency parsers",
    section 3.1) takes time O(T^3) and memory O(T^2). Each span takes the first of its best splits, so ties are broken
    in the same way on every device and in every batch. This is the operator ``torch.ops.torchssvm.eisner``: compiled by
    Numba on the CPU, by Triton on CUDA where it is installed, otherwise in torch operations; all give the same bits. It
    has no gradient.

    Args:
        scores: ``[B, N, N+1]``, float32 or float64: ``scores[b, t-1, h]`` is that of the arc from head h to token t.
            Ignored are arcs of a token to itself, rows from T on and columns beyond T.
        lengths: ``[B]`` int64, 1 to N; None means N for all.
        single_root: Whether exactly one token has the root as head; otherwise at least one.

    Returns:
        ``heads`` ``[B, N]`` int64, 0 to T, and -1 beyond the length; ``value`` ``[B]``, the score.

    Raises:
        ValueError: Scores are not floating, shapes do not fit, or a length is not in 1 to N.
    """
    return _operator(scores, lengths, single_root)


def empty_arborescence(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """Uninitialised results of the operators of arborescences, for tracing."""
    check_arcs(scores, lengths)
    return scores.new_empty(scores.shape[:2], dtype=torch.int64), scores.new_empty(scores.shape[0])


def _on_cpu(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    if not compiles(scores):
        return eisner_torch(scores, lengths, single_root)
    heads, value = empty_arborescence(scores, lengths, single_root)
    lengths = apart(lengths)
    check_sizes(scores, lengths)
    batch, longest, size = scores.shape
    known = np.full(batch, longest) if lengths is None else lengths.contiguous().numpy()
    launch(
        decode,
        (scores, known, single_root),
        (heads, value),
        0.5 * known.astype(np.float64) ** 3,  # a span of width w has 3 w splits; T^3 / 2 in total
        [(6 * size * size, value.dtype), (3 * (2 * size + 2), torch.int64)],
    )
    return heads, value


def _on_cuda(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    if not (triton_available() and compiles(scores)):
        return eisner_torch(scores, lengths, single_root)
    from torchssvm.structures.arborescence.triton import eisner_triton

    check_arcs(scores, lengths)
    check_sizes(scores, lengths)
    return eisner_triton(scores, lengths, single_root)


def check_arcs(scores: Tensor, lengths: Tensor | None) -> None:
    """Raise ValueError if scores are not floating ``[B, N, N+1]`` with N at least 1, or lengths not int64 ``[B]``."""
    check_scores(scores=scores)
    if scores.ndim != 3 or scores.shape[1] < 1 or scores.shape[2] != scores.shape[1] + 1:
        raise ValueError(f"scores must be [B, N, N+1] with at least one token, got {list(scores.shape)}")
    if lengths is not None and (lengths.shape != scores.shape[:1] or lengths.dtype != torch.int64):
        raise ValueError(f"lengths must be int64 [{len(scores)}], got {lengths.dtype} {list(lengths.shape)}")


def check_sizes(scores: Tensor, lengths: Tensor | None) -> None:
    """Raise ValueError if a length is not in 1 to N."""
    longest = scores.shape[1]
    if lengths is not None and bool(((lengths < 1) | (lengths > longest)).any()):
        raise ValueError(f"lengths must lie between 1 and the padded length {longest}, got {lengths.tolist()}")


@torch.no_grad()
def eisner_torch(scores: Tensor, lengths: Tensor | None = None, single_root: bool = False) -> tuple[Tensor, Tensor]:
    """:func:`eisner` in torch operations on any device, by ascending width of the spans."""
    check_arcs(scores, lengths)
    check_sizes(scores, lengths)
    batch, longest, size = scores.shape  # size: tokens and the root
    arcs = torch.zeros(batch, size, size, dtype=scores.dtype, device=scores.device)  # [b, head, token]
    arcs[:, :, 1:] = scores.mT
    # Best scores of spans: complete spans, whose head is their first (right) or last (left) token, and open spans, with
    # an arc between their ends whose token may still get children. They are kept [b, first, width] or [b, last, width],
    # so that the halves of all spans of a width are two slices. Arcs into token 0 are never read.
    right_first, right_last, left_first, left_last, open_right, open_left = torch.zeros(
        6, batch, size, size, dtype=scores.dtype, device=scores.device
    ).unbind(0)
    pointers = []  # by width from 1 on: the splits of open, complete right and complete left spans
    for width in range(1, size):
        firsts = size - width
        halves = right_first[:, :firsts, :width] + left_last[:, width:, :width].flip(2)
        if single_root:
            halves[:, 0, 1:] = -torch.inf  # the root's only child takes all tokens to its left
        best, split = halves.max(2)
        open_right[:, :firsts, width] = best + arcs.diagonal(width, 1, 2)
        open_left[:, width:, width] = best + arcs.diagonal(-width, 1, 2)
        right, split_right = (open_right[:, :firsts, 1 : width + 1] + right_last[:, width:, :width].flip(2)).max(2)
        left, split_left = (left_first[:, :firsts, :width] + open_left[:, width:, 1 : width + 1].flip(2)).max(2)
        right_first[:, :firsts, width] = right_last[:, width:, width] = right
        left_first[:, :firsts, width] = left_last[:, width:, width] = left
        pointers.append((split, split_right + 1, split_left))
    if lengths is None:
        lengths = torch.full((batch,), longest, device=scores.device)
    value = right_first[:, 0].gather(1, lengths.unsqueeze(1)).squeeze(1)
    return _follow(pointers, lengths, size), value


def _follow(pointers: list[tuple[Tensor, Tensor, Tensor]], lengths: Tensor, size: int) -> Tensor:
    """Read the heads off the splits, from the widest spans down."""
    batch = len(lengths)
    unread = (size - 1) * size  # unused spans are written to this place, which belongs to no span
    complete_right, complete_left, open_right, open_left = torch.zeros(
        4, batch, size * size, dtype=torch.bool, device=lengths.device
    ).unbind(0)  # used spans [b, first * size + last]
    complete_right.scatter_(1, lengths.unsqueeze(1), True)
    heads = torch.full((batch, size), -1, device=lengths.device)
    token = torch.arange(size, device=lengths.device)

    def use(spans: Tensor, where: Tensor, first: Tensor, last: Tensor) -> None:
        spans.scatter_(1, torch.where(where, first * size + last, unread), True)

    for width in range(size - 1, 0, -1):
        split, split_right, split_left = pointers[width - 1]
        first, last = token[: size - width].expand_as(split), token[width:].expand_as(split)
        place = token[: size - width] * (size + 1) + width
        used = complete_right[:, place]
        use(open_right, used, first, first + split_right)
        use(complete_right, used, first + split_right, last)
        used = complete_left[:, place]
        use(complete_left, used, first, first + split_left)
        use(open_left, used, first + split_left, last)
        to_right, to_left = open_right[:, place], open_left[:, place]
        heads[:, width:] = torch.where(to_right, first, heads[:, width:])
        heads[:, : size - width] = torch.where(to_left, last, heads[:, : size - width])
        use(complete_right, to_right | to_left, first, first + split)
        use(complete_left, to_right | to_left, first + split + 1, last)
    return heads[:, 1:].contiguous()


_operator = define(
    "eisner(Tensor scores, Tensor? lengths, bool single_root) -> (Tensor heads, Tensor value)",
    fake=empty_arborescence,
    cpu=_on_cpu,
    cuda=_on_cuda,
    default=eisner_torch,
)
