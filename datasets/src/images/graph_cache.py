"""Graphs of superpixels on disk, opened memory-mapped: a folder of ``.npy`` files and a manifest.

Each file holds one kind of array for all images, one image after another; ``places.npy`` says where each image ends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .masks import MaskRule
from .region_features import GraphSettings
from .segmentation_files import Pair, changed

FORMAT = 2
MANIFEST = "manifest.json"
PLACES = "places"
PLACE_COLUMNS = 11  # ends of nodes, edges and pixels; height and width; stamps of image and mask
_SHOWN = 5  # names in a message

Array = tuple[str, tuple[int, ...], int]  # dtype, shape of a row, and which of the ends counts the rows


def layout(settings: GraphSettings) -> dict[str, Array]:
    """The files of a cache other than ``places``."""
    return {
        "nodes": ("<f4", (settings.in_features,), 0),
        "sizes": ("<i4", (), 0),
        "foreground": ("<i4", (), 0),
        "edge_features": ("<f4", (settings.edge_features,), 1),
        "edges": ("<i4", (2,), 1),
        "images": ("|u1", (3,), 2),
        "regions": ("<u2", (), 2),
        "masks": ("|b1", (), 2),
    }


def key_of(pairs: Sequence[Pair], settings: GraphSettings, rule: MaskRule) -> dict[str, Any]:
    """The key of a cache, in values that survive JSON: images and settings that it is made for."""
    return {
        "format": FORMAT,
        "settings": asdict(settings),
        "empty_masks": rule.empty,
        "foreground": None if rule.foreground is None else list(rule.foreground),
        "ignore": list(rule.ignore),
        "train": [pair.name for pair in pairs if pair.train],
        "test": [pair.name for pair in pairs if not pair.train],
    }


class StaleCache(ValueError):
    """A cache is damaged, or was made for other images or settings; the message says which.

    Example:
        >>> import shutil
        >>> folder = shutil.copytree("horses", "changed")
        >>> small = GraphSettings(segments=20, gradient_words=12, colour_words=6, samples=600)
        >>> train = HorseSegmentation("train", folder, num_train=2, settings=small, progress=False, cache="other")
        >>> copied = shutil.copy("changed/rgb/1.png", "changed/rgb/0.png")
        >>> try:
        ...     HorseSegmentation("train", folder, num_train=2, settings=small, progress=False, cache="other")
        ... except StaleCache:
        ...     print("make the cache again, with rebuild=True")
        make the cache again, with rebuild=True
    """


class CachedGraph(NamedTuple):
    """One image of a cache: views of the memory-mapped files, as :class:`GraphCache` describes them."""

    nodes: np.ndarray
    sizes: np.ndarray
    foreground: np.ndarray
    edge_features: np.ndarray
    edges: np.ndarray
    images: np.ndarray
    regions: np.ndarray
    masks: np.ndarray


class GraphCache:
    """A finished cache, read-only. Pickles contain the folder only; another process opens the cache anew.

    For image i with N superpixels, E edges and H x W pixels it has ``nodes`` ``[N, F]`` float32, ``sizes`` and
    ``foreground`` ``[N]`` int32 (pixels that count), ``edge_features`` ``[E, P]`` float32, ``edges`` ``[E, 2]`` int32,
    ``images`` ``[H, W, 3]`` uint8, ``regions`` ``[H, W]`` uint16 and ``masks`` ``[H, W]`` bool.

    Args:
        folder: Its folder.

    Raises:
        StaleCache: A file is missing, truncated, or does not match the manifest.
        FileNotFoundError: There is no finished cache.

    Example:
        >>> small = GraphSettings(segments=20, gradient_words=12, colour_words=6, samples=600)
        >>> train = HorseSegmentation("train", "horses", num_train=2, settings=small, cache="cache", progress=False)
        >>> len(GraphCache(train.cache.folder))  # all images, of both splits
        3
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _manifest(folder)
        self.settings = GraphSettings(**self.manifest["key"]["settings"])
        names = [*self.manifest["key"]["train"], *self.manifest["key"]["test"]]
        self.names: list[str] = names
        self.num_train = len(self.manifest["key"]["train"])
        self.skipped: dict[str, str] = self.manifest["skipped"]
        self.places = np.array(_opened(folder, PLACES, "<i8", (len(names), PLACE_COLUMNS)))
        ends = np.concatenate([np.zeros((1, 3), np.int64), self.places[:, :3]])
        if (np.diff(ends, axis=0) < 0).any():
            raise StaleCache(f"{folder / PLACES}.npy is damaged: its ends go down")
        self._ends: list[list[int]] = ends.tolist()
        self._arrays = {
            name: (_opened(folder, name, dtype, (self._ends[-1][end], *row)), end)
            for name, (dtype, row, end) in layout(self.settings).items()
        }

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> CachedGraph:
        start, end = self._ends[number], self._ends[number + 1]
        arrays = {name: array[start[which] : end[which]] for name, (array, which) in self._arrays.items()}
        height, width = self.places[number, 3:5].tolist()
        for name in ("images", "regions", "masks"):
            arrays[name] = arrays[name].reshape(height, width, *arrays[name].shape[1:])
        return CachedGraph(**arrays)

    def check(self, pairs: Sequence[Pair], key: dict[str, Any]) -> None:
        """Raise StaleCache unless the cache was made for these images, unchanged, and these settings."""
        if difference := _difference(self.manifest["key"], key):
            raise StaleCache(f"the cache {self.folder} was made for {difference}")
        other = [pair.name for pair, row in zip(pairs, self.places, strict=True) if is_changed(pair, row)]
        if other:
            raise StaleCache(f"since the cache {self.folder} was made, these files have changed: {listed(other)}")

    @property
    def nbytes(self) -> int:
        """Size on the disk, in bytes."""
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"])  # type: ignore[misc]


def is_changed(pair: Pair, place: Sequence[int] | np.ndarray) -> bool:
    """Whether an image or its mask has changed since a row of ``places`` was made."""
    known = [int(number) for number in place]
    return changed(pair.image, known[5:8]) or changed(pair.mask, known[8:11])


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        written = manifest["key"]["format"]
    except (KeyError, TypeError, ValueError) as error:
        raise StaleCache(f"{path} is damaged: {error}") from error
    if written != FORMAT:
        raise StaleCache(f"the cache {folder} has format {written}, and this version of torchssvm reads {FORMAT}")
    return manifest


def _opened(folder: Path, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    path = folder / f"{name}.npy"
    if 0 in shape:
        return np.zeros(shape, dtype)  # an empty file cannot be mapped
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise StaleCache(f"{path} is missing, cut off or damaged: {error}") from error
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise StaleCache(f"{path} holds {array.dtype} {list(array.shape)}, and should hold {dtype} {list(shape)}")
    return array


def _difference(made: dict[str, Any], wanted: dict[str, Any]) -> str:
    """How another key differs from ``wanted``, in words; empty if they are equal."""
    if made == wanted:
        return ""
    parts = [
        f"{name}={made['settings'].get(name)!r}, not {value!r}"
        for name, value in wanted["settings"].items()
        if made["settings"].get(name) != value
    ]
    for name in ("empty_masks", "foreground", "ignore"):
        if made[name] != wanted[name]:
            parts.append(f"{name}={made[name]}, not {wanted[name]}")
    for split in ("train", "test"):
        gone = [name for name in made[split] if name not in set(wanted[split])]
        new = [name for name in wanted[split] if name not in set(made[split])]
        if gone or new or made[split] != wanted[split]:
            parts.append(
                f"another {split} set ({len(made[split])} images, not {len(wanted[split])}; "
                f"without {listed(new) or 'none of these'}; besides {listed(gone) or 'none'})"
            )
    return "; ".join(parts)
