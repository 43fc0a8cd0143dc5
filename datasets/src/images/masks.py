"""What the numbers of a mask's pixels mean."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchssvm.core.arguments import check_whole

_LOSSY = {".jpg", ".jpeg"}
_WHITE = (1, 255, 65535)  # in masks of bits, of bytes, and of two bytes
_BETWEEN = 0.05  # share of a JPEG's pixels that may be neither black nor white


class MaskRule(NamedTuple):
    """Which numbers are foreground, which pixels do not count, and whether a mask may be without foreground.

    With ``foreground`` None, masks are black and white; what is neither is refused.
    """

    empty: bool = False
    foreground: tuple[int, ...] | None = None
    ignore: tuple[int, ...] = ()

    @classmethod
    def of(cls, empty: bool, foreground: int | Iterable[int] | None, ignore: int | Iterable[int]) -> MaskRule:
        """The rule of arguments: a number, or several.

        Raises:
            ValueError: A number is negative, or both foreground and ignored.
            TypeError: One is no whole number.
        """
        named = None if foreground is None else _several(foreground, "foreground")
        left_out = _several(ignore, "ignore")
        if both := set(named or ()) & set(left_out):
            raise ValueError(f"foreground and ignore both have {min(both)}: a number means one thing")
        return cls(empty, named, left_out)

    def apply(self, path: Path, numbers: np.ndarray, colours: np.ndarray | None) -> np.ma.MaskedArray:
        """The foreground ``[H, W]`` bool, masked where pixels do not count.

        ``numbers`` are the numbers of the file, ``[H, W]`` or ``[H, W, channels]``, and ``colours`` RGB ``[H, W, 3]``
        where the numbers index a palette. ValueError where they do not say what is foreground.
        """
        if numbers.ndim == 3:
            numbers = numbers[:, :, :3] if numbers.shape[2] >= 3 else numbers[:, :, :1]  # without opacity
        if path.suffix.lower() in _LOSSY:
            return np.ma.array(self._of_jpeg(path, numbers))
        if self.foreground is None and colours is not None:
            grey = (colours == colours[:, :, :1]).all() and np.isin(colours, (0, 255)).all()
            if not grey and colours[numbers == 0].any():
                raise ValueError(f"{path} has a palette whose number 0 is not black: say which numbers are foreground=")
            numbers = colours if grey else numbers
        if numbers.ndim == 3:
            named = self.foreground is not None or numbers.max() not in _WHITE
            if (numbers != numbers[:, :, :1]).any() and (named or _several_colours(numbers)):
                raise ValueError(
                    f"{path} has colours: save it as numbers, grey or with a palette, and name foreground="
                )
            numbers = numbers.max(2)
        ignored = np.isin(numbers, self.ignore)
        if ignored.all():
            raise ValueError(f"{path} has no pixel that counts: ignore={self.ignore} leaves out all of them")
        if self.foreground is not None:
            return np.ma.array(np.isin(numbers, self.foreground), mask=ignored)
        values = np.unique(numbers[~ignored]).tolist()
        if len(set(values) - {0}) > 1 or values[-1] not in (0, *_WHITE):
            shown = ", ".join(f"{value:g}" for value in values[:6])
            raise ValueError(f"{path} has the values {shown}, and not 0 and 255 or 0 and 1: say which are foreground=")
        return np.ma.array(numbers > 0, mask=ignored)

    def _of_jpeg(self, path: Path, numbers: np.ndarray) -> np.ndarray:
        if self.foreground is not None or self.ignore:
            raise ValueError(f"{path} is a JPEG, whose numbers are not exact: save masks for foreground= as PNG")
        grey = numbers if numbers.ndim == 2 else numbers.max(2)
        if ((grey >= 64) & (grey < 192)).mean() > _BETWEEN:
            raise ValueError(f"{path} is neither black nor white in over 5 % of its pixels: save masks as PNG")
        return grey > 127


def _several(given: int | Iterable[int], name: str) -> tuple[int, ...]:
    return tuple(check_whole(one, name, 0) for one in (given if isinstance(given, Iterable) else [given]))


def _several_colours(numbers: np.ndarray) -> bool:
    """Whether pixels that are not black differ in colour."""
    bright = numbers[numbers.any(2)]
    return bool((bright != bright[:1]).any())
