"""Handwritten words (Taskar et al. 2003): a chain of letters each, the task of [B13] and [G16]."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.arguments import check_choice, check_whole

from ..padded import PADDING, PaddedDataset

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_SHA256 = "ff2a6b86079d9667de9e4570539a7880dffc09a7c9cc20d2a5dcddef132fd648"
_FOLDS = 10


class _Words(NamedTuple):
    """The letters of all words, one after another."""

    pixels: np.ndarray  # uint8 [letters, 128]
    labels: np.ndarray  # int64 [letters]
    offsets: np.ndarray  # int64 [words + 1]
    folds: np.ndarray  # int64 [words]


def _file() -> Traversable:
    return resources.files("torchssvm.datasets.ocr").joinpath("ocr_letters.npz")


def _read(file: Traversable) -> _Words:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RuntimeError(f"cannot read the OCR data at {file}: {error}; reinstall torchssvm") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != _SHA256:
        raise RuntimeError(f"the OCR data at {file} is corrupt, of SHA-256 {digest}: reinstall torchssvm")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return _Words(
            pixels=np.unpackbits(arrays["pixels"], axis=1),
            labels=arrays["labels"].astype(np.int64),
            offsets=arrays["offsets"].astype(np.int64),
            folds=arrays["folds"].astype(np.int64),
        )


class OCR(PaddedDataset):
    """Words as sequences of 16 x 8 binary letter images, read from the file that ships with the package.

    An item is ``(x, y, index)``: the pixels of its letters, float32 [T, 128], row by row; their labels,
    int64 [T] in 0..25; and its number in this split. ``x.view(T, 16, 8)`` are the images.

    The papers' sizes: ``small`` trains on fold 0 (626 words) and tests on the other nine (6251 words);
    ``large`` trains on the other nine and tests on fold 0.

    Args:
        split: ``"train"`` or ``"test"``.
        size: ``"small"`` or ``"large"``.
        fold: the fold, of ten, that is one split.

    Example:
        >>> words = OCR(split="train", size="small")
        >>> len(words)
        626
        >>> x, y, index = words[0]
        >>> x.shape[1], len(x) == len(y)
        (128, True)
    """

    letters = "abcdefghijklmnopqrstuvwxyz"
    num_states = 26
    in_features = 128
    image_shape = (16, 8)

    def __init__(
        self, split: Literal["train", "test"] = "train", size: Literal["small", "large"] = "small", fold: int = 0
    ):
        check_choice(split, "split", "train", "test")
        check_choice(size, "size", "small", "large")
        self.fold = fold = check_whole(fold, "fold", 0, most=_FOLDS - 1)
        self.split = split
        self.size = size

        words = _read(_file())
        alone = (split == "train") == (size == "small")
        chosen = np.flatnonzero((words.folds == fold) == alone)
        lengths = np.diff(words.offsets)
        longest = int(lengths.max())  # over all words: both splits have the same width
        lengths = lengths[chosen]
        inside = np.arange(longest) < lengths[:, None]  # [n, longest]
        letter = (words.offsets[chosen, None] + np.arange(longest))[inside]
        x = np.zeros((len(chosen), longest, self.in_features), np.float32)
        y = np.full((len(chosen), longest), PADDING)
        x[inside] = words.pixels[letter]
        y[inside] = words.labels[letter]
        super().__init__(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(lengths))

    @property
    def images(self) -> Tensor:
        """All letters as images, [n, 14, 16, 8]: a view of ``x``, zero at the padded positions."""
        return self.x.view(*self.x.shape[:2], *self.image_shape)

    @classmethod
    def decode_word(cls, labels: Tensor | Sequence[int]) -> str:
        """The word that a sequence of labels spells; padding (-1) spells nothing."""
        numbers = [int(k) for k in labels]
        wrong = [k for k in numbers if k != PADDING and not 0 <= k < cls.num_states]
        if wrong:
            raise ValueError(f"labels must lie in 0..{cls.num_states - 1} or be {PADDING}, not {wrong[0]}")
        return "".join(cls.letters[k] for k in numbers if k != PADDING)

    def __repr__(self) -> str:
        return f"OCR(split={self.split!r}, size={self.size!r}, fold={self.fold}): {len(self)} words"
