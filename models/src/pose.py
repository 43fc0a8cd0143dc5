"""The pose model of [G16] appendix I.4: the tree of a body, and its mean displacements from training poses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchssvm.core.arguments import check_number, check_whole
from torchssvm.core.problem import Bound
from torchssvm.structures.pose.head import LinearPose
from torchssvm.structures.pose.structure import Pose

JOINTS = (
    "right ankle", "right knee", "right hip", "left hip", "left knee", "left ankle", "right wrist", "right elbow",
    "right shoulder", "left shoulder", "left elbow", "left wrist", "neck", "head top",
)  # fmt: skip
"""The 14 joints of the Leeds Sports Poses, in the order of its files."""

_BETWEEN = (
    (8, 7, 1 / 2), (7, 6, 1 / 2), (8, 2, 1 / 3), (8, 2, 2 / 3), (2, 1, 1 / 2), (1, 0, 1 / 2),
    (9, 10, 1 / 2), (10, 11, 1 / 2), (9, 3, 1 / 3), (9, 3, 2 / 3), (3, 4, 1 / 2), (4, 5, 1 / 2),
)  # fmt: skip

BODY = (
    19, 18, 17, 23, 24, 25, 15, 14, 12, 12, 20, 21, 13, -1,  # the joints
    8, 7, 8, 16, 2, 1,  # of the right side: arm, trunk and leg
    9, 10, 9, 22, 3, 4,  # of the left side
)  # fmt: skip
"""The parents of the 26 nodes: the joints, and 12 places between them. The root is the top of the head."""

LEFT_SHOULDER, RIGHT_HIP = 9, 2

_ROUNDS = 100


def body_nodes(joints: Tensor) -> Tensor:
    """The places of the 26 nodes of :data:`BODY`: the joints, the middles of upper and lower arms and legs, and on
    each side of the trunk two places, at a third and two thirds from shoulder to hip.

    Args:
        joints: ``[..., 14, 2]``, in the order of :data:`JOINTS`.

    Example:
        >>> joints = torch.rand(10, len(JOINTS), 2)  # of ten bodies
        >>> body_nodes(joints).shape
        torch.Size([10, 26, 2])
        >>> len(BODY), BODY.index(-1)  # BODY has the parent of every node, and -1 at the root
        (26, 13)
    """
    if joints.shape[-2:] != (14, 2):
        raise ValueError(f"joints must be [..., 14, 2], got {list(joints.shape)}")
    first, second = (joints[..., [entry[end] for entry in _BETWEEN], :] for end in (0, 1))
    share = torch.tensor([entry[2] for entry in _BETWEEN], dtype=joints.dtype, device=joints.device).unsqueeze(1)
    return torch.cat([joints, first + share * (second - first)], -2)


def mean_displacements(
    places: Tensor, parent: Sequence[int], num_types: int = 13, *, least_spread: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Clusters of the displacements of every arc in training poses, by k-means (k-means++ starts).

    Args:
        places: ``[n, P, 2]``, (x, y) of every node in every pose, in places of the grid.
        parent: The parent of every node, -1 at a root.
        num_types: T; at most n.
        least_spread: Lower limit of the spreads, in places: a cluster may have one member.
        seed: Seed of the starts.

    Returns:
        ``displacements`` and ``spreads`` (standard deviations), each ``[E, 2, T, 2]`` float64, as
        :class:`~torchssvm.Pose` takes them. The arc back has the same clusters, turned around.

    Example:
        >>> places = torch.tensor([[[0.0, 0.0], [1.0, 2.0]], [[1.0, 1.0], [2.0, 3.0]]])
        >>> displacements, spreads = mean_displacements(places, parent=[-1, 0], num_types=1)
        >>> displacements
        tensor([[[[ 1.,  2.]],
        <BLANKLINE>
                 [[-1., -2.]]]], dtype=torch.float64)
    """
    tree = torch.as_tensor(parent)
    if places.ndim != 3 or places.shape[1:] != (len(tree), 2) or not bool(torch.isfinite(places).all()):
        raise ValueError(f"places must be finite, [n, {len(tree)}, 2], got {list(places.shape)}")
    if not 1 <= check_whole(num_types, "num_types", 0) <= len(places):
        raise ValueError(f"num_types={num_types} must lie between 1 and the number of poses, {len(places)}")
    check_number(least_spread, "least_spread", above=0.0)
    lower = (tree >= 0).nonzero().flatten()
    points = (places[:, lower] - places[:, tree[lower]]).to(torch.float64).transpose(0, 1)  # [E, n, 2]
    generator = torch.Generator().manual_seed(seed)
    edges, count = points.shape[:2]
    rows = torch.arange(edges)
    means = points[rows, torch.randint(count, (edges,), generator=generator)].unsqueeze(1)
    while means.shape[1] < num_types:
        away = torch.cdist(points, means).amin(2).square()
        away = torch.where(away.sum(1, keepdim=True) > 0, away, 1.0)  # all points are means already
        means = torch.cat([means, points[rows, torch.multinomial(away, 1, generator=generator)[:, 0]].unsqueeze(1)], 1)
    nearest = torch.cdist(points, means).argmin(2)
    for _ in range(_ROUNDS):
        member = torch.nn.functional.one_hot(nearest, num_types).to(torch.float64)
        size = member.sum(1).unsqueeze(2)
        means = torch.where(size > 0, member.mT @ points / size.clamp(min=1), means)
        nearest, before = torch.cdist(points, means).argmin(2), nearest
        if torch.equal(nearest, before):
            break
    member = torch.nn.functional.one_hot(nearest, num_types).to(torch.float64)
    square = member.mT @ (points - means.gather(1, nearest.unsqueeze(2).expand(-1, -1, 2))).square()
    spreads = (square / member.sum(1).unsqueeze(2).clamp(min=1)).sqrt().clamp(min=least_spread)
    return torch.stack([means, -means], 1), torch.stack([spreads, spreads], 1)


def body_pose(
    places: Tensor, grid: tuple[int, int], num_types: int = 13, *, least_spread: float | None = None, seed: int = 0
) -> LinearPose:
    """The head of the papers' pose model, with its structure; with 13 types it has 2676 weights.

    The loss is in units of the distance of left shoulder and right hip; springs are in units of the spreads of their
    displacements.

    Args:
        places: ``[n, 26, 2]``, from :func:`body_nodes` of the training poses, in places of the grid.
        grid: (H, W).
        num_types: T, the number of types.
        least_spread: Lower limit of the spreads, in places; None is a 20th of the grid's larger side, 2.4 of 48.
            This is somewhat more than the spreads of real poses; a cluster may have one member. Narrow spreads make the
            deformations of distant places large and training from zero weights slow: train with
            :func:`body_bounds`.
        seed: Seed of k-means.

    Example:
        >>> places = body_nodes(16 * torch.rand(10, 14, 2))
        >>> head = body_pose(places, grid=(16, 16), num_types=3)
        >>> sum(weight.numel() for weight in head.parameters())
        676
    """
    if places.ndim != 3 or places.shape[1] != len(BODY):
        raise ValueError(
            f"places must be [n, {len(BODY)}, 2], got {list(places.shape)}: for other trees make a head by "
            "LinearPose(Pose(...)), with displacements of mean_displacements(places, parent)"
        )
    least_spread = max(grid) / 20 if least_spread is None else least_spread
    displacements, spreads = mean_displacements(places, BODY, num_types, least_spread=least_spread, seed=seed)
    return LinearPose(Pose(BODY, displacements, grid, spreads=spreads, size=(LEFT_SHOULDER, RIGHT_HIP)))


def body_bounds(strength: float, types: float = 0.3) -> dict[str, tuple[Bound | None, Bound | None]]:
    """Bounds for a head on maps of log-probabilities: springs and maps have an effect from the first step on.

    The lower bounds are ``strength`` times the weights of a log-linear model: 1 for log-probabilities and for squared
    deformations in units of their spreads. Training starts there. From weights 0 the loss-augmented poses would be
    spread over the whole image, with squared deformations a hundred times as large as in any body, and all passes would
    be spent on excluding them. The linear weights lie within plus and minus ``strength``, so that every spring rests
    within half a spread of its mean displacement.

    Args:
        strength: Smallest weight of the unary maps and of squared deformations; positive. A few
            hundredths or less: log-probabilities of poses differ by tens, and margins should be about 1.
        types: Smallest weight of the maps of types, as a share of ``strength``: maps of neighbours are redundant.

    Returns:
        By the name of a parameter of :class:`~torchssvm.LinearPose`, as ``StructuredSVM`` takes bounds.

    Example:
        >>> bounds = body_bounds(strength=0.01)
        >>> sorted(bounds)
        ['deformation', 'types', 'unary']
    """
    strength, types = check_number(strength, "strength", above=0.0), check_number(types, "types", 0.0)
    least = torch.tensor([-strength, strength, -strength, strength])
    most = torch.tensor([strength, torch.inf, strength, torch.inf])
    return {"unary": (strength, None), "types": (types * strength, None), "deformation": (least, most)}
