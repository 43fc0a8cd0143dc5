"""Scores of poses: detected joints, and their mean error."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torchssvm.core.arguments import check_tensor


class PoseScores(NamedTuple):
    """Means over all joints of all images.

    Attributes:
        detected_10: PDJ, percentage of detected joints, as a share: those within 0.1 of the torso's size.
        detected_20: The same within 0.2.
        mean_error: The mean distance of a joint from where it is, in the units of the joints.
        median_error: The median of the same distances.

    Example:
        >>> true = torch.tensor([[[0.0, 0.0], [0.0, 10.0]]])
        >>> pose_scores(true, true, torso=(0, 1))
        PoseScores(detected_10=1.0, detected_20=1.0, mean_error=0.0, median_error=0.0)
    """

    detected_10: float
    detected_20: float
    mean_error: float
    median_error: float


def detected_joints(predicted: Tensor, true: Tensor, within: float, *, torso: tuple[int, int]) -> Tensor:
    """Which joints lie within a share of the torso's size from the true ones (Sapp and Taskar 2013), bool ``[n, J]``.

    Args:
        predicted: ``[n, J, 2]``, (x, y).
        true: ``[n, J, 2]``.
        within: The share; a distance equal to it counts.
        torso: The two joints whose distance in the true pose is the torso's size.

    Raises:
        ValueError: Shapes differ, or are no poses, a number is not finite, or a share is not positive.

    Example:
        >>> true = torch.tensor([[[0.0, 0.0], [0.0, 10.0]]])
        >>> predicted = torch.tensor([[[0.0, 1.0], [3.0, 10.0]]])
        >>> detected_joints(predicted, true, within=0.2, torso=(0, 1))
        tensor([[ True, False]])
    """
    predicted, true = check_tensor(predicted, "predicted"), check_tensor(true, "true")
    if predicted.ndim != 3 or predicted.shape[2] != 2 or not predicted.numel() or predicted.shape != true.shape:
        raise ValueError(
            f"predicted and true must be poses [n, J, 2], got {list(predicted.shape)} and {list(true.shape)}"
        )
    if not bool(predicted.isfinite().all()) or not bool(true.isfinite().all()):
        raise ValueError("predicted and true must be finite")
    if not within > 0:
        raise ValueError(f"within={within} must be positive")
    true = true.double()
    size = (true[:, torso[0]] - true[:, torso[1]]).norm(dim=1, keepdim=True)
    return (predicted.double() - true).norm(dim=2) <= within * size


def pose_scores(predicted: Tensor, true: Tensor, *, torso: tuple[int, int]) -> PoseScores:
    """Scores of poses; arguments and errors as of :func:`detected_joints`.

    Example:
        >>> true = torch.tensor([[[0.0, 0.0], [0.0, 10.0]]])
        >>> predicted = torch.tensor([[[0.0, 1.0], [3.0, 10.0]]])
        >>> pose_scores(predicted, true, torso=(0, 1)).mean_error
        2.0
    """
    shares = [float(detected_joints(predicted, true, within, torso=torso).double().mean()) for within in (0.1, 0.2)]
    errors = (predicted.double() - true.double()).norm(dim=2)
    return PoseScores(shares[0], shares[1], float(errors.mean()), float(errors.quantile(0.5)))
