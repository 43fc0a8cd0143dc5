"""Complete models of the papers' tasks."""

from torchssvm.models.chunking import chunking_chain
from torchssvm.models.ocr import LetterClassifier, LetterFeatures, ocr_chain

__all__ = ["LetterClassifier", "LetterFeatures", "chunking_chain", "ocr_chain"]
