"""A picture of a few sentences with the chunks that were predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .chunk_f1 import Chunk, chunks

COLOURS = {"NP": "tab:blue", "VP": "tab:green", "PP": "tab:orange", "ADVP": "tab:purple", "ADJP": "tab:brown"}
_OTHER = "tab:gray"
_WIDTH = 120  # letters of a line
_INSIDE = 0.97  # share of the figure's width that a line takes


class Tagged(NamedTuple):
    """A sentence, its tags, and those predicted."""

    words: Sequence[str]
    true: Sequence[str]
    predicted: Sequence[str]


class _Piece(NamedTuple):
    """The part of a chunk on one line: from letter ``left`` to ``right``."""

    line: float
    left: int
    right: int


def draw_chunks(figure: Any, sentences: Sequence[Tagged]) -> None:
    """Predicted chunks as boxes coloured by type; wrong ones are framed, missed ones underlined in red.

    Long sentences continue on the next line. The figure, or subfigure of matplotlib, is empty.
    """
    axes = figure.subplots()
    axes.axis("off")
    places = list(_places([sentence.words for sentence in sentences]))
    lines = 1 + max((place.line for row in places for place in row), default=0)
    axes.set(xlim=(0, _WIDTH), ylim=(lines, -0.9))
    axes.set_title(
        "predicted chunks; framed in red: wrong; red lines: the chunks that are true instead", fontsize="small"
    )
    size = figure.bbox.width / figure.dpi * 72 * _INSIDE / _WIDTH / 0.62  # a letter is some 0.6 as wide as high
    words = {"fontsize": size, "family": "monospace", "ha": "left", "va": "center"}
    for sentence, row in zip(sentences, places, strict=True):
        for word, place in zip(sentence.words, row, strict=True):
            axes.text(place.left, place.line - 0.25, word, **words)
        true, predicted = chunks(sentence.true), chunks(sentence.predicted)
        for chunk in predicted:
            _draw_box(axes, row, chunk, chunk not in set(true), size)
        for chunk in set(true) - set(predicted):
            for piece in _pieces(row, chunk):
                axes.plot([piece.left, piece.right], [piece.line + 0.18] * 2, color="red", linewidth=1.0)
                its = {"fontsize": 0.7 * size, "color": "red", "va": "center"}
                axes.text(piece.right + 0.3, piece.line + 0.2, chunk.type, **its)


def _draw_box(axes: Any, row: Sequence[_Piece], chunk: Chunk, wrong: bool, size: float) -> None:
    from matplotlib.patches import Rectangle

    colour = COLOURS.get(chunk.type, _OTHER)
    for piece in _pieces(row, chunk):
        corner, width = (piece.left - 0.3, piece.line - 0.55), piece.right - piece.left + 0.6
        axes.add_patch(Rectangle(corner, width, 0.6, color=colour, alpha=0.25, linewidth=0))
        if wrong:
            axes.add_patch(Rectangle(corner, width, 0.6, fill=False, edgecolor="red", linewidth=1.2))
        axes.text(piece.left, piece.line - 0.6, chunk.type, fontsize=0.7 * size, color="red" if wrong else colour)


def _places(sentences: Sequence[Sequence[str]]) -> Iterator[list[_Piece]]:
    """The position of each word; every sentence begins a new line."""
    line = 0.0
    for words in sentences:
        row, left = [], 1
        for word in words:
            if left > 1 and left + len(word) >= _WIDTH:
                line, left = line + 1, 1
            row.append(_Piece(line, left, left + len(word)))
            left += len(word) + 2
        yield row
        line += 1.2


def _pieces(row: Sequence[_Piece], chunk: Chunk) -> Iterator[_Piece]:
    """The parts of a chunk, one for each line."""
    places = row[chunk.start : chunk.stop]
    for line in sorted({place.line for place in places}):
        here = [place for place in places if place.line == line]
        yield _Piece(line, here[0].left, here[-1].right)
