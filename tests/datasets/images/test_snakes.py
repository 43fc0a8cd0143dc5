"""The reader of snakes, on pictures made here."""

import numpy as np
import pytest
import torch

from torchssvm import LinearPairwiseGraph
from torchssvm.datasets import Snakes

BLUE, RED, GREEN = (0, 0, 255), (255, 0, 0), (0, 255, 0)


@pytest.fixture
def folder(tmp_path):
    """A picture of 2 x 3 pixels and one of 1 x 2, in both splits."""
    pixels = np.array([BLUE, RED, GREEN, BLUE, BLUE, BLUE, BLUE, RED], np.uint8)
    arrays = {"sizes": np.array([[2, 3], [1, 2]], np.int16), "pixels": pixels, "labels": np.arange(8, dtype=np.int8)}
    every = {f"{name}_{split}": array for split in ("train", "test") for name, array in arrays.items()}
    np.savez(tmp_path / "snakes.npz", **every)
    return tmp_path


def test_features_are_the_colours_around_a_pixel_and_at_both_ends(folder):
    snakes = Snakes(root=folder)
    x, y, index = snakes[0]
    assert (y.tolist(), index, len(snakes)) == ([0, 1, 2, 3, 4, 5], 0, 2)
    around = x.nodes.view(6, 5, 9)  # by colour and by place, row by row
    assert around.sum(1).tolist() == [[1.0] * 9] * 6  # outside is blue
    assert around[1, :, 4].tolist() == [1.0, 0, 0, 0, 0]  # red itself
    assert around[1, :, 5].tolist() == [0.0, 1, 0, 0, 0]  # green to its right
    assert x.edges.tolist() == [[0, 1], [1, 2], [3, 4], [4, 5], [0, 3], [1, 4], [2, 5]]
    right, down = x.edge_features.view(7, 2, 90).unbind(1)
    both = x.nodes[x.edges].flatten(1)
    assert torch.equal(right[:4], both[:4])
    assert torch.equal(down[4:], both[4:])
    assert not right[4:].any()
    assert not down[:4].any()
    assert snakes.picture(0)[0, 1].tolist() == list(RED)


def test_batches_are_padded_and_fit_the_head(folder):
    snakes = Snakes("test", edges="directions", root=folder)
    batch = snakes.__getitems__([1, 0])
    assert (batch.index.tolist(), batch.lengths.tolist()) == ([1, 0], [2, 6])
    assert batch.x.edges[0].tolist() == [[0, 1], *[[-1, -1]] * 6]
    head = LinearPairwiseGraph(snakes.in_features, snakes.edge_features, snakes.num_labels)
    potentials = head(batch.x, batch.lengths)
    assert head.structure.check_target(batch.y, potentials).labels[0].tolist() == [6, 7, -1, -1, -1, -1]


@pytest.mark.parametrize("sizes", [6, [6, 2], [[2, 3, 1], [1, 2, 1]], [[3, 3], [1, 2]]])
def test_sizes_that_do_not_fit_are_those_of_a_corrupt_file(sizes, folder):
    with np.load(folder / "snakes.npz") as file:
        np.savez(folder / "other.npz", **{**file, "sizes_train": np.array(sizes)})
    whole, other = (folder / "snakes.npz").read_bytes(), (folder / "other.npz").read_bytes()
    for content in (other, b"no archive", whole[:100] + b"\xff" * 50 + whole[150:]):
        (folder / "snakes.npz").write_bytes(content)
        with pytest.raises(RuntimeError, match=r"snakes.npz"):
            Snakes(root=folder)


def test_arguments_are_checked(folder):
    for wrong in ({"split": "dev"}, {"edges": "all"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Snakes(**wrong, root=folder)
    with pytest.raises(FileNotFoundError):
        Snakes(root=folder / "none")
