"""The best label sets by messages, in plain torch operators.

Messages are as in :mod:`torchssvm.structures.multilabel.message_passing`. The pairs ``i < j`` with the same
remainder ``(i + j) mod K`` are updated together. Among them each label has one partner at most, so a round is K
operations on ``[B, K]``: each label has a share of its pair.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchssvm.core.potentials import Parts
from torchssvm.core.traced_loops import repeat
from torchssvm.structures.multilabel.message_passing import EPS
from torchssvm.structures.multilabel.oracle import symmetric, without_masks


class LabelSetDecoder(nn.Module):
    """The label sets of a :class:`~torchssvm.Multilabel` without pairs, or with ``decoder=MessagePassing()``.

    Labels that messages decide are optimal, and agree with the structure's. Messages decide all labels where no pair
    has a negative weight. Otherwise flips of one label and of two improve the best set of all rounds. The structure
    also flips between rounds, and may return another set.
    """

    ragged = False

    places: Tensor | None  # of the pairs among all

    def __init__(self, num_labels: int, pairwise: bool, max_rounds: int, places: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("places", places, persistent=False)
        self.size, self.pairwise, self.most = num_labels, pairwise, max_rounds

    def forward(self, potentials: Parts, lengths: None) -> Tensor:
        """``unary`` ``[B, K]`` and ``pairwise`` ``[B, P]`` -> ``[B, K]`` int64."""
        unary = potentials["unary"].to(torch.float64)
        if not self.pairwise:
            return (unary > 0.0).long()
        pairs = potentials["pairwise"].to(torch.float64)
        pairs = pairs[0] if pairs.stride(0) == 0 else pairs
        if self.places is not None:
            whole = pairs.new_zeros(*pairs.shape[:-1], self.size * (self.size - 1) // 2)
            pairs = whole.index_copy(-1, self.places, pairs)
        weights = symmetric(pairs, self.size)
        weights = without_masks(unary, weights).view(-1, self.size, self.size)  # [1 or B, K, K]
        labels = self._send(unary, weights)
        return self._climb(unary, weights, labels)

    def _send(self, unary: Tensor, weights: Tensor) -> Tensor:
        """The best labels, 0.0 and 1.0, that the beliefs of any round decode to."""
        label = torch.arange(self.size, device=unary.device)
        partners = [(r - label) % self.size for r in range(self.size)]
        met = torch.stack([weights[:, label, other] for other in partners])  # [K, 1 or B, K], 0 with itself
        low, high, sign = met.clamp(max=0.0), met.clamp(min=0.0), torch.where(met > 0.0, 1.0, -1.0).to(met.dtype)
        shares = (met / 2).expand(self.size, *unary.shape).clone()
        belief = unary + weights.sum(2) / 2
        tiny = EPS * self.size * (belief.abs().sum(1) + weights.abs().sum((1, 2)) / 2)

        def one_round(
            going: Tensor, belief: Tensor, shares: Tensor, labels: Tensor, value: Tensor
        ) -> tuple[Tensor, ...]:
            before, updated, moved = belief, [], torch.zeros_like(value)
            for r, other in enumerate(partners):
                wanted = shares[r] + 0.5 * (sign[r] * belief[:, other] - belief)
                share = wanted.maximum(low[r]).minimum(high[r])
                change = share - shares[r]
                belief = belief + change
                moved = moved + change.abs().sum(1) / 2
                updated.append(share)
            after = torch.stack(updated)
            bound = belief.clamp(min=0.0).sum(1) - torch.where(met < 0.0, after, 0.0).sum((0, 2)) / 2
            tried = (belief > 0.0).to(belief.dtype)
            score = ((unary + 0.5 * _times(tried, weights)) * tried).sum(1)
            better = going & (score > value)
            labels = torch.where(better.unsqueeze(1), tried, labels)
            value = torch.where(better, score, value)
            on = going.unsqueeze(1)
            belief, after = torch.where(on, belief, before), torch.where(on, after, shares)
            return going & (moved > tiny) & (bound - value > tiny), belief, after, labels, value

        start = (
            torch.zeros_like(tiny) == 0.0,
            belief,
            shares,
            torch.zeros_like(unary),
            -torch.inf + torch.zeros_like(tiny),
        )
        return repeat(one_round, start, self.most)[3]

    def _climb(self, unary: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
        """Flip the one label, or else the two, that gain most, while the score rises: 0 and 1."""
        tiny = EPS * self.size * (unary.abs().sum(1) + weights.abs().sum((1, 2)))
        place = torch.arange(self.size**2, device=unary.device)

        def flip(going: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            change = 1.0 - 2.0 * labels
            gain = change * (unary + _times(labels, weights))
            both = gain.unsqueeze(2) + gain.unsqueeze(1) + weights * change.unsqueeze(2) * change.unsqueeze(1)
            alone = (place // self.size == place % self.size).view(self.size, self.size)
            both = torch.where(alone, -torch.inf, both).flatten(1)
            most, one = gain.max(1)
            most_of_two, two = both.max(1)
            single = most > tiny
            going = single | (most_of_two > tiny)
            label = torch.arange(self.size, device=unary.device)
            first = torch.where(single, one, two // self.size).unsqueeze(1) == label
            second = ~single.unsqueeze(1) & ((two % self.size).unsqueeze(1) == label)
            return going, torch.where(going.unsqueeze(1) & (first | second), 1.0 - labels, labels)

        return repeat(flip, (tiny == tiny, labels), 2 * self.size)[1].long()


def _times(labels: Tensor, weights: Tensor) -> Tensor:
    """``y W`` of every example, ``[B, K]``."""
    return (labels.unsqueeze(1) @ weights).squeeze(1)
