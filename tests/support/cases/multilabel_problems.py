"""Problems of label sets with interactions."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from cases.problems import Reference, rng
from torchssvm import Batch, LinearMultilabel, SparseFeatures, SparseLinearMultilabel

F, K = 3, 3


class MultilabelProblem:
    """Few labels, of which two come together and two do not; some features are 0; the loss is a share."""

    def __init__(self, seed, n=6, lam=0.3, structure=None, sparse=False, dtype=torch.float64):
        random = rng(seed)
        self.n, self.lam = n, lam
        self.columns = torch.randint(-1, F, (n, 2), generator=random)
        self.values = torch.randn(n, 2, generator=random, dtype=torch.float64).to(dtype)
        self.dense = SparseFeatures(self.columns, self.values).dense(F, dtype)
        self.y = torch.randint(0, 2, (n, K), generator=random)
        alike, apart = (torch.rand(2, n, generator=random) < 0.7).unbind()
        self.y[:, 1] = torch.where(alike, self.y[:, 0], self.y[:, 1])
        self.y[:, 2] = torch.where(apart, 1 - self.y[:, 0], self.y[:, 2])
        kind = SparseLinearMultilabel if sparse else LinearMultilabel
        self.sparse, self.head = sparse, kind(F, K, structure=structure).to(dtype)

    def batch(self, rows):
        index = torch.as_tensor(rows)
        x = SparseFeatures(self.columns[index], self.values[index]) if self.sparse else self.dense[index]
        return Batch(x, self.y[index], index)

    def everything(self):
        return [self.batch(rows) for rows in torch.arange(self.n).split(4)]

    def reference(self):
        """All sets of labels of all examples, from the definitions of score and loss."""
        truth, sets = Reference([], [], [], self.lam), np.array(list(itertools.product((0.0, 1.0), repeat=K)))
        pairs = np.array([[y[0] * y[1], y[0] * y[2], y[1] * y[2]] for y in sets])
        order = "f,yk->yfk" if self.sparse else "f,yk->ykf"
        for x, y in zip(self.dense.double().numpy(), self.y.double().numpy(), strict=True):
            features = np.concatenate([np.einsum(order, x, sets).reshape(len(sets), -1), sets, pairs], 1)
            truth.losses.append(np.abs(sets - y).mean(1))
            truth.changes.append(features - features[(sets == y).all(1)])
        return truth
