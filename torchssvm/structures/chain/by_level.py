"""Viterbi with a counter: the best state sequence of each chain for each value of an integer cost."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.threads import once


class ByLevel(NamedTuple):
    """The best sequences of a batch of chains, by level."""

    scores: Tensor  # ``[B, M + 1]``, the best score at each level; ``-inf`` if no sequence has that level
    # for each position, the best scores of prefixes by level and last state: ``[B, levels so far, K]``
    prefixes: list[Tensor]
    transition: Tensor  # the transitions
    levels: Tensor  # ``[B, N, K]``, 0 in the padding
    real: Tensor  # ``[B, N]`` bool, False in the padding

    def labels(self, level: Tensor) -> Tensor:
        """The best sequence of each chain at ``level`` (``[B]`` int64): ``[B, N]`` int64, -1 in the padding."""
        rows = torch.arange(len(level), device=level.device)
        state = self.prefixes[-1][rows, level].argmax(1)
        labels = level.new_full(self.real.shape, -1)
        for t in range(self.real.shape[1] - 1, -1, -1):
            inside = self.real[:, t]
            labels[:, t] = torch.where(inside, state, -1)
            if t > 0:
                prefix, pair = self.prefixes[t - 1], self.transition
                before = (level - self.levels[rows, t, state]).clamp(0, prefix.shape[1] - 1)
                incoming = pair[rows, :, state] if pair.ndim == 3 else pair[rows, t - 1, :, state]
                previous = (prefix[rows, before] + incoming).argmax(1)
                level = torch.where(inside, before, level)
                state = torch.where(inside, previous, state)
        return labels


def viterbi_by_level(emission: Tensor, transition: Tensor, levels: Tensor, real: Tensor) -> ByLevel:
    """``max_y sum_t emission[t, y_t] + sum_t transition[t, y_t, y_{t+1}]`` for each value of ``sum_t levels[t, y_t]``.

    The level reached so far is part of the state: time O(N M K^2) for each chain and memory O(N M K), with M the
    largest level. Ties go to the smallest state, chosen from the last position to the first. ``transition`` is ``[B, K,
    K]`` or ``[B, N-1, K, K]``, ``levels`` are ``[B, N, K]`` int64, and ``real`` ``[B, N]`` marks all but the padding.
    """
    batch, longest, states = emission.shape
    levels = levels.masked_fill(~real.unsqueeze(2), 0)
    # The number of reachable levels grows with the position.
    sizes = (levels.amax(2).cumsum(1).amax(0) + 1).tolist()
    ladder = torch.arange(sizes[-1], device=emission.device).view(1, -1, 1)
    best = _climb(emission.new_zeros(batch, 1, states), ladder[:, : sizes[0]] - levels[:, :1]) + emission[:, :1]
    prefixes = [best]
    pairs = once(transition)
    for t in range(1, longest):
        pair = pairs if pairs.ndim == 3 else pairs[:, t - 1]
        # [previous, B, level, next]: a maximum over the leading axis is the fastest on a CPU
        into = (best.movedim(2, 0).contiguous().unsqueeze(3) + pair.movedim(1, 0).unsqueeze(2)).amax(0)
        source = ladder[:, : sizes[t]] - levels[:, t : t + 1]
        moved = _climb(into, source) + emission[:, t : t + 1]
        kept = torch.nn.functional.pad(best, (0, 0, 0, sizes[t] - sizes[t - 1]), value=-torch.inf)
        best = torch.where(real[:, t].view(-1, 1, 1), moved, kept)
        prefixes.append(best)
    return ByLevel(best.amax(2), prefixes, transition, levels, real)


def _climb(best: Tensor, source: Tensor) -> Tensor:
    """``best[b, source[b, m, k], k]``, or ``-inf`` if ``source`` is out of range."""
    last = best.shape[1] - 1
    return best.gather(1, source.clamp(0, last)).masked_fill((source < 0) | (source > last), -torch.inf)
