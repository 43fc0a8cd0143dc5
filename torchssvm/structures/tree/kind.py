"""Trees and forests for the compiled loop: a row of emissions for each node, matrices of pairs for edges."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import set_rows
from torchssvm.core.decoding import Labeling
from torchssvm.core.potentials import Potentials
from torchssvm.kinds import block
from torchssvm.kinds.adapter import Extra, HeadAdapter, Shapes
from torchssvm.kinds.block import loss_of, size_of, state, uniform_mean_loss
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.links import LinkAdapter, Links, with_links
from torchssvm.kinds.weights import HeadWeights
from torchssvm.structures.tree.oracle import decode as decode_trees

_ALL = np.zeros(0, np.int64)


class Trees(NamedTuple):
    """The tree of all examples, of which each has the first nodes."""

    parent: Any  # ``[N]`` int64, -1 at roots
    # whether one matrix serves all edges; else rows ``v K`` to ``v K + K - 1`` of the pairs belong to the edge above
    # node v, by the state of its parent
    shared: bool
    states: int  # K


# Room of the decoder; ``every`` is empty: no lengths
Room = namedtuple("Room", "memory places value every")


def make_room(longest: int, states: int, dtype: np.dtype) -> Room:
    """Room for trees of up to ``longest`` nodes."""
    return Room(np.zeros(2 * longest * states, dtype), np.zeros(3 * longest + 2, np.int64), np.zeros(1, dtype), _ALL)


@njit
def row_of(kind, v, labels):
    """The row of the pairs that node v and its parent make."""
    return labels[kind.parent[v]] + (0 if kind.shared else v * kind.states)


@block.list_parts.of(Trees)
@njit
def list_parts(kind, examples, i, labels, other, task):
    total = 0.0
    for v in range(size_of(examples, i)):
        total += state(task, task.rows, v, labels[v], v, other[v])
        if kind.parent[v] >= 0:
            total += state(task, task.pairs, row_of(kind, v, labels), labels[v], row_of(kind, v, other), other[v])
    return total


block.mean_loss.of(Trees)(uniform_mean_loss)


@njit
def max_sum(examples, i, length, scratch, states, parents, edges, room, labels):
    """Max-sum with the loss added, with the ties of ``torchssvm.structures.tree.oracle``.

    ``edges`` are matrices for each node, or one with the child's state first.
    """
    start, scores = examples.start[i], scratch.prefixes
    set_rows(scores, scratch.emission, None, length, None, examples.added[start:])
    for v in range(length):
        target = examples.y[start + v]
        scores[v, target] = scratch.emission[v, target]
    nodes, states_of_nodes = scores[:length].reshape(1, length, states), labels[:length].reshape(1, length)
    work = 1, states, 0, 1, room.memory, room.places, states_of_nodes, room.value
    decode_trees(nodes, edges, parents[:length].reshape(1, length), room.every, *work)


@block.decode.of(Trees)
@njit
def decode(kind, examples, i, length, scratch, transition, labels):
    states, turned = kind.states, scratch.transition
    if kind.shared:
        for j in range(states):
            for k in range(states):
                turned[k, j] = transition[j, k]
        edges = turned[:states].reshape(1, 1, states, states)
    else:
        edges = transition[: length * states].reshape(1, length, states, states)
    max_sum(examples, i, length, scratch, states, kind.parent, edges, scratch.room, labels)
    return loss_of(kind, examples, i, labels)


@with_links
class Forests(NamedTuple):
    """Forests: edge v of an example joins node v and its parent; ``parent`` ``[E]`` is int64, -1 at roots."""

    links: Any
    parent: Any


@block.decode.of(Forests)
@njit
def decode_forest(kind, examples, i, length, scratch, transition, labels):
    states, parents = kind.links.states, kind.parent[kind.links.start[i] :]
    edges = transition[: length * states].reshape(1, length, states, states)
    max_sum(examples, i, length, scratch, states, parents, edges, scratch.room.decoder, labels)
    return loss_of(kind, examples, i, labels)


class TreeAdapter(HeadAdapter):
    """:class:`LinearTree`."""

    emission, pairs = "node", "edge"

    def __init__(self, head: Any) -> None:
        super().__init__(head, HeadWeights(head, "node", "edge"))

    @property
    def _shared(self) -> bool:
        return self.structure.shared  # type: ignore[attr-defined]

    @override
    def part_shapes(self, lengths: Tensor) -> Shapes:
        states, matrices = self.num_states, torch.ones_like(lengths) if self._shared else lengths
        return {"node": (lengths, (states,)), "edge": (matrices, (states, states))}

    @override
    def complete(self, examples: Examples, extra: Extra) -> Examples:
        rows = self.num_states * (1 if self._shared else np.diff(examples.start))
        return super().complete(examples, extra)._replace(pair_rows=np.broadcast_to(rows, examples.length.shape).copy())

    @override
    def kind(self, *_: Any) -> Trees:
        parent = self.structure.parent.cpu().numpy()  # type: ignore[attr-defined]
        return Trees(parent, self._shared, self.num_states)

    @override
    def room_of(self, examples: Examples) -> Callable[[], Any]:
        longest = len(self.structure.parent)  # type: ignore[attr-defined]
        return partial(make_room, longest, self.num_states, examples.added.dtype)


class ForestAdapter(LinkAdapter):
    """:class:`LinearForest`; ``labeling`` makes a labeling of labels and pairs."""

    def __init__(self, head: Any, labeling: Callable[[Tensor, Tensor], Labeling]) -> None:
        super().__init__(head, symmetric=False)
        self._labeling = labeling

    @override
    def labeling(self, labels: Tensor, pairs: Tensor) -> Labeling:
        return self._labeling(labels, pairs)

    @override
    def edges_of(self, x: Any, potentials: Potentials) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        _, z, _, forward = x
        parent = potentials.parent  # type: ignore[attr-defined]  # which has been checked
        batch, longest = parent.shape
        sizes = torch.full((batch,), longest) if potentials.lengths is None else potentials.lengths
        child = torch.arange(longest).expand_as(parent)
        ends = torch.stack([parent, torch.where(parent >= 0, child, -1)], 2)
        return sizes, ends, z, ~forward.bool()

    @override
    def part_shapes(self, lengths: Tensor) -> Shapes:
        shapes, states = super().part_shapes(lengths), self.num_states
        return {**shapes, "edge": (lengths, (states, states))} if self.ragged else shapes

    @override
    def linked(self, links: Links, examples: Examples) -> Forests:
        return Forests(links, np.ascontiguousarray(links.ends[:, 0]))

    @override
    def decoder_room(self, examples: Examples) -> Callable[[], Any]:
        return partial(make_room, int(np.diff(examples.start).max()), self.num_states, examples.added.dtype)
