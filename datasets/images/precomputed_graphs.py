"""Graphs in memory: read once, or computed once by a frozen network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from torchssvm.core.batch import Batch, to_device
from torchssvm.core.head_call import evaluating
from torchssvm.structures.graph_cut.head import Graphs

from .superpixel_graphs import GraphExample, SuperpixelGraphs


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
