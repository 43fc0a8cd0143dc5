"""Spans of characters as tags."""

import copy
import random

import pytest
import torch

transformers = pytest.importorskip("transformers")

from cases.taggers import LABELS, WORDS, encoder_config  # noqa: E402

from torchssvm.transformers import (  # noqa: E402
    StructuredTagger,
    StructuredTaggerConfig,
    spans_to_tags,
    tokenized,
)
from torchssvm.transformers.windows import read  # noqa: E402

TEXT = "The red house, in old Rome."


@pytest.mark.parametrize(
    ("spans", "tags"),
    [
        ([], "O O O O O O O O"),
        ([(4, 13, "X")], "O B-X I-X O O O O O"),
        ([(22, 26, "Y"), [0, 3, "X"]], "B-X O O O O O B-Y O"),
        ([(3, 13, "X"), (13, 14, "Y")], "O B-X I-X B-Y O O O O"),  # a space at the start
        ([(4, 7, "X"), (8, 13, "X")], "O B-X B-X O O O O O"),
    ],
)
def test_spans_as_bio(tokenizer, spans, tags):
    assert spans_to_tags(tokenizer, [TEXT], [spans], LABELS) == [tags.split()]
    (item,) = tokenized(tokenizer, [TEXT], [tags.split()], LABELS)
    assert [LABELS[label] for label in item["labels"] if label >= 0] == tags.split()


def test_spans_as_bioes(tokenizer):
    labels = ["O", "B-X", "I-X", "E-X", "S-X"]
    spans = [(0, 3, "X"), (4, 13, "X"), (15, 26, "X")]
    (tags,) = spans_to_tags(tokenizer, [TEXT], [spans], labels)
    assert tags == ["S-X", "B-X", "E-X", "O", "B-X", "I-X", "E-X", "O"]


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
def test_spans_of_a_tagger_give_its_tags_back(tokenizer, scheme):
    labels = LABELS if scheme == "BIO" else ["O", *(f"{letter}-{name}" for name in "XY" for letter in "BIES")]
    torch.manual_seed(0)
    tagger = StructuredTagger(StructuredTaggerConfig(encoder_config(), labels, scheme)).eval()
    for parameter in tagger.head.parameters():
        torch.nn.init.normal_(parameter)
    random.seed(0)
    texts = [" ".join(random.choices([*WORDS, "abc,", "x.y"], k=random.randint(1, 50))) for _ in range(20)]
    every = tagger.tag(texts, tokenizer, stride=8)
    assert sum(map(len, every)) > 100
    triples = [[(span.start, span.stop, span.label) for span in spans] for spans in every]
    tags = spans_to_tags(tokenizer, texts, triples, labels)
    for text, row, spans in zip(texts, tags, every, strict=True):
        items = tokenized(tokenizer, [text], [row], labels, stride=8)
        assert [labels[label] for item in items for label in item["labels"] if label >= 0] == row
        begins = [tag[2:] for tag in row if tag[0] in "BS"]
        assert begins == [span.label for span in spans]


@pytest.mark.parametrize(
    ("spans", "named"),
    [
        ([(4, 10, "X")], r"spans\[1\] has \(4, 10, 'X'\): 10 lies within a word, 'The red ho\|use, in old Rome.'"),
        ([(5, 13, "X")], r"5 lies within a word"),
        ([(9, 11, "X")], r"9 lies within a word"),
        ([(4, 13, "X"), (8, 14, "Y")], r"\(8, 14, 'Y'\), which overlaps"),
        ([(4, 7, "Z")], "labels lack B-Z"),
        ([(7, 4, "X")], "less than stop"),
        ([(4, 4, "X")], "less than stop"),
        ([(-1, 3, "X")], "less than stop"),
        ([(22, 99, "X")], "0 to 27"),
        ([(3, 4, "X")], "' ' has no word"),
        ([(4, 7)], "give"),
        ([("X", 4, 7)], "give"),
        ([{"start": 4}], "give"),
        ([(4.0, 7.0, "X")], "give"),
    ],
)
def test_spans_that_do_not_fit(tokenizer, spans, named):
    with pytest.raises(ValueError, match=named):
        spans_to_tags(tokenizer, ["red", TEXT], [[], spans], LABELS)


def test_accents_that_a_tokeniser_drops_belong_to_their_letters(tokenizer):
    from tokenizers import normalizers

    bare = copy.deepcopy(tokenizer)
    bare.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    text = "Zoe\u0308 in Mu\u0308nchen, cafe\u0301\u0323"
    words = [text[start:stop] for start, stop in read(text, "text", bare).places]
    assert words == ["Zoe\u0308", "in", "Mu\u0308nchen", ",", "cafe\u0301\u0323"]
    bare.backend_tokenizer.normalizer = normalizers.NFKC()
    assert read("a\u2026", "text", bare).places == [(0, 1), (1, 2), (1, 2), (1, 2)]  # one character, three dots
    bare.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    assert spans_to_tags(bare, [text], [[(0, 4, "X"), (8, 16, "Y")]], LABELS) == [["B-X", "O", "B-Y", "O", "O"]]


def test_as_many_as_texts(tokenizer):
    with pytest.raises(ValueError, match="spans has 1 entries and texts 2"):
        spans_to_tags(tokenizer, ["red", TEXT], [[]], LABELS)
    with pytest.raises(ValueError, match="tags has 1 entries and sentences 2"):
        tokenized(tokenizer, [["red"], ["house"]], [["O"]], LABELS)
    rows = (row for row in (["O"], ["O"]))
    assert len(tokenized(tokenizer, [["red"], ["house"]], rows, LABELS)) == 2


def test_labels_without_o(tokenizer):
    with pytest.raises(ValueError, match="lack O"):
        spans_to_tags(tokenizer, ["red house"], [[(0, 3, "X")]], ["B-X", "I-X"])


def test_texts_that_are_no_list_of_strings(tokenizer):
    with pytest.raises(TypeError, match="texts"):
        spans_to_tags(tokenizer, "red", [[]], LABELS)
    with pytest.raises(TypeError, match=r"texts\[0\]"):
        spans_to_tags(tokenizer, [["red"]], [[]], LABELS)
    with pytest.raises(ValueError, match=r"texts\[0\]"):
        spans_to_tags(tokenizer, [""], [[]], LABELS)
