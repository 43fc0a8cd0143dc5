"""Random views of images of people with their joints: mirrored, rotated, scaled and shifted."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .lspet import MIRRORED


class RandomViews(NamedTuple):
    """Random views of a batch of images; every image gets another.

    Attributes:
        mirror: Probability of a mirror image, in which left and right joints are exchanged.
        turn: Largest angle of rotation, in degrees.
        scale: Largest factor, and one over the smallest.
        shift: Largest shift, as a share of the side.
        light: Largest change of brightness and of contrast, as a share.

    Example:
        >>> views = RandomViews(mirror=0.5, turn=10.0)
        >>> images, joints = views(torch.rand(2, 3, 32, 32), 32 * torch.rand(2, 14, 2))
        >>> images.shape, joints.shape
        (torch.Size([2, 3, 32, 32]), torch.Size([2, 14, 2]))
    """

    mirror: float = 0.5
    turn: float = 30.0
    scale: float = 1.25
    shift: float = 0.08
    light: float = 0.25

    def __call__(
        self, images: Tensor, joints: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Random views of images ``[B, 3, H, W]`` in 0..1 and joints ``[B, 14, 2]``, (x, y) in pixels, in the same
        shapes.

        Pixels from outside are grey, joints may leave the image, and the first pixel is from 0 to 1. The generator is
        on the CPU.
        """
        batch, _, height, width = images.shape

        def draw(most: float) -> Tensor:
            return (most * (2 * torch.rand(batch, generator=generator) - 1)).to(images)

        angle, scale = draw(math.radians(self.turn)), draw(math.log(self.scale)).exp()
        shift = torch.stack([draw(self.shift) * width, draw(self.shift) * height], 1)
        mirrored = (torch.rand(batch, generator=generator) < self.mirror).to(images.device)
        sign = 1.0 - 2.0 * mirrored.to(images)
        cos, sin = scale * angle.cos(), scale * angle.sin()
        there = torch.stack([cos * sign, -sin, sin * sign, cos], 1).view(-1, 2, 2)  # pixels of the image -> of the view
        centre = torch.tensor([width, height], dtype=images.dtype, device=images.device) / 2
        moved = (joints - centre) @ there.mT + (centre + shift).unsqueeze(1)
        moved = torch.where(mirrored.view(-1, 1, 1), moved[:, list(MIRRORED)], moved)

        back = torch.linalg.inv(there)
        to_unit = torch.diag(1 / centre)  # affine_grid counts from -1 to 1
        linear = to_unit @ back @ to_unit.inverse()
        offset = -(to_unit @ back @ shift.unsqueeze(2))
        grid = functional.affine_grid(torch.cat([linear, offset], 2), list(images.shape), align_corners=False)
        views = functional.grid_sample(images - 0.5, grid, align_corners=False)
        brightness, contrast = draw(self.light / 2), 1.0 + draw(self.light)
        views = contrast.view(-1, 1, 1, 1) * views + brightness.view(-1, 1, 1, 1)
        return (views + 0.5).clamp(0.0, 1.0), moved
