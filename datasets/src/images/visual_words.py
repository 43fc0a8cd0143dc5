"""Words of pixels: the number of the nearest centre of a vocabulary, or of a cell of a grid.

The gradient words stand in for the densely sampled SIFT words of [G16] appendix I.3 (D. Lowe, *Distinctive Image
Features from Scale-Invariant Keypoints*, 2004): descriptors of one size, upright, at the nodes of a grid.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_ORIENTATIONS = 8
_CELLS = 4  # in each direction
_FLAT = 0.05  # gradients of this size, in units of the grey scale 0 to 1 summed over a cell, are taken for noise
_CLIP = 0.2  # Lowe's: no single gradient decides
_ROWS = 4096  # points compared with the centres at a time
_GREY = (0.299, 0.587, 0.114)


class Vocabulary(NamedTuple):
    """Centres of the words.

    Attributes:
        gradients: float32 ``[K, 128]``.
        colours: float32 ``[K, 3]``, RGB from 0 to 1.
    """

    gradients: Tensor
    colours: Tensor


class Words(NamedTuple):
    """The words of the pixels of an image, three kinds: int64 ``[H, W]`` each."""

    gradient: np.ndarray
    colour: np.ndarray
    position: np.ndarray


def descriptors(image: np.ndarray, cell: int, stride: int) -> Tensor:
    """Gradient orientations around the nodes of a grid, as SIFT describes them, of an image uint8 RGB ``[H, W, 3]``.

    16 cells around a node, 8 orientations in each; a gradient counts for the two nearest orientations and, by distance,
    for the four nearest cells. Descriptors are normalised, clipped at 0.2 and normalised again; descriptors of flat
    patches are nearly zero. A cell has an even side; the nodes stand at ``stride // 2 + stride * i``.

    Returns float32 ``[ceil((H - stride // 2) / stride), ceil((W - stride // 2) / stride), 128]``.
    """
    grey = torch.from_numpy(image).to(torch.float32) @ torch.tensor(_GREY) / 255.0
    down, right = (torch.stack([*torch.gradient(grey)])).unbind()
    size = torch.hypot(right, down)
    angle = torch.atan2(down, right) * (_ORIENTATIONS / (2 * math.pi)) % _ORIENTATIONS
    lower = angle.floor()
    upper_share = angle - lower
    number = lower.to(torch.int64) % _ORIENTATIONS
    maps = grey.new_zeros(_ORIENTATIONS, *grey.shape)
    maps.scatter_add_(0, number[None], (size * (1 - upper_share))[None])
    maps.scatter_add_(0, (number + 1)[None] % _ORIENTATIONS, (size * upper_share)[None])

    # Two box filters make the triangle by which a gradient is shared among the cells.
    reach = (_CELLS + 2) * cell // 2
    padded = torch.nn.functional.pad(maps, (reach,) * 4)
    for _ in range(2):
        padded = torch.nn.functional.avg_pool2d(padded, cell, stride=1) * cell
    first = reach - (cell - 1)  # of the cell whose centre is pixel 0
    rows, columns = (range(stride // 2, side, stride) for side in grey.shape)
    pieces = []
    for a in range(_CELLS):
        top = first + rows.start + a * cell - (_CELLS - 1) * cell // 2
        for b in range(_CELLS):
            left = first + columns.start + b * cell - (_CELLS - 1) * cell // 2
            pieces.append(padded[:, top::stride, left::stride][:, : len(rows), : len(columns)])
    histograms = torch.cat(pieces).permute(1, 2, 0).contiguous()
    histograms /= (histograms.square().sum(2, keepdim=True) + _FLAT**2).sqrt()
    norm = histograms.norm(dim=2, keepdim=True)
    clipped = histograms.clamp(max=_CLIP)
    return clipped * (norm / clipped.norm(dim=2, keepdim=True).clamp(min=1e-12))


def words(image: np.ndarray, vocabulary: Vocabulary, grid: int, cell: int, stride: int) -> Words:
    """The words of all pixels of one image; a pixel has the gradient word of its nearest node.

    The image is divided into ``grid * grid`` positions; see :func:`descriptors` for the rest.
    """
    height, width = image.shape[:2]
    nodes = descriptors(image, cell, stride)
    gradient = nearest(nodes.flatten(0, 1), vocabulary.gradients).view(nodes.shape[:2]).numpy()
    node = [
        np.minimum(np.arange(side) // stride, count - 1)
        for side, count in zip((height, width), gradient.shape, strict=True)
    ]
    colour = nearest(pixels(image), vocabulary.colours).view(height, width).numpy()
    row, column = np.arange(height) * grid // height, np.arange(width) * grid // width
    return Words(gradient[np.ix_(*node)], colour, row[:, None] * grid + column)


def pixels(image: np.ndarray) -> Tensor:
    """The colours of all pixels, float32 ``[H * W, 3]`` from 0 to 1."""
    return torch.from_numpy(image.reshape(-1, 3)).to(torch.float32) / 255.0


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest of the centres ``[K, D]`` to every point ``[M, D]`` (the first, where several are), int64 ``[M]``."""
    half = centres.square().sum(1) / 2
    return torch.cat([(half - piece @ centres.T).argmin(1) for piece in points.split(_ROWS)])


def k_means(points: Tensor, count: int, seed: int, iterations: int = 25) -> Tensor:
    """Centres of ``count`` clusters, float32 ``[count, D]``: Lloyd's algorithm from k-means++ seeds.

    It stops when no point changes its cluster, and an empty cluster keeps its centre. See D. Arthur and S.
    Vassilvitskii,
    *k-means++*, 2007. ValueError if there are fewer points ``[M, D]`` than clusters.
    """
    if len(points) < count:
        raise ValueError(f"{len(points)} points are too few for {count} clusters: take more images or fewer words")
    centres = _first_centres(points, count, torch.Generator().manual_seed(seed))
    owner = torch.full((len(points),), -1)
    for _ in range(iterations):
        before, owner = owner, nearest(points, centres)
        if torch.equal(before, owner):
            break
        sizes = owner.bincount(minlength=count).unsqueeze(1)
        sums = torch.zeros_like(centres, dtype=torch.float64).index_add_(0, owner, points.to(torch.float64))
        centres = torch.where(sizes > 0, (sums / sizes.clamp(min=1)).to(points.dtype), centres)
    return centres


def _first_centres(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Points drawn one after another, in proportion to their squared distance from those drawn before."""
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    squares = points.square().sum(1)
    distance = torch.full((len(points),), torch.inf)
    for _ in range(count - 1):
        last = points[chosen[-1]]
        distance = torch.minimum(distance, (squares - 2 * (points @ last) + last.square().sum()).clamp(min=0.0))
        total = distance.to(torch.float64).cumsum(0)
        # If all points coincide with chosen ones, choose any.
        draw = torch.rand((), generator=generator, dtype=torch.float64) * total[-1]
        chosen.append(min(int(torch.searchsorted(total, draw, right=True)), len(points) - 1))
    return points[chosen].clone()
