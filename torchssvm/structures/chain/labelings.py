"""Scores and parts of given chain labelings, such as the cached ones: many for each example, without decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.core.launch import COMPILED, arrays, fits_numba
from torchssvm.core.potentials import Parts


def chain_scores(labels: Tensor, emission: Tensor, transition: Tensor) -> Tensor | None:
    """``sum_t emission[t, y_t] + sum_t transition[t, y_t, y_{t+1}]`` of C sequences for every example, ``[B, C]``
    float64.

    ``labels`` are ``[B, C, N]`` int64, -1 beyond the length, ``emission`` ``[B, N, K]``, and ``transition`` ``[B, K,
    K]`` or ``[B, N-1, K, K]``. None where the tensors do not fit Numba.
    """
    labels = labels.contiguous()
    _check_shapes(labels, emission, transition)
    if emission.dtype not in COMPILED or not fits_numba(labels):
        return None
    score = torch.empty(labels.shape[:2], dtype=torch.float64)
    if not _score(*arrays(labels, emission, four_axes(transition), score)):
        raise _no_state(labels, emission)
    return score


def chain_parts(labels: Tensor, mass: Tensor, emission: Tensor, transition: Tensor) -> Parts | None:
    """The parts of C sequences for every example, weighted by their mass ``[B, C]`` and summed; None as there.

    Labels and tensors are those of :func:`chain_scores`, of which only shapes and dtype count here.
    """
    labels = labels.contiguous()
    _check_shapes(labels, emission, transition)
    if mass.shape != labels.shape[:2]:
        raise ValueError(f"mass must be {list(labels.shape[:2])}, a number for each labeling, got {list(mass.shape)}")
    if emission.dtype not in COMPILED or not fits_numba(labels):
        return None
    states = torch.zeros_like(emission, requires_grad=False)
    moves = torch.zeros(transition.shape, dtype=torch.float64 if transition.ndim == 3 else emission.dtype)
    if not _spread(*arrays(labels, mass.to(torch.float64), states, four_axes(moves))):
        raise _no_state(labels, emission)
    # Shared pairs are sums over positions, which may cancel each other.
    return {"emission": states, "transition": moves.to(emission.dtype)}


def _check_shapes(labels: Tensor, emission: Tensor, transition: Tensor) -> None:
    batch, longest, states = emission.shape
    pairs = (batch, states, states) if transition.ndim == 3 else (batch, longest - 1, states, states)
    if labels.shape[0] != batch or labels.shape[2] != longest or transition.shape != pairs:
        raise ValueError(
            f"labelings must be [{batch}, C, {longest}] and transition {list(pairs)} for emission "
            f"{list(emission.shape)}; got {list(labels.shape)} and {list(transition.shape)}"
        )


def _no_state(labels: Tensor, emission: Tensor) -> ValueError:
    return ValueError(
        f"labelings hold states up to {int(labels.max())}: states are 0 to {emission.shape[2] - 1}, and -1 is padding"
    )


def four_axes(transition: Tensor) -> Tensor:
    """A view of the transitions as ``[B, N-1 or 1, K, K]``."""
    return transition if transition.ndim == 4 else transition.unsqueeze(1)


@njit
def _score(labels: Any, emission: Any, pairs: Any, score: Any) -> bool:
    """False where a label is not a state."""
    batch, count, longest = labels.shape
    for b in range(batch):
        for c in range(count):
            total = 0.0
            for t in range(longest):
                state = labels[b, c, t]
                if state < 0:
                    break
                if state >= emission.shape[2]:
                    return False
                total += emission[b, t, state]
                if t > 0:
                    total += pairs[b, t - 1 if pairs.shape[1] > 1 else 0, labels[b, c, t - 1], state]
            score[b, c] = total
    return True


@njit
def _spread(labels: Any, mass: Any, states: Any, pairs: Any) -> bool:
    """False where a label is not a state."""
    batch, count, longest = labels.shape
    for b in range(batch):
        for c in range(count):
            share = mass[b, c]
            if share == 0.0:
                continue
            for t in range(longest):
                state = labels[b, c, t]
                if state < 0:
                    break
                if state >= states.shape[2]:
                    return False
                states[b, t, state] += share
                if t > 0:
                    pairs[b, t - 1 if pairs.shape[1] > 1 else 0, labels[b, c, t - 1], state] += share
    return True
