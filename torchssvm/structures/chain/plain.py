"""Viterbi in plain torch operators, for any batch and any length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.potentials import Parts
from torchssvm.core.traced_loops import scan


class ChainDecoder(nn.Module):
    """The best sequences of a :class:`~torchssvm.Chain`; ties as there: the smallest state, from the last position."""

    ragged = True
    pairs: Tensor | None
    first: Tensor
    last: Tensor

    def __init__(self, structure: Any) -> None:
        super().__init__()
        self.shared = structure.shared
        allowed = structure.transitions
        self.register_buffer("pairs", None if allowed is None else ~allowed.pairs, persistent=False)
        self.register_buffer("first", None if allowed is None else ~allowed.first, persistent=False)
        self.register_buffer("last", None if allowed is None else ~allowed.last, persistent=False)

    def forward(self, potentials: Parts, lengths: Tensor | None) -> Tensor:
        """``emission`` ``[B, N, K]`` and ``transition`` -> ``[B, N]`` int64, -1 beyond the length."""
        emission, transition = potentials["emission"], potentials["transition"]
        batch, longest, states = emission.shape
        position = torch.arange(longest, device=emission.device).unsqueeze(1)
        if lengths is None:
            lengths = torch.full((batch,), longest, device=emission.device)
        real, goes_on = position < lengths, position + 1 < lengths  # [N, B]
        is_first = position.squeeze(1) == 0
        if self.shared and transition.stride(0) == 0:  # one matrix for all examples
            transition = transition[:1]
        if self.pairs is not None:
            is_last = (real & ~goes_on).mT.unsqueeze(2)
            transition = transition.masked_fill(self.pairs, -torch.inf)
            emission = emission.masked_fill(is_first.view(1, -1, 1) & self.first, -torch.inf)
            emission = emission.masked_fill(is_last & self.last, -torch.inf)
        into: tuple[Tensor, ...] = ()
        out_of: tuple[Tensor, ...] = ()
        if not self.shared:  # the pairs that end, and that begin, at each position
            steps = transition.transpose(0, 1)
            into = (nn.functional.pad(steps, (0, 0, 0, 0, 0, 0, 1, 0)),)
            out_of = (nn.functional.pad(steps, (0, 0, 0, 0, 0, 0, 0, 1)),)

        # Shapes are stated by `expand` with the batch: a traced loop must know it from within.
        def forth(best: Tensor, at: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            scores, inside, start, *pair = at
            message = (best.unsqueeze(2) + (pair[0] if pair else transition)).amax(1).expand(batch, states)
            reached = torch.where(start, scores, scores + message)
            best = torch.where(inside.unsqueeze(1), reached, best)
            return best, best.clone()

        def back(state: Tensor, at: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            prefix, inside, *pair = at
            matrix = (pair[0] if pair else transition).expand(batch, states, states)
            column = matrix.gather(2, state.view(-1, 1, 1).expand(batch, states, 1)).squeeze(2)
            state = torch.where(inside, (prefix + column).argmax(1), state)
            return state, state.clone()

        best = torch.zeros_like(emission[:, 0])
        best, prefixes = scan(forth, best, (emission.transpose(0, 1), real, is_first, *into))
        _, labels = scan(back, best.argmax(1), (prefixes, goes_on, *out_of), reverse=True)
        return torch.where(real, labels, -1).mT
