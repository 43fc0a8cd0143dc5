"""Horses and their background: binary segmentation on graphs of superpixels, a task of [G16]."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from torchssvm.core.arguments import check_choice
from torchssvm.core.packages import warn

from ..files import cache_folder, find
from .graph_cache import key_of, listed
from .graph_cache_build import open_cache
from .masks import MaskRule
from .region_features import GraphSettings
from .segmentation_files import QUALITIES, Pair, find_pairs
from .superpixel_graphs import SuperpixelGraphs

PAGE = "https://www.msri.org/people/members/eranb/ (the Weizmann horse database)"
FOLDER = "weizmann_horse"
_SIZES = {"small": 1, "medium": 2, "large": 3}  # qualities of HorseSeg that each size trains on


class HorseSegmentation(SuperpixelGraphs):
    """Images of horses as graphs of superpixels with the features of [G16] appendix I.3: 1969, and 100 of an edge.

    The images are from the Weizmann horse database (Borenstein and Ullman 2002) or of HorseSeg (Kolesnikov et al.
    2014), or others in the same layout. Superpixels and features are computed from the images, by SLIC and with
    gradient histograms in place of SIFT; the ones that the authors of HorseSeg published, which [G16] uses, are not
    read. The layout of HorseSeg is known from the publications of the authors of [G16], and was tested on synthetic
    files only.

    ``root``, or its folder ``weizmann_horse``, has one of these pairs of folders:

    * ``rgb`` and ``figure_ground``: Weizmann. The first ``num_train`` images by name are for training.
    * ``images/HorseSeg`` and ``annotations/HorseSeg``: HorseSeg's ``HDSeg`` folder. The images in ``test`` are the test
      set; annotations end in ``.gt.png`` (by hand), ``.bb.png`` (made from boxes) or ``.no.png`` (automatic).
    * ``images`` and ``masks``, or the folders named by these arguments. A subfolder ``test`` is the test set; without
      one, the first ``num_train`` images are for training.

    Every image is resized to its mask. The graphs are built once, with vocabularies from the training images, and kept
    in a folder, from which they are read memory-mapped. An interrupted build is continued; a cache whose files have
    changed since is refused.

    Args:
        split: ``"train"`` or ``"test"``. Both are in one cache.
        root: The folder; None is what ``TORCHSSVM_DATA`` names, or the cache folder, with ``weizmann_horse`` in it.
        images: Subfolder of the images; None, with ``masks``, is one of the pairs above.
        masks: Subfolder of the masks.
        num_train: Number of training images if there is no folder ``test``.
        size: For HorseSeg, the training set: ``"small"`` is annotated by hand, ``"medium"`` has those made from boxes
            besides, ``"large"`` all; None is all.
        settings: How graphs are built.
        balanced: Whether both classes cost the same in the loss, see :class:`SuperpixelGraphs`.
        cache: Folder of the graphs; None is one for these folders and settings, in torchssvm's cache folder.
        rebuild: Whether to replace a cache that is stale or damaged.
        on_bad: What to do with an image that is missing, unreadable, too small, of another shape than its mask, or has
            an empty mask: ``"raise"`` an error that names it, or ``"skip"`` it, with a warning that lists them all.
        empty_masks: Whether masks without foreground are allowed.
        foreground: The numbers of a mask that are foreground, in palettes too; all others are background. None is for
            masks of 0 and 255, or of 0 and 1, and refuses other numbers; JPEGs, as Weizmann's, are foreground above
            127.
        ignore: The numbers of pixels that count neither in targets nor in :meth:`scores`, such as 255 for borders in
            PASCAL VOC; :meth:`mask` is False there.
        workers: Processes that build the graphs; with more than 0, a script needs
            ``if __name__ == "__main__":``.
        progress: Whether progress is shown while graphs are built.

    Raises:
        FileNotFoundError: The folders are missing; the message says where to put them.
        ValueError: An argument or an image is wrong, or the cache (``StaleCache``).
        ImportError: Graphs must be built and scikit-image is not installed.

    Example:
        >>> small = GraphSettings(segments=20, gradient_words=12, colour_words=6, samples=600)
        >>> train = HorseSegmentation("train", "horses", num_train=2, settings=small, cache="cache", progress=False)
        >>> head = LinearGraph(train.in_features, train.edge_features)
        >>> len(train), train.names
        (2, ['0', '1'])
    """

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        root: str | os.PathLike[str] | None = None,
        *,
        images: str | None = None,
        masks: str | None = None,
        num_train: int = 200,
        size: Literal["small", "medium", "large"] | None = None,
        settings: GraphSettings | None = None,
        balanced: bool = True,
        cache: str | os.PathLike[str] | None = None,
        rebuild: bool = False,
        on_bad: Literal["raise", "skip"] = "raise",
        empty_masks: bool = False,
        foreground: int | Sequence[int] | None = None,
        ignore: int | Sequence[int] = (),
        workers: int = 0,
        progress: bool = True,
    ) -> None:
        check_choice(split, "split", "train", "test")
        check_choice(on_bad, "on_bad", "raise", "skip")
        check_choice(size, "size", *_SIZES, None)
        if workers < 0:
            raise ValueError(f"workers={workers} must be at least 0")
        place = _place(root)
        qualities = None if size is None else QUALITIES[: _SIZES[size]]
        pairs = find_pairs(place, images, masks, num_train, qualities)
        settings, rule = settings or GraphSettings(), MaskRule.of(empty_masks, foreground, ignore)
        folder = Path(cache) if cache is not None else _default_cache(place, pairs, settings, rule)
        opened = open_cache(
            folder,
            pairs,
            settings,
            rule=rule,
            skip=on_bad == "skip",
            rebuild=rebuild,
            workers=workers,
            show=progress,
        )
        super().__init__(opened, split, balanced=balanced)
        if opened.skipped:
            warn(f"{len(opened.skipped)} of {len(opened)} images are left out: {listed(list(opened.skipped.values()))}")


def _place(root: str | os.PathLike[str] | None) -> Path:
    if root is None:
        return find(FOLDER, PAGE)
    place = Path(root)
    return place / FOLDER if (place / FOLDER).is_dir() else place


def _default_cache(place: Path, pairs: Sequence[Pair], settings: GraphSettings, rule: MaskRule) -> Path:
    """A folder named after these paths and settings, not after file contents, so that changes are detected."""
    paths = [str(path and path.resolve()) for pair in pairs for path in (pair.image, pair.mask)]
    number = zlib.crc32(repr((key_of(pairs, settings, rule), paths)).encode())
    return cache_folder() / "superpixels" / f"{place.name}-{number:08x}"
