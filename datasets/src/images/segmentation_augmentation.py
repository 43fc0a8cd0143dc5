"""Images of one size for a network, and random views of images with their masks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .superpixel_graphs import SuperpixelGraphs


def resized(images: SuperpixelGraphs, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """All images and masks, scaled to one size (H, W).

    Returns float32 ``[n, 3, H, W]``, and ``[n, H, W]``: the share of foreground of each pixel, from 0 to 1.
    """

    def scaled(x: Tensor) -> Tensor:
        return functional.interpolate(x.unsqueeze(0), size, mode="bilinear", antialias=True)[0]

    masks = [scaled(images.mask(i).to(torch.float32).unsqueeze(0)) for i in range(len(images))]
    return torch.stack([scaled(images.image(i)) for i in range(len(images))]), torch.cat(masks)


def random_views(image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Randomly rotate, scale, shift and mirror each image with its mask, and change the colours of the image.

    Images are ``[B, 3, H, W]``, in 0..1, and masks ``[B, H, W]``.
    """
    size, ratio = len(image), image.shape[2] / image.shape[3]

    def draw(low: float, high: float, *shape: int) -> Tensor:
        return torch.empty(size, *shape, device=image.device).uniform_(low, high)

    angle, scale, stretch = draw(-0.2, 0.2), draw(-0.3, 0.25).exp(), draw(-0.12, 0.12).exp()
    mirror = torch.where(draw(0, 1) < 0.5, -1.0, 1.0)
    rows = [
        torch.stack([angle.cos() * scale * mirror * stretch, -angle.sin() * scale * ratio, draw(-0.15, 0.15)], 1),
        torch.stack([angle.sin() * scale * mirror / ratio, angle.cos() * scale / stretch, draw(-0.15, 0.15)], 1),
    ]
    together = torch.cat([image, mask.unsqueeze(1)], 1)
    grid = functional.affine_grid(torch.stack(rows, 1), list(together.shape), align_corners=False)
    together = functional.grid_sample(together, grid, padding_mode="reflection", align_corners=False)
    image, mask = together[:, :3], together[:, 3]
    grey = (draw(0, 1, 1, 1, 1) < 0.2).to(image.dtype)
    image = (1 - grey) * image + grey * image.mean(1, keepdim=True)
    contrast, light, tint = draw(0.6, 1.4, 1, 1, 1), draw(-0.2, 0.2, 1, 1, 1), draw(-0.1, 0.1, 3, 1, 1)
    return ((image - 0.5) * contrast + 0.5 + light + tint).clamp(0, 1), mask
