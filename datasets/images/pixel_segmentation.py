"""Images with their superpixels, for networks on pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.batch import Batch
from torchssvm.structures.graph_cut.head import Graphs

from ..padded import PADDING, collating, padded
from .superpixel_graphs import GraphExample, SuperpixelGraphs


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

    A network's features of the pixels become those of the superpixels by :func:`torchssvm.datasets.pool_regions`.

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
