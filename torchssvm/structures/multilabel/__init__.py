"""Sets of labels with pairwise scores."""

from torchssvm.structures.multilabel.head import LinearMultilabel, SparseLinearMultilabel
from torchssvm.structures.multilabel.oracle import best_label_sets
from torchssvm.structures.multilabel.structure import BranchAndBound, LabelSetOracle, MessagePassing, Multilabel

__all__ = [
    "BranchAndBound",
    "LabelSetOracle",
    "LinearMultilabel",
    "MessagePassing",
    "Multilabel",
    "SparseLinearMultilabel",
    "best_label_sets",
]
