"""Features of the superpixels of an image and of the pairs that touch: [G16] appendix I.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchssvm.core.arguments import check_number, check_seed, check_whole

from .superpixels import adjacency, neighbourhoods, pixels_of, superpixels
from .visual_words import Vocabulary, words

KINDS = ("gradient", "colour", "position")
ETAS = 2.0 ** np.arange(-5, 6)
"""The scales of the chi-squared distances, 2^-5 to 2^5."""

_SMALLEST_SIDE = 16
_MOST_SEGMENTS = 30_000
_ROWS = 256  # edges whose distances are made at a time


@dataclass(frozen=True)
class GraphSettings:
    """Settings for building graphs of superpixels from images.

    The defaults give 147 superpixels an image on average on the Weizmann horses, and the sizes of [G16]: 1969 features
    of a superpixel, 100 of an edge.

    Args:
        segments: Superpixels to aim at; SLIC finds fewer.
        compactness: Argument of SLIC: weight of nearness against colour.
        gradient_words: Size of the vocabulary of gradient descriptors.
        colour_words: Size of the vocabulary of colours.
        grid: Positions are the cells of a grid x grid division of the image.
        cell: Side of one of the 16 cells of a gradient descriptor in pixels, even.
        stride: Pixels from one gradient descriptor to the next.
        samples: Number of descriptors, and of pixels, of the training images that a vocabulary is made from.
        seed: Seed of the sampling and of k-means.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> small = GraphSettings(segments=20, gradient_words=12, colour_words=6, samples=600)
        >>> train = HorseSegmentation("train", "horses", num_train=2, settings=small, cache="cache", progress=False)
        >>> train[0].x.nodes.shape[1] == train.in_features
        True
    """

    segments: int = 152
    compactness: float = 30.0
    gradient_words: int = 512
    colour_words: int = 128
    grid: int = 4
    cell: int = 4
    stride: int = 2
    samples: int = 100_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("segments", "gradient_words", "colour_words", "grid", "cell", "stride", "samples"):
            object.__setattr__(self, name, check_whole(getattr(self, name), name))
        object.__setattr__(self, "seed", check_seed(self.seed))
        if self.segments > _MOST_SEGMENTS:
            raise ValueError(f"segments={self.segments} must be at most {_MOST_SEGMENTS}, to fit in 16 bits")
        if self.cell % 2:
            raise ValueError(f"cell={self.cell} must be even")
        object.__setattr__(self, "compactness", check_number(self.compactness, "compactness", above=0.0))

    @property
    def in_features(self) -> int:
        """F, features of a superpixel: a constant, and a histogram of each kind for each neighbourhood."""
        return 1 + 3 * sum(self.widths)

    @property
    def edge_features(self) -> int:
        """P, features of an edge: a constant, and every distance of two histograms at every scale."""
        return 1 + 3 * len(self.widths) * len(ETAS)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Bins of the histograms, in the order of ``KINDS``."""
        return self.gradient_words, self.colour_words, self.grid**2

    def histograms(self) -> dict[tuple[str, int], slice]:
        """The columns of each histogram in a superpixel's features, by kind and order of the neighbourhood."""
        places, start = {}, 1
        for kind, width in zip(KINDS, self.widths, strict=True):
            for order in range(3):
                places[kind, order] = slice(start, start + width)
                start += width
        return places


class RegionGraph(NamedTuple):
    """One image as a graph of N superpixels.

    Attributes:
        regions: The superpixel of every pixel, int32 ``[H, W]``.
        nodes: Features of the superpixels, float32 ``[N, F]``.
        edge_features: Features of the edges, float32 ``[E, P]``, at least 0.
        edges: Superpixels that touch, int64 ``[E, 2]``, smaller number first.
        sizes: Pixels of the superpixels, int64 ``[N]``.
        foreground: How many of them are foreground, int64 ``[N]``.
    """

    regions: np.ndarray
    nodes: np.ndarray
    edge_features: np.ndarray
    edges: np.ndarray
    sizes: np.ndarray
    foreground: np.ndarray


def region_graph(
    image: np.ndarray, mask: np.ma.MaskedArray, settings: GraphSettings, vocabulary: Vocabulary
) -> RegionGraph:
    """The graph of one image, uint8 RGB ``[H, W, 3]``, whose mask ``[H, W]`` is True in the foreground.

    Sizes count the pixels where ``mask`` is not masked.

    Raises:
        ValueError: The image is too small to be divided.
        ImportError: scikit-image is not installed.
    """
    check_size(image, settings)
    regions = superpixels(image, settings.segments, settings.compactness)
    edges = adjacency(regions)
    nodes = node_features(image, regions, edges, settings, vocabulary)
    return RegionGraph(
        regions,
        nodes,
        edge_features(nodes, edges, settings),
        edges,
        pixels_of(regions, ~np.ma.getmaskarray(mask)),
        pixels_of(regions, np.ma.filled(mask, False)),
    )


def check_size(image: np.ndarray, settings: GraphSettings) -> None:
    """Raise ValueError if an image has too few pixels."""
    height, width = image.shape[:2]
    least = 4 * settings.segments
    if min(height, width) < _SMALLEST_SIDE or height * width < least:
        raise ValueError(
            f"the image has {width} x {height} pixels: they need at least {least}, and each side {_SMALLEST_SIDE}"
        )


def node_features(
    image: np.ndarray, regions: np.ndarray, edges: np.ndarray, settings: GraphSettings, vocabulary: Vocabulary
) -> np.ndarray:
    """Features of the superpixels, float32 ``[N, F]``: 1, and square roots of histograms.

    A histogram counts the words of one kind, divided by their number, over the pixels of the superpixel (order 0), of
    the superpixel and its neighbours (1), or of these and their neighbours (2). The square root gives every histogram
    the Euclidean norm 1.
    """
    count = int(regions.max()) + 1
    around = [reach.astype(np.float64) for reach in neighbourhoods(edges, count)]
    features = np.ones((count, settings.in_features), np.float32)
    place = settings.histograms()
    of_pixels = words(image, vocabulary, settings.grid, settings.cell, settings.stride)
    for kind, width in zip(KINDS, settings.widths, strict=True):
        codes = regions.astype(np.int64) * width + getattr(of_pixels, kind)
        counts = np.bincount(codes.ravel(), minlength=count * width).reshape(count, width)
        for order, reach in enumerate(around):
            histogram = reach @ counts  # whole numbers, exact
            features[:, place[kind, order]] = np.sqrt(histogram / histogram.sum(1, keepdims=True))
    return features


def edge_features(nodes: np.ndarray, edges: np.ndarray, settings: GraphSettings) -> np.ndarray:
    """Features of the edges, float32 ``[E, P]``: 1, and ``exp(-eta d)`` for every histogram and every eta of ``ETAS``.

    d is the chi-squared distance of the two ends' histograms, ``1/2 sum_k (p_k - q_k)^2 / (p_k + q_k)``, from 0 to 1.
    """
    features = np.ones((len(edges), settings.edge_features), np.float32)
    histograms = list(settings.histograms().values())
    for start in range(0, len(edges), _ROWS):
        rows = slice(start, start + _ROWS)
        a, b = np.square(nodes[edges[rows, 0]]), np.square(nodes[edges[rows, 1]])
        total = a + b
        terms = np.square(a - b) / np.where(total > 0, total, 1)
        distances = np.stack([terms[:, place].sum(1, dtype=np.float64) / 2 for place in histograms], axis=1)
        features[rows, 1:] = np.exp(-distances[:, :, None] * ETAS).reshape(len(a), -1)
    return features
