"""Detected joints and errors with known values; views of images that joints follow."""

import pytest
import torch
from cases.problems import rng

from torchssvm.datasets import RandomViews, detected_joints, pose_scores
from torchssvm.datasets.images.lspet import MIRRORED
from torchssvm.models import JOINTS


def test_known_values():
    """Two images, three joints, torsos of 10 and 5: by hand."""
    true = torch.tensor([[[0.0, 0.0], [6.0, 8.0], [3.0, 3.0]], [[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]]])
    off = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 2.5]], [[0.0, 0.0], [0.0, 0.75], [0.3, 0.4]]])
    within = detected_joints(true + off, true, 0.1, torso=(0, 1))
    assert within.tolist() == [[True, False, False], [True, False, True]]
    scores = pose_scores(true + off, true, torso=(0, 1))
    assert scores == pytest.approx((3 / 6, 5 / 6, (1 + 2 + 2.5 + 0 + 0.75 + 0.5) / 6, 0.875), abs=1e-6)


@pytest.mark.parametrize(
    ("poses", "within"),
    [(torch.zeros(2, 3, 2), 0.1), (torch.full((1, 3, 2), torch.nan), 0.1), (torch.zeros(1, 3, 2), 0.0)],
)
def test_what_are_no_poses(poses, within):
    with pytest.raises(ValueError):
        detected_joints(poses, torch.zeros(1, 3, 2), within, torso=(0, 1))


def test_mirroring_changes_left_and_right():
    for joint, other in enumerate(MIRRORED):
        assert MIRRORED[other] == joint
        named = JOINTS[joint].replace("left", "?").replace("right", "left").replace("?", "right")
        assert JOINTS[other] == named


def spots(joints, height, width):
    """An image for each pose with a bright spot at its joint number 0: grey elsewhere."""
    y, x = torch.arange(height).view(-1, 1) + 0.5, torch.arange(width) + 0.5
    squared = (x - joints[:, :1, :1]).square() + (y - joints[:, :1, 1:]).square()
    return (0.5 + 0.5 * (-squared / 18).exp()).unsqueeze(1).expand(-1, 3, -1, -1)


@pytest.mark.parametrize("mirror", [0.0, 1.0])
def test_joints_move_with_the_image(mirror):
    random = rng(0)
    size = torch.tensor([60.0, 40.0])
    joints = size * (0.4 + 0.2 * torch.rand(8, 14, 2, generator=random))
    views = RandomViews(mirror=mirror, turn=40.0, scale=1.3, shift=0.1, light=0.0)
    images, moved = views(spots(joints, 40, 60), joints, random)
    brightest = images[:, 0].flatten(1).argmax(1)
    result = torch.stack([brightest % 60, brightest // 60], 1) + 0.5
    at = moved[:, MIRRORED[0] if mirror else 0]
    assert float((result - at).abs().max()) <= 1.0
    assert float((at - joints[:, 0]).abs().max()) > 2.0
    apart, before = torch.pdist(moved[0]), torch.pdist(joints[0][list(MIRRORED)] if mirror else joints[0])
    ratio = apart / before  # a similarity: all distances change alike
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-4, atol=1e-4)
    assert 1 / 1.3 - 1e-4 <= float(ratio[0]) <= 1.3 + 1e-4


def test_views_that_change_nothing():
    random = rng(1)
    images, joints = torch.rand(2, 3, 12, 8, generator=random), 8 * torch.rand(2, 14, 2, generator=random)
    same = RandomViews(mirror=0.0, turn=0.0, scale=1.0, shift=0.0, light=0.0)(images, joints, random)
    torch.testing.assert_close(same, (images, joints))
    lighter, _ = RandomViews(mirror=0.0, turn=0.0, scale=1.0, shift=0.0, light=0.3)(images, joints, random)
    assert not torch.allclose(lighter, images)
    assert 0.0 <= float(lighter.min()) <= float(lighter.max()) <= 1.0
