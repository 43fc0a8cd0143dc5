"""Folders of images and masks."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from torchssvm.core.arguments import needs

from .masks import MaskRule
from .superpixels import NEEDS

LAYOUTS = (("rgb", "figure_ground"), ("images/HorseSeg", "annotations/HorseSeg"), ("images", "masks"))
"""Folders of images and of masks, in the order of the search: Weizmann, HorseSeg, and plain ones."""

QUALITIES = ("gt", "bb", "no")
"""Endings of HorseSeg's annotations: by hand, made from boxes, made from the image alone."""

_ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".gif"}
_SAME_SHAPE = 0.1  # how much height : width of image and mask may differ
_TEST = "test"
_BLACK_AND_WHITE = MaskRule()


class Pair(NamedTuple):
    """The files of an image and its mask; None for a missing one."""

    name: str
    image: Path | None
    mask: Path | None
    train: bool


class Stamp(NamedTuple):
    """Identifies a version of a file: size, time of change and checksum; all 0 for no file."""

    size: int
    time: int  # nanoseconds
    crc32: int


def find_pairs(
    root: Path,
    images: str | None = None,
    masks: str | None = None,
    num_train: int = 200,
    qualities: Sequence[str] | None = None,
) -> list[Pair]:
    """The images and masks below a folder, the training set first, each set sorted by name.

    An image and its mask have the same name and lie in the same subfolder, whatever their endings; a mask's name may
    have one of HorseSeg's ``.gt``, ``.bb`` or ``.no`` besides, of which only the ``qualities`` are used, if given.
    Files in a subfolder ``test`` are the test set; where there is none, all but the first ``num_train`` are. HorseSeg's
    training set is sorted by quality first. Without subfolders for images and masks, the first of ``LAYOUTS`` that is
    there is taken.

    Raises:
        FileNotFoundError: A folder is missing or empty.
        ValueError: Only one folder is named, or one of the two sets would be empty.
    """
    if (images is None) != (masks is None):
        raise ValueError(f"images={images!r} and masks={masks!r}: name both folders, or neither")
    if images is None or masks is None:
        layout = next((each for each in LAYOUTS if all((root / folder).is_dir() for folder in each)), None)
        if layout is None:
            known = ", ".join(f"{a} and {b}" for a, b in LAYOUTS)
            raise FileNotFoundError(f"{root} has none of the known pairs of folders ({known}): give images and masks")
        images, masks = layout
    pictures = _by_name(root / images, [""])
    endings = ["", *(f".{quality}" for quality in QUALITIES)]
    annotations = _by_name(root / masks, endings)
    if qualities is not None:
        if not any(_quality(path) for path in annotations.values()):
            raise ValueError(f"{root / masks} has no masks named as HorseSeg's (*.gt.png): its sizes are not to be had")
        wanted = {f".{quality}" for quality in qualities}
        other = {name for name, path in annotations.items() if _quality(path) not in wanted and not _tests(name)}
        pictures = {name: path for name, path in pictures.items() if name not in other}
        annotations = {name: path for name, path in annotations.items() if name not in other}

    def order(name: str) -> tuple[int, str]:
        return endings.index(_quality(annotations.get(name))), name

    names = sorted(pictures.keys() | annotations.keys(), key=order)
    apart = {name for name in names if _tests(name)}
    train = [name for name in names if name not in apart]
    if not apart:
        train, apart = train[:num_train], set(train[num_train:])
    if not train or not apart:
        raise ValueError(f"{root / images} has {len(train)} images to train on, {len(apart)} to test on ({num_train=})")
    in_order = [*train, *(name for name in names if name in apart)]
    return [Pair(name, pictures.get(name), annotations.get(name), name not in apart) for name in in_order]


def read_pair(pair: Pair, rule: MaskRule = _BLACK_AND_WHITE) -> tuple[np.ndarray, np.ma.MaskedArray]:
    """An image and its mask, the image resized to the mask (bilinear, antialiased) where they differ.

    The ``rule`` says what is foreground: the numbers that it names, in palettes too; else what is white in masks of 0
    and 255, or of 0 and 1, and above 127 in JPEGs.

    Returns uint8 ``[H, W, 3]``, RGB, and bool ``[H, W]``, masked where pixels do not count. ValueError, naming the
    file, if one is missing, cannot be read, does not fit the other, has other numbers, or no foreground where it must.
    """
    for what, path in (("image", pair.image), ("mask", pair.mask)):
        if path is None:
            raise ValueError(f"{pair.name} has no {what}: its {'mask' if what == 'image' else 'image'} stands alone")
    assert pair.image is not None
    assert pair.mask is not None
    pixels, colours = _read(pair.image)
    image = _colours(pixels if colours is None else colours)
    mask = rule.apply(pair.mask, *_read(pair.mask))
    if not rule.empty and not mask.any():
        raise ValueError(f"{pair.mask} has no foreground; empty_masks=True takes such masks for what they are")
    (height, width), (rows, columns) = image.shape[:2], mask.shape
    if abs(np.log(height * columns / (width * rows))) > np.log1p(_SAME_SHAPE):
        raise ValueError(
            f"{pair.image} has {width} x {height} pixels, and {pair.mask} {columns} x {rows}: of another shape"
        )
    return _resized(image, rows, columns), mask


def stamp(path: Path | None, known: Sequence[int] | None = None) -> Stamp:
    """The current stamp of a file; the checksum of ``known`` is kept if size and time are unchanged."""
    try:
        if path is None:
            return Stamp(0, 0, 0)
        state = path.stat()
        if known is not None and tuple(known[:2]) == (state.st_size, state.st_mtime_ns):
            return Stamp(*known)
        return Stamp(state.st_size, state.st_mtime_ns, zlib.crc32(path.read_bytes()))
    except FileNotFoundError:
        return Stamp(0, 0, 0)


def stamps(pair: Pair) -> tuple[int, ...]:
    """The stamps of an image and its mask, one after the other."""
    return (*stamp(pair.image), *stamp(pair.mask))


def changed(path: Path | None, known: Sequence[int]) -> bool:
    """Whether a file's contents differ from those at the time of the stamp ``known``."""
    now = stamp(path, known)
    return (now.size, now.crc32) != (known[0], known[2])


def _by_name(folder: Path, endings: Iterable[str]) -> dict[str, Path]:
    """The pictures below a folder by their relative path, without ending; of several, the first ending's."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    by_name: dict[str, Path] = {}
    files = sorted(Path(top) / name for top, _, names in os.walk(folder, followlinks=True) for name in names)
    pictures = [path for path in files if path.suffix.lower() in _ENDINGS]
    for ending in endings:
        for path in pictures:
            name = path.relative_to(folder).with_suffix("").as_posix()
            if _quality(path) == ending or (ending == "" and _quality(path) not in endings):
                by_name.setdefault(name.removesuffix(ending), path)
    if not by_name:
        raise FileNotFoundError(f"{folder} has no images ({', '.join(sorted(_ENDINGS))})")
    return by_name


def _quality(path: Path | None) -> str:
    """``.gt``, ``.bb`` or ``.no`` if a file's name has it before its ending; else nothing."""
    last = "" if path is None else Path(path.stem).suffix
    return last if last.removeprefix(".") in QUALITIES else ""


def _tests(name: str) -> bool:
    return name.startswith(f"{_TEST}/")


def _read(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers of a picture, and its colours where the numbers index a palette."""
    with needs(NEEDS, "PIL"):
        from PIL import Image
    try:
        with Image.open(path) as picture:
            # CMYK and the like become colours; numbers of a palette, grey, bits, opacity and 16 bits stay.
            plain = picture.mode in ("1", "L", "LA", "P", "I", "F", "RGB", "RGBA") or picture.mode.startswith("I;16")
            pixels = np.array(picture if plain else picture.convert("RGB"))
            colours = np.array(picture.convert("RGB")) if picture.mode == "P" else None
    except Exception as error:  # decoders raise errors of many types
        raise ValueError(f"cannot read {path}, it may be cut off or no image: {error}") from error
    if pixels.ndim not in (2, 3) or pixels.size == 0 or pixels.dtype == object:
        raise ValueError(f"{path} is no picture: it holds an array of shape {list(pixels.shape)}")
    return pixels, colours


def _colours(pixels: np.ndarray) -> np.ndarray:
    """RGB bytes of what a decoder gives: grey or coloured, with or without opacity, of one or two bytes."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    pixels = pixels[:, :, :3] if pixels.shape[2] >= 3 else np.repeat(pixels[:, :, :1], 3, axis=2)
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    return np.ascontiguousarray((pixels.astype(np.float64) * (255.0 / _largest(pixels))).round().astype(np.uint8))


def _largest(pixels: np.ndarray) -> float:
    if pixels.dtype == bool:
        return 1.0
    if np.issubdtype(pixels.dtype, np.integer):
        return float(np.iinfo(pixels.dtype).max)
    return max(float(pixels.max()), 1.0)


def _resized(image: np.ndarray, rows: int, columns: int) -> np.ndarray:
    if image.shape[:2] == (rows, columns):
        return image
    pixels = torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0).to(torch.float32)
    pixels = torch.nn.functional.interpolate(pixels, (rows, columns), mode="bilinear", antialias=True)
    return pixels[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).contiguous().numpy()
