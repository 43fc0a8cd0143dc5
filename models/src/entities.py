"""The chain for named entities."""

from __future__ import annotations

import torch

from torchssvm.core.arguments import as_number
from torchssvm.datasets.text.chunking_features import Vocabulary
from torchssvm.datasets.text.tag_schemes import bio_transitions
from torchssvm.structures.chain.head import SparseLinearChain
from torchssvm.structures.chain.structure import Chain


def entity_chain(vocabulary: Vocabulary, entity_weight: float = 1.0) -> SparseLinearChain:
    """A chain of BIO tags in which I-X follows B-X and I-X only; its loss counts wrong tags.

    The loss is not divided by the length: that would make a mistake in a long sentence cheap, and most entities are
    in long sentences.

    Args:
        vocabulary: That of the training set, ``NamedEntities(...).vocabulary``.
        entity_weight: The cost of a wrong tag where the true one is not O, which costs 1: more than 1 finds more
            entities, and more that are none.

    Raises:
        ValueError: The tags are not BIO, or ``entity_weight`` is not positive.

    Example:
        >>> from torchssvm.datasets import Vocabulary
        >>> vocabulary = Vocabulary(["word=Paris", "word=in"], tags=["O", "B-LOC", "I-LOC"])
        >>> entity_chain(vocabulary, entity_weight=2.0).structure.class_weight
        tensor([1., 2., 2.], dtype=torch.float64)
    """
    if not as_number(entity_weight, "entity_weight") > 0.0:
        raise ValueError(f"entity_weight={entity_weight!r} must be positive")
    tags = vocabulary.tags
    weight = torch.tensor([1.0 if tag == "O" else float(entity_weight) for tag in tags], dtype=torch.float64)
    structure = Chain(
        len(tags),
        normalize=False,
        class_weight=None if entity_weight == 1.0 else weight,
        transitions=bio_transitions(tags),
    )
    return SparseLinearChain(len(vocabulary), len(tags), structure=structure)
