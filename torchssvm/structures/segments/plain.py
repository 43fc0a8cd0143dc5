"""The best segments in plain torch operators, for any batch, any length and any device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.potentials import Parts
from torchssvm.core.traced_loops import scan

LARGE = 2.0**20
"""Scores of frames with a larger absolute value are not added up over frames, as the sums would round others away."""


def best_segments_torch(
    emission: Tensor, table: Tensor, least: Tensor, lengths: Tensor, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The codes ``[B, N]`` and their scores ``[B]`` float64, with the bits of the compiled kernel and its arguments.

    ``table`` is ``[B or 1, K + D, K]``.
    """
    batch, longest, width = emission.shape
    states = table.shape[2]
    most = table.shape[1] - states
    emission, table = emission.double(), table.double()
    position = torch.arange(longest, device=emission.device).unsqueeze(1)
    real, goes_on = position < lengths, position + 1 < lengths  # [N, B]
    neighbours, every = table[:, :states], torch.arange(1, most + 1, device=emission.device)
    durations = table[:, states:].masked_fill(every.unsqueeze(1) < least, -torch.inf).expand(batch, most, states)
    frames, count = emission[..., :states].transpose(0, 1), torch.zeros(batch, dtype=torch.float64)
    begins = emission[..., states:].transpose(0, 1) if width > states else torch.zeros_like(frames)
    spans: tuple[Tensor, ...] = ()
    if target is not None:
        durations = durations + 1.0
        first = (target >= states).mT
        ends = real & (~goes_on | first.roll(-1, 0))
        begun = torch.where(first, position, 0).cummax(0).values
        spans = (torch.where(ends, position - begun + 1, 0), target.mT.remainder(states))
        count = ends.sum(0).double()
    labels = torch.arange(states, device=emission.device)

    def forth(carry: tuple[Tensor, ...], at: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        best, prefix, starts = carry
        frame, begin, inside, is_first, *span = at
        into = best.unsqueeze(2) + neighbours
        before = into.argmax(1)
        reached = torch.where(is_first, 0.0, into.amax(1)) - prefix + begin
        alone = frame.abs() > LARGE
        starts = torch.cat([reached.unsqueeze(1), starts[:, :-1]], 1)
        starts = torch.where(alone.unsqueeze(1), starts + frame.unsqueeze(1), starts)
        prefix = prefix + frame.masked_fill(alone, 0.0)
        rows = durations
        if span:
            right = (span[0].view(-1, 1, 1) == every.view(1, -1, 1)) & (span[1].view(-1, 1, 1) == labels)
            rows = torch.where(right, rows - 2.0, rows)
        joint = starts + rows
        best = torch.where(inside.unsqueeze(1), joint.amax(1) + prefix, best)
        return (best, prefix, starts), torch.stack([joint.argmax(1), before])

    def back(carry: tuple[Tensor, Tensor], at: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        label, left = carry  # the label of this frame, and how many frames of its segment come before it; -1 at its end
        choices, inside = at
        chosen = choices.gather(2, label.view(1, -1, 1).expand(2, batch, 1)).squeeze(2)
        left = torch.where(left < 0, chosen[0], left)
        code = torch.where(left == 0, label + states, label)
        after = torch.where(left == 0, chosen[1], label)
        label = torch.where(inside, after, label)
        left = torch.where(inside, left - 1, -1)
        return (label, left), torch.where(inside, code, -1)

    zero = torch.zeros(batch, states, dtype=torch.float64, device=emission.device)
    starts = torch.full((batch, most, states), -torch.inf, dtype=torch.float64, device=emission.device)
    over = (frames, begins, real, position.squeeze(1) == 0, *spans)
    (best, _, _), choices = scan(forth, (zero, zero.clone(), starts), over)
    last = best.argmax(1)
    _, codes = scan(back, (last, torch.full_like(last, -1)), (choices, real), reverse=True)
    return codes.mT.contiguous(), best.amax(1) + count.to(best.device)


class SegmentsDecoder(nn.Module):
    """The best segments of a :class:`~torchssvm.Segments`; ties as there."""

    ragged = True
    least: Tensor

    def __init__(self, structure: Any) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(structure.min_duration), persistent=False)

    def forward(self, potentials: Parts, lengths: Tensor | None) -> Tensor:
        """``emission`` and ``segment`` -> ``[B, N]`` int64, -1 beyond the length."""
        emission, table = potentials["emission"], potentials["segment"]
        if lengths is None:
            lengths = torch.full((emission.shape[0],), emission.shape[1], device=emission.device)
        return best_segments_torch(emission, table, self.least, lengths)[0]
