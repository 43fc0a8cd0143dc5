"""What a tagger is made of, as ``config.json`` keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from torchssvm.core.arguments import check_positive, check_whole, is_whole
from torchssvm.datasets.text.tag_schemes import bio_transitions, bioes_transitions
from torchssvm.structures.chain.transitions import Transitions

SCHEMES = {None: lambda labels: None, "BIO": bio_transitions, "BIOES": bioes_transitions}


class StructuredTaggerConfig(PretrainedConfig):
    """The encoder's own configuration, the labels, and how the head is trained.

    Args:
        encoder: The encoder's configuration, or its dictionary.
        labels: The label of every state, at least one.
        scheme: ``"BIO"`` or ``"BIOES"``: sequences that are none of the scheme are never predicted; None allows all.
        layers: Which hidden states are the features of the head, one behind the other; -1 is the last.
        loss: ``"softmax-margin"`` of the whole sequence, or ``"cross-entropy"`` of each word.
        freeze_encoder: Whether the encoder keeps its weights, and is run in evaluation mode; or how many of its layers
            do so, with the embeddings, while those above them train.
        probability_temperature: By which scores are divided for probabilities; ``StructuredTagger.calibrate`` fits it.

    Raises:
        ValueError: An argument is none of these.

    Example:
        >>> StructuredTaggerConfig(encoder, labels, scheme="BIO").id2label
        {0: 'O', 1: 'B-LOC', 2: 'I-LOC'}
    """

    model_type = "torchssvm-tagger"

    def __init__(
        self,
        encoder: Any = None,
        labels: Sequence[str] = ("O",),
        scheme: str | None = None,
        layers: Sequence[int] = (-1,),
        loss: str = "softmax-margin",
        freeze_encoder: bool | int = False,
        probability_temperature: float = 1.0,
        **others: Any,
    ) -> None:
        if isinstance(encoder, dict):
            encoder = AutoConfig.for_model(**encoder)
        self.encoder = encoder
        self.labels = [str(label) for label in labels]
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels={self.labels} must be one or more different names")
        if scheme not in SCHEMES:
            raise ValueError(f'scheme={scheme!r} must be "BIO", "BIOES", or None for labels of any form')
        self.scheme = scheme
        self.layers = list(layers)
        if not self.layers or not all(is_whole(layer) for layer in self.layers):
            raise ValueError(f"layers={layers} must be one or more whole numbers, such as [-1]")
        if loss not in ("softmax-margin", "cross-entropy"):
            raise ValueError(f'loss={loss!r} must be "softmax-margin" or "cross-entropy"')
        self.loss = loss
        if not isinstance(freeze_encoder, bool):
            check_whole(freeze_encoder, "freeze_encoder", advice=", or True or False")
        self.freeze_encoder = freeze_encoder
        self.probability_temperature = check_positive(probability_temperature, "probability_temperature")
        names = dict(enumerate(self.labels))
        others |= {"id2label": names, "label2id": {name: state for state, name in names.items()}}
        super().__init__(**others)

    def transitions(self) -> Transitions | None:
        """Which labels may follow each other."""
        return SCHEMES[self.scheme](self.labels)
