"""The storage by labelings: active sets, and the mean parts of labelings that were merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole
from torchssvm.core.batch import tree_map
from torchssvm.core.gradients import adjoint
from torchssvm.core.on_host import on_host, pick, read_together, upload
from torchssvm.core.oracle_result import OracleResult
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Labeling
from torchssvm.dual.active_sets import ActiveSets
from torchssvm.dual.labeling_blocks import LabelingBlocks
from torchssvm.dual.storage import Stored
from torchssvm.dual.stored_labelings import StoredLabelings


class Labelings(LabelingBlocks):
    """Keeps the dual distribution of every block: up to ``capacity`` labelings and their mass.

    ``psi_i = -sum_c alpha_c (p(y_c) - p(y_i))``. The labelings with mass are the active set of the pairwise, away and
    corrective directions; all labelings are the cache of ``CacheOracle``. If a block is full, a new labeling replaces
    the least recent one without mass. If all have mass, the one with the least mass is merged into the *rest*: one
    point of the marginal polytope, kept as mean parts, which every direction treats as one more atom. At the start the
    rest is the target, with mass 1. Memory holds the labelings (T small integers each) and a few numbers for each;
    directions that need inner products add ``capacity^2`` numbers an example.

    Args:
        capacity: C, the largest number of labelings of a block.

    Raises:
        ValueError: ``capacity`` is less than 1.

    Example:
        >>> solver = Solver(storage=Labelings(capacity=5), direction=Corrective())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver).relative_gap <= 0.01
        True
    """

    keeps_labelings = True

    def __init__(self, capacity: int = 20) -> None:
        self.capacity = check_whole(capacity, "capacity")
        self.wants_curvature = False

    def keep_curvature(self) -> None:
        """Keep the inner products of each block's labelings."""
        self.wants_curvature = True

    def estimate(self, potentials: Potentials, target: Labeling = None) -> int:
        """Bytes for all examples with full active sets, if their labelings are as long as this batch's."""
        gram = self.parameters[0].element_size() if self.wants_curvature else 0
        each = ActiveSets.bytes_each(self.labeling_like(potentials, target), self.capacity, gram)
        return len(self.own) * (each + 8 + 8 + 1)

    def gather(self, index: Tensor, potentials: Potentials, target: Labeling) -> Stored:
        """The blocks of a batch."""
        if not self.sets.labelings:
            self.check_memory(
                potentials, target, "Labelings(capacity=...) with a smaller capacity takes less, and so may MeanParts()"
            )
        sets = self.sets
        count, held, mixed = read_together(sets.count[index], sets.length[index], self.mixed[index])
        if not self.rest.nbytes() and bool((count == self.capacity).any()):
            self.rest.check_memory(
                potentials, target, "a larger capacity of Labelings() needs no room for merged labelings"
            )
        if potentials.lengths is not None:
            lengths = on_host(potentials.lengths)
            if bool((wrong := (held != lengths) & (held > 0)).any()):
                row = int(wrong.nonzero()[0])
                raise ValueError(
                    f"example {int(index[row])} came with length {int(lengths[row])}, and its labelings "
                    f"have {int(held[row])}: an index must always name the same example, at the same length"
                )
        return StoredLabelings(self, index, potentials, target, count, upload(mixed, index.device))

    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise ValueError if an example is in two batches, as both would start from the same masses."""
        seen: set[int] = set()
        for batch, own in zip(batches, rows, strict=True):
            assert isinstance(batch, StoredLabelings)
            examples = set(on_host(pick(batch.index, own)).tolist())
            if twice := sorted(seen & examples):
                raise ValueError(
                    f"examples {twice[:5]} came in two of the batches that were accumulated for one step, and their "
                    "blocks are kept as Labelings(): accumulate batches of distinct examples, use BoxQP() with a head "
                    "that gives its adjoint, or storage=MeanParts()"
                )
            seen |= examples

    def remember(self, stored: Stored, corner: OracleResult) -> Callable[[], None] | None:
        """Cache the corners of an exact pass, in free slots and in slots without mass."""
        assert isinstance(stored, StoredLabelings)
        columns = stored.lookup(corner.labeling)
        new = upload((on_host(columns) == 0).nonzero().flatten(), columns.device)
        if not len(new):
            return None
        index, lengths = pick(stored.index, new), None if stored.lengths is None else stored.lengths[new]
        labeling, loss = tree_map(lambda t: t[new], corner.labeling), corner.loss[new]

        def keep() -> None:
            self.sets.insert(index, lengths, labeling, loss)

        return keep

    def forget_features(self) -> None:
        """Mark the inner products as unknown; they were computed from the old features."""
        self.sets.known.fill_(False)

    def contribution(self, stored: Stored, potentials: Potentials) -> list[Tensor]:
        """One backward pass of the head."""
        assert isinstance(stored, StoredLabelings)
        weight = 1.0 / (self.lam * self.num_examples)
        return [g.to(torch.float64) * weight for g in adjoint(potentials, stored.psi, self.parameters, sparse=True)]
