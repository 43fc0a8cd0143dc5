"""Scores of segmentations into foreground and background, counted in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from torchssvm.core.arguments import check_several

_DRAWS = 2000  # of the bootstrap
_ENDS = (0.025, 0.975)


class SegmentationScores(NamedTuple):
    """Scores over the pixels of some images.

    Attributes:
        iou: Pixels predicted and true, divided by pixels predicted or true, over the pixels of all images.
        mean_iou: The mean over the images of each image's IoU, 1 if no foreground is true and none is predicted.
        mean_iou_low: The lower end of a 95 % interval of ``mean_iou``: percentiles of the means of images drawn with
            replacement, 2000 times with a fixed seed ([Efron and Tibshirani 1993], chapter 13).
        mean_iou_high: Its upper end.
        accuracy: Share of the pixels of all images with the right label.
        balanced_accuracy: The mean of the shares of the true foreground and of the true background, of all images, that
            are labelled right; where there is only one of them, its share.

    Example:
        >>> mask = torch.tensor([[True, False]])
        >>> scores = segmentation_scores([mask], [mask])
        >>> scores.mean_iou, scores.balanced_accuracy
        (1.0, 1.0)
    """

    iou: float
    mean_iou: float
    mean_iou_low: float
    mean_iou_high: float
    accuracy: float
    balanced_accuracy: float


def segmentation_scores(predicted: Sequence[Tensor], masks: Sequence[Tensor]) -> SegmentationScores:
    """Scores of predicted foregrounds.

    Args:
        predicted: bool ``[H, W]`` for every image, True in the foreground; at least one.
        masks: The true ones.

    Raises:
        ValueError: There are no images, or a size, a shape or a dtype does not fit.

    Example:
        >>> predicted = [torch.tensor([[True, True], [False, False]])]
        >>> segmentation_scores(predicted, masks=[torch.tensor([[True, False], [False, False]])]).iou
        0.5
    """
    for name, given in (("predicted", predicted), ("masks", masks)):
        check_several(given, name, "a list of tensors")
    if len(predicted) != len(masks) or not len(masks):
        raise ValueError(f"predicted has {len(predicted)} foregrounds, and masks {len(masks)}: give as many")
    counts = np.zeros((len(masks), 4), np.int64)
    for i, (output, mask) in enumerate(zip(predicted, masks, strict=True)):
        if output.shape != mask.shape or output.dtype != mask.dtype or str(output.dtype) != "torch.bool":
            raise ValueError(
                f"predicted[{i}] must be bool {list(mask.shape)}, as its mask, got {output.dtype} {list(output.shape)}"
            )
        counts[i] = int((output & mask).sum()), int(output.sum()), int(mask.sum()), mask.numel()
    return scores_of_counts(counts)


def scores_of_counts(counts: np.ndarray) -> SegmentationScores:
    """Scores from counts int64 ``[n, 4]``: pixels of foreground predicted and true, predicted, and true, and all."""
    each = counts[:, 0] / np.maximum(counts[:, 1] + counts[:, 2] - counts[:, 0], 1)
    both, predicted, true, pixels = counts.sum(0).tolist()
    either, ground = predicted + true - both, pixels - true
    each = np.where((counts[:, 1] + counts[:, 2]) > 0, each, 1.0)
    low, high = np.quantile(each[np.random.default_rng(0).integers(len(each), size=(_DRAWS, len(each)))].mean(1), _ENDS)
    shares = [right / size for right, size in ((both, true), (pixels - either, ground)) if size]
    return SegmentationScores(
        both / either if either else 1.0,
        float(each.mean()),
        float(low),
        float(high),
        (both + pixels - either) / pixels,
        sum(shares) / len(shares),
    )
