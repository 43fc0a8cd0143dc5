"""A picture of ranked lists: each document a cell, coloured by its grade, from the top of the list to the right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def draw_rankings(figure: Any, grades: Tensor, rankings: Mapping[str, Tensor]) -> None:
    """Some lists as several rankers order them, one below another, in an empty figure or subfigure of matplotlib.

    Grades are int64 ``[n, N]``, -1 in the padding; rankings the places of the documents, likewise, by the ranker's
    name.
    """
    axes = figure.subplots(len(grades), 1, squeeze=False)[:, 0]
    most = max(int(grades.max()), 1)
    for number, (list_grades, plot) in enumerate(zip(grades, axes, strict=True)):
        rows = torch.full((len(rankings), grades.shape[1]), torch.nan)
        for row, places in zip(rows, rankings.values(), strict=True):
            real = list_grades >= 0
            row[places[number][real]] = list_grades[real].to(row.dtype)
        picture = plot.imshow(rows.numpy(), cmap="YlGn", vmin=0, vmax=most, aspect="auto")
        plot.set_yticks(range(len(rankings)), list(rankings))
        plot.set_xticks([])
        plot.set_ylabel(f"query {number + 1}", rotation=0, ha="right", va="center", labelpad=60)
    axes[-1].set_xlabel("place, from the top of the list")
    figure.colorbar(picture, ax=list(axes), label="grade", ticks=range(most + 1), fraction=0.03)
