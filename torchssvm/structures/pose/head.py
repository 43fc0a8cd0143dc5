"""The linear head of poses: weights of a network's maps, and springs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.arguments import check_type
from torchssvm.core.potentials import Parts, Potentials, own_weights
from torchssvm.core.precision import full_precision
from torchssvm.core.problem import Bound
from torchssvm.structures.common import Head, check_fields, check_shape, weight
from torchssvm.structures.pose.structure import Pose


class PoseMaps(NamedTuple):
    """A network's score maps of an image, on the grid of a :class:`~torchssvm.Pose`.

    Attributes:
        unary: ``[B, P, H, W]``, the score of each node at each place.
        types: ``[B, E, 2, T, H, W]``, the score of each type of each arc at the place of the arc's first node.

    Example:
        >>> maps = PoseMaps(unary=torch.zeros(1, 2, 4, 5), types=torch.zeros(1, 1, 2, 1, 4, 5))
        >>> structure = Pose([-1, 0], torch.zeros(1, 2, 1, 2), grid=(4, 5), size=1.0)
        >>> LinearPose(structure)(maps)["unary"].shape
        torch.Size([1, 2, 4, 5])
    """

    unary: Tensor
    types: Tensor


class LinearPose(Head):
    """Potentials of a pose ([G16] appendix I.4), with all weights zero at the start.

        ``unary[p] = unary_p map_p,   types[arc, t] = types_arc map_(arc, t),   deformation = deformation``

    The weights are ``unary`` ``[P]``, ``types`` ``[E, 2]`` and ``deformation`` ``[E, 2, T, 4]``, for x, x^2, y and y^2
    of each arc and type: 26 + 50 + 50 * 13 * 4 = 2676 for 26 nodes and 13 types. There is no bias.

    Example:
        >>> structure = Pose([-1, 0], torch.zeros(1, 2, 1, 2), grid=(4, 5), size=1.0)
        >>> head = LinearPose(structure)
        >>> {name: tuple(weight.shape) for name, weight in head.named_parameters()}
        {'unary': (2,), 'types': (1, 2), 'deformation': (1, 2, 1, 4)}
    """

    def __init__(self, structure: Pose) -> None:
        super().__init__()
        self.structure = check_type(structure, Pose, "structure", "a Pose(parent, displacements, grid, size=...)")
        edges = structure.num_edges
        self.unary = weight(torch.zeros(structure.num_nodes))
        self.types = weight(torch.zeros(edges, 2))
        self.deformation = weight(torch.zeros(edges, 2, structure.num_types, 4))

    @property
    def bounds(self) -> dict[str, tuple[Bound | None, Bound | None]]:
        """Bounds for ``StructuredSVM``: quadratic deformation weights are at least 0."""
        return {"deformation": (torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0]), None)}

    def groups(self) -> list[dict[str, Any]]:
        """The same :attr:`bounds` as parameter groups for ``BCFW``, in the order of ``parameters()``."""
        lower, _ = self.bounds["deformation"]
        return [{"params": [self.unary, self.types]}, {"params": [self.deformation], "lower": lower}]

    def forward(self, x: PoseMaps | Tensor) -> Potentials:
        """Maps -> potentials; runs in the weights' dtype, autocast off.

        Args:
            x: :class:`PoseMaps`; or one tensor ``[B, P + 2 E T, H, W]``, such as a convolution's output, nodes first.

        Raises:
            TypeError: ``x`` is neither, or its tensors are not dense and real.
            ValueError: A shape does not fit the structure.
        """
        structure, shapes = self.structure, self.structure.shapes
        if isinstance(x, Tensor):
            channels = structure.num_nodes + 2 * structure.num_edges * structure.num_types
            check_shape(x, "x", "B", channels, structure.height, structure.width)
            unary, types = x[:, : structure.num_nodes], x[:, structure.num_nodes :]
            x = PoseMaps(unary, types.reshape(len(x), *shapes["types"]))
        all_maps: PoseMaps = check_fields(x, PoseMaps)
        bound: dict[str, int] = {}
        for name, maps in zip(PoseMaps._fields, all_maps, strict=True):
            check_shape(maps, f"x.{name}", "B", *shapes[name], bound=bound)
        batch = len(all_maps.unary)
        with full_precision(all_maps.unary.device):
            nodes, arcs = (maps.to(self.unary.dtype) for maps in all_maps)
            unary = self.unary.view(-1, 1, 1) * nodes
            types = self.types.view(*self.types.shape, 1, 1, 1) * arcs
            deformation = self.deformation.expand(batch, *self.deformation.shape)
        nodes, arcs = nodes.detach(), arcs.detach()

        def adjoint(parts: Parts) -> list[Tensor]:
            return [_products(nodes, parts["unary"], 2), _products(arcs, parts["types"], 3), parts["deformation"]]

        def gram_product(parts: Parts) -> Parts:
            for_nodes, for_arcs, springs = adjoint(parts)
            return {
                "unary": for_nodes[..., None, None] * nodes,
                "types": for_arcs[..., None, None, None] * arcs,
                "deformation": springs,
            }

        return Potentials(
            {"unary": unary, "types": types, "deformation": deformation},
            adjoint=adjoint,
            gram_product=gram_product,
            weights=None if any(tensor.requires_grad for tensor in x) else own_weights(self),
        )


def _products(maps: Tensor, parts: Tensor, axes: int) -> Tensor:
    """Inner products over the last ``axes`` axes."""
    return (maps.flatten(-axes).unsqueeze(-2) @ parts.flatten(-axes).unsqueeze(-1)).squeeze((-1, -2))
