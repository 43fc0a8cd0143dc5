"""Poses: the parts of a body on a grid, joined to a tree by springs of several types."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_int64, check_number, check_whole
from torchssvm.core.decoding import Decoding, OracleResult
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.row_sparse import add_at
from torchssvm.core.structure import digest
from torchssvm.structures.common import check_potentials, check_shape, reject_entries
from torchssvm.structures.labelled import Summed
from torchssvm.structures.pose.oracle import max_sum_grid
from torchssvm.structures.tree.oracle import check_parent


class Pose(Summed):
    """Places of the nodes of a tree on a grid, and the type of every arc: the model of [G16] appendix I.4.

    (After Chen and Yuille 2014, "Articulated pose estimation by a graphical model with image dependent pairwise
    relations".) P nodes stand on a grid of H x W places; E of them have a parent. Edge e, numbered as these nodes are,
    has two arcs: arc 0 from the node to its parent, arc 1 back. An arc (p, q) has one of T types, each with a mean
    displacement r, and the score

        ``types[arc, t, l_p] - <deformation[arc, t], Delta(l_p - l_q - r[arc, t])>``

    with ``Delta(z) = (z_x, z_x^2, z_y, z_y^2)``. Each node adds ``unary[p, l_p]``. Positive deformation weights are
    costs, like springs.

    Potentials: ``unary`` ``[B, P, H, W]``, ``types`` ``[B, E, 2, T, H, W]`` and ``deformation`` ``[B, E, 2, T, 4]``.
    They are large compared with an example's weights, so use ``storage=Weights()`` or ``Labelings()``.

    Labelings and targets: ``[B, P, 4]`` int64: for each node x (column), y (row), the type of arc 0, the type of arc 1;
    -1 for both types of a node without a parent. :meth:`labeling` computes them from places.

    The loss follows [G16], ``(1/P) sum_p min(1, |l_p - l*_p|^2 / s^2)`` with s the size of the target.

    The max oracle is exact for all weights: max-sum with a max-convolution, separable in x and y, for each of the T^2
    pairs of types of an edge, ``O(E T^2 H W (H + W))``. (The envelopes of generalised distance transforms in [G16]
    need non-negative quadratic weights and are faster only on grids of several hundred places a side.
    ``LinearPose.bounds`` gives the non-negative weights of [G16].)

    Args:
        parent: The parent of each node, -1 for a root. Nodes may be numbered in any order.
        displacements: ``[E, 2, T, 2]``, r as (x, y) in places, of the arc's first node less its second.
        grid: (H, W).
        spreads: ``[E, 2, T, 2]``, positive: ``l_p - l_q - r`` is divided by it, so that the weights of all arcs have
            one scale. None means 1 everywhere.
        size: s: a number of places; or two nodes, such as (left shoulder, right hip), whose distance in the target
            (at least one place) is s.

    Raises:
        ValueError: An argument does not fit the others, or ``parent`` does not describe trees.

    Example:
        >>> from torchssvm.structures.pose import PoseMaps
        >>> structure = Pose([-1, 0], torch.zeros(1, 2, 1, 2), grid=(4, 5), size=1.0)
        >>> maps = PoseMaps(unary=torch.zeros(1, 2, 4, 5), types=torch.zeros(1, 1, 2, 1, 4, 5))
        >>> structure.argmax(LinearPose(structure)(maps)).labeling.shape
        torch.Size([1, 2, 4])
    """

    _not_plain = "distance transforms are loops over single pixels"

    def __init__(
        self,
        parent: Sequence[int] | Tensor,
        displacements: Tensor,
        grid: tuple[int, int],
        *,
        spreads: Tensor | None = None,
        size: tuple[int, int] | float,
    ) -> None:
        self.parent = check_parent(parent)
        self.num_nodes = len(self.parent)
        self.lower = (self.parent >= 0).nonzero().flatten()
        """The child of each edge."""
        self.upper = self.parent[self.lower]
        """The parent of each edge."""
        edges = len(self.lower)
        check_shape(displacements, "displacements", edges, 2, "N", 2)
        self.height, self.width = (check_whole(side, "grid", advice=" place a side") for side in grid)
        self.displacements = displacements.detach().cpu().to(torch.float64)
        spreads = torch.ones_like(displacements) if spreads is None else spreads
        check_shape(spreads, "spreads", *displacements.shape)
        spreads = spreads.detach().cpu().to(torch.float64)
        if not bool((self.displacements.isfinite() & spreads.isfinite() & (spreads > 0)).all()):
            raise ValueError("displacements must be finite, and spreads positive and finite")
        self.spreads = spreads
        self.num_types = displacements.shape[2]
        if isinstance(size, tuple | list):  # a list in files of save_model
            first, second = (check_whole(v, "size", 0, most=self.num_nodes - 1) for v in size)
            if first == second:
                raise ValueError(f"size={size} must be two different nodes")
            self.size: tuple[int, int] | float = (first, second)
        else:
            self.size = check_number(size, "size", above=0.0, advice=", or a pair of nodes")

    def constructor_arguments(self) -> dict[str, Any]:
        """Constructor arguments that are not attributes of the same name, to rebuild an equal structure."""
        return {"grid": (self.height, self.width)}

    @property
    def num_edges(self) -> int:
        """E, the nodes with a parent."""
        return len(self.lower)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the potentials of one example."""
        arcs = (self.num_edges, 2, self.num_types)
        grid = (self.height, self.width)
        return {"unary": (self.num_nodes, *grid), "types": (*arcs, *grid), "deformation": (*arcs, 4)}

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        check_potentials(potentials, {name: ("B", *shape) for name, shape in self.shapes.items()})

    def argmax(self, potentials: Potentials) -> Decoding:
        """The best pose; ties are broken as in ``max_sum_grid``."""
        unary, types, weights = (potentials[name].detach() for name in self.shapes)
        self._to(unary.device)
        shared = len(weights) > 1 and weights.stride(0) == 0
        costs = [self._costs(weights[:1] if shared else weights, axis) for axis in (0, 1)]
        costs = [cost.expand(len(weights), *cost.shape[1:]) for cost in costs]
        place, kind, value = max_sum_grid(unary, types, costs[0], costs[1], self.parent)
        types = torch.full_like(place.unsqueeze(2).expand(-1, -1, 2), -1).index_copy_(1, self.lower, kind)
        places = torch.stack([place % self.width, place // self.width], 2)
        return Decoding(torch.cat([places, types], 2), value)

    def signed(self, name: str) -> bool:
        """Deformations count with a minus."""
        return name == "deformation"

    def parts(self, labeling: Tensor) -> dict[str, Tensor]:
        """Indicators of the places and of the arcs' types there, and negative deformations."""
        like = {name: torch.zeros(len(labeling), *shape, device=labeling.device) for name, shape in self.shapes.items()}
        like["deformation"] = like["deformation"].to(torch.float64)
        return self._add(like, self._stack(labeling), torch.ones(len(labeling), 1, device=labeling.device))

    @override
    def _examine(self, labeling: Tensor, target: Tensor, potentials: Potentials) -> OracleResult:
        score = self.relative_scores(labeling.unsqueeze(1), target, potentials).squeeze(1)
        for tensor in potentials.tensors.values():
            total = tensor.detach().flatten(1).sum(1)
            if not bool(torch.isfinite(total).all()):  # unless a sum of finite numbers overflows
                score = score.masked_fill(~torch.isfinite(tensor.detach()).flatten(1).all(1), torch.nan)
        return OracleResult(labeling, score, self.loss(labeling, target))

    @override
    def _scores(self, labelings: list[Tensor], potentials: Potentials) -> Tensor:
        nodes, types, arcs, stretch = self._weighted_places(*labelings)
        total = _look_up(potentials["unary"], nodes).sum(2) + _look_up(potentials["types"], types).sum(2)
        weights = potentials["deformation"].detach().flatten(1, 3)
        rows = torch.arange(len(weights), device=weights.device).view(-1, 1, 1)
        return total - (weights[rows, arcs].to(torch.float64) * stretch).sum((2, 3))

    def loss(self, labeling: Tensor, target: Tensor) -> Tensor:
        """The mean over all nodes of ``min(1, squared distance / s^2)``, ``[B]`` float64."""
        squared = (labeling[..., :2] - target[..., :2]).square().sum(2).to(torch.float64)
        return (squared / self._squared_size(target)).clamp(max=1.0).mean(1)

    def loss_potentials(self, target: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The cost of each place of each node, ``[B, P, H, W]``; types and deformations cost nothing."""
        x, y = (torch.arange(size, device=target.device) for size in (self.width, self.height))
        squared = (x - target[..., None, None, 0]).square() + (y.unsqueeze(1) - target[..., None, None, 1]).square()
        cost = (squared.to(torch.float64) / self._squared_size(target)[..., None, None]).clamp(max=1.0)
        return {"unary": cost / self.num_nodes}, cost.new_zeros(len(cost))

    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        """Check shapes, places and types; write -1 for the types of nodes without a parent."""
        form = ", x, y and two types of every node (Pose.labeling makes it from places)"
        check_int64(target, "target", (potentials.batch_size, self.num_nodes, 4), form)
        self._to(target.device)
        for column, name, size in ((0, "x", self.width), (1, "y", self.height), (2, "type", self.num_types)):
            values = target[..., column : 4 if column == 2 else column + 1]
            values = values[:, self.lower] if column == 2 else values
            reject_entries((values < 0) | (values >= size), values, f"target has {name}", f"give 0 to {size - 1}")
        return torch.cat([target[..., :2], target[..., 2:].masked_fill((self.parent < 0).view(1, -1, 1), -1)], 2)

    def labeling(self, places: Tensor) -> Tensor:
        """The labeling at given places; each arc gets the type with the nearest mean displacement, in units of spreads.

        Args:
            places: ``[..., P, 2]``, (x, y) of each node on the grid; they are rounded.

        Raises:
            ValueError: A place lies outside the grid, or the shape does not fit.
        """
        check_shape(places, "places", *places.shape[:-2], self.num_nodes, 2)
        self._to(places.device)
        whole = places.round().to(torch.int64)
        limits = torch.tensor([self.width, self.height], device=places.device)
        outside = (whole < 0) | (whole >= limits) | ~places.isfinite()
        reject_entries(outside, places, "places has", f"give places on the grid, {self.width} x {self.height}")
        types = torch.full_like(whole, -1)
        types[..., self.lower, :] = self.nearest_types(whole)
        return torch.cat([whole, types], -1)

    def nearest_types(self, places: Tensor) -> Tensor:
        """The type of each arc with the nearest mean displacement, in units of spreads: ``[..., E, 2]`` int64.

        Args:
            places: ``[..., P, 2]``, (x, y) of each node; they may lie outside the grid.
        """
        self._to(places.device)
        offset = (places[..., self.lower, :] - places[..., self.upper, :]).unsqueeze(-2)
        arcs = torch.stack([offset, -offset], -3)  # [..., E, 2, 1, 2]
        return ((arcs - self.displacements) / self.spreads).square().sum(-1).argmin(-1)

    def enumerate(self, potentials: Potentials) -> Iterator[Tensor]:
        """All (H W)^P T^(2 E) outputs."""
        batch, device = potentials.batch_size, potentials.device
        everywhere = list(itertools.product(range(self.width), range(self.height)))
        for places in itertools.product(everywhere, repeat=self.num_nodes):
            one = torch.cat([torch.tensor(places), torch.full((self.num_nodes, 2), -1)], 1).to(device)
            for types in itertools.product(range(self.num_types), repeat=2 * self.num_edges):
                one[self.lower, 2:] = torch.tensor(types, device=device).view(-1, 2)
                yield one.expand(batch, -1, -1).clone()

    def _squared_size(self, target: Tensor) -> Tensor:
        if isinstance(self.size, tuple):
            a, b = (target[:, v, :2] for v in self.size)
            return (a - b).square().sum(1, keepdim=True).to(torch.float64).clamp(min=1.0)
        return torch.full((len(target), 1), float(self.size) ** 2, dtype=torch.float64, device=target.device)

    def _costs(self, weights: Tensor, axis: int) -> Tensor:
        """The cost of each displacement of a node from its parent along an axis, ``[B, E, 2, T, 2 n - 1]``."""
        size = (self.width, self.height)[axis]
        d = torch.arange(1 - size, size, device=weights.device)
        z = torch.stack([d, -d]).view(1, 2, 1, -1)  # the arcs have opposite directions
        z = ((z - self.displacements[..., axis, None]) / self.spreads[..., axis, None]).to(weights.dtype)
        linear, quadratic = weights[..., 2 * axis, None], weights[..., 2 * axis + 1, None]
        return linear * z + quadratic * (z * z)

    def _weighted_places(self, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Places of the labelings ``[B, C, P, 4]`` in the flattened potentials, and their deformations.

        Returns:
            Places of the nodes in the unary potentials, ``[B, C, P]``; of the arcs in the types, ``[B, C, 2 E]``; of
            the arcs in the deformations without their last axis, ``[B, C, 2 E]``; Delta, ``[B, C, 2 E, 4]`` float64.
        """
        self._to(labels.device)
        area = self.height * self.width
        place = labels[..., 0] + self.width * labels[..., 1]
        nodes = place + area * torch.arange(self.num_nodes, device=labels.device)
        first = torch.stack([place[..., self.lower], place[..., self.upper]], 3)  # each arc's first node
        kinds = labels[..., self.lower, 2:]
        arcs = torch.arange(2 * self.num_edges, device=labels.device).view(-1, 2)
        chosen = kinds + self.num_types * arcs
        offset = labels[..., self.lower, :2] - labels[..., self.upper, :2]
        means, spreads = (t.flatten(0, 2)[chosen] for t in (self.displacements, self.spreads))
        z = (torch.stack([offset, -offset], 3) - means) / spreads
        stretch = torch.stack([z, z * z], 5).flatten(4)
        return nodes, (first + area * chosen).flatten(2), chosen.flatten(2), stretch.flatten(2, 3)

    @override
    def _add(self, parts: Parts, labelings: list[Tensor], mass: Tensor) -> Parts:
        (labels,) = labelings
        nodes, types, arcs, stretch = self._weighted_places(labels)
        apart = labels.shape[1] == 1  # no two nodes or arcs share a place
        for name, places in (("unary", nodes), ("types", types)):
            flat = parts[name].view(len(labels), -1)
            weight = mass.to(flat.dtype).unsqueeze(2).expand(places.shape)
            add_at(flat, places.flatten(1), weight.flatten(1), any_order=apart)
        flat = parts["deformation"].view(len(labels), -1, 4)
        changes = (-mass[..., None, None] * stretch).flatten(1, 2).to(flat.dtype)
        add_at(flat, arcs.flatten(1), changes, any_order=apart)
        return parts

    def _to(self, device: torch.device) -> None:
        if self.parent.device != device:
            for name in ("parent", "lower", "upper", "displacements", "spreads"):
                setattr(self, name, getattr(self, name).to(device))

    def __repr__(self) -> str:
        return (
            f"Pose({self.parent.tolist()}, displacements={digest(self.displacements)}, "
            f"grid=({self.height}, {self.width}), spreads={digest(self.spreads)}, size={self.size})"
        )


def _look_up(potentials: Tensor, places: Tensor) -> Tensor:
    """The potentials ``[B, ...]`` at flat ``places`` ``[B, C, M]``, float64."""
    flat = potentials.detach().flatten(1)
    return flat.gather(1, places.flatten(1)).view(places.shape).to(torch.float64)
