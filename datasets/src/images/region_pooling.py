"""Features of regions from features of pixels, so that a network on pixels can score superpixels."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.core.arguments import check_tensor


def pool_regions(features: Tensor, regions: Tensor, num_regions: int | None = None) -> Tensor:
    """The mean of the features over the pixels of every region; differentiable in the features.

    Args:
        features: ``[B, C, H, W]``, floating.
        regions: ``[B, H, W]`` int64, the region of every pixel, 0 to N-1; -1 where a pixel belongs to none, as in the
            padding of a batch.
        num_regions: N; None is the largest region plus 1, which synchronises with a GPU.

    Returns:
        ``[B, N, C]``; zero for regions without pixels.

    Raises:
        ValueError: A shape, a dtype or a region does not fit.

    Example:
        >>> features = torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]])
        >>> pool_regions(features, torch.tensor([[[0, 0], [1, 1]]]))
        tensor([[[2.],
                 [6.]]])
    """
    features, regions = check_tensor(features, "features"), check_tensor(regions, "regions")
    if features.ndim != 4 or regions.shape != (features.shape[0], *features.shape[2:]):
        raise ValueError(
            f"features must be [B, C, H, W] and regions [B, H, W] of the same size, got {list(features.shape)} and "
            f"{list(regions.shape)}: enlarge features by torch.nn.functional.interpolate"
        )
    if not features.is_floating_point() or regions.dtype != torch.int64:
        raise ValueError(f"features must be floating and regions int64, got {features.dtype} and {regions.dtype}")
    batch, channels = features.shape[:2]
    low, high = (int(bound) for bound in regions.aminmax()) if regions.numel() else (-1, -1)
    count = high + 1 if num_regions is None else num_regions
    if low < -1 or high >= count:
        raise ValueError(f"regions must lie between -1 and {count - 1}, got {low if low < -1 else high}")
    # Pixels without a region go to an extra row, which is cut off.
    place = torch.where(regions < 0, count, regions).flatten(1)
    place = place + (count + 1) * torch.arange(batch, device=place.device).unsqueeze(1)
    rows = batch * (count + 1)
    sums = features.new_zeros(rows, channels).index_add(
        0, place.flatten(), features.permute(0, 2, 3, 1).reshape(-1, channels)
    )
    sizes = place.flatten().bincount(minlength=rows).clamp(min=1).unsqueeze(1)
    return (sums / sizes).view(batch, count + 1, channels)[:, :count]
