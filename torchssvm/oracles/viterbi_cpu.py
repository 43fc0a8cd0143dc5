"""Viterbi for one CPU core, compiled by Numba; same labels and values as the torch operations, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.oracles.compiled import compiled


def viterbi_cpu(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """As :func:`torchssvm.oracles.viterbi`, for CPU tensors; ``transition`` has 2, 3 or 4 axes."""
    batch, longest, states = emission.shape
    pairs = transition.reshape((1,) * (4 - transition.ndim) + transition.shape) if transition.ndim == 2 else transition
    pairs = pairs.unsqueeze(1) if pairs.ndim == 3 else pairs  # [B or 1, N-1 or 1, K, K]
    if longest == 1:
        pairs = emission.new_zeros(1, 1, states, states)
    if lengths is None:
        lengths = torch.full((batch,), longest)
    labels = torch.full((batch, longest), -1)
    value = emission.new_empty(batch)
    _kernel(
        emission.detach().contiguous().numpy(),
        pairs.detach().contiguous().numpy(),
        lengths.numpy(),
        labels.numpy(),
        value.numpy(),
    )
    return labels, value


@compiled
def _kernel(emission: Any, pairs: Any, lengths: Any, labels: Any, value: Any) -> None:
    batch, longest, states = emission.shape
    prefixes = np.empty((longest, states), emission.dtype)
    for b in range(batch):
        chain = b if pairs.shape[0] > 1 else 0
        last = lengths[b] - 1
        prefixes[0] = emission[b, 0]
        for t in range(1, last + 1):
            place = t - 1 if pairs.shape[1] > 1 else 0
            row = prefixes[t]
            for k in range(states):
                row[k] = prefixes[t - 1, 0] + pairs[chain, place, 0, k]
            for j in range(1, states):
                score = prefixes[t - 1, j]
                for k in range(states):
                    row[k] = max(row[k], score + pairs[chain, place, j, k])
            for k in range(states):
                row[k] += emission[b, t, k]
        best = 0
        for k in range(1, states):
            if prefixes[last, k] > prefixes[last, best]:
                best = k
        value[b] = prefixes[last, best]
        labels[b, last] = best
        for t in range(last, 0, -1):
            place = t - 1 if pairs.shape[1] > 1 else 0
            before = 0
            highest = prefixes[t - 1, 0] + pairs[chain, place, 0, best]
            for j in range(1, states):
                score = prefixes[t - 1, j] + pairs[chain, place, j, best]
                if score > highest:
                    highest = score
                    before = j
            best = before
            labels[b, t - 1] = best
