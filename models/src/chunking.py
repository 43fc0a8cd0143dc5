"""The chain of the papers' chunking experiments."""

from __future__ import annotations

from torchssvm.structures.chain.head import SparseLinearChain
from torchssvm.structures.chain.structure import Chain

CHUNK_TAGS = 22


def chunking_chain(in_features: int, num_tags: int = CHUNK_TAGS, *, normalize: bool = False) -> SparseLinearChain:
    """A linear chain on sparse features: with F columns, 22 F + 22*22 + 3*22 weights.

    Args:
        in_features: Columns of the vocabulary, ``CoNLL2000("train").in_features``.
        num_tags: Number of tags, ``dataset.num_states``; 22 for CoNLL-2000.
        normalize: Divide the loss by the length of the sentence, as the papers do; otherwise it counts wrong tags,
            which finds more of the chunks.

    Example:
        >>> head = chunking_chain(in_features=1000)
        >>> sum(weight.numel() for weight in head.parameters())  # 22 F + 22 * 22 + 3 * 22
        22550
    """
    return SparseLinearChain(in_features, num_tags, structure=Chain(num_tags, normalize=normalize))
