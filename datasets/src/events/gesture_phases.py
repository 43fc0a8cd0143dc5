"""Phases of gestures (Madeo, Lima and Peres 2013; CC BY 4.0): the hands of people who tell stories to a camera."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torchssvm.core.arguments import check_choice, check_whole
from torchssvm.structures.segments.structure import Segments

from ..files import fetch_texts
from ..lines import number, read_lines
from ..padded import PADDING, PaddedDataset

_PAGE = "https://archive.ics.uci.edu/dataset/302"
_URL = "https://archive.ics.uci.edu/static/public/302/gesture+phase+segmentation.zip"
_SHA256 = {
    "a1": "6741786f4dd962da28e8fa999ed91e2254e673a5b5f640ebd9e46c8085ef20ef",
    "a2": "e2e65cb9947e0d02a3ae6aa00866f73c705c3aa23c93222ef73ff70505fc9778",
    "a3": "03e562700ec1cadf1b4d5a0b4cff2e113d1bda9d892a03e20977cfd150384d89",
    "b1": "b83addca1fcb93f01c3e94d6f66a61525d542050d2e3dc9bda0bf03eec8ee077",
    "b3": "430a944662e2579d703d525a063c3be0681a100277a59ac4749e5f7b99c2d6ab",
    "c1": "01298e1bea4f657b646ea48d03f14ec0d93b032feae88a3c28a1daabe9743a79",
    "c3": "7e1fc4d13a1737ec4bebb6644d270398ec947c841ff5882aaccc2925f04ca7a6",
}
_REACH = 3  # velocities are differences between so many frames before and after, as in the features of the set
_HEAD, _SPINE = slice(6, 9), slice(9, 12)
_MOVING = [0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17]  # hands and wrists, left and right


class GesturePhases(PaddedDataset):
    """Seven videos of three people who tell stories, 9,901 frames at 30 a second, cut into 395 phases of gestures.

    The files lie under ``TORCHSSVM_DATA`` as ``gestures/a1_raw.csv`` and so on, or downloaded once into the cache
    folder. A video is named by its person, a to c, and its story, 1 to 3.

    An item is ``(x, y, index)``: x float32 ``[N, 44]`` has the positions of hands and wrists (12 numbers), their
    velocities (12), accelerations (12), speeds (4) and lengths of the accelerations (4); y are the codes that
    :class:`~torchssvm.Segments` takes, every run of a label being a segment, and ``structure.frames(y)`` the labels of
    frames. Positions are relative to the spine; x and y are divided by the median distance of head and spine, z is not.
    Velocities are differences of three frames on and three back, and accelerations are differences of velocities. Every
    feature has mean 0 and variance 1 over the frames of the training videos.

    Args:
        split: ``"train"``, all videos outside of ``test``, or ``"test"``.
        test: The videos to test on. As it stands, a story that everyone tells; ``("c1", "c3")`` is a person who is not
            seen in training, which is harder.
        every: Keeps one of so many frames, the first and so on; velocities use all frames.
        root: The folder that has ``gestures``; None is ``TORCHSSVM_DATA`` and the cache.

    Attributes:
        videos: The names of the examples.
        phases: The names of the labels.

    Raises:
        FileNotFoundError: A file is missing and cannot be downloaded; the message says where to put it.
        RuntimeError: A file is not the published one.
        ValueError: ``test`` names no video, all of them, or one that there is not; or an argument is out of range.

    Example:
        >>> train = GesturePhases("train")
        >>> train.videos, train.x.shape
        (('a1', 'a2', 'b1', 'c1'), torch.Size([4, 1747, 44]))
    """

    phases = ("Rest", "Preparation", "Stroke", "Hold", "Retraction")

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        *,
        test: Sequence[str] = ("a3", "b3", "c3"),
        every: int = 1,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        check_choice(split, "split", "train", "test")
        known = isinstance(test, list | tuple) and all(one in tuple(_SHA256) for one in test)
        if not known or not 0 < len(set(test)) < len(_SHA256):
            raise ValueError(f"test={test!r} must be a list of some of the videos {', '.join(_SHA256)}, but not all")
        check_whole(every, "every")
        names = {f"{video}_raw.csv": digest for video, digest in _SHA256.items()}
        files = dict(zip(_SHA256, fetch_texts("gestures", names, _URL, _PAGE, root), strict=True))
        frames = {video: _read(file) for video, file in files.items()}
        training = torch.cat([x for video, (x, _) in frames.items() if video not in test])
        self.videos = tuple(video for video in frames if (video in test) == (split == "test"))
        chosen = [frames[video] for video in self.videos]
        x = [((x - training.mean(0)) / training.std(0))[::every] for x, _ in chosen]
        labels = pad_sequence([y[::every] for _, y in chosen], True, PADDING)
        super().__init__(
            pad_sequence(x, True).float(),
            Segments(len(self.phases), 1).from_frames(labels),
            torch.tensor([len(one) for one in x]),
        )


def _read(file: Path) -> tuple[Tensor, Tensor]:
    """Features ``[N, 44]`` float64 and labels ``[N]`` of a video."""
    rows = [line.replace("Preparação", "Preparation").split(",") for line in read_lines(file)[1:] if line]
    numbers = torch.tensor([[number(one) for one in row[:18]] for row in rows], dtype=torch.float64)
    spine, head = numbers[:, _SPINE], numbers[:, _HEAD]
    # One video has x and y in another unit, but not z.
    body = (head - spine)[:, :2].norm(dim=1).median()
    place = (numbers[:, _MOVING].view(-1, 4, 3) - spine.unsqueeze(1)) / torch.stack([body, body, torch.ones_like(body)])
    velocity = _change(place)
    acceleration = _change(velocity)
    lengths = torch.cat([velocity.norm(dim=2), acceleration.norm(dim=2)], 1)
    x = torch.cat([*(each.flatten(1) for each in (place, velocity, acceleration)), lengths], 1)
    return x, torch.tensor([GesturePhases.phases.index(row[19]) for row in rows])


def _change(values: Tensor) -> Tensor:
    """Centred differences a frame, ``[N, ...]`` of ``[N, ...]``; one-sided at the ends."""
    frames = torch.arange(len(values))
    after, before = (frames + _REACH).clamp(max=len(values) - 1), (frames - _REACH).clamp(min=0)
    return (values[after] - values[before]) / (after - before).view(-1, 1, 1)
