"""A picture of a few parsed sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .conllu import Sentence

_CURVE = [i / 24 * math.pi for i in range(25)]


def draw_arcs(figure: Any, sentences: Sequence[Sentence], predicted: Sequence[Sequence[int] | Tensor]) -> None:
    """Words with arcs from heads to tokens above them; wrong ones in red, the true ones dashed, in an empty figure.

    There is at least one sentence, with its predicted heads; short ones are easier to read.
    """
    columns = min(2, len(sentences))
    axes = figure.subplots(-(-len(sentences) // columns), columns, squeeze=False).flatten()
    for axis in axes:
        axis.axis("off")
    for axis, sentence, heads in zip(axes, sentences, predicted, strict=False):
        length = len(sentence.words)
        top = max(2.0, 0.5 * length) + 0.5
        for token, (word, true, mine) in enumerate(
            zip(sentence.words, sentence.heads, [int(h) for h in heads[:length]], strict=True), start=1
        ):
            axis.text(token, -0.3, word, ha="center", va="top", fontsize=8)
            if mine != true:
                _draw(axis, true, token, top, color="gray", linestyle="--", linewidth=0.8)
            _draw(axis, mine, token, top, color="black" if mine == true else "red", linewidth=1.0)
        axis.set_xlim(0.4, length + 0.6)
        axis.set_ylim(-1.2, top)
    figure.supxlabel("predicted arcs, from head to token; red: wrong; dashed: true instead", fontsize=8)


def _draw(axis: Any, head: int, token: int, top: float, **style: Any) -> None:
    """One arc; the root's arc comes from the top."""
    if head == 0:
        axis.plot([token, token], [top, 0.0], **style)
    else:
        middle, radius = (head + token) / 2, (head - token) / 2
        axis.plot([middle + radius * math.cos(a) for a in _CURVE], [abs(radius) * math.sin(a) for a in _CURVE], **style)
    axis.plot([token], [0.1], marker="v", markersize=3, color=style["color"])
