"""A small network that gives, for every place of an image, the probabilities of body parts and of arc types."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchssvm.structures.pose.head import PoseMaps
from torchssvm.structures.pose.structure import Pose

STRIDE = 4
"""Side of a place of the grid, in pixels."""

_GROUP = 8  # channels normalised together


class PoseNetwork(nn.Module):
    """Images -> log-probabilities of places and types, the features of :class:`~torchssvm.LinearPose`.

    After Chen and Yuille 2014 ("Articulated pose estimation by a graphical model with image dependent pairwise
    relations"): one network gives the scores of the parts and of the types of their relations, at every place.
    ``trunk`` (:class:`Hourglass`) gives features of the places; ``outputs`` (:class:`PoseOutputs`) is linear in them
    up to the normalisation. For a frozen network keep the features, not the maps, which are twenty times larger.

    Args:
        structure: The tree; a place of its grid has :data:`STRIDE` x :data:`STRIDE` pixels.
        widths: Channels on the grid and after each halving, multiples of 8.
        dropout: Probability of dropping a whole channel of the coarsest maps in training.

    Example:
        >>> structure = Pose([-1, 0], torch.zeros(1, 2, 3, 2), grid=(16, 16), size=1.0)
        >>> maps = PoseNetwork(structure, widths=(8, 8, 8))(torch.rand(1, 3, 64, 64))
        >>> maps.unary.shape, maps.types.shape
        (torch.Size([1, 2, 16, 16]), torch.Size([1, 1, 2, 3, 16, 16]))
    """

    def __init__(
        self, structure: Pose, widths: tuple[int, ...] = (32, 64, 128, 192, 256), dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.structure = structure
        self.trunk = Hourglass((structure.height, structure.width), widths, dropout)
        self.outputs = PoseOutputs(structure, widths[0])

    def forward(self, images: Tensor) -> PoseMaps:
        """Images ``[B, 3, 4 H, 4 W]`` in 0..1 -> maps on the grid."""
        return self.outputs(self.trunk(images))

    def loss(self, images: Tensor, places: Tensor, blur: float = 1.5, jitter: float = 1.0) -> tuple[Tensor, Tensor]:
        """Cross-entropies of places and of types: :meth:`PoseOutputs.loss` of the features of images."""
        return self.outputs.loss(self.trunk(images), places, blur, jitter)


class Hourglass(nn.Module):
    """Images -> features of every place of a grid, ``[B, widths[0], H, W]``.

    Telling a left from a right ankle needs the whole body: the grid is halved until it is small, then upsampled
    bilinearly, adding the finer map of each size. Every image is normalised alone, so that results do not depend on
    the batch.

    Args:
        grid: (H, W).
        widths: See :class:`PoseNetwork`.
        dropout: See :class:`PoseNetwork`.
    """

    def __init__(self, grid: tuple[int, int], widths: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        if not widths or any(width < _GROUP or width % _GROUP for width in widths):
            raise ValueError(f"widths={widths} must be multiples of {_GROUP}")
        if min(grid) >> (len(widths) - 1) < 1:
            raise ValueError(f"widths={widths} halve the grid {len(widths) - 1} times, and it is {grid[0]} x {grid[1]}")
        self.grid = grid
        first = widths[0]
        half = max(_GROUP, first // 2 // _GROUP * _GROUP)
        self.stem = nn.Sequential(*_layer(3, half, 5, stride=2), *_layer(half, first, stride=2))
        steps = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), *_layer(fine, coarse), _Residual(coarse)) for fine, coarse in steps
        )
        self.dropout = nn.Dropout2d(dropout)
        self.up = nn.ModuleList(nn.Sequential(*_layer(coarse, fine)) for fine, coarse in steps)
        # One layer only on the finest maps, which cause most of the memory traffic.
        self.merge = nn.ModuleList(
            _Residual(fine) if level else nn.Sequential(*_layer(fine, fine)) for level, (fine, _) in enumerate(steps)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, 4 H, 4 W]`` in 0..1 -> features.

        Raises:
            ValueError: The shape is wrong.
        """
        expected = [3, *(STRIDE * places for places in self.grid)]
        if images.ndim != 4 or list(images.shape[1:]) != expected:
            raise ValueError(f"images must be [B, {', '.join(map(str, expected))}], got {list(images.shape)}")
        x = self.stem(4.0 * (images - 0.5))
        finer = []
        for layers in self.down:
            finer.append(x)
            x = layers(x)
        x = self.dropout(x)
        for layers, merge, fine in zip(self.up[::-1], self.merge[::-1], finer[::-1], strict=True):
            x = merge(fine + functional.interpolate(layers(x), fine.shape[2:], mode="bilinear", align_corners=False))
        return x


class PoseOutputs(nn.Module):
    """Features -> ``log p(place of node)``, over all places, and ``log p(type of arc | its first node is here)``.

    Args:
        structure: See :class:`PoseNetwork`.
        in_features: C, channels of the features.
    """

    def __init__(self, structure: Pose, in_features: int) -> None:
        super().__init__()
        self.structure = structure
        self.parts = nn.Conv2d(in_features, structure.num_nodes, 1, bias=False)  # a bias would cancel
        self.types = nn.Conv2d(in_features, 2 * structure.num_edges * structure.num_types, 1)
        for layer in (self.parts, self.types):
            nn.init.normal_(layer.weight, std=0.01)

    def forward(self, features: Tensor) -> PoseMaps:
        """Features ``[B, C, H, W]`` -> maps."""
        shapes = self.structure.shapes
        types = self.types(features).view(len(features), *shapes["types"]).log_softmax(3)
        return PoseMaps(self.places(features).view(len(features), *shapes["unary"]), types)

    def places(self, features: Tensor) -> Tensor:
        """The first map alone, ``[B, P, H W]``."""
        return self.parts(features).flatten(2).log_softmax(2)

    def loss(self, features: Tensor, places: Tensor, blur: float = 1.5, jitter: float = 1.0) -> tuple[Tensor, Tensor]:
        """Cross-entropies of places and of types, each a mean over all that lies inside the images, in nats.

        Args:
            features: As :meth:`forward` takes them.
            places: ``[B, P, 2]``, (x, y) of the nodes, in places of the grid; nodes outside the grid are left out.
            blur: Standard deviation of the target around the true place, in places.
            jitter: Standard deviation of a random shift of the place at which types are learned: decoding reads them
                beside the true place too.
        """
        structure = self.structure
        limits = torch.tensor([structure.width, structure.height], device=places.device)
        inside = ((places > -0.5) & (places < limits - 0.5)).all(2)
        x, y = (
            (-(torch.arange(size, device=places.device) - places[..., axis, None]).square() / (2 * blur**2)).softmax(2)
            for axis, size in ((0, structure.width), (1, structure.height))
        )
        target = (y.unsqueeze(3) * x.unsqueeze(2)).flatten(2)
        for_places = _mean(-(target * self.places(features)).sum(2)[inside])

        nodes = torch.stack([structure.lower, structure.upper], 1).to(places.device)  # the first node of every arc
        at = (places + jitter * torch.randn_like(places)).round().long().clamp(min=0).minimum(limits - 1)
        rows = (at[..., 1] * structure.width + at[..., 0])[:, nodes.flatten()]  # [B, 2 E]
        chosen = features.flatten(2).gather(2, rows.unsqueeze(1).expand(-1, features.shape[1], -1))
        shape = (2 * structure.num_edges, structure.num_types)
        logits = torch.einsum("bca,atc->bat", chosen, self.types.weight.view(*shape, -1))
        if self.types.bias is not None:
            logits = logits + self.types.bias.view(shape)
        kinds = structure.nearest_types(places).flatten(1)
        both = (inside[:, nodes[:, 0]] & inside[:, nodes[:, 1]]).repeat_interleave(2, 1)
        return for_places, _mean(functional.cross_entropy(logits[both], kinds[both], reduction="none"))


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_layer(width, width), *_layer(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _layer(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False),
        nn.GroupNorm(outputs // _GROUP, outputs),
        nn.ReLU(),
    ]


def _mean(values: Tensor) -> Tensor:
    """The mean; 0 of an empty tensor."""
    return values.sum() / max(values.numel(), 1)
