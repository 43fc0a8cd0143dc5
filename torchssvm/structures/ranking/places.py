"""Places of documents: sorting, and counting which documents stand above others."""

from __future__ import annotations

import torch
from torch import Tensor


def place_of(scores: Tensor, real: Tensor) -> Tensor:
    """The place of each document by descending score, ``[B, N]`` int64, 0 on top; -1 where ``real`` is False.

    Of equal scores the first document stands above.
    """
    order = scores.masked_fill(~real, -torch.inf).argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, (~real).gather(1, order).to(torch.int8).argsort(dim=1, stable=True))  # the padding last
    places = torch.empty_like(order)
    places.scatter_(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    return places.masked_fill(~real, -1)


def count_swaps(better: Tensor, worse: Tensor, grades: Tensor) -> tuple[Tensor, Tensor]:
    """How often each document is swapped with another: the less relevant one of a pair stands above the other.

    By one running sum over the places for each grade, O(G N).

    Args:
        better: ``[B, N]`` int64, the place of each document as the more relevant one of a pair; 0 on top.
        worse: ``[B, N]`` int64, its place as the less relevant one. No two documents have the same place.
        grades: ``[B, N]`` int64; negative in the padding, which takes part in no pair.

    Returns:
        How many less relevant documents stand above each document, and how many more relevant ones below it,
        ``[B, N]`` int64 each.
    """
    above, below = torch.zeros_like(grades), torch.zeros_like(grades)
    for grade in grades.unique().tolist():
        if grade >= 0:
            own = grades == grade
            lower = _count_up_to(worse, (grades >= 0) & (grades < grade))
            above = torch.where(own, lower.gather(1, better.clamp(min=0)), above)
            higher = _count_up_to(better, grades > grade)
            below = torch.where(own, higher[:, -1:] - higher.gather(1, worse.clamp(min=0)), below)
    return above, below


def _count_up_to(places: Tensor, chosen: Tensor) -> Tensor:
    """The number of chosen documents at or above each place, ``[B, M]`` int64, for M places."""
    most = 2 * places.shape[1]
    held = torch.zeros(len(places), most + 1, dtype=torch.int64, device=places.device)
    held.scatter_(1, torch.where(chosen, places, most), 1)
    return held[:, :-1].cumsum(1)


def count_others(grades: Tensor) -> tuple[Tensor, Tensor]:
    """How many documents of a lower and of a higher grade each document has beside it, ``[B, N]`` int64 each."""
    ordered = grades.sort(1).values
    below = torch.searchsorted(ordered, grades)
    higher = grades.shape[1] - torch.searchsorted(ordered, grades, right=True)
    return (below - (grades < 0).sum(1, keepdim=True)).clamp(min=0), higher
