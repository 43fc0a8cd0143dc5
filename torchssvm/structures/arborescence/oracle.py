"""The best arborescence of every sentence of a batch: Eisner's algorithm, and that of Chu, Liu and Edmonds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_scores
from torchssvm.core.jit import COMPILED, Kernel, triton_available
from torchssvm.core.launch import compiles, launch
from torchssvm.core.on_host import apart
from torchssvm.core.operators import define
from torchssvm.structures.arborescence.numba import decode, decode_nonprojective


def eisner(scores: Tensor, lengths: Tensor | None = None, single_root: bool = False) -> tuple[Tensor, Tensor]:
    """The projective arborescence with the highest score over the tokens 1 to T of each sentence.

    Token 0 is the artificial root, left of all others; no two arcs cross, including those of the root. Eisner's dynamic
    program over spans (Eisner 1996; McDonald et al. 2005, "Online large-margin training of dependency parsers",
    section 3.1) takes time O(T^3) and memory O(T^2). Each span takes the first of its best splits, so ties are broken
    in the same way on every device and in every batch. This is the operator ``torch.ops.torchssvm.eisner``: compiled by
    Numba on the CPU, and by Triton on CUDA where it is installed; anything else is decoded on the CPU. All give the
    same bits. It has no gradient.

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


def _fake(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """Uninitialised results of the operators of arborescences, for tracing."""
    _check_arcs(scores, lengths)
    return scores.new_empty(scores.shape[:2], dtype=torch.int64), scores.new_empty(scores.shape[0])


def _on_cpu(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    size = scores.shape[-1]
    dtype = scores.dtype if scores.dtype in COMPILED else torch.float32
    memory = [(6 * size * size, dtype), (3 * (2 * size + 2), torch.int64)]
    # a span of width w has 3 w splits; T^3 / 2 in total
    return _on_host(scores, lengths, single_root, dtype, decode, lambda known: 0.5 * known**3, memory)


def _on_host(
    scores: Tensor,
    lengths: Tensor | None,
    single_root: bool,
    dtype: torch.dtype,
    kernel: Kernel,
    work: Callable[[np.ndarray], np.ndarray],
    memory: Sequence[Any],
    each: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Run a kernel on the CPU, in ``dtype``; ``work`` is that of sentences of given lengths."""
    _check_arcs(scores, lengths)
    lengths = apart(lengths)
    _check_sizes(scores, lengths)
    batch, longest, _ = scores.shape
    heads, value = torch.empty(batch, longest, dtype=torch.int64), torch.empty(batch, dtype=dtype)
    known = np.full(batch, longest) if lengths is None else lengths.cpu().contiguous().numpy()
    inputs = scores.detach().to("cpu", dtype), known, single_root
    launch(kernel, inputs, (heads, value), work(known.astype(np.float64)), memory, each)
    return heads.to(scores.device), value.to(scores.device, scores.dtype)


def _on_cuda(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    if not (triton_available() and compiles(scores)):
        return _on_cpu(scores, lengths, single_root)
    from torchssvm.structures.arborescence.triton import eisner_triton

    _check_arcs(scores, lengths)
    _check_sizes(scores, lengths)
    return eisner_triton(scores, lengths, single_root)


def _check_arcs(scores: Tensor, lengths: Tensor | None) -> None:
    """Raise ValueError if scores are not floating ``[B, N, N+1]`` with N at least 1, or lengths not int64 ``[B]``."""
    check_scores(scores=scores)
    if scores.ndim != 3 or scores.shape[1] < 1 or scores.shape[2] != scores.shape[1] + 1:
        raise ValueError(f"scores must be [B, N, N+1] with at least one token, got {list(scores.shape)}")
    if lengths is not None and (lengths.shape != scores.shape[:1] or lengths.dtype != torch.int64):
        raise ValueError(f"lengths must be int64 [{len(scores)}], got {lengths.dtype} {list(lengths.shape)}")


def _check_sizes(scores: Tensor, lengths: Tensor | None) -> None:
    """Raise ValueError if a length is not in 1 to N."""
    longest = scores.shape[1]
    if lengths is not None and bool(((lengths < 1) | (lengths > longest)).any()):
        raise ValueError(f"lengths must lie between 1 and the padded length {longest}, got {lengths.tolist()}")


_operator = define(
    "eisner(Tensor scores, Tensor? lengths, bool single_root) -> (Tensor heads, Tensor value)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=_on_cuda,
    default=_on_cpu,
)


def max_arborescence(
    scores: Tensor, lengths: Tensor | None = None, single_root: bool = False
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The arborescence with the highest score over the tokens 1 to T of each sentence; arcs may cross.

    Token 0 is the artificial root. Chu and Liu (1965) and Edmonds (1967): a cycle of best arcs is contracted to one
    node, and expanded again where the best arc enters it. The path of best arcs grows without restarts, so the time is
    O(T^2), as for dense graphs in Gabow et al. (1986). This is the operator ``torch.ops.torchssvm.max_arborescence``,
    compiled by Numba on the CPU, by Triton on CUDA where it is installed, for up to 1023 tokens; anything else is
    decoded on the CPU. Sums are in float64. Ties are broken in the same way everywhere. It has no gradient.

    With ``single_root``, arcs are compared lexicographically by (arcs from the root, score), fewer first. The algorithm
    only adds, subtracts and compares, so it works on such pairs. As the graph is complete, its optimum has one arc from
    the root and the best score among these; no large penalty costs digits.

    Arguments, heads and errors are those of :func:`eisner`.
    """
    return _crossing(scores, lengths, single_root)


def _crossing_on_cpu(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    size = scores.shape[-1]
    memory = [(size * size, torch.float64), (3 * size * size + 14 * size, torch.int64)]
    return _on_host(scores, lengths, single_root, torch.float64, decode_nonprojective, np.square, memory, each=4)


def _crossing_on_cuda(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    if triton_available():
        from torchssvm.structures.arborescence.chu_liu_edmonds_triton import LARGEST, max_arborescence_triton

        _check_arcs(scores, lengths)
        _check_sizes(scores, lengths)
        if scores.shape[1] <= LARGEST:
            return max_arborescence_triton(scores, lengths, single_root)
    return _crossing_on_cpu(scores, lengths, single_root)


_crossing = define(
    "max_arborescence(Tensor scores, Tensor? lengths, bool single_root) -> (Tensor heads, Tensor value)",
    fake=_fake,
    cpu=_crossing_on_cpu,
    cuda=_crossing_on_cuda,
    default=_crossing_on_cpu,
)
