"""A picture of a few words with their predictions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchssvm.core.batch import Batch

from .dataset import OCR


def draw_words(figure: Any, batch: Batch, labelings: Tensor, count: int = 6) -> None:
    """Letter images at one scale, the predicted letters beneath; wrong ones in red, the true letter in brackets.

    The first ``count`` words from all over the batch, in three columns of an empty figure or subfigure of matplotlib;
    the predictions are ``[B, N]`` int64.
    """
    count = min(count, len(batch.y))
    columns = min(3, count)
    axes = figure.subplots(-(-count // columns), columns, squeeze=False).flatten()
    rows, cols = OCR.image_shape
    words = [place * len(batch.y) // count for place in range(count)]  # neighbours are often the same word
    longest = int((batch.y[words] >= 0).sum(1).max()) * (cols + 2)
    for axis in axes:
        axis.axis("off")
    for word, axis in zip(words, axes, strict=False):
        length = int((batch.y[word] >= 0).sum())
        letters = batch.x[word, :length].reshape(length, rows, cols).cpu()
        strip = letters.new_zeros(rows, length * (cols + 2))
        for at, letter in enumerate(letters):
            strip[:, at * (cols + 2) + 1 : at * (cols + 2) + 1 + cols] = letter
        axis.imshow(strip.numpy(), cmap="gray_r", interpolation="nearest", aspect="equal")
        axis.set_xlim(-0.5, longest - 0.5)  # as many pixels for every word
        truth, labels = batch.y[word, :length].tolist(), labelings[word, :length].tolist()
        for at, (wanted, got) in enumerate(zip(truth, labels, strict=True)):
            right = wanted == got
            text = OCR.letters[got] if right else f"{OCR.letters[got]}\n({OCR.letters[wanted]})"
            axis.text(
                at * (cols + 2) + (cols + 2) / 2,
                rows + 1,
                text,
                ha="center",
                va="top",
                color="black" if right else "red",
                fontweight="normal" if right else "bold",
            )
