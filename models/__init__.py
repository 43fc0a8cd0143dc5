"""Complete models of the papers' tasks."""

from torchssvm.models.ocr import LetterClassifier, LetterFeatures, ocr_chain

__all__ = ["LetterClassifier", "LetterFeatures", "ocr_chain"]
