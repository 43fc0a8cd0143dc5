"""Examples whose nodes and edges are labelled, with features at both, compiled by Numba.

Versions of functions in :mod:`.block`. The pairs of edge e are rows ``e K`` to ``e K + K - 1``, by the label of its
first end. Their scores are ``z_e E`` of its features z and the weights ``[G, K K]``, in ``Model.transition``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.compiler.jit import ByKind, njit, njit_fastmath
from torchssvm.compiler.vectors import add_rows, exact_dot, exact_dots, set_row
from torchssvm.core.decoding import Labeling
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import reject_rows
from torchssvm.kinds import block
from torchssvm.kinds.adapter import Extra, HeadAdapter, Reading, Shapes, check_sizes
from torchssvm.kinds.block import (
    add_rows_to_weights,
    list_states,
    potentials_of_rows,
    respond_rows,
    square_rows,
    state,
    uniform_mean_loss,
)
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.weights import HeadWeights, Tensors


class Links(NamedTuple):
    """The edges of all examples, one after another.

    Attributes:
        start: ``[n + 1]`` int64, where those of each example begin.
        ends: ``[E, 2]`` int64, both ends, by the numbers of nodes within the example; -1 where there is no edge.
        z: ``[E, G]``, their features, in the dtype of the weights.
        turned: ``[E]`` bool, whether the matrix of weights is that of the edge from its second to its first end.
        symmetric: Whether a matrix and its transposed are one.
        states: K.
    """

    start: Any
    ends: Any
    z: Any
    turned: Any
    symmetric: bool
    states: int


class LinkRoom(NamedTuple):
    """Workspace: ``[G, K K]`` and ``[rows of pairs, K]``, both float64, and the arrays of a decoder."""

    gradient: Any
    pairs: Any
    decoder: Any


@njit_fastmath
def potentials(kind, examples, model, i, scratch):
    """Emissions of the nodes, and the scores of the edges' pairs in ``scratch.transition``."""
    links, states = kind.links, kind.links.states
    for place in range(links.start[i + 1] - links.start[i]):
        e = links.start[i] + place
        table = scratch.transition[place * states : (place + 1) * states].reshape(states * states)
        set_row(table, None, None, 0.0)
        add_rows(table, model.transition, None, links.z[e], 0, links.z.shape[1])
        if links.turned[e]:
            for a in range(states):
                for b in range(a):
                    table[a * states + b], table[b * states + a] = table[b * states + a], table[a * states + b]
    potentials_of_rows(examples, model, i, scratch.emission)
    return True


@njit
def list_parts(kind, examples, i, labels, other, task):
    """States of the nodes, then of the edges."""
    links, states, total = kind.links, kind.links.states, list_states(examples, i, labels, other, task)
    for place in range(links.start[i + 1] - links.start[i]):
        a, b = links.ends[links.start[i] + place, 0], links.ends[links.start[i] + place, 1]
        if a >= 0:
            row = place * states
            total += state(task, task.pairs, row + labels[a], labels[b], row + other[a], other[b])
    return total


@njit
def add_to_tables(kind, i, pairs, rows, factor, tables):
    """``tables += factor sum_e z_e pairs_e``, over the ``rows`` of ``pairs`` that may not be zero."""
    links, states = kind.links, kind.links.states
    for row in rows:
        e, a = links.start[i] + row // states, row % states
        for b in range(states):
            if pairs[row, b] != 0.0:
                amount = factor * pairs[row, b]
                here = b * states + a if links.turned[e] else a * states + b
                if links.symmetric:
                    amount *= 0.5
                    there = here % states * states + here // states
                    for g in range(links.z.shape[1]):
                        tables[g, there] += links.z[e, g] * amount
                for g in range(links.z.shape[1]):
                    tables[g, here] += links.z[e, g] * amount


@njit
def respond_in_pairs(kind, i, tables, out):
    """``out_e = z_e tables`` for all edges."""
    links, states = kind.links, kind.links.states
    for place in range(links.start[i + 1] - links.start[i]):
        e = links.start[i] + place
        for a in range(states):
            for b in range(states):
                here, total = b * states + a if links.turned[e] else a * states + b, 0.0
                for g in range(links.z.shape[1]):
                    total += links.z[e, g] * tables[g, here]
                out[place * states + a, b] = total


@njit
def respond_to_parts(kind, examples, model, i, length, psi, pairs, rows, scratch, slots, count, corner, is_new):
    """Nodes by the products of rows, edges by way of the weights."""
    room = scratch.room
    total = respond_rows(examples, model, i, length, psi, scratch)
    set_row(room.gradient, None, None, 0.0)
    add_to_tables(kind, i, pairs, rows, 1.0, room.gradient)
    respond_in_pairs(kind, i, room.gradient, room.pairs)
    return total + exact_dots(pairs, room.pairs, rows, len(rows)), room.pairs


@njit
def squared_length(kind, examples, model, i, length, delta, pairs, rows, scratch):
    """That of the nodes, and that of the edges by way of the weights."""
    tables = scratch.room.gradient
    set_row(tables, None, None, 0.0)
    add_to_tables(kind, i, pairs, rows, 1.0, tables)
    return square_rows(examples, model, i, length, delta, scratch) + exact_dot(tables, tables)


@njit_fastmath
def add_to_weights(kind, examples, model, i, length, delta, pairs, rows, scratch, factor):
    """Nodes and edges."""
    add_rows_to_weights(examples, model, i, length, delta, scratch, factor)
    add_to_tables(kind, i, pairs, rows, factor, model.transition)


def with_links(kind: type) -> type:
    """Register these versions for a named tuple with a field ``links``; the kind adds ``decode``."""
    for version in (potentials, list_parts, respond_to_parts, squared_length, add_to_weights):
        function: ByKind = getattr(block, version.__name__)
        function.of(kind)(version)
    block.mean_loss.of(kind)(uniform_mean_loss)
    return kind


class LinkWeights(HeadWeights):
    """Weights ``node`` ``[K, F]`` and ``edge`` ``[G, K, K]``, and perhaps a bias of the nodes."""

    def __init__(self, head: Any) -> None:
        super().__init__(head, "node", "edge")

    @override
    def tensors(self) -> Tensors:
        emission, _, *biases = super().tensors()
        return emission, self.head.edge.flatten(1), *biases  # a row of pairs for each feature of edges


class LinkAdapter(HeadAdapter):
    """A head with :class:`LinkWeights`."""

    emission, pairs, ragged_labels, carries, notes = "node", "edge", True, True, True

    def __init__(self, head: Any, symmetric: bool, limits: Sequence[int] = ()) -> None:
        super().__init__(head, LinkWeights(head), limits)
        self._symmetric = symmetric
        self.ragged, self._nodes, self._edges = False, 0, 0

    def inputs(self, x: Any) -> Any:
        """The features of the nodes."""
        return x[0]

    @abstractmethod
    def edges_of(self, x: Any, potentials: Potentials) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers of edges ``[B]``, their ends ``[B, E, 2]``, features ``[B, E, G]``, and which are turned ``[B, E]``.

        An edge has the ends (-1, -1) where there is none.
        """

    @abstractmethod
    def linked(self, links: Links, examples: Examples) -> Any:
        """The kind of examples with these edges."""

    @abstractmethod
    def labeling(self, labels: Tensor, pairs: Tensor) -> Labeling:
        """The named tuple of a labeling."""

    def read(self, x: Any, target: Labeling, potentials: Potentials) -> Reading:
        """Nodes and edges.

        Raises:
            ValueError: Only some batches have lengths, or none has and sizes differ; or features are not finite.
        """
        ragged, nodes = potentials.lengths is not None, potentials["node"].shape[1]
        if self._nodes:
            check_sizes(ragged, (nodes,), self.ragged, (self._nodes,))
        self.ragged, self._nodes = ragged, max(self._nodes, nodes)
        self._edges = max(self._edges, potentials["edge"].shape[1])
        counts, ends, z, turned = self.edges_of(x, potentials)
        real = torch.arange(ends.shape[1]) < counts.unsqueeze(1)
        z = z.detach().to(self.head.edge.dtype)
        reject_rows((~torch.isfinite(z).all(2) & real).any(1), "x has features of edges that are not finite in {rows}")
        extra = {"ends": (counts, ends[real]), "z": (counts, z[real]), "turned": (counts, turned[real])}
        return super().read(x, target, potentials)._replace(extra=extra)

    @override
    def complete(self, examples: Examples, extra: Extra) -> Examples:
        rows = (self.num_states * extra["ends"][0].diff()).numpy()
        scale = float(np.abs(extra["z"][1].numpy()).sum(1).max(initial=0.0))
        return super().complete(examples, extra)._replace(pair_rows=rows, pair_scale=scale)

    @override
    def kind(self, examples: Examples, extra: Extra) -> Any:
        start, ends = extra["ends"]
        counts = start.diff()
        place = torch.arange(int(counts.max()) if len(counts) else 0)
        inside = place < counts.unsqueeze(1)
        self._ends = torch.full((*inside.shape, 2), -1)  # [n, E, 2]
        self._ends[inside] = ends
        arrays: Any = (tensor.contiguous().numpy() for tensor in (start, ends, extra["z"][1], extra["turned"][1]))
        return self.linked(Links(*arrays, self._symmetric, self.num_states), examples)  # type: ignore[call-arg]

    def part_shapes(self, lengths: Tensor) -> Shapes:
        """Rows of nodes, if they are padded, and matrices of edges."""
        one, states = torch.ones_like(lengths), self.num_states
        nodes = (lengths, (states,)) if self.ragged else (one, (self._nodes, states))
        return {"node": nodes, "edge": (one, (self._edges, states, states))}

    def room_of(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room for weights of edges and for the decoder."""
        rows = int(examples.pair_rows.max())
        return partial(_make_room, len(self.head.edge), self.num_states, rows, self.decoder_room(examples))

    @abstractmethod
    def decoder_room(self, examples: Examples) -> Callable[[], Any]:
        """Makes the room of the decoder."""

    def longest_labeling(self, longest: int) -> Labeling:
        """Labels ``[1, longest]``, and their pairs."""
        states = self.num_states
        return self.labeling(torch.full((1, longest), states - 1), torch.full((1, self._edges), states**2 - 1))

    def finish(self, labelings: list[Tensor], examples: Tensor, slots: Tensor) -> None:
        """Compute the pairs from the labels."""
        labels, ends = labelings[0][examples, slots].long(), self._ends[examples]
        both = labels.gather(1, ends.clamp(min=0).flatten(1)).view(ends.shape)
        pairs = (both[..., 0] * self.num_states + both[..., 1]).masked_fill(ends[..., 0] < 0, -1)
        labelings[1][examples, slots, : pairs.shape[1]] = pairs.to(labelings[1].dtype)


def _make_room(features: int, states: int, rows: int, decoder: Callable[[], Any]) -> LinkRoom:
    return LinkRoom(np.zeros((features, states**2)), np.zeros((rows, states)), decoder())
