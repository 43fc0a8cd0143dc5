"""Taggers on a tiny encoder with random weights: their labels, words and batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from torchssvm.transformers import tokenized  # noqa: E402
from torchssvm.transformers.batches import batches_of  # noqa: E402

LABELS = ["O", "B-X", "I-X", "B-Y", "I-Y"]
WORDS = ["the", "red", "house", "in", "rome", "is", "old", "."]
NO = -100


def encoder_config(**others):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.BertConfig(vocab_size=80, max_position_embeddings=24, **sizes, **others)


def make_tokenizer():
    """A fast one, of whole words and letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    made = Tokenizer(models.WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", model_max_length=24
    )


def make_classifier():
    torch.manual_seed(0)
    names = dict(enumerate(LABELS))
    config = encoder_config(id2label=names, label2id={name: state for state, name in names.items()})
    made = transformers.BertForTokenClassification(config).eval()
    with torch.no_grad():
        made.classifier.weight.normal_()
    return made


def make_items(tokenizer):
    """Tokenised sentences whose words say their tags."""
    generator = np.random.default_rng(0)
    sentences, tags = [], []
    for _ in range(24):
        words = generator.choice(WORDS, size=generator.integers(2, 6)).tolist()
        sentences.append(words)
        tags.append(["B-X" if word == "red" else "B-Y" if word == "rome" else "O" for word in words])
    return tokenized(tokenizer, sentences, tags, LABELS)


def batch_of(items):
    return next(batches_of(items, len(items), 0, torch.device("cpu")))


def random_batch(rows=3, longest=9):
    ids = torch.randint(4, 70, (rows, longest), generator=torch.Generator().manual_seed(1))
    labels = torch.full_like(ids, NO)
    labels[:, 2], labels[:, 3], labels[:, 6] = 1, 2, 0  # holes, and none at the first position
    labels[1, 7] = 3
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
