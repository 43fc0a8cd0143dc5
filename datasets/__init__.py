"""Datasets of the papers' tasks, and what builds such datasets.

``OCRData``, a LightningDataModule, is here too; it is imported when it is first asked for, and needs the
extra ``torchssvm[lightning]``. So is ``WordAlignmentData``.
"""

from typing import TYPE_CHECKING, Any

from .arc_features import arc_columns
from .conllu import Attachment, CoNLLU, Sentence, attachment, read_conllu
from .features import PrecomputedFeatures
from .ocr import OCR
from .padded import Example, PaddedDataset
from .word_alignment import AlignmentErrors, SentencePair, WordAlignment, alignment_errors

if TYPE_CHECKING:
    from .ocr_lightning import OCRData as OCRData
    from .word_alignment_lightning import WordAlignmentData as WordAlignmentData

# Without OCRData: `import *` must not need Lightning.
__all__ = [
    "OCR",
    "AlignmentErrors",
    "Attachment",
    "CoNLLU",
    "Example",
    "PaddedDataset",
    "PrecomputedFeatures",
    "Sentence",
    "SentencePair",
    "WordAlignment",
    "alignment_errors",
    "arc_columns",
    "attachment",
    "read_conllu",
]


def __getattr__(name: str) -> Any:
    if name == "OCRData":
        from .ocr_lightning import OCRData

        return OCRData
    if name == "WordAlignmentData":
        from .word_alignment_lightning import WordAlignmentData

        return WordAlignmentData
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "OCRData", "WordAlignmentData"])
