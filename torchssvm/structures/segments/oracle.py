"""The best segments of a batch, and the masses of all: an operator with a kernel for the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.arguments import check_scores
from torchssvm.core.jit import triton_available
from torchssvm.core.launch import compiles, launch, once
from torchssvm.core.on_host import apart
from torchssvm.core.operators import define
from torchssvm.structures.arguments import own_lengths
from torchssvm.structures.segments import numba as kernels
from torchssvm.structures.segments.plain import best_segments

_MOST_LABELS = 64  # of the kernel for CUDA, whose scores of neighbours stay in registers


def semi_markov(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None = None, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The best segments of every sequence, in O(T D K + T K^2) time and O(D K) memory beside back-pointers.

    Ties go to the smallest label, then to the shortest duration, decided from the last frame to the first, on every
    device. Sums are float64. This is the operator ``torch.ops.torchssvm.semi_markov``: compiled by Numba on the CPU, by
    Triton on CUDA up to 64 labels, otherwise in torch operations; all give the same bits. It has no gradient.

    Args:
        emission: ``[B, N, K]``, float32 or float64; or ``[B, N, 2 K]``, with scores of segments that begin.
        segment: ``[B, K + D, K]``: of neighbours (previous, next), then of durations 1 to D.
        least: ``[K]`` int64, the smallest duration of each label, at least 1.
        lengths: ``[B]`` int64, 1 to N; None means N for all.
        target: ``[B, N]`` codes, from ``check_target``: adds the number of its spans that are missed and of those that
            are found wrongly.

    Returns:
        ``codes`` ``[B, N]`` int64, a frame's label, K more at the first frame of a segment, -1 beyond the length; and
        ``value`` ``[B]``, the score.

    Raises:
        ValueError: Scores are not floating, or a shape or a length does not fit.
    """
    return _operator(emission, segment, least, lengths, target)


def _fake(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    _check_shapes(emission, segment, least, lengths, target)
    return emission.new_empty(emission.shape[:2], dtype=torch.int64), emission.new_empty(emission.shape[0])


def _on_cpu(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    codes, value = _fake(emission, segment, least, lengths, target)
    if not compiles(emission, segment):
        return semi_markov_torch(emission, segment, least, lengths, target)
    batch, longest, _ = emission.shape
    states = segment.shape[2]
    most = segment.shape[1] - states
    sizes = own_lengths(lengths, batch, longest)
    sizes = torch.full((batch,), longest) if sizes is None else sizes
    known = torch.empty(batch, 0, dtype=torch.int64) if target is None else apart(target)
    launch(
        kernels.decode,
        (emission, once(segment), least, known, sizes),
        (codes, value),
        sizes.numpy(),
        [((2 * most + 2) * states, torch.float64), (2 * longest * states, torch.int32)],
        each=states * (states + most),
    )
    return codes, value


def _on_cuda(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    _check_shapes(emission, segment, least, lengths, target)
    if not (triton_available() and compiles(emission, segment)) or segment.shape[2] > _MOST_LABELS:
        return semi_markov_torch(emission, segment, least, lengths, target)
    from torchssvm.structures.segments.triton import semi_markov_triton

    sizes = emission.new_full(emission.shape[:1], emission.shape[1], dtype=torch.int64) if lengths is None else lengths
    return semi_markov_triton(emission, segment, least, sizes, target)


def semi_markov_torch(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None = None, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`semi_markov` in torch operations, for any device."""
    codes, value = _fake(emission, segment, least, lengths, target)
    batch, longest, _ = emission.shape
    if not batch:
        return codes, value
    sizes = own_lengths(lengths, batch, longest)
    sizes = torch.full((batch,), longest, device=emission.device) if sizes is None else sizes
    codes, score = best_segments(emission, segment, least.to(emission.device), sizes, target)
    return codes, score.to(emission.dtype)


def _check_shapes(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None, target: Tensor | None
) -> None:
    check_scores(emission=emission, segment=segment)
    if emission.ndim != 3 or segment.ndim != 3 or not emission.shape[1] or len(segment) != len(emission):
        raise ValueError(
            "emission must be [B, N, K] or [B, N, 2 K] with at least one frame, and segment [B, K + D, K]; got "
            f"{list(emission.shape)} and {list(segment.shape)}"
        )
    batch, longest, width = emission.shape
    states = segment.shape[2]
    if not states or width not in (states, 2 * states) or segment.shape[1] <= states:
        raise ValueError(
            f"segment {list(segment.shape)} must be [B, K + D, K] with K={states} labels and a duration, and emission "
            f"{list(emission.shape)} have K or 2 K scores for each frame"
        )
    if least.shape != (states,) or least.dtype != torch.int64:
        raise ValueError(f"least must be int64 [{states}], got {least.dtype} {list(least.shape)}")
    if lengths is not None and (lengths.shape != (batch,) or lengths.dtype != torch.int64):
        raise ValueError(f"lengths must be int64 [{batch}], got {lengths.dtype} {list(lengths.shape)}")
    if target is not None and (target.shape != (batch, longest) or target.dtype != torch.int64):
        raise ValueError(f"target must be int64 [{batch}, {longest}], got {target.dtype} {list(target.shape)}")


@torch.no_grad()
def semi_markov_marginals(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean parts of ``P(y) = exp(score(y)) / Z``, shaped like ``emission`` and ``segment``, and ``log Z``.

    Computed in float64: on CUDA by Triton up to 32 labels, else on the CPU.
    """
    _check_shapes(emission, segment, least, lengths, None)
    batch, longest, _ = emission.shape
    if emission.is_cuda and triton_available() and segment.shape[2] <= _MOST_LABELS // 2:  # float64, and two tables
        from torchssvm.structures.segments.marginals_triton import marginals_triton

        given = emission.new_full((batch,), longest, dtype=torch.int64) if lengths is None else lengths
        parts, pairs, whole = marginals_triton(emission.detach().double(), segment.detach().double(), least, given)
        return parts.to(emission.dtype), pairs.to(segment.dtype), whole
    scores, tables = emission.detach().cpu().double(), once(segment.detach().cpu().double())
    sizes = own_lengths(lengths, batch, longest)
    sizes = torch.full((batch,), longest) if sizes is None else sizes.cpu()
    parts, whole = torch.zeros(scores.shape, dtype=torch.float64), torch.zeros(batch, dtype=torch.float64)
    pairs = torch.zeros(segment.shape, dtype=torch.float64)
    states = segment.shape[2]
    launch(
        kernels.marginals,
        (scores, tables, least.cpu(), sizes),
        (parts, pairs, whole),
        sizes.numpy(),
        [(4 * longest * states, torch.float64)],
        each=16 * states * segment.shape[1],
    )
    return parts.to(emission), pairs.to(segment), whole.to(emission.device)


_operator = define(
    "semi_markov(Tensor emission, Tensor segment, Tensor least, Tensor? lengths, Tensor? target) "
    "-> (Tensor codes, Tensor value)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=_on_cuda,
    default=semi_markov_torch,
)
