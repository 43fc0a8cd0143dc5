"""Superpixels of an image (SLIC) and the graph of those that touch.

SLIC comes from scikit-image; see R. Achanta et al., *SLIC Superpixels Compared to State-of-the-Art Superpixel Methods*,
2012.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchssvm.core.arguments import needs

NEEDS = "superpixels need scikit-image, and Pillow, which comes with it: pip install 'torchssvm[scikit-image]'"


def superpixels(image: np.ndarray, count: int, compactness: float) -> np.ndarray:
    """Connected superpixels of one image, uint8 RGB ``[H, W, 3]``, numbered from 0 without gaps: int32 ``[H, W]``.

    ``count`` is how many to aim at: SLIC starts from a regular grid and drops small pieces, so it finds fewer.
    ``compactness`` says how much nearness in the image counts against nearness in colour (CIE Lab).
    """
    regions = scikit_image().slic(image, n_segments=count, compactness=compactness, start_label=0)
    return np.unique(regions, return_inverse=True)[1].reshape(regions.shape).astype(np.int32)


def adjacency(regions: np.ndarray) -> np.ndarray:
    """The pairs of regions that share a border, each once: int64 ``[E, 2]``, smaller number first, sorted.

    A pixel of ``[H, W]`` has four neighbours: above, below, left and right.
    """
    count = int(regions.max()) + 1
    codes = []
    for here, beside in ((regions[:, :-1], regions[:, 1:]), (regions[:-1], regions[1:])):
        across = here != beside
        a, b = here[across].astype(np.int64), beside[across].astype(np.int64)
        codes.append(np.minimum(a, b) * count + np.maximum(a, b))
    return np.stack(np.divmod(np.unique(np.concatenate(codes)), count), axis=1)


def pixels_of(regions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Pixels of every region in a mask, int64 ``[N]``; regions and mask are ``[H, W]``."""
    return np.bincount(regions[mask], minlength=int(regions.max()) + 1)


def neighbourhoods(edges: np.ndarray, count: int) -> list[np.ndarray]:
    """Every region alone, with its neighbours, and with its neighbours' neighbours: three bool ``[N, N]``."""
    alone = np.eye(count, dtype=np.float32)
    first = alone.copy()
    first[edges[:, 0], edges[:, 1]] = first[edges[:, 1], edges[:, 0]] = 1.0
    return [alone > 0, first > 0, first @ first > 0]


def scikit_image() -> Any:
    """``skimage.segmentation``; without it an ImportError that says what to install."""
    with needs(NEEDS, "skimage", "tqdm"):
        import tqdm  # noqa: F401, the progress bar of whoever makes many
        from skimage import segmentation
    return segmentation
