"""Images of people with labelings as targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.batch import Batch

from ..padded import collating
from .lspet import LSPET


class PoseTargets(Dataset[tuple[Tensor, Tensor, int]]):
    """Images of :class:`LSPET`, all or some, with labelings of :class:`torchssvm.Pose` as y in place of joints.

    An item is ``(image, labeling, index)``, float32 ``[3, H, W]``, int64 ``[P, 4]``, and its number here.

    Args:
        images: The images.
        label: Joints on the grid ``[n, 14, 2]`` -> labelings ``[n, P, 4]``, for example
            ``lambda joints: pose.labeling(body_nodes(joints))``.
        stride: Side of a place of the grid, in pixels.
        rows: The numbers of the images in use; None is all.

    Attributes:
        y: ``[n, P, 4]``, the labelings.

    Example:
        >>> images = LSPET("train", size="small", canvas=(64, 64))
        >>> targets = PoseTargets(images, lambda joints: joints.long().repeat(1, 1, 2), rows=range(3))
        >>> len(targets), targets.y.shape
        (3, torch.Size([3, 14, 4]))
    """

    def __init__(
        self, images: LSPET, label: Callable[[Tensor], Tensor], stride: int = 4, rows: range | None = None
    ) -> None:
        self.images = images
        self.rows = range(len(images)) if rows is None else rows
        self.y = label(images.places(stride)[list(self.rows)])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        index = range(len(self))[index]
        return self.images[self.rows[index]][0], self.y[index], index

    @staticmethod
    @collating
    def collate(examples: Sequence[tuple[Tensor, Tensor, int]]) -> Batch:
        """Images ``[B, 3, H, W]`` and labelings ``[B, P, 4]``."""
        images, labelings, index = zip(*examples, strict=True)
        return Batch(torch.stack(images), torch.stack(labelings), torch.tensor(index))

    def __repr__(self) -> str:
        return f"PoseTargets({self.images!r}, rows={self.rows}): {len(self)} images"
