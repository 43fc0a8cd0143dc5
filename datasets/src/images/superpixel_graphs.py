"""Images as graphs of superpixels, read from a cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_choice
from torchssvm.core.batch import Batch, to_device
from torchssvm.core.modules import evaluating
from torchssvm.structures.common import WeightedLabels
from torchssvm.structures.graph_cut.head import Graphs

from ..padded import PADDING, collating, padded, place_of
from .graph_cache import CachedGraph, GraphCache
from .segmentation_scores import SegmentationScores, scores_of_counts


class GraphExample(NamedTuple):
    """One image: its graph, its target, and its number in this split."""

    x: Any  # Graphs, or SegmentationPixels
    y: WeightedLabels
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks an example for


class SuperpixelGraphs(Dataset[GraphExample]):
    """The training or the test images of a cache: ``SuperpixelGraphs(GraphCache(folder), "test")``.

    An item is ``(x, y, index)``: x are :class:`torchssvm.Graphs` of N superpixels, without a batch axis; y are
    :class:`torchssvm.WeightedLabels`, int64 ``[N]``, 1 for superpixels of which more than half is foreground, and what
    a wrong label costs, float32 ``[N]``; index is the image's number in the split. Batches are padded, with labels
    -1, weights 0 and edges -1, and have the numbers of superpixels as lengths.

    The loss is from [G16], appendix I.3: a superpixel costs its share of the pixels of all superpixels with its
    label, times 1/2, so that an image's weights add up to 1, and each class's to 1/2. Where there is one class only,
    its weights add up to 1.

    Args:
        cache: The graphs.
        split: ``"train"`` or ``"test"``.
        balanced: False makes a superpixel cost its share of all pixels, whatever its label.

    Raises:
        ValueError: There is no such split, or no image in it.

    Example:
        >>> small = GraphSettings(segments=20, gradient_words=12, colour_words=6, samples=600)
        >>> train = HorseSegmentation("train", "horses", num_train=2, settings=small, cache="cache", progress=False)
        >>> test = SuperpixelGraphs(train.cache, "test")
        >>> len(test), test.image(0).shape
        (1, torch.Size([3, 40, 56]))
    """

    def __init__(self, cache: GraphCache, split: Literal["train", "test"] = "train", *, balanced: bool = True) -> None:
        check_choice(split, "split", "train", "test")
        self.cache = cache
        self.split = split
        self.balanced = balanced
        span = range(cache.num_train) if split == "train" else range(cache.num_train, len(cache))
        self._numbers = [number for number in span if cache.names[number] not in cache.skipped]
        if not self._numbers:
            raise ValueError(f"the cache {cache.folder} has no image in split={split!r}")

    @property
    def in_features(self) -> int:
        """F, features of a superpixel."""
        return self.cache.settings.in_features

    @property
    def edge_features(self) -> int:
        """P, features of an edge."""
        return self.cache.settings.edge_features

    @property
    def names(self) -> list[str]:
        """Names of the images, without ending."""
        return [self.cache.names[number] for number in self._numbers]

    def graph(self, i: int) -> CachedGraph:
        """The cache's arrays for image i: read-only views of its files."""
        return self.cache[self._numbers[place_of(i, len(self))]]

    def image(self, i: int) -> Tensor:
        """Image i, float32 ``[3, H, W]`` from 0 to 1, as large as its mask."""
        return torch.from_numpy(self.graph(i).images.astype(np.float32)).permute(2, 0, 1) / 255.0

    def regions(self, i: int) -> Tensor:
        """The superpixel of every pixel of image i, int64 ``[H, W]``."""
        return torch.from_numpy(self.graph(i).regions.astype(np.int64))

    def mask(self, i: int) -> Tensor:
        """The foreground of image i, bool ``[H, W]``."""
        return torch.from_numpy(np.array(self.graph(i).masks))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: int) -> GraphExample:
        cached = self.graph(i)
        x = Graphs(
            torch.from_numpy(np.array(cached.nodes)),
            torch.from_numpy(np.array(cached.edge_features)),
            torch.from_numpy(cached.edges.astype(np.int64)),
        )
        return GraphExample(x, self._target(cached), place_of(i, len(self)))

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """The images at ``indices`` as one batch; a ``DataLoader`` calls this."""
        return self.collate([self[int(i)] for i in indices])

    @staticmethod
    @collating
    def collate(examples: Sequence[GraphExample]) -> Batch:
        """Graphs, padded to the largest."""
        x = Graphs(
            *(
                padded(each, fill)
                for each, fill in zip(zip(*(e.x for e in examples), strict=True), (0, 0, PADDING), strict=True)
            )
        )
        y = WeightedLabels(padded([e.y.labels for e in examples], PADDING), padded([e.y.weights for e in examples], 0))
        lengths = torch.tensor([len(e.y.labels) for e in examples])
        return Batch(x, y, torch.tensor([e.index for e in examples]), lengths)

    def scores(self, labelings: Sequence[Tensor] | Tensor) -> SegmentationScores:
        """Scores of labelings of all images, in pixels of the masks.

        Args:
            labelings: For every image of the split, in order, int64 ``[N]``, or longer; padding is ignored.

        Raises:
            ValueError: The numbers of labelings and images differ, or a labeling is too short or not 0 and 1.
        """
        if len(labelings) != len(self):
            raise ValueError(f"labelings are {len(labelings)}, and the dataset has {len(self)} images")
        counts = np.zeros((len(self), 4), np.int64)
        for i, labeling in enumerate(labelings):
            cached = self.graph(i)
            sizes, foreground = cached.sizes.astype(np.int64), cached.foreground.astype(np.int64)
            labels = labeling.detach().cpu().numpy()[: len(sizes)]
            if len(labels) < len(sizes) or not np.isin(labels, (0, 1)).all():
                raise ValueError(f"labelings[{i}] must have {len(sizes)} labels 0 or 1, one for each superpixel")
            marked = labels == 1
            counts[i] = foreground[marked].sum(), sizes[marked].sum(), foreground.sum(), sizes.sum()
        return scores_of_counts(counts)

    def foreground(self, labelings: Sequence[Tensor] | Tensor) -> list[Tensor]:
        """The foreground of labelings of all images: bool ``[H, W]`` for each image, shaped like its mask.

        Args:
            labelings: As in :meth:`scores`.
        """
        return [labeling.detach().cpu()[self.regions(i)] == 1 for i, labeling in enumerate(labelings)]

    def _target(self, graph: CachedGraph) -> WeightedLabels:
        sizes = graph.sizes.astype(np.float64)
        labels = (2 * graph.foreground > graph.sizes).astype(np.int64)
        weights = sizes / sizes.sum()
        if self.balanced:
            of_class = np.bincount(labels, weights, minlength=2)
            of_label = np.where(of_class > 0, of_class, 1.0)[labels]  # superpixels of ignored pixels have weight 0
            weights = weights / of_label / np.count_nonzero(of_class)
        return WeightedLabels(torch.from_numpy(labels), torch.from_numpy(weights.astype(np.float32)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(split={self.split!r}): {len(self)} images, {self.in_features} features"


class SegmentationPixels(NamedTuple):
    """A batch of images with their graphs; an item has no batch axis.

    Attributes:
        image: float32 ``[B, 3, H, W]`` from 0 to 1; zero in the padding, right and below.
        regions: The superpixel of every pixel, int64 ``[B, H, W]``; -1 in the padding.
        graph: The graphs of the superpixels.

    Example:
        >>> regions = torch.tensor([[[0, 1]]])
        >>> graph = Graphs(torch.zeros(1, 2, 1), torch.ones(1, 1, 1), torch.tensor([[[0, 1]]]))
        >>> pixels = SegmentationPixels(image=torch.rand(1, 3, 1, 2), regions=regions, graph=graph)
        >>> pool_regions(pixels.image, pixels.regions).shape
        torch.Size([1, 2, 3])
    """

    image: Tensor
    regions: Tensor
    graph: Graphs


class PixelSegmentation(Dataset[GraphExample]):
    """The images of :class:`SuperpixelGraphs` with their pixels: x is :class:`SegmentationPixels`, all else the same.

    A network's features of the pixels become features of the superpixels by :func:`torchssvm.datasets.pool_regions`.

    Args:
        graphs: The images, for example ``HorseSegmentation("train")``.

    Example:
        >>> small = GraphSettings(segments=20, gradient_words=12, colour_words=6, samples=600)
        >>> train = HorseSegmentation("train", "horses", num_train=2, settings=small, cache="cache", progress=False)
        >>> pixels = PixelSegmentation(train)[0].x
        >>> pixels.image.shape, pixels.regions.shape
        (torch.Size([3, 40, 56]), torch.Size([40, 56]))
    """

    def __init__(self, graphs: SuperpixelGraphs) -> None:
        self.graphs = graphs

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, i: int) -> GraphExample:
        graph, y, index = self.graphs[i]
        return GraphExample(SegmentationPixels(self.graphs.image(i), self.graphs.regions(i), graph), y, index)

    def __getitems__(self, indices: Sequence[int] | Tensor) -> Batch:
        """The images at ``indices`` as one batch; a ``DataLoader`` calls this."""
        return self.collate([self[int(i)] for i in indices])

    @staticmethod
    @collating
    def collate(examples: Sequence[GraphExample]) -> Batch:
        """Images and graphs, padded to the largest."""
        batch = SuperpixelGraphs.collate([example._replace(x=example.x.graph) for example in examples])
        image = padded([example.x.image for example in examples], 0)
        regions = padded([example.x.regions for example in examples], PADDING)
        return batch.replace(x=SegmentationPixels(image, regions, batch.x))

    def __repr__(self) -> str:
        return f"PixelSegmentation({self.graphs!r})"


class PrecomputedGraphs(Dataset[GraphExample]):
    """Images as graphs in memory; targets and indices are unchanged.

    ``features`` is called with one image at a time, so that padding has no effect. A module is called in evaluation
    mode, on the device of its parameters; afterwards each submodule has its former mode.

    Args:
        dataset: :class:`SuperpixelGraphs`, :class:`PixelSegmentation`, or a dataset like them; an item's index is its
            position.
        features: A batch's x -> :class:`torchssvm.Graphs`; None keeps the graphs.

    Raises:
        ValueError: The dataset is empty.

    Example:
        >>> small = GraphSettings(segments=20, gradient_words=12, colour_words=6, samples=600)
        >>> train = HorseSegmentation("train", "horses", num_train=2, settings=small, cache="cache", progress=False)
        >>> kept = PrecomputedGraphs(train)
        >>> kept.in_features == train.in_features
        True
    """

    def __init__(self, dataset: Dataset[Any], features: Callable[[Any], Graphs] | None = None) -> None:
        parameter = next(features.parameters(), None) if isinstance(features, nn.Module) else None
        places = range(len(dataset))  # type: ignore[arg-type]  # map-style
        with evaluating(features), torch.no_grad():
            self._examples = [self._apply(dataset, i, features, parameter) for i in places]
        if not self._examples:
            raise ValueError("dataset is empty")

    @staticmethod
    def _apply(
        dataset: Any, i: int, features: Callable[[Any], Graphs] | None, parameter: nn.Parameter | None
    ) -> GraphExample:
        example = dataset[i]
        if features is None:
            return example
        batch: Batch = dataset.collate([example])
        x = features(batch.x if parameter is None else to_device(batch.x, parameter.device))
        return example._replace(x=Graphs(*(tensor[0].to(example.y.labels.device) for tensor in x)))

    @property
    def in_features(self) -> int:
        """F, features of a node."""
        return self._examples[0].x.nodes.shape[1]

    @property
    def edge_features(self) -> int:
        """P, features of an edge."""
        return self._examples[0].x.edge_features.shape[1]

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, i: int) -> GraphExample:
        return self._examples[i]

    collate = staticmethod(SuperpixelGraphs.collate)

    def __repr__(self) -> str:
        return f"PrecomputedGraphs({len(self)} images, {self.in_features} features)"
