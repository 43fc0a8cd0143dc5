"""Taggers on pretrained encoders of ``transformers``: needs ``pip install 'torchssvm[transformers]'``."""

from torchssvm.core.arguments import needs

with needs("torchssvm.transformers needs transformers: pip install 'torchssvm[transformers]'", "transformers"):
    from transformers import AutoConfig, AutoModelForTokenClassification

from torchssvm.transformers.batches import tokenized
from torchssvm.transformers.solving import Solved
from torchssvm.transformers.spans import spans_to_tags
from torchssvm.transformers.tagger import StructuredTagger, StructuredTaggerConfig, TaggerDecoder, TaggerOutput
from torchssvm.transformers.tagging import Span

AutoConfig.register(StructuredTaggerConfig.model_type, StructuredTaggerConfig)
AutoModelForTokenClassification.register(StructuredTaggerConfig, StructuredTagger)

__all__ = [
    "Solved",
    "Span",
    "StructuredTagger",
    "StructuredTaggerConfig",
    "TaggerDecoder",
    "TaggerOutput",
    "spans_to_tags",
    "tokenized",
]
