"""Poses: places on a grid for the joints of a body."""

from torchssvm.structures.pose.head import LinearPose, PoseMaps
from torchssvm.structures.pose.oracle import max_sum_grid
from torchssvm.structures.pose.structure import Pose

__all__ = ["LinearPose", "Pose", "PoseMaps", "max_sum_grid"]
