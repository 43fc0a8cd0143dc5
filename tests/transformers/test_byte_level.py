"""Texts as byte-level tokenisers cut them: spaces are pieces, and a letter may have several."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from cases.taggers import LABELS, NO, encoder_config  # noqa: E402

from torchssvm.transformers import StructuredTagger, StructuredTaggerConfig, spans_to_tags, tokenized  # noqa: E402
from torchssvm.transformers.windows import read  # noqa: E402


@pytest.fixture(params=[False, True])
def byte_level(request):
    """Every byte is a piece; as RoBERTa's, with and without a space before the text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["<s>", "<pad>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({name: place for place, name in enumerate(names)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=request.param)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=request.param)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=40
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  red  house \n\n in\tRome.  ", "red house in Rome ."),
        ("Zoë in 日本 😀👩‍👩‍👧 ok", "Zoë in 日本 😀👩‍👩‍👧 ok"),
        ("\u00a0red\u00a0house", "red house"),
        ("Ro\u0301me", "Ro \u0301 me"),
    ],
)
def test_words_are_without_spaces(byte_level, text, words):
    pieces = read(text, "text", byte_level)
    assert [text[start:stop] for start, stop in pieces.places] == words.split()
    assert pieces.bounds[0] == 1
    assert pieces.bounds[-1] == len(pieces.inputs["input_ids"]) - 1
    ids = byte_level(text)["input_ids"]
    letters = [byte_level.convert_ids_to_tokens(ids[at]).lstrip("Ġ") for at in pieces.first]
    assert all(letter in ("", word[0]) for letter, word in zip(letters, words.split(), strict=True) if word.isascii())


def test_spans_and_windows_have_no_empty_word(byte_level):
    text = "  Zoë  lebt \n\n in 東京 😀. " * 9
    count = len(text) // 9
    spans = [(k * count + start, k * count + stop, name) for k in range(9) for start, stop, name in ((2, 5, "X"),)]
    spans += [(text.index("in", k * count), text.index("😀", k * count), "Y") for k in range(9)]
    (tags,) = spans_to_tags(byte_level, [text], [spans], LABELS)
    assert tags == ["B-X", "O", "B-Y", "I-Y", "O"] * 9
    items = tokenized(byte_level, [text], [tags], LABELS, stride=9)
    assert len(items) > 9
    assert [LABELS[label] for item in items for label in item["labels"] if label != NO] == tags
    torch.manual_seed(0)
    config = encoder_config()
    config.vocab_size, config.max_position_embeddings = len(byte_level), 40
    tagger = StructuredTagger(StructuredTaggerConfig(config, LABELS, "BIO")).eval()
    for parameter in tagger.head.parameters():
        torch.nn.init.normal_(parameter)
    every = [span for spans in tagger.tag([text, "  a  "], byte_level, stride=9) for span in spans]
    assert len(every) > 5
    assert all(span.text and span.text == span.text.strip() for span in every)
    for text in (" ", "\n \n"):
        with pytest.raises(ValueError, match="has no word"):
            tagger.tag([text], byte_level)
