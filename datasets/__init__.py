"""Datasets of the papers' tasks, and what builds such datasets.

``OCRData``, ``CoNLL2000Data``, ``HorseData``, ``LSPETData``, ``WordAlignmentData`` and ``MultilabelData``,
LightningDataModules, are here too; they are imported when they are first asked for, and need the extra
``torchssvm[lightning]``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .chunk_f1 import Chunk, ChunkScores, chunk_scores, chunks
from .chunking import ChunkingDataset
from .chunking_features import Vocabulary
from .columns import TaggedSentences, read_columns
from .conll2000 import CoNLL2000
from .conllu import Attachment, CoNLLU, Sentence, arc_columns, attachment, read_conllu
from .features import PrecomputedFeatures
from .graph_cache import GraphCache, StaleCache
from .horses import HorseSegmentation
from .large_chains import ChainTruth, LargeChains
from .lspet import LSPET
from .multilabel import Multilabel
from .multilabel_scores import MultilabelScores, multilabel_scores
from .ocr import OCR
from .padded import Example, PaddedDataset
from .pixel_segmentation import PixelSegmentation, SegmentationPixels
from .pose_augmentation import RandomViews
from .pose_scores import PoseScores, detected_joints, pose_scores
from .pose_targets import PoseTargets
from .precomputed_graphs import PrecomputedGraphs
from .region_features import GraphSettings
from .region_pooling import pool_regions
from .segmentation_scores import SegmentationScores, segmentation_scores
from .sparse_chains import SparseChains
from .sparse_rows import SparseRows
from .superpixel_graphs import SuperpixelGraphs
from .word_alignment import AlignmentErrors, SentencePair, WordAlignment, alignment_errors
from .word_chains import WordChains

if TYPE_CHECKING:
    from .conll2000_lightning import CoNLL2000Data as CoNLL2000Data
    from .horses_lightning import HorseData as HorseData
    from .lspet_lightning import LSPETData as LSPETData
    from .multilabel_lightning import MultilabelData as MultilabelData
    from .ocr_lightning import OCRData as OCRData
    from .word_alignment_lightning import WordAlignmentData as WordAlignmentData

# `import *` must not need Lightning: these are not among the names that it takes.
_DATA_MODULES = {
    "CoNLL2000Data": "conll2000_lightning",
    "HorseData": "horses_lightning",
    "LSPETData": "lspet_lightning",
    "MultilabelData": "multilabel_lightning",
    "OCRData": "ocr_lightning",
    "WordAlignmentData": "word_alignment_lightning",
}

__all__ = [
    "LSPET",
    "OCR",
    "AlignmentErrors",
    "Attachment",
    "ChainTruth",
    "Chunk",
    "ChunkScores",
    "ChunkingDataset",
    "CoNLL2000",
    "CoNLLU",
    "Example",
    "GraphCache",
    "GraphSettings",
    "HorseSegmentation",
    "LargeChains",
    "Multilabel",
    "MultilabelScores",
    "PaddedDataset",
    "PixelSegmentation",
    "PoseScores",
    "PoseTargets",
    "PrecomputedFeatures",
    "PrecomputedGraphs",
    "RandomViews",
    "SegmentationPixels",
    "SegmentationScores",
    "Sentence",
    "SentencePair",
    "SparseChains",
    "SparseRows",
    "StaleCache",
    "SuperpixelGraphs",
    "TaggedSentences",
    "Vocabulary",
    "WordAlignment",
    "WordChains",
    "alignment_errors",
    "arc_columns",
    "attachment",
    "chunk_scores",
    "chunks",
    "detected_joints",
    "multilabel_scores",
    "pool_regions",
    "pose_scores",
    "read_columns",
    "read_conllu",
    "segmentation_scores",
]


def __getattr__(name: str) -> Any:
    if name in _DATA_MODULES:
        return getattr(import_module(f".{_DATA_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_DATA_MODULES])
