"""Viterbi decoding of a batch of chains, in plain torch operations (CPU and CUDA)."""

from __future__ import annotations

import torch
from torch import Tensor


def viterbi(emission: Tensor, transition: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Best state sequence of every chain: ``argmax_y sum_t emission[t, y_t] + sum_t transition[t, y_t, y_{t+1}]``.

    Ties go to the smallest state, decided from the last position to the first; so they do not depend on the device.

    Args:
        emission: ``[B, N, K]``, float32 or float64.
        transition: ``[K, K]`` (previous, next) shared by all, ``[B, K, K]`` for each chain, or ``[B, N-1, K, K]``.
        lengths: ``[B]`` int64, 1 to N; None means N for all.

    Returns:
        ``labels`` ``[B, N]`` int64, -1 beyond the length, and ``value`` ``[B]``, the score of the best sequence.
    """
    batch, longest, _ = emission.shape
    if transition.ndim == 3 and transition.stride(0) == 0:
        transition = transition[0]  # one matrix seen B times: broadcasting reads it once
    shared = transition.ndim == 2
    active = None
    if lengths is not None:
        active = torch.arange(longest, device=emission.device).unsqueeze(1) < lengths  # [N, B]
    # Reducing over the leading axis is by far the fastest maximum that torch has on a CPU, hence [previous, B, next].
    leading = transition.unsqueeze(1) if shared else transition.movedim(-2, 0)
    steps = emission.unbind(1)
    best = steps[0]  # [B, K]: score of the best prefix that ends in each state
    prefixes = [best]
    for t in range(1, longest):
        pair = leading if transition.ndim < 4 else leading[:, :, t - 1]
        extended = (best.t().unsqueeze(2) + pair).amax(0) + steps[t]
        best = extended if active is None else torch.where(active[t].unsqueeze(1), extended, best)
        prefixes.append(best)
    value, state = best.max(1)
    labels = state.new_full((longest, batch), -1)
    rows = torch.arange(batch, device=emission.device)
    for t in range(longest - 1, 0, -1):
        labels[t] = state if active is None else torch.where(active[t], state, -1)
        incoming = _incoming(transition, rows, t - 1, state)  # [B, previous]
        previous = (prefixes[t - 1] + incoming).argmax(1)
        state = previous if active is None else torch.where(active[t], previous, state)
    labels[0] = state
    return labels.t().contiguous(), value


def _incoming(transition: Tensor, rows: Tensor, t: int, state: Tensor) -> Tensor:
    """Scores of the transitions into ``state`` [B] between positions t and t + 1: ``[B, previous]``."""
    if transition.ndim == 2:
        return transition.t()[state]
    if transition.ndim == 3:
        return transition[rows, :, state]
    return transition[rows, t, :, state]
