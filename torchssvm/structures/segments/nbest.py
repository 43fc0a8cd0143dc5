"""The n best segmentations: those of a chain whose states are a label and the frame of a segment that is reached."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.structures.chain.nbest import NBest, nbest


def best_segmentations(emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor, n: int) -> NBest:
    """The n best codes of every sequence, in O(T D^2 K^2) time and O(T D K + D^2 K^2) memory for each.

    State ``(d - 1) K + k`` is frame d of a segment of label k. Every segmentation is one path of these states: it goes
    on to the next frame of the segment, or pays for the duration and begins another one.

    Args:
        emission: ``[B, N, K]``, or ``[B, N, 2 K]`` with scores of frames where a segment begins.
        segment: ``[B, K + D, K]``.
        least: ``[K]`` int64, the smallest duration of each label.
        lengths: ``[B]`` int64, on the CPU.
        n: How many.
    """
    emission, segment = emission.detach().double().cpu(), segment.detach().double().cpu()
    batch, longest, width = emission.shape
    states, most = segment.shape[2], segment.shape[1] - segment.shape[2]
    ends = segment[:, states:].clone()  # [B, D, K], what a segment pays where it ends after d frames
    ends[:, torch.arange(1, most + 1).unsqueeze(1) < least.cpu()] = -torch.inf
    size = most * states
    pairs = torch.full((batch, most, states, most, states), -torch.inf, dtype=torch.float64)
    pairs[:, :, :, 0] = ends.unsqueeze(3) + segment[:, None, :states]
    within, label = torch.arange(most - 1).unsqueeze(1), torch.arange(states)
    pairs[:, within, label, within + 1, label] = 0.0
    frames = emission[..., :states].unsqueeze(2).repeat(1, 1, most, 1)  # [B, N, D, K]
    if width > states:
        frames[:, :, 0] += emission[..., states:]
    frames[:, 0, 1:] = -torch.inf
    frames[torch.arange(batch), lengths - 1] += ends
    found = nbest(frames.view(batch, longest, size), pairs.view(batch, size, size), lengths, n)
    codes = found.labelings.remainder(states) + states * (found.labelings < states)
    return NBest(torch.where(found.labelings < 0, -1, codes), found.values)
