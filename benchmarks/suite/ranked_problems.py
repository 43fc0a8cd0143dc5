"""What several ranks train: chains by the compiled loop, graph cuts and poses by the torch loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    Graphs,
    Labelings,
    LinearGraph,
    TorchLoop,
    WeightedLabels,
    Weights,
    grid_edges,
    in_order,
)
from torchssvm.datasets import OCR, CoNLL2000
from torchssvm.models import body_bounds, body_nodes, body_pose, chunking_chain, ocr_chain
from torchssvm.structures.pose import PoseMaps

Loop = CompiledBCFW | TorchLoop


class Task(NamedTuple):
    """A training problem.

    Attributes:
        read: Makes the training set, of so many examples; None is all.
        loop: A loop on it at zero weights, from lam, the visits of a rank in a round, and a seed.
    """

    read: Callable[[int | None], Any]
    loop: Callable[[Any, float, int | None, int], Loop]


class Cuts:
    """Noisy pictures of an ellipse on a grid: a node shows one of many words, which tell a little of its label.

    Args:
        n: Pictures.
        side: Of the grid.
        words: The first half is as much rarer in the foreground as the other half is in the background.
    """

    def __init__(self, n: int, side: int = 72, words: int = 30) -> None:
        self.n, self.side, self.words = n, side, words
        self.edges = grid_edges(side, side)
        self._made: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        if i not in self._made:
            self._made[i] = self._make(i)
        return self._made[i]

    def _make(self, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        generator = torch.Generator().manual_seed(i)
        centre, radius = torch.rand(2, 2, generator=generator) * 0.4 + torch.tensor([[0.3], [0.15]])
        row, column = torch.meshgrid(*[torch.linspace(0.0, 1.0, self.side)] * 2, indexing="ij")
        y = (((row - centre[0]) / radius[0]) ** 2 + ((column - centre[1]) / radius[1]) ** 2 < 1).long().flatten()
        told = torch.rand(len(y), generator=generator) < 0.65
        half = torch.where(told, y, 1 - y)
        word = torch.randint(self.words // 2, (len(y),), generator=generator) + half * (self.words // 2)
        nodes = torch.nn.functional.one_hot(word, self.words).float()
        colour = 0.5 * y + 0.3 * torch.randn(len(y), generator=generator)
        near = torch.exp(-4.0 * (colour[self.edges[:, 0]] - colour[self.edges[:, 1]]) ** 2)
        return nodes, torch.stack([torch.ones_like(near), near], 1), y, i

    def collate(self, items: list[Any]) -> Batch:
        """Graphs of one size."""
        nodes, near, y, index = (torch.stack(list(map(torch.as_tensor, one))) for one in zip(*items, strict=True))
        area = torch.full_like(nodes[..., 0], 1.0 / self.side**2)
        edges = self.edges.expand(len(index), -1, 2)
        return Batch(Graphs(nodes, near, edges), WeightedLabels(y, area), index)


class Bodies:
    """Random bodies on a grid, with noisy maps of their joints.

    Args:
        n: Bodies.
        side: Of the grid.
        types: Springs of an edge.
    """

    def __init__(self, n: int, side: int = 24, types: int = 4) -> None:
        generator = torch.Generator().manual_seed(0)
        rest = torch.rand(14, 2, generator=generator) * 0.6 + 0.2
        joints = ((rest + 0.05 * torch.randn(n, 14, 2, generator=generator)) * side).clamp(0, side - 1)
        places = body_nodes(joints)
        self.pose = body_pose(places, grid=(side, side), num_types=types)
        self.y = self.pose.structure.labeling(places)
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i

    def collate(self, items: list[int]) -> Batch:
        """Maps of normal noise, with a hill of 2 at the true place."""
        shapes, index = self.pose.structure.shapes, torch.tensor(items)
        maps = []
        for name in ("unary", "types"):
            noise = [torch.randn(shapes[name], generator=torch.Generator().manual_seed(2 * i)) for i in items]
            maps.append(torch.stack(noise))
        column, row = self.y[index][..., 0].long(), self.y[index][..., 1].long()
        nodes = torch.arange(row.shape[1])
        for b in range(len(items)):
            maps[0][b, nodes, row[b], column[b]] += 2.0
        return Batch(PoseMaps(*maps), self.y[index], index)


def _compiled(head: Any, data: Any, lam: float, visits: int | None, seed: int, *, cache: bool) -> CompiledBCFW:
    dual = DualState.for_head(head, len(data), lam, storage=Labelings() if cache else None)
    rules = {"direction": Corrective(), "oracle": CacheOracle()} if cache else {}
    return CompiledBCFW(head, dual, in_order(data), seed=seed, round_visits=visits, **rules)


def _words(data: Any, lam: float, visits: int | None, seed: int) -> CompiledBCFW:
    return _compiled(ocr_chain(), data, lam, visits, seed, cache=False)


def _sentences(data: Any, lam: float, visits: int | None, seed: int) -> CompiledBCFW:
    head = chunking_chain(data.in_features, data.num_states, normalize=True)
    return _compiled(head, data, lam, visits, seed, cache=True)


def _cuts(data: Cuts, lam: float, visits: int | None, seed: int) -> TorchLoop:
    head = LinearGraph(data.words, 2)
    dual = DualState.for_head(head, len(data), lam)
    optimizer = BCFW([{"params": [head.unary]}, {"params": [head.pairwise], "lower": 0.0}], dual)
    return TorchLoop(head, BlockGap(dual), data, batch_size=visits or 16, seed=seed, optimizer=optimizer)


def _poses(data: Bodies, lam: float, visits: int | None, seed: int) -> TorchLoop:
    head = copy.deepcopy(data.pose)
    for weights in head.parameters():
        torch.nn.init.zeros_(weights)
    dual = DualState.for_head(head, len(data), lam, storage=Weights())
    low_high = body_bounds(0.01)
    groups = [
        {"params": [w], "lower": low_high[name][0], "upper": low_high[name][1]} for name, w in head.named_parameters()
    ]
    return TorchLoop(head, BlockGap(dual), data, batch_size=visits or 16, seed=seed, optimizer=BCFW(groups, dual))


TASKS = {
    "OCR-small": Task(lambda n: OCR("train", "small"), _words),
    "OCR-large": Task(lambda n: OCR("train", "large"), _words),
    "CoNLL-2000": Task(lambda n: CoNLL2000("train", min_count=3), _sentences),
    "cuts": Task(lambda n: Cuts(n or 64), _cuts),
    "large cuts": Task(lambda n: Cuts(n or 32, side=144), _cuts),
    "poses": Task(lambda n: Bodies(n or 64), _poses),
}
