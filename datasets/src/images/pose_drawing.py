"""A picture of a few people with the predicted poses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .lspet import LSPET

LIMBS = (
    (0, 1), (1, 2), (6, 7), (7, 8), (8, 2),  # right
    (5, 4), (4, 3), (11, 10), (10, 9), (9, 3),  # left
    (2, 3), (8, 12), (9, 12), (12, 13),
)  # fmt: skip
"""Pairs of joints that a line is drawn between: legs, arms and sides, right and left, and what joins them."""

_SIDES = 5  # limbs of a side
_MARGIN = 0.35  # around the true pose, as a share of its larger side
_COLOURS = ("#ff3b30", "#0a84ff", "#ffd60a")  # right, left, between


def draw_poses(
    figure: Any, dataset: LSPET, rows: Sequence[int], poses: dict[str, Tensor], titles: Sequence[str] | None = None
) -> None:
    """Images around the true poses, with skeletons: a row for each set of poses and one for the true ones.

    Right limbs are red, left ones blue.

    Args:
        figure: A matplotlib figure or subfigure, empty.
        dataset, rows: The images, and the numbers of those that are drawn, at least one.
        poses: By the name of the set, ``[len(rows), 14, 2]``, (x, y) in pixels of the canvas.
        titles: Of the images; None is their numbers in the data set.
    """
    shown = {**poses, "true": dataset.joints[list(rows)]}
    titles = [f"im{dataset.numbers[row]:05d}" for row in rows] if titles is None else titles
    axes = figure.subplots(len(shown), len(rows), squeeze=False)
    for line, (name, joints) in zip(axes, shown.items(), strict=True):
        for axis, row, skeleton in zip(line, rows, joints.detach().cpu(), strict=True):
            axis.imshow(dataset[row][0].permute(1, 2, 0).numpy())
            draw_skeleton(axis, skeleton)
            axis.set_xticks([])
            axis.set_yticks([])
            (left, top), (right, bottom) = _window(dataset.joints[row], dataset.canvas)
            axis.set_xlim(left, right)
            axis.set_ylim(bottom, top)
        line[0].set_ylabel(name, fontsize=8)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=8)


def draw_skeleton(axis: Any, joints: Tensor) -> None:
    """One skeleton, ``[14, 2]``, on an image."""
    for number, (a, b) in enumerate(LIMBS):
        x, y = joints[[a, b]].T.tolist()
        axis.plot(x, y, color=_COLOURS[min(number // _SIDES, 2)], linewidth=1.3, solid_capstyle="round")
    axis.plot(joints[:, 0].tolist(), joints[:, 1].tolist(), "o", color="white", markersize=1)


def _window(joints: Tensor, canvas: tuple[int, int]) -> list[list[float]]:
    """A square around a pose, as far as the canvas goes: its first and its last corner, (x, y)."""
    low, high = joints.amin(0), joints.amax(0)
    half = (0.5 + _MARGIN) * float((high - low).max().clamp(min=1.0))
    middle = (low + high) / 2
    size = joints.new_tensor([canvas[1], canvas[0]])
    return [(middle - half).clamp(min=0.0).tolist(), (middle + half).minimum(size).tolist()]
