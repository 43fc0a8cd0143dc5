"""Pictures of label interactions."""

import pytest
import torch

from torchssvm.datasets.multilabel.drawing import (
    draw_interactions,
    order_of_labels,
    strongest_pairs,
)


def symmetric(size: int, seed: int = 0) -> torch.Tensor:
    values = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    return values + values.T


NAMES = [f"label {k}" for k in range(70)]


def test_the_strongest_pairs():
    w = torch.tensor([[9.0, 1.0, -3.0], [1.0, 9.0, 0.0], [-3.0, 0.0, 9.0]])
    attracting, repelling = strongest_pairs(w, 5)
    assert attracting == [(0, 1, 1.0)]
    assert repelling == [(0, 2, -3.0)]
    w = symmetric(8)
    attracting, repelling = strongest_pairs(w, 3)
    every = sorted(w[i, j].item() for i in range(8) for j in range(i + 1, 8))
    assert [pair.value for pair in attracting] == every[:-4:-1]
    assert [pair.value for pair in repelling] == every[:3]
    assert all(w[i, j] == value and i < j for i, j, value in attracting + repelling)


@pytest.mark.parametrize("seed", range(5))
def test_groups_stand_together(seed):
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(3, (12,), generator=generator)
    w = torch.where(group[:, None] == group, 1.0, -1.0)
    order = order_of_labels(w)
    assert sorted(order.tolist()) == list(range(12))
    result = group[order]
    assert int((result[1:] != result[:-1]).sum()) == len(group.unique()) - 1
    assert torch.equal(order, order_of_labels(w))


def test_the_picture():
    figure, w = pytest.importorskip("matplotlib.figure").Figure(figsize=(8, 4)), symmetric(12)
    draw_interactions(figure, w, NAMES[:12], strongest=6)
    heat, graph, _ = figure.axes
    order = [NAMES.index(text.get_text()) for text in heat.get_yticklabels()]
    assert order == order_of_labels(w).tolist()
    (image,) = heat.get_images()
    wanted = w.double()[order][:, order].fill_diagonal_(0)
    assert torch.equal(torch.as_tensor(image.get_array().data), wanted)
    pairs = [pair for side in strongest_pairs(w, 6) for pair in side]
    assert len([line for line in graph.lines if len(line.get_xdata()) > 1]) == len(pairs)
