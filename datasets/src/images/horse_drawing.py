"""Pictures of images with the predicted foreground."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from .superpixel_graphs import SuperpixelGraphs

_TINTS = {"right": (0.1, 0.75, 0.2), "too much": (0.9, 0.1, 0.1), "missed": (0.15, 0.35, 1.0)}
_STRENGTH = 0.5


def draw_segmentations(
    figure: Any, dataset: SuperpixelGraphs, rows: Sequence[int], labelings: Sequence[Tensor] | Tensor
) -> None:
    """Images with the predicted foreground: green if right, red if wrong; missed foreground is blue.

    A white line is the border of the true mask. ``labelings`` label the superpixels, int64 ``[N]`` or longer,
    for each of the ``rows``, in an empty figure or subfigure of matplotlib.
    """
    columns = min(4, len(rows))
    axes = figure.subplots(-(-len(rows) // columns), columns, squeeze=False).flatten()
    for axis in axes:
        axis.axis("off")
    for axis, row, labeling in zip(axes, rows, labelings, strict=False):
        _show(axis, dataset.mask(row).numpy(), overlay(dataset, row, labeling))
        axis.set_title(dataset.names[row], fontsize=8)


def overlay(dataset: SuperpixelGraphs, row: int, labeling: Tensor) -> np.ndarray:
    """One image of :func:`draw_segmentations` without the line: float32 ``[H, W, 3]`` from 0 to 1."""
    image = dataset.image(row).permute(1, 2, 0).numpy()
    predicted = labeling.detach().cpu().numpy()[dataset.regions(row).numpy()] == 1
    return _tinted(image, dataset.mask(row).numpy(), predicted)


def _tinted(image: np.ndarray, mask: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    tinted = image.copy()
    for where, name in ((predicted & mask, "right"), (predicted & ~mask, "too much"), (~predicted & mask, "missed")):
        tinted[where] = (1 - _STRENGTH) * tinted[where] + _STRENGTH * np.array(_TINTS[name], np.float32)
    return tinted


def _show(axis: Any, mask: np.ndarray, image: np.ndarray) -> None:
    axis.imshow(image)
    if mask.any() and not mask.all():
        axis.contour(mask, levels=[0.5], colors="white", linewidths=0.8)
