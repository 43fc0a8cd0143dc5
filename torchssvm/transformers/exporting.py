"""A whole tagger, from pieces to tags, in plain torch operators."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchssvm.core.operators import plain_operators
from torchssvm.transformers.batches import NO_WORD
from torchssvm.transformers.tagger import StructuredTagger


class TaggerDecoder(nn.Module):
    """Pieces to tags: encoder, head and decoding, for ``torch.export``, ``torch.compile`` and ``torch.onnx.export``.

    It gives the predictions of the tagger, with any batch size and length. The tagger is held, not copied, and put into
    evaluation mode.

    Args:
        tagger: A trained one.

    Example:
        >>> decoder = TaggerDecoder(StructuredTagger(StructuredTaggerConfig(encoder, labels, "BIO")))
        >>> ids = torch.tensor([[4, 5, 2, 3]])
        >>> decoder(ids, torch.ones_like(ids), torch.tensor([[True, False, True, True]]))
        tensor([[   0, -100,    0,    0]])
    """

    def __init__(self, tagger: StructuredTagger) -> None:
        super().__init__()
        self.tagger = tagger
        rule = tagger.head.structure.plain_decoder()
        assert rule is not None  # chains have one
        self.rule = rule
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, word_mask: Tensor) -> Tensor:
        """The tags, ``[B, N]`` int64: a state at the first piece of every word, -100 elsewhere.

        Args:
            input_ids: ``[B, N]`` int64.
            attention_mask: ``[B, N]`` int64, 0 in the padding.
            word_mask: ``[B, N]`` bool, the first piece of each word, at least one in a row: no graph checks it.
        """
        tagger = self.tagger
        with torch.no_grad():
            hidden = tagger.hidden(input_ids=input_ids, attention_mask=attention_mask)
            lengths = word_mask.sum(1)
            # where each position goes: words to the left, in their order, and the others behind them
            behind = lengths.unsqueeze(1) + (~word_mask).cumsum(1) - 1
            place = torch.where(word_mask, word_mask.cumsum(1) - 1, behind)
            words = torch.zeros_like(hidden).scatter(1, place.unsqueeze(2).expand(hidden.shape), hidden)
            if torch.compiler.is_compiling():
                potentials = tagger.head(words, lengths)
            else:
                with plain_operators():
                    potentials = tagger.head(words, lengths)
            tags: Tensor = self.rule(potentials.detach().tensors, lengths)
            return tags.gather(1, place).masked_fill(~word_mask, NO_WORD)
