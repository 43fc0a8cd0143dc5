"""Models of foreground and background: a small convolutional network, and graphs of superpixels on top of it."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchssvm.core.arguments import check_whole
from torchssvm.datasets.images.region_pooling import pool_regions
from torchssvm.datasets.images.superpixel_graphs import SegmentationPixels
from torchssvm.structures.graph_cut.head import Graphs

_WIDTHS = (16, 32, 64, 96)
_SCALES = (1.0, 4.0, 16.0)  # k of the contrasts across a border
_COLOUR = 10.0  # the squared distance of two colours, at most 3, has this order of magnitude across visible borders


class PixelFeatures(nn.Module):
    """A small U-Net: images ``[B, 3, H, W]`` from 0 to 1 -> features ``[B, width, size[0] / 2, size[1] / 2]``.

    Every image is first resized to ``size``, so that the network always sees the same number of pixels.

    Args:
        width: Features of a pixel.
        size: Height and width that images are resized to, multiples of 16.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> PixelFeatures(width=8, size=(32, 48))(torch.rand(1, 3, 60, 80)).shape
        torch.Size([1, 8, 16, 24])
    """

    def __init__(self, width: int = 32, size: tuple[int, int] = (128, 160)) -> None:
        super().__init__()
        width = check_whole(width, "width")
        if not isinstance(size, tuple | list) or len(size) != 2:
            raise TypeError(f"size={size!r} must be two multiples of 16")
        if any(side < 16 or side % 16 for side in size):
            raise ValueError(f"size={size} must be two multiples of 16")
        self.width = width
        self.size = size
        self.stem = _convolution(3, _WIDTHS[0], stride=2)
        self.down = nn.ModuleList(
            nn.Sequential(_convolution(before, channels, stride=2 if level else 1), _Residual(channels))
            for level, (before, channels) in enumerate(zip((_WIDTHS[0], *_WIDTHS), _WIDTHS, strict=False))
        )
        self.across = nn.ModuleList(nn.Conv2d(channels, channels, 1) for channels in _WIDTHS[:-1])
        self.up = nn.ModuleList(_convolution(below, channels) for channels, below in pairwise(_WIDTHS))
        self.output = _convolution(_WIDTHS[0], width)

    def forward(self, image: Tensor) -> Tensor:
        """Images -> features, ``[B, width, size[0] / 2, size[1] / 2]``."""
        if image.ndim != 4 or image.shape[1] != 3:
            raise ValueError(f"image must be [B, 3, H, W], got {list(image.shape)}")
        if tuple(image.shape[2:]) != self.size:
            image = functional.interpolate(image, self.size, mode="bilinear", antialias=True)
        image = image.contiguous(memory_format=torch.channels_last)  # a quarter faster on a CPU
        x = self.stem(4.0 * image - 2.0)
        levels = []
        for down in self.down:
            x = down(x)
            levels.append(x)
        for level in reversed(range(len(self.up))):
            x = functional.interpolate(x, scale_factor=2.0, mode="bilinear")
            x = self.up[level](x) + self.across[level](levels[level])
        return self.output(x)


class ForegroundClassifier(nn.Module):
    """Pixel features with one linear score, to train them pixel by pixel: ``[B, 3, H, W]`` -> logits ``[B, H, W]``.

    Args:
        features: The features to train.

    Example:
        >>> ForegroundClassifier(PixelFeatures(width=8, size=(32, 48)))(torch.rand(1, 3, 60, 80)).shape
        torch.Size([1, 60, 80])
    """

    def __init__(self, features: PixelFeatures) -> None:
        super().__init__()
        self.features = features
        self.output = nn.Conv2d(features.width, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Images -> logits of the same size."""
        logits = self.output(self.features(image))
        return functional.interpolate(logits, image.shape[2:], mode="bilinear").squeeze(1)


class RegionGraphs(nn.Module):
    """Graphs of superpixels whose nodes have pooled features of pixels: ``SegmentationPixels`` -> :class:`Graphs`.

    A node's features are the mean over its pixels, and a constant. An edge's features are the length of the border of
    its two ends, divided by the mean length in the image, and this length times ``exp(-k d)`` for several k, where d is
    the mean squared difference of colours across the border, or of the features of the two ends. All are at least 0.

    Args:
        features: The network on pixels; gradients reach it through nodes and edges.

    Example:
        >>> from torchssvm.datasets import SegmentationPixels
        >>> regions = (torch.arange(32) // 16).expand(1, 32, 32)  # the two halves of an image
        >>> graph = Graphs(torch.zeros(1, 2, 1), torch.zeros(1, 1, 1), torch.tensor([[[0, 1]]]))
        >>> pixels = SegmentationPixels(torch.rand(1, 3, 32, 32), regions, graph)
        >>> graphs = RegionGraphs(PixelFeatures(width=8, size=(32, 32)).eval())(pixels)
        >>> graphs.nodes.shape, graphs.edge_features.shape
        (torch.Size([1, 2, 9]), torch.Size([1, 1, 7]))
    """

    def __init__(self, features: PixelFeatures) -> None:
        super().__init__()
        self.features = features

    @property
    def in_features(self) -> int:
        """F, features of a node."""
        return self.features.width + 1

    @property
    def edge_features(self) -> int:
        """P, features of an edge."""
        return 1 + 2 * len(_SCALES)

    def forward(self, x: SegmentationPixels) -> Graphs:
        """Every image is resized alone, so that the padding of a batch has no effect."""
        inside = x.regions >= 0
        heights, widths = inside.any(2).sum(1).tolist(), inside.any(1).sum(1).tolist()
        count = x.graph.nodes.shape[1]
        sizes = list(zip(heights, widths, strict=True))
        images = [image[:, :h, :w].unsqueeze(0) for image, (h, w) in zip(x.image, sizes, strict=True)]
        resized = [
            functional.interpolate(image, self.features.size, mode="bilinear", antialias=True) for image in images
        ]
        nodes, edges = [], []
        maps = self.features(torch.cat(resized)).split(1)
        for map_, image, regions, ends, (h, w) in zip(maps, images, x.regions, x.graph.edges, sizes, strict=True):
            regions = regions[:h, :w].unsqueeze(0)
            pooled = pool_regions(functional.interpolate(map_, (h, w), mode="bilinear"), regions, count)[0]
            lengths, contrasts = border_contrasts(image[0], regions[0], ends)
            first, second = pooled[ends.clamp(min=0)].unbind(1)
            distances = torch.stack([_COLOUR * contrasts, (first - second).square().mean(1)], 1)
            likeness = [torch.exp(-scale * distances) for scale in _SCALES]
            nodes.append(torch.cat([pooled, torch.ones_like(pooled[:, :1])], 1))
            edges.append(torch.cat([torch.ones_like(lengths).unsqueeze(1), *likeness], 1) * lengths.unsqueeze(1))
        return Graphs(torch.stack(nodes), torch.stack(edges), x.graph.edges)


def border_contrasts(image: Tensor, regions: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """The length of the border of two regions, and the difference of the colours across it.

    Args:
        image: ``[3, H, W]``.
        regions: ``[H, W]`` int64, the region of every pixel, 0 to N-1.
        edges: ``[E, 2]`` int64, pairs of regions; both -1 in the padding.

    Returns:
        Pairs of neighbouring pixels on both sides of the border, divided by their mean over the edges, and the mean
        squared difference of their colours, each ``[E]``; 0 where there is no edge or no border.

    Example:
        >>> image = torch.cat([torch.zeros(3, 2, 4), torch.ones(3, 2, 4)], 1)
        >>> regions = torch.tensor([[0] * 4] * 2 + [[1] * 4] * 2)
        >>> border_contrasts(image, regions, torch.tensor([[0, 1]]))
        (tensor([1.]), tensor([3.]))
    """
    count = int(regions.max()) + 1
    codes, differences = [], []
    for axis in (0, 1):
        size = regions.shape[axis] - 1
        a, b = regions.narrow(axis, 0, size), regions.narrow(axis, 1, size)
        across = a != b
        codes.append((torch.minimum(a, b) * count + torch.maximum(a, b))[across])
        change = image.narrow(axis + 1, 0, size) - image.narrow(axis + 1, 1, size)
        differences.append(change.square().sum(0)[across])
    code = torch.cat(codes)
    pixels = code.bincount(minlength=count**2)
    total = torch.cat(differences).new_zeros(count**2).index_add(0, code, torch.cat(differences))
    real = edges[:, 0] >= 0
    place = torch.where(real, edges.amin(1) * count + edges.amax(1), 0)  # 0 is no pair: its ends are the same
    lengths, sums = pixels[place].to(image.dtype), total[place]
    mean = (lengths.sum() / real.sum().clamp(min=1)).clamp(min=1.0)
    return lengths / mean, sums / lengths.clamp(min=1.0)


class _Residual(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_convolution(width, width), nn.Conv2d(width, width, 3, padding=1, bias=False))
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.norm(self.inner(x)))


def _convolution(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )
