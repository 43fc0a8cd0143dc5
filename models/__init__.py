"""Complete models of the papers' tasks."""

from torchssvm.models.alignment import align, alignment_matching, best_threshold, matching_links, threshold_links
from torchssvm.models.chunking import chunking_chain
from torchssvm.models.ocr import LetterClassifier, LetterFeatures, ocr_chain

__all__ = [
    "LetterClassifier",
    "LetterFeatures",
    "align",
    "alignment_matching",
    "best_threshold",
    "chunking_chain",
    "matching_links",
    "ocr_chain",
    "threshold_links",
]
