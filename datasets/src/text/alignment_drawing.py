"""A picture of a few sentence pairs with the predicted links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .alignment_text import Link, SentencePair

_WHITE, _POSSIBLE, _SURE = 0.0, 0.25, 0.6  # shades of the squares


def draw_alignments(figure: Any, pairs: Sequence[SentencePair], predicted: Sequence[Iterable[Link]]) -> None:
    """Every word pair as a square: dark for sure links, light for possible ones; dots are the predicted links.

    Dots are green on sure and possible links, and red elsewhere; sentence pairs are drawn side by side, in an empty
    figure.
    """
    axes = figure.subplots(1, len(pairs), squeeze=False)[0]
    for axis, pair, links in zip(axes, pairs, predicted, strict=True):
        shades = np.full((len(pair.french), len(pair.english)), _WHITE)
        for link in pair.possible:
            shades[link] = _SURE if link in pair.sure else _POSSIBLE
        axis.imshow(shades, cmap="gray_r", vmin=0.0, vmax=1.0, aspect="auto")
        for f, e in links:
            axis.plot(e, f, marker="o", markersize=4, color="tab:green" if (f, e) in pair.possible else "tab:red")
        axis.set_xticks(range(len(pair.english)), pair.english, rotation=90, fontsize=7)
        axis.set_yticks(range(len(pair.french)), pair.french, fontsize=7)
        axis.xaxis.tick_top()
    figure.supxlabel(
        "squares: sure links (dark), possible links (light); dots: predicted links, red where wrong", fontsize=8
    )
