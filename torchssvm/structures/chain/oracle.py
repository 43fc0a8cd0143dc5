"""Viterbi decoding of a batch of chains: one torch operator with a kernel for each device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_scores
from torchssvm.core.jit import triton_available
from torchssvm.core.launch import as_array, compiles, launch, plan
from torchssvm.core.naming import row_name
from torchssvm.core.operators import define
from torchssvm.structures.chain.by_level import viterbi_by_level
from torchssvm.structures.chain.numba import decode

_NONE = np.empty(0, np.int64)


def viterbi(emission: Tensor, transition: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Best state sequence of every chain: ``argmax_y sum_t emission[t, y_t] + sum_t transition[t, y_t, y_{t+1}]``.

    Ties go to the smallest state, decided from the last position to the first, on every device. It is the operator
    ``torch.ops.torchssvm.viterbi``: on the CPU compiled by Numba, on CUDA by Triton where that is installed,
    otherwise in torch operations; all give the same bits. It has no gradient.

    Args:
        emission: ``[B, N, K]``, float32 or float64.
        transition: ``[K, K]`` (previous, next) shared by all, ``[B, K, K]`` for each chain, or ``[B, N-1, K, K]``.
        lengths: ``[B]`` int64, 1 to N; None means N for all.

    Returns:
        ``labels`` ``[B, N]`` int64, -1 beyond the length, and ``value`` ``[B]``, the score of the best sequence.

    Raises:
        ValueError: Scores are not floating, shapes do not fit, there is no position or state, or (on the CPU) a length
            is not in 1 to N.
    """
    return _operator(emission, transition, lengths)


def _fake(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _check_shapes(emission, transition, lengths)
    labels = emission.new_empty(emission.shape[:2], dtype=torch.int64)
    return labels, emission.new_empty(emission.shape[0])


def _on_cpu(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _check_shapes(emission, transition, lengths)
    batch, longest, states = emission.shape
    if not compiles(emission, transition):
        if lengths is not None and bool(((lengths < 1) | (lengths > longest)).any()):
            raise ValueError(f"lengths must lie between 1 and the padded length {longest}, got {lengths.tolist()}")
        return viterbi_torch(emission, transition, lengths)
    # Arrays from here on: making, viewing and converting a tensor takes microseconds, longer than decoding a chain.
    scores = as_array(emission)
    pairs = transition.detach().numpy()
    pairs = pairs[None] if pairs.ndim == 2 else pairs[:1] if pairs.strides[0] == 0 else pairs  # once if seen B times
    pairs = np.ascontiguousarray(pairs[:, None] if pairs.ndim == 3 else pairs)
    known = _NONE if lengths is None else as_array(lengths).copy()  # no other thread changes these
    run = known if len(known) else np.full(batch, longest)
    labels, value = np.empty((batch, longest), np.int64), np.empty(batch, scores.dtype)
    group, height = plan(batch, states, scores.itemsize, len(pairs) == 1, 2 * longest)
    bad = launch(
        decode,
        (scores, pairs, known, group, height),
        (labels, value),
        run,
        [(2 * group * longest * states, emission.dtype), (batch + longest + 1 + group, torch.int64)],
        each=states**2,
    )
    if (row := max(bad, default=-1)) >= 0:
        raise ValueError(
            f"lengths must lie between 1 and the padded length {longest}, got {run[row]} in {row_name(row)}"
        )
    return torch.from_numpy(labels), torch.from_numpy(value)


def _on_cuda(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _check_shapes(emission, transition, lengths)
    fits = emission.shape[2] < 2**15  # back-pointers of two bytes
    if fits and triton_available() and compiles(emission, transition):
        from torchssvm.structures.chain.triton import viterbi_triton

        return viterbi_triton(emission, transition, lengths)
    return viterbi_torch(emission, transition, lengths)


def _check_shapes(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> None:
    check_scores(emission=emission, transition=transition)
    if emission.ndim != 3:
        raise ValueError(f"emission must be [B, N, K], got {list(emission.shape)}")
    batch, longest, states = emission.shape
    if not longest or not states:
        raise ValueError(f"emission must have at least one position and one state, got {list(emission.shape)}")
    shapes = (states, states), (batch, states, states), (batch, longest - 1, states, states)
    if transition.ndim < 2 or transition.ndim > 4 or transition.shape != shapes[transition.ndim - 2]:
        raise ValueError(
            f"transition must be [K, K], [B, K, K] or [B, N-1, K, K] for emission [B, N, K] = "
            f"{list(emission.shape)}, got {list(transition.shape)}"
        )
    if lengths is not None and (lengths.shape != (batch,) or lengths.dtype != torch.int64):
        raise ValueError(f"lengths must be int64 [{batch}], got {lengths.dtype} {list(lengths.shape)}")


@torch.no_grad()
def viterbi_torch(emission: Tensor, transition: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """:func:`viterbi` in torch operations, for any device."""
    labels, value = _fake(emission, transition, lengths)
    batch, longest, _ = emission.shape
    if not batch:
        return labels, value
    real = torch.ones(batch, longest, dtype=torch.bool, device=emission.device)
    if lengths is not None:
        real = torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)
    every = transition.expand(batch, *transition.shape) if transition.ndim == 2 else transition
    found = viterbi_by_level(emission, every, torch.zeros_like(emission, dtype=torch.int64), real)
    level = torch.zeros(batch, dtype=torch.int64, device=emission.device)
    return found.labels(level), found.scores[:, 0]


_operator = define(
    "viterbi(Tensor emission, Tensor transition, Tensor? lengths) -> (Tensor labels, Tensor value)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=_on_cuda,
    default=viterbi_torch,
)
