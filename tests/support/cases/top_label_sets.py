"""A structure and a head from scratch, as a user writes them: top-k label sets on bare tensors."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from cases.problems import rng
from torchssvm import Batch, Structure
from torchssvm.core.decoding import Decoding


class LabelSets(Structure):
    """Exactly k of K labels; a wrong label costs 1/k. Potentials and parts ``[B, K]``, labelings ``[B, K]`` 0/1."""

    def __init__(self, num_labels: int, size: int) -> None:
        self.num_labels = num_labels
        self.size = size

    def argmax(self, potentials):
        chosen = potentials.single.topk(self.size, dim=1).indices
        return torch.zeros_like(potentials.single, dtype=torch.int64).scatter_(1, chosen, 1)

    def parts(self, labeling):
        return labeling.to(torch.float32)

    def loss(self, labeling, target):
        return ((labeling == 1) & (target == 0)).sum(1) / self.size

    def loss_potentials(self, target):
        delta = (target == 0) / self.size
        return delta, delta.new_zeros(len(delta))

    def enumerate(self, potentials):
        for chosen in itertools.combinations(range(self.num_labels), self.size):
            labeling = torch.zeros(potentials.batch_size, self.num_labels, dtype=torch.int64)
            labeling[:, list(chosen)] = 1
            yield labeling


class Scores(nn.Module):
    """A bare linear layer, and nothing else: no adjoint, no Potentials."""

    def __init__(self, in_features: int, num_labels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_labels, in_features))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def label_sets(seed: int = 0, n: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Scores, LabelSets, Batch]:
    random = rng(seed)
    x = torch.randn(n, 3, generator=random, dtype=torch.float64).to(dtype)
    y = torch.zeros(n, 4, dtype=torch.int64)
    for row in range(n):
        y[row, torch.randperm(4, generator=random)[:2]] = 1
    return Scores(3, 4).to(dtype), LabelSets(4, 2), Batch(x, y, torch.arange(n))


class Approximate(LabelSets):
    """An oracle that only looks at the target and at single exchanges, and says how much better the best could be."""

    def augmented_argmax(self, potentials, target):
        scores = potentials.single + self.loss_potentials(target)[0].to(potentials.dtype)
        inside = torch.where(target == 1, scores, torch.inf).min(1)
        outside = torch.where(target == 0, scores, -torch.inf).max(1)
        better = outside.values > inside.values
        labeling = target.clone()
        rows = torch.arange(len(target))[better]
        labeling[rows, inside.indices[better]] = 0
        labeling[rows, outside.indices[better]] = 1
        value = (scores * labeling).sum(1)
        bound = scores.topk(self.size, dim=1).values.sum(1)
        return Decoding(labeling, value, bound + self.slack, exact=False)

    slack = 0.125
