"""Pictures of interactions of labels: a heat map of all pairs, and the strongest pairs as a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

_NAMED = 60  # largest number of labels whose names fit beside the heat map
_BEND = 0.25  # how far from the centre of the circle an edge passes, as a share of its ends' distance from it


class Pair(NamedTuple):
    """Two labels, the first one before the second, and their interaction."""

    first: int
    second: int
    value: float


def draw_interactions(
    figure: Any, interactions: Tensor, names: Sequence[str], *, strongest: int = 20, most: int = 200
) -> None:
    """A heat map of the interactions on the left, and the strongest pairs of either sign on the right.

    Labels that attract each other stand together. Red: having both scores more; blue: having both scores less.

    Args:
        figure: A matplotlib figure or subfigure, empty; some 14 by 7 inches.
        interactions: ``[K, K]``, symmetric; the diagonal is not read.
        names: Names of the K labels.
        strongest: Number of pairs of either sign in the graph.
        most: Largest number of labels in the heat map, those with the strongest interactions.

    Raises:
        ValueError: ``interactions`` is not such a matrix, or the number of names differs.
    """
    values = _checked(interactions, names)
    left, right = figure.subplots(1, 2)
    draw_heat_map(left, values, names, most=most)
    draw_pairs(right, values, names, strongest=strongest)


def draw_heat_map(axes: Any, interactions: Tensor, names: Sequence[str], *, most: int = 200) -> None:
    """The heat map, in which labels that attract each other are adjacent; arguments as in :func:`draw_interactions`."""
    values = _checked(interactions, names)
    kept = values.abs().sum(1).topk(min(most, len(values))).indices.sort().values
    kept = kept[order_of_labels(values[kept][:, kept])]
    shown = values[kept][:, kept]
    limit = float(shown.abs().max()) or 1.0
    image = axes.imshow(shown.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, fraction=0.046, label="interaction")
    which = f"{len(kept)} of {len(values)} labels" if len(kept) < len(values) else f"{len(kept)} labels"
    axes.set_title(f"{which}, those that attract each other together", fontsize="small")
    axes.set(xticks=[], yticks=[])
    if len(kept) <= _NAMED:
        labels = [names[label] for label in kept.tolist()]
        places, size = range(len(kept)), max(4.0, min(9.0, 250 / len(kept)))
        axes.set_yticks(places, labels, fontsize=size)
        axes.set_xticks(places, labels, fontsize=size, rotation=90)


def draw_pairs(axes: Any, interactions: Tensor, names: Sequence[str], *, strongest: int = 20) -> None:
    """The strongest pairs as edges between labels on a circle; arguments as in :func:`draw_interactions`."""
    values = _checked(interactions, names)
    attracting, repelling = strongest_pairs(values, strongest)
    pairs = attracting + repelling
    axes.axis("off")
    axes.set(xlim=(-1.7, 1.7), ylim=(-1.7, 1.7), aspect="equal")
    axes.set_title(
        f"the strongest pairs: {len(attracting)} attract (red), {len(repelling)} repel (blue)", fontsize="small"
    )
    if not pairs:
        return
    labels = torch.tensor(sorted({label for pair in pairs for label in pair[:2]}))
    labels = labels[order_of_labels(values[labels][:, labels])]
    turn = {label: 2 * math.pi * place / len(labels) for place, label in enumerate(labels.tolist())}
    limit = max(abs(pair.value) for pair in pairs)
    for first, second, value in reversed(sorted(pairs, key=lambda pair: abs(pair.value))):
        width = 0.5 + 3.0 * abs(value) / limit
        axes.plot(
            *_curve(turn[first], turn[second]),
            color="tab:red" if value > 0 else "tab:blue",
            linewidth=width,
            alpha=0.75,
        )
    for label, angle in turn.items():
        x, y = math.cos(angle), math.sin(angle)
        axes.plot([x], [y], "o", color="black", markersize=3)
        degrees, away = math.degrees(angle), x < 0  # names on the left read outwards to inwards
        axes.text(
            *(1.05 * x, 1.05 * y, names[label]),
            rotation=degrees + 180 * away,
            rotation_mode="anchor",
            ha="right" if away else "left",
            va="center",
            fontsize=8,
        )


def strongest_pairs(interactions: Tensor, number: int) -> tuple[list[Pair], list[Pair]]:
    """The pairs with the largest positive and with the smallest negative interactions, the strongest first.

    At most ``number`` of each, and none with 0; of symmetric ``[K, K]`` the diagonal is not read.
    """
    rows, columns = torch.triu_indices(len(interactions), len(interactions), offset=1)
    values = interactions.detach().cpu()[rows, columns]
    pairs = []
    for sign in (1.0, -1.0):
        best = (sign * values).topk(min(number, len(values))).indices
        best = best[sign * values[best] > 0]
        triples = zip(rows[best].tolist(), columns[best].tolist(), values[best].tolist(), strict=True)
        pairs.append([Pair(*triple) for triple in triples])
    return pairs[0], pairs[1]


def order_of_labels(interactions: Tensor) -> Tensor:
    """An order of labels, int64 ``[K]``, in which those that attract each other stand close together.

    By the second eigenvector of the Laplacian of the positive interactions (Atkins, Boman and Hendrickson, A spectral
    algorithm for seriation, 1998).
    """
    size = len(interactions)
    if size < 3:
        return torch.arange(size)
    affinity = interactions.detach().double().cpu().clamp(min=0).fill_diagonal_(0)
    # Weak ties between all labels keep those without positive interactions apart.
    affinity = affinity + 1e-6 * (float(affinity.max()) or 1.0)
    degree = affinity.sum(1).rsqrt()
    laplacian = torch.eye(size, dtype=torch.float64) - degree[:, None] * affinity * degree
    fiedler = degree * torch.linalg.eigh(laplacian).eigenvectors[:, 1]
    if fiedler[fiedler.abs().argmax()] < 0:  # the sign of an eigenvector is arbitrary
        fiedler = -fiedler
    return fiedler.argsort(stable=True)


def _checked(interactions: Tensor, names: Sequence[str]) -> Tensor:
    """float64 on the CPU, the diagonal 0."""
    values = interactions.detach().double().cpu()
    if values.ndim != 2 or values.shape[0] != values.shape[1] or len(values) < 2:
        raise ValueError(f"interactions must be [K, K] for at least two labels, got {list(values.shape)}")
    if len(names) != len(values):
        raise ValueError(f"names must be {len(values)}, one per label, got {len(names)}")
    if not bool(values.isfinite().all()):
        raise ValueError("interactions must be finite numbers")
    if not torch.allclose(values, values.T):
        raise ValueError("interactions must be symmetric; of a triangle, give w + w.T")
    return values.clone().fill_diagonal_(0)


def _curve(a: float, b: float) -> tuple[list[float], list[float]]:
    """A curve from angle a to angle b of the circle, bent towards the centre."""
    share = [step / 24 for step in range(25)]
    lines = []
    for p, q in ((math.cos(a), math.cos(b)), (math.sin(a), math.sin(b))):
        middle = _BEND * (p + q) / 2
        lines.append([(1 - s) ** 2 * p + 2 * s * (1 - s) * middle + s * s * q for s in share])
    return lines[0], lines[1]
