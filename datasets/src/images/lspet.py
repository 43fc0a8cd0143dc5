"""People in sports (Johnson and Everingham 2011, Leeds Sports Pose Extended Training): images with 14 joints each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchssvm.core.arguments import check_choice, needs
from torchssvm.core.batch import Batch

from ..files import find, read_arrays
from ..padded import collating
from .pose_scores import PoseScores, pose_scores

MIRRORED = (5, 4, 3, 2, 1, 0, 11, 10, 9, 8, 7, 6, 12, 13)
"""The index of each joint's mirror image: left and right are exchanged."""

LEFT_SHOULDER, RIGHT_HIP = 9, 2

_PAGE = "https://sam.johnson.io/research/lspet.html"
_FOLDER = "lspet"
_TRAIN, _SMALL, _COUNT = 800, 100, 1000
_GREY = 128
_BILINEAR = 2  # of Pillow


class LSPET(Dataset[tuple[Tensor, Tensor, int]]):
    """The first 1000 images of LSPET in which all 14 joints are visible: 800 for training, 200 for testing.

    It needs ``lspet/joints_1000.npz`` (``image`` ``[1000]``, the numbers of the images, and ``joints``
    ``[1000, 14, 2]``, (x, y) in pixels) and ``lspet/images/imNNNNN.jpg``, under ``TORCHSSVM_DATA``. The annotations are
    noisy.

    An item is ``(x, y, index)``: the image, float32 ``[3, H, W]`` in 0..1, scaled to fit the canvas without
    distortion, padded with grey; its joints in pixels of the canvas, float32 ``[14, 2]``; and its number in this split.

    Args:
        split: ``"train"`` or ``"test"``.
        size: ``"large"`` trains on 800 images, ``"small"`` on the first 100 of them, as [G16] did with theirs.
        canvas: (H, W) in pixels.
        root: The folder that has ``lspet``; None is ``TORCHSSVM_DATA`` and the cache.
        keep: Whether images stay in memory after they are read, at a byte for each pixel and channel: 110 kB an image
            on the default canvas.

    Attributes:
        joints: ``[n, 14, 2]`` float32, in pixels of the canvas.
        scales: ``[n]`` float64, pixels of the canvas for each pixel of the image.
        numbers: The images' numbers in LSPET.

    Raises:
        FileNotFoundError: A file is missing; the message says where it comes from.
        RuntimeError: A file is corrupt, or a joint lies outside of its image.
        ImportError: Pillow is not installed.

    Example:
        >>> images = LSPET("train", size="small")
        >>> x, y, index = images[0]
        >>> x.shape, y.shape
        (torch.Size([3, 192, 192]), torch.Size([14, 2]))
    """

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        size: Literal["small", "large"] = "large",
        *,
        canvas: tuple[int, int] = (192, 192),
        root: str | os.PathLike[str] | None = None,
        keep: bool = False,
    ) -> None:
        check_choice(split, "split", "train", "test")
        check_choice(size, "size", "small", "large")
        if len(canvas) != 2 or min(canvas) < 1:
            raise ValueError(f"canvas={canvas} must be (H, W), at least one pixel each")
        self.split, self.size, self.canvas = split, size, canvas
        self._kept: dict[int, np.ndarray] | None = {} if keep else None
        numbers, joints = _read(find(f"{_FOLDER}/joints_1000.npz", _PAGE, root))
        chosen = slice(_TRAIN, None) if split == "test" else slice(0, _SMALL if size == "small" else _TRAIN)
        self.numbers = numbers[chosen].tolist()
        self._files = [find(f"{_FOLDER}/images/im{number:05d}.jpg", _PAGE, root) for number in self.numbers]
        sizes = np.array([_size(file) for file in self._files], np.float64)  # width, height
        inside = ((joints[chosen] >= 0) & (joints[chosen] < sizes[:, None])).all((1, 2))
        if not inside.all():
            row = int(np.flatnonzero(~inside)[0])
            raise RuntimeError(
                f"a joint lies outside of {self._files[row]}, which has {int(sizes[row, 0])} x {int(sizes[row, 1])} "
                f"pixels: the image was resized or replaced; fetch {_PAGE} again"
            )
        scales = np.minimum(canvas[1] / sizes[:, 0], canvas[0] / sizes[:, 1])
        self.scales = torch.from_numpy(scales)
        self.joints = torch.from_numpy((joints[chosen] * scales[:, None, None]).astype(np.float32))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        index = range(len(self))[index]
        pixels = None if self._kept is None else self._kept.get(index)
        if pixels is None:
            pixels = self._read(index)
            if self._kept is not None:
                self._kept[index] = pixels
        return torch.from_numpy(pixels).permute(2, 0, 1).to(torch.float32) / 255, self.joints[index], index

    def _read(self, index: int) -> np.ndarray:
        """An image on the canvas, uint8 ``[H, W, 3]``."""
        with _opened(self._files[index]) as opened:
            image = opened.convert("RGB")
        height, width = self.canvas
        scale = float(self.scales[index])
        size = min(width, max(1, round(image.width * scale))), min(height, max(1, round(image.height * scale)))
        pixels = np.full((height, width, 3), _GREY, np.uint8)
        pixels[: size[1], : size[0]] = np.asarray(image.resize(size, _BILINEAR))
        return pixels

    @staticmethod
    @collating
    def collate(examples: Sequence[tuple[Tensor, Tensor, int]]) -> Batch:
        """Images ``[B, 3, H, W]`` and joints ``[B, 14, 2]``."""
        images, joints, index = zip(*examples, strict=True)
        return Batch(torch.stack(images), torch.stack(joints), torch.tensor(index))

    def places(self, stride: int) -> Tensor:
        """The joints on a grid with a place for every ``stride`` x ``stride`` pixels, ``[n, 14, 2]``, unrounded.

        The grid has ``H // stride`` x ``W // stride`` places, the first for the pixels 0 to ``stride - 1``.
        """
        last = torch.tensor([self.canvas[1] // stride - 1, self.canvas[0] // stride - 1], dtype=self.joints.dtype)
        return (self.joints / stride - 0.5).clamp(min=0.0).minimum(last)

    def pixels(self, places: Tensor, stride: int) -> Tensor:
        """The centres of places of that grid in pixels of the canvas, float32 ``[..., 2]``."""
        return stride * (places.to(torch.float32) + 0.5)

    def scores(self, predicted: Tensor) -> PoseScores:
        """Scores of poses of all images; errors are in pixels of the original images.

        The torso reaches from the left shoulder to the right hip.

        Args:
            predicted: ``[n, 14, 2]``, (x, y) of the joints in pixels of the canvas.

        Raises:
            ValueError: The shape is wrong.
        """
        if predicted.shape != self.joints.shape:
            raise ValueError(f"predicted must be {list(self.joints.shape)}, got {list(predicted.shape)}")
        scales = self.scales.view(-1, 1, 1)
        return pose_scores(predicted.cpu() / scales, self.joints / scales, torso=(LEFT_SHOULDER, RIGHT_HIP))

    def __repr__(self) -> str:
        return f"LSPET(split={self.split!r}, size={self.size!r}, canvas={self.canvas}): {len(self)} images"


def _read(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and joints."""
    numbers, joints = read_arrays(file, "image", "joints")
    if numbers.shape != (_COUNT,) or joints.shape != (_COUNT, 14, 2) or not np.isfinite(joints).all():
        raise RuntimeError(
            f"{file} is not the joints of LSPET: image is {numbers.shape} and joints {joints.shape}, or not finite"
        )
    return numbers.astype(np.int64), joints.astype(np.float64)


def _size(file: Path) -> tuple[int, int]:
    """Width and height, from the header."""
    with _opened(file) as image:
        width, height = image.size
    return width, height


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    with needs("reading images needs Pillow: pip install 'torchssvm[scikit-image]' brings it", "PIL"):
        from PIL import Image
    try:
        with Image.open(file) as opened:
            yield opened
    except OSError as error:
        raise RuntimeError(f"{file} is no image, or is corrupt: {error}; fetch it again from {_PAGE}") from error


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
