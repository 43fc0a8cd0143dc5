"""Margins of frames and boundaries: the best score of a segmentation with a part less the best without it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.core.launch import launch, once
from torchssvm.structures.max_marginals import best_of_others, margins_of


@torch.no_grad()
def segment_margins(emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor, codes: Tensor) -> Tensor:
    """Margins of every label of every frame; with boundaries, then of every label that begins there.

    Max-sum from the first frame to the last and back, in O(T D K + T K^2), in float64 on the CPU.

    Args:
        emission, segment, least: As :func:`semi_markov` takes them.
        lengths: ``[B]`` int64.
        codes: ``[B, N]``, of a best segmentation: its parts have no margin below 0, and the others none above, whatever
            is rounded.

    Returns:
        Float64, shaped like ``emission``, 0 beyond the lengths.
    """
    device, (batch, longest, width), states = emission.device, emission.shape, segment.shape[2]
    sizes, codes = lengths.cpu(), codes.cpu()
    begun, going = torch.full((2, batch, longest, states), -math.inf, dtype=torch.float64)
    launch(
        max_product,
        (emission.cpu().double(), once(segment.cpu().double()), least.cpu(), sizes),
        (begun, going),
        sizes.numpy(),
        [(3 * longest * states + segment.shape[1], torch.float64)],
        each=4 * states * segment.shape[1],
    )
    chosen = torch.nn.functional.one_hot(codes.clamp(min=0), 2 * states).bool()
    covered, begins = chosen[..., :states] | chosen[..., states:], chosen[..., states:]
    with_it = torch.maximum(begun, going)
    margins = margins_of(with_it, best_of_others(with_it), covered)
    if width > states:  # a frame where no segment of the label begins goes on with one, or begins one of another label
        without = torch.maximum(best_of_others(begun), going.amax(2, keepdim=True))
        margins = torch.cat([margins, margins_of(begun, without, begins)], 2)
    return margins.masked_fill((codes < 0).unsqueeze(2), 0.0).to(device)


@njit
def max_product(
    emission: Any, tables: Any, least: Any, lengths: Any, begin: int, end: int, memory: Any, begun: Any, going: Any
) -> None:
    """Write the best scores of the examples ``begin`` to ``end - 1``.

    ``begun`` ``[B, N, K]`` is of segmentations where a segment of the label begins at the frame, ``going`` of those
    where one goes on there; both are ``-inf`` before.
    """
    longest, states = begun.shape[1], begun.shape[2]
    size, most, boundary = longest * states, tables.shape[1] - states, emission.shape[2] > states
    starts, ends, follows = memory[: 3 * size].reshape(3, longest, states)  # the best up to there, and from there on
    scores = memory[3 * size :]
    for b in range(begin, end):
        table, length = tables[b if tables.shape[0] > 1 else 0], lengths[b]
        for t in range(length):
            for k in range(states):
                highest = 0.0 if t == 0 else -np.inf
                for j in range(states if t > 0 else 0):
                    highest = max(highest, ends[t - 1, j] + table[j, k])
                starts[t, k] = highest + (emission[b, t, states + k] if boundary else 0.0)
                highest, frames = -np.inf, 0.0
                for d in range(min(most, t + 1)):
                    frames += emission[b, t - d, k]
                    if d + 1 >= least[k]:
                        highest = max(highest, starts[t - d, k] + frames + table[states + d, k])
                ends[t, k] = highest
        for k in range(states):
            follows[length - 1, k] = 0.0
        for s in range(length - 1, -1, -1):
            if s + 1 < length:
                for j in range(states):
                    highest = -np.inf
                    for k in range(states):
                        highest = max(highest, table[j, k] + ends[s + 1, k])
                    follows[s, j] = highest
            for k in range(states):
                longest_here, frames = min(most, length - s), 0.0
                for d in range(longest_here):
                    frames += emission[b, s + d, k]
                    scores[d] = frames + table[states + d, k] + follows[s + d, k] if d + 1 >= least[k] else -np.inf
                highest = -np.inf
                for d in range(longest_here - 1, -1, -1):  # those that end at frame s + d or behind it
                    highest = max(highest, scores[d])
                    if d > 0:
                        going[b, s + d, k] = max(going[b, s + d, k], starts[s, k] + highest)
                begun[b, s, k] = starts[s, k] + highest
                ends[s, k] = highest + (emission[b, s, states + k] if boundary else 0.0)  # of what begins here
