"""Trees for the compiled loop: a row of emissions for each node, and a matrix of pairs, for all edges or for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.structure import Labeling
from torchssvm.kinds.adapter import HeadAdapter
from torchssvm.kinds.examples import Examples, Model


class TreeAdapter(HeadAdapter):
    """:class:`LinearTree`."""

    emission, pairs = "node", "edge"

    @property
    def num_states(self) -> int:
        """K."""
        return self.structure.num_states  # type: ignore[attr-defined]

    @property
    def _shared(self) -> bool:
        return self.structure.shared  # type: ignore[attr-defined]

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes within the lengths."""
        real = target >= 0
        return target[real], self.structure.costs(target)[real], real.sum(1)  # type: ignore[attr-defined]

    def features(self, x: Any, target: Labeling) -> Tensor:
        """Nodes within the lengths."""
        return x[target >= 0]

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """Rows of nodes; matrices by the child unless one serves all edges."""
        states, matrices = self.num_states, torch.ones_like(lengths) if self._shared else lengths
        return {"node": (lengths, (states,)), "edge": (matrices, (states, states))}

    def complete(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Examples:
        """Inner products, and the kind."""
        from torchssvm.structures.tree.kind_numba import Trees

        parent = self.structure.parent.cpu().numpy()  # type: ignore[attr-defined]
        return super().complete(examples, own)._replace(kind=Trees(parent, self._shared, self.num_states))

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the decoder."""
        from torchssvm.structures.tree.kind_numba import make_room

        longest = len(self.structure.parent)  # type: ignore[attr-defined]
        return partial(make_room, longest, self.num_states, examples.added.dtype)

    def weights(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Nodes, edges and bias."""
        return self.head.node.t(), self.head.edge.view(-1, self.num_states), self.head.bias, None, None

    def trained(self, model: Model) -> list[Any]:
        """Nodes, edges and bias."""
        emission, *bias = self.unpadded(model)
        return [emission.T, model.transition.reshape(self.head.edge.shape), *bias]
