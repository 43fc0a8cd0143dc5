"""The vocabularies of a cache of superpixel graphs, made from its training images and kept with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.files import whole_file

from .graph_cache import is_changed, listed
from .masks import MaskRule
from .region_features import GraphSettings, check_size
from .segmentation_files import Pair, read_pair, stamps
from .visual_words import Vocabulary, descriptors, k_means, pixels

_FILE = "words.npz"
_IMAGES = 500  # largest number of training images in use


class _Sample(NamedTuple):
    stamps: tuple[int, ...]
    reason: str = ""
    gradients: Tensor | None = None
    colours: Tensor | None = None


def _sample(numbered: tuple[int, Pair], settings: GraphSettings, count: int, rule: MaskRule) -> _Sample:
    """Random descriptors and colours of one image; the choice depends only on its number and the seed."""
    number, pair = numbered
    now = stamps(pair)
    try:
        image, _ = read_pair(pair, rule)
        check_size(image, settings)
    except ValueError as error:
        return _Sample(now, f"{pair.name}: {error}")
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + number)

    def some(points: Tensor) -> Tensor:
        return points[torch.randperm(len(points), generator=generator)[:count]]

    return _Sample(now, "", some(descriptors(image, settings.cell, settings.stride).flatten(0, 1)), some(pixels(image)))


def make_words(
    folder: Path,
    pairs: Sequence[Pair],
    settings: GraphSettings,
    rule: MaskRule,
    skip: bool,
    mapping: Callable[..., Iterator[Any]],
    show: bool,
) -> Vocabulary:
    """The vocabularies of the training images; of 500 evenly spread ones if there are more."""
    from tqdm import tqdm

    train = [number for number, pair in enumerate(pairs) if pair.train]
    numbers = train[:: math.ceil(len(train) / _IMAGES)]
    work = partial(_sample, settings=settings, count=math.ceil(settings.samples / len(numbers)), rule=rule)
    samples = list(
        tqdm(mapping(work, [(n, pairs[n]) for n in numbers]), "visual words", len(numbers), disable=not show)
    )
    if bad := [sample.reason for sample in samples if sample.reason]:
        if not skip:
            raise ValueError(f"{bad[0]} (on_bad='skip' goes on without such images)")
        if len(bad) == len(samples):
            raise ValueError(f"none of the training images can be used: {listed(bad)}")
    gradients = torch.cat([sample.gradients for sample in samples if sample.gradients is not None])
    colours = torch.cat([sample.colours for sample in samples if sample.colours is not None])
    vocabulary = Vocabulary(
        k_means(gradients, settings.gradient_words, settings.seed),
        k_means(colours, settings.colour_words, settings.seed),
    )
    seen = np.array([sample.stamps for sample in samples])
    with whole_file(folder / _FILE) as file:
        np.savez(file, **vocabulary._asdict(), numbers=np.array(numbers), stamps=seen)
    return vocabulary


def read_words(folder: Path) -> Vocabulary | None:
    """The vocabularies of the folder; None if it has none."""
    if not (folder / _FILE).exists():
        return None
    with np.load(folder / _FILE, allow_pickle=False) as arrays:
        return Vocabulary(torch.from_numpy(arrays["gradients"]), torch.from_numpy(arrays["colours"]))


def words_are_of(folder: Path, pairs: Sequence[Pair]) -> bool:
    """Whether the folder has vocabularies whose images have not changed."""
    try:
        if read_words(folder) is None:
            return False
        with np.load(folder / _FILE, allow_pickle=False) as arrays:
            numbers, known = arrays["numbers"].tolist(), arrays["stamps"].tolist()
    except (OSError, ValueError, KeyError, BadZipFile):
        return False
    return not any(is_changed(pairs[number], [0] * 5 + row) for number, row in zip(numbers, known, strict=True))


def drop_words(folder: Path) -> None:
    """Remove the vocabularies, if there are any."""
    (folder / _FILE).unlink(missing_ok=True)
