"""Arborescences over lists of features for the compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.lists import Lists
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.core.structure import Labeling
from torchssvm.kinds.adapter import Ragged
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.vector import VectorAdapter
from torchssvm.structures.arborescence.kind_numba import Arcs, make_arc_scratch, number_columns


class ArcsAdapter(VectorAdapter):
    """:class:`LinearArcs`: a token's label is its head, and its emissions are the scores of its arcs.

    K is the length of the longest sentence that :meth:`features` has seen, plus 1.
    """

    emission, ragged_labels, notes, longest = "arcs", True, True, 0

    def __init__(self, head: Any, projective: bool) -> None:
        super().__init__(head)
        self.projective = projective

    @property
    def num_states(self) -> int:
        """Heads of the longest sentence."""
        return self.longest + 1

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens within the lengths."""
        self.longest = max(self.longest, int((target >= 0).sum(1).max()))
        return super().targets(target)

    def lists(self, sizes: Tensor, own: dict[str, Ragged]) -> Tensor:
        """A list for each arc."""
        return sizes * (sizes + 1)

    def features(self, x: Any, target: Labeling) -> Lists:
        """The features of all arcs within the lengths, the root's included."""
        columns, values = x if isinstance(x, SparseFeatures) else (x, None)
        inside = target >= 0
        arcs = inside.unsqueeze(2) & torch.nn.functional.pad(inside, (1, 0), value=True).unsqueeze(1)
        columns = columns[arcs]
        real = columns >= 0
        dtype = self.head.weight.dtype
        held = torch.empty(0, dtype=dtype) if values is None else values[arcs][real].to(dtype)
        return Lists(real.sum(1), columns[real].to(torch.int32), held)

    def kind(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Arcs:
        """Number the columns of each sentence."""
        n, among = len(examples.line) - 1, self.structure.among  # type: ignore[attr-defined]
        known_start = np.zeros(n + 1, np.int64)
        known = np.zeros(0, np.int32)
        for _ in range(2):  # first they are counted
            stamp, place = np.full(len(self.head.weight), -1, np.int32), np.empty(len(self.head.weight), np.int32)
            number_columns(examples.line, examples.row, examples.column, stamp, place, known, known_start)
            known = known if len(known) else np.empty(known_start[-1], np.int32)
        return Arcs(known, known_start, self.projective, among.single_root)

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the scratch arrays of one thread."""
        columns = int(np.diff(examples.kind.known_start).max())
        return partial(make_arc_scratch, self.longest, columns, examples.added.dtype)

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """The largest head."""
        return 0, lengths
