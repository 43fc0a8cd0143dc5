"""The best label sets in torch operations, called as the oracle is."""

from __future__ import annotations

from torch import Tensor

from torchssvm.structures.multilabel.oracle import shared, symmetric
from torchssvm.structures.multilabel.reference import best_label_sets_torch


def plain_label_sets(
    unary: Tensor, pairwise: Tensor, *, max_rounds: int = 100, effort: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    weights = symmetric(shared(pairwise.detach()).double(), unary.shape[1])
    return best_label_sets_torch(unary.detach().double(), weights, max_rounds, effort)
