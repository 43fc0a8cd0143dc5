"""Datasets of the papers' tasks, and tools to build datasets.

The LightningDataModules ``OCRData``, ``CoNLL2000Data``, ``HorseData``, ``LSPETData``, ``WordAlignmentData`` and
``MultilabelData`` and their base ``GapDataModule`` are imported at their first use, and need the extra
``torchssvm[lightning]``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .events.gesture_phases import GesturePhases
from .features import PrecomputedFeatures
from .images.graph_cache import GraphCache, StaleCache
from .images.horses import HorseSegmentation
from .images.lspet import LSPET, PoseTargets
from .images.pose_augmentation import RandomViews
from .images.pose_scores import PoseScores, detected_joints, pose_scores
from .images.region_features import GraphSettings
from .images.region_pooling import pool_regions
from .images.segmentation_scores import SegmentationScores, segmentation_scores
from .images.snakes import Snakes
from .images.superpixel_graphs import PixelSegmentation, PrecomputedGraphs, SegmentationPixels, SuperpixelGraphs
from .multilabel.dataset import Multilabel
from .multilabel.scaling import ByDensity, Scaling, Standardised, UnitRows, Unscaled
from .multilabel.scores import MultilabelScores, multilabel_scores
from .multilabel.sparse_rows import SparseRows
from .ocr.dataset import OCR
from .padded import Example, PaddedDataset
from .parts import hold_out
from .ranking.lists import RankedLists
from .ranking.scores import RankingScores, ranking_scores
from .synthetic.event_sequences import EventSequences
from .synthetic.large_chains import ChainTruth, LargeChains
from .synthetic.latent_crosses import LatentCrosses
from .text.chunk_f1 import Chunk, ChunkScores, chunk_scores, chunks
from .text.chunking import ChunkingDataset
from .text.chunking_features import Vocabulary
from .text.columns import Columns, TaggedSentences, read_columns
from .text.conll2000 import CoNLL2000
from .text.conllu import Attachment, CoNLLU, Sentence, arc_columns, attachment, read_conllu, write_conllu
from .text.named_chains import NamedChains
from .text.named_entities import NamedEntities
from .text.sparse_chains import SparseChains
from .text.tables import read_table
from .text.tag_schemes import bio_transitions, bioes_transitions, to_bio
from .text.word_alignment import AlignmentErrors, SentencePair, WordAlignment, alignment_errors
from .text.word_chains import WordChains

if TYPE_CHECKING:
    from .data_modules import CoNLL2000Data as CoNLL2000Data
    from .data_modules import GapDataModule as GapDataModule
    from .data_modules import HorseData as HorseData
    from .data_modules import LSPETData as LSPETData
    from .data_modules import MultilabelData as MultilabelData
    from .data_modules import OCRData as OCRData
    from .data_modules import WordAlignmentData as WordAlignmentData

# `import *` must not need Lightning: __all__ leaves these names out.
_DATA_MODULES = (
    "CoNLL2000Data",
    "GapDataModule",
    "HorseData",
    "LSPETData",
    "MultilabelData",
    "OCRData",
    "WordAlignmentData",
)

__all__ = [
    "LSPET",
    "OCR",
    "AlignmentErrors",
    "Attachment",
    "ByDensity",
    "ChainTruth",
    "Chunk",
    "ChunkScores",
    "ChunkingDataset",
    "CoNLL2000",
    "CoNLLU",
    "Columns",
    "EventSequences",
    "Example",
    "GesturePhases",
    "GraphCache",
    "GraphSettings",
    "HorseSegmentation",
    "LargeChains",
    "LatentCrosses",
    "Multilabel",
    "MultilabelScores",
    "NamedChains",
    "NamedEntities",
    "PaddedDataset",
    "PixelSegmentation",
    "PoseScores",
    "PoseTargets",
    "PrecomputedFeatures",
    "PrecomputedGraphs",
    "RandomViews",
    "RankedLists",
    "RankingScores",
    "Scaling",
    "SegmentationPixels",
    "SegmentationScores",
    "Sentence",
    "SentencePair",
    "Snakes",
    "SparseChains",
    "SparseRows",
    "StaleCache",
    "Standardised",
    "SuperpixelGraphs",
    "TaggedSentences",
    "UnitRows",
    "Unscaled",
    "Vocabulary",
    "WordAlignment",
    "WordChains",
    "alignment_errors",
    "arc_columns",
    "attachment",
    "bio_transitions",
    "bioes_transitions",
    "chunk_scores",
    "chunks",
    "detected_joints",
    "hold_out",
    "multilabel_scores",
    "pool_regions",
    "pose_scores",
    "ranking_scores",
    "read_columns",
    "read_conllu",
    "read_table",
    "segmentation_scores",
    "to_bio",
    "write_conllu",
]


def __getattr__(name: str) -> Any:
    if name in _DATA_MODULES:
        return getattr(import_module(".data_modules", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_DATA_MODULES])
