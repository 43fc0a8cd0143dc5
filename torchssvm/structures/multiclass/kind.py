"""Classes for the compiled loop: sequences of one token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.batch import Batch
from torchssvm.core.lists import Lists, lists_of_rows, one_token
from torchssvm.core.potentials import SINGLE
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.core.structure import Labeling
from torchssvm.kinds.examples import Examples
from torchssvm.structures.chain.kind import SequenceAdapter
from torchssvm.structures.multiclass.kind_numba import Classes


class MulticlassAdapter(SequenceAdapter):
    """:class:`LinearMulticlass`: a sequence of one token, without pairs."""

    emission, ragged = SINGLE, False

    def cost_matrix(self) -> Tensor:
        """The structure's; empty for the zero-one loss."""
        cost = self.structure.cost.cpu()  # type: ignore[attr-defined]
        if torch.equal(cost, 1.0 - torch.eye(len(cost), dtype=cost.dtype)):
            return super().cost_matrix()
        return cost

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """One for each example."""
        return target, torch.ones(len(target), dtype=torch.float64), torch.ones_like(target)

    def features(self, x: Any, target: Labeling) -> Tensor | Lists:
        """One row or list for each example."""
        if not isinstance(x, SparseFeatures):
            return x
        return lists_of_rows(x, self.head.in_features, self.head.weight.dtype)

    def apply(self, batch: Batch) -> Any:
        """Scores; of lists only their shape and dtype, as a pass over them takes no longer than their scores."""
        if not isinstance(batch.x, SparseFeatures):
            return super().apply(batch)
        return self.head.weight.detach().new_zeros(len(one_token(batch.x).columns), self.num_states)

    def as_sequences(self, labelings: Tensor) -> Tensor:
        """A last axis of one token."""
        return labelings.unsqueeze(2)

    def longest_labeling(self, longest: int) -> Tensor:
        """``[1]``."""
        return torch.full((1,), self.num_states - 1)

    def whole(self) -> MulticlassAdapter:
        """The kind is ``Classes``."""
        return WholeClasses(self.head)


class WholeClasses(MulticlassAdapter):
    """Classes whose blocks are solved whole."""

    def kind(self, *_: Any) -> Any:
        """Cost matrix, and what sequences have."""
        return Classes(self.cost_matrix().numpy(), self.allowed().numpy())

    def complete(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Examples:
        """Squared lengths of the features, without a kernel of their own, and the kind."""
        if examples.dense:
            sizes = np.einsum("nf,nf->n", examples.x, examples.x, dtype=np.float64)
        elif len(examples.value):
            sums = np.append(0.0, np.square(examples.value, dtype=np.float64).cumsum())[examples.row]
            sizes = np.diff(sums)
        else:
            sizes = np.diff(examples.row)
        examples.inner[:] = sizes + self.has_bias
        return examples._replace(kind=self.kind())
