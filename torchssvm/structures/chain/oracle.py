"""Viterbi decoding of a batch of chains: one torch operator with a kernel for each device."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.jit import numba_available, triton_available
from torchssvm.core.operators import define
from torchssvm.structures.chain.cpu import viterbi_cpu

_COMPILED = (torch.float32, torch.float64)


def viterbi(emission: Tensor, transition: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Best state sequence of every chain: ``argmax_y sum_t emission[t, y_t] + sum_t transition[t, y_t, y_{t+1}]``.

    Ties go to the smallest state, decided from the last position to the first, on every device. It is the operator
    ``torch.ops.torchssvm.viterbi``: on the CPU compiled by Numba where the extra ``torchssvm[numba]`` is installed, on
    CUDA by Triton where that is, otherwise in torch operations; all give the same bits. It has no gradient.

    Args:
        emission: ``[B, N, K]``, float32 or float64.
        transition: ``[K, K]`` (previous, next) shared by all, ``[B, K, K]`` for each chain, or ``[B, N-1, K, K]``.
        lengths: ``[B]`` int64, 1 to N; None means N for all.

    Returns:
        ``labels`` ``[B, N]`` int64, -1 beyond the length, and ``value`` ``[B]``, the score of the best sequence.

    Raises:
        ValueError: Shapes do not fit, or (on the CPU) a length is not in 1 to N.
    """
    return _operator(emission, transition, lengths)


def _fake(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _check_shapes(emission, transition, lengths)
    labels = emission.new_empty(emission.shape[:2], dtype=torch.int64)
    return labels, emission.new_empty(emission.shape[0])


def _on_cpu(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _check_shapes(emission, transition, lengths)
    if numba_available() and emission.dtype in _COMPILED and transition.dtype is emission.dtype:
        return viterbi_cpu(emission, transition, lengths)
    if lengths is not None and bool(((lengths < 1) | (lengths > emission.shape[1])).any()):
        raise ValueError(
            f"lengths must lie between 1 and the padded length {emission.shape[1]}, got {lengths.tolist()}"
        )
    return viterbi_torch(emission, transition, lengths)


def _on_cuda(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _check_shapes(emission, transition, lengths)
    fits = emission.shape[2] < 2**15 and emission.shape[1] > 0  # back-pointers of two bytes
    if fits and triton_available() and emission.dtype in _COMPILED and transition.dtype is emission.dtype:
        from torchssvm.structures.chain.triton import viterbi_triton

        return viterbi_triton(emission, transition, lengths)
    return viterbi_torch(emission, transition, lengths)


def _check_shapes(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> None:
    if emission.ndim != 3:
        raise ValueError(f"emission must be [B, N, K], got {list(emission.shape)}")
    batch, longest, states = emission.shape
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
    if transition.ndim == 3 and transition.stride(0) == 0:
        transition = transition[0]  # one matrix seen B times: broadcasting reads it once
    batch, longest, _ = emission.shape
    if lengths is None:
        return _longest_first(emission, transition, [batch] * longest)
    # With the longest chains first, those that still run at position t are a prefix of the batch: nothing is wasted
    # on padding, and nothing needs a mask.
    lengths, order = lengths.sort(descending=True, stable=True)
    running = (lengths > torch.arange(longest, device=lengths.device).unsqueeze(1)).sum(1).tolist()
    sorted_transition = transition if transition.ndim == 2 else transition[order]
    labels, value = _longest_first(emission[order], sorted_transition, running)
    original = torch.empty_like(order)
    original[order] = torch.arange(batch, device=order.device)
    return labels[original], value[original]


def _longest_first(emission: Tensor, transition: Tensor, running: list[int]) -> tuple[Tensor, Tensor]:
    """Viterbi of chains in order of falling length; ``running[t]`` of them have a position t."""
    batch, longest, states = emission.shape
    # Reducing over the leading axis is by far the fastest maximum that torch has on a CPU, hence [previous, B, next].
    leading = transition.unsqueeze(1) if transition.ndim == 2 else transition.movedim(-2, 0)
    steps = emission.unbind(1)
    prefixes = [steps[0]]  # at t: [running, K], score of the best prefix that ends in each state
    last = emission.new_empty(batch, states)
    for t in range(1, longest):
        size = running[t]
        if not size:
            break
        best = prefixes[-1]
        if size < len(best):
            last[size : len(best)] = best[size:]
        pair = leading if transition.ndim == 2 else leading[:, :size]
        pair = pair[:, :, t - 1] if transition.ndim == 4 else pair
        prefixes.append((best[:size].t().contiguous().unsqueeze(2) + pair).amax(0) + steps[t][:size])
    last[: len(prefixes[-1])] = prefixes[-1]
    value, final = last.max(1)
    labels = final.new_full((batch, longest), -1)
    state = final[:0]
    for t in range(len(prefixes) - 1, 0, -1):
        size = running[t]
        if size > len(state):  # chains whose last position is t
            state = torch.cat([state, final[len(state) : size]])
        labels[:size, t] = state
        state = (prefixes[t - 1][:size] + _incoming(transition, t - 1, state)).argmax(1)
    labels[:, 0] = torch.cat([state, final[len(state) :]])
    return labels, value


def _incoming(transition: Tensor, t: int, state: Tensor) -> Tensor:
    """Scores of the transitions into ``state`` [R] between positions t and t + 1, of the first R chains: ``[R, K]``."""
    if transition.ndim == 2:
        return transition.t()[state]
    rows = torch.arange(len(state), device=state.device)
    return transition[rows, :, state] if transition.ndim == 3 else transition[rows, t, :, state]


_operator = define(
    "viterbi(Tensor emission, Tensor transition, Tensor? lengths) -> (Tensor labels, Tensor value)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=_on_cuda,
    default=viterbi_torch,
)
