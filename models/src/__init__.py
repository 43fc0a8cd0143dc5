"""Complete models of the papers' tasks."""

from torchssvm.models.alignment import align, alignment_matching, best_threshold, matching_links, threshold_links
from torchssvm.models.chunking import chunking_chain
from torchssvm.models.entities import entity_chain
from torchssvm.models.horses import ForegroundClassifier, PixelFeatures, RegionGraphs, border_contrasts
from torchssvm.models.ocr import LetterClassifier, LetterFeatures, ocr_chain
from torchssvm.models.pose import BODY, JOINTS, body_bounds, body_nodes, body_pose, mean_displacements
from torchssvm.models.pose_network import PoseNetwork

__all__ = [
    "BODY",
    "JOINTS",
    "ForegroundClassifier",
    "LetterClassifier",
    "LetterFeatures",
    "PixelFeatures",
    "PoseNetwork",
    "RegionGraphs",
    "align",
    "alignment_matching",
    "best_threshold",
    "body_bounds",
    "body_nodes",
    "body_pose",
    "border_contrasts",
    "chunking_chain",
    "entity_chain",
    "matching_links",
    "mean_displacements",
    "ocr_chain",
    "threshold_links",
]
