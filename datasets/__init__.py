"""Datasets of the papers' tasks, and what builds such datasets.

``OCRData`` and ``CoNLL2000Data``, LightningDataModules, are here too; they are imported when they are first asked for,
and need the extra ``torchssvm[lightning]``.
"""

from typing import TYPE_CHECKING, Any

from .arc_features import arc_columns
from .chunk_f1 import Chunk, ChunkScores, chunk_scores, chunks
from .chunking import ChunkingDataset
from .chunking_features import Vocabulary
from .columns import TaggedSentences, read_columns
from .conll2000 import CoNLL2000
from .conllu import Attachment, CoNLLU, Sentence, attachment, read_conllu
from .features import PrecomputedFeatures
from .ocr import OCR
from .padded import Example, PaddedDataset

if TYPE_CHECKING:
    from .conll2000_lightning import CoNLL2000Data as CoNLL2000Data
    from .ocr_lightning import OCRData as OCRData

# Without OCRData and CoNLL2000Data: `import *` must not need Lightning.
__all__ = [
    "OCR",
    "Attachment",
    "Chunk",
    "ChunkScores",
    "ChunkingDataset",
    "CoNLL2000",
    "CoNLLU",
    "Example",
    "PaddedDataset",
    "PrecomputedFeatures",
    "Sentence",
    "TaggedSentences",
    "Vocabulary",
    "arc_columns",
    "attachment",
    "chunk_scores",
    "chunks",
    "read_columns",
    "read_conllu",
]


def __getattr__(name: str) -> Any:
    if name == "OCRData":
        from .ocr_lightning import OCRData

        return OCRData
    if name == "CoNLL2000Data":
        from .conll2000_lightning import CoNLL2000Data

        return CoNLL2000Data
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "CoNLL2000Data", "OCRData"])
