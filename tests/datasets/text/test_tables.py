"""Tables of tokens with a header, good and bad."""

import csv
import gzip
import re

import numpy as np
import pytest

from torchssvm.datasets import ChunkingDataset, Columns, NamedEntities, Vocabulary, read_columns, read_table

WORDS = ["He", ",", '"', "reckons", "Why", "O\u00a0K", "a;b"]
TAGS = ["B-NP", "O", "O", "B-VP", "B-ADVP", "I-ADVP", "O"]
KAGGLE = {"sentence": "Sentence #", "word": "Word", "tag": "Tag", "pos": "POS"}


def table(path, separator=",", every=False):
    """The file as csv writes it, with the sentence on each row, or on its first."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, delimiter=separator)
        rows.writerow(KAGGLE.values())
        for place, (word, tag) in enumerate(zip(WORDS, TAGS, strict=True)):
            number = f"Sentence: {1 + (place >= 4)}"
            rows.writerow([number if every or place in (0, 4) else "", word, tag, "NN"])
    return path


@pytest.mark.parametrize("separator", [",", "\t", ";"])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("change", [lambda content: content, gzip.compress, lambda content: b"\xef\xbb\xbf" + content])
def test_what_csv_writes(tmp_path, separator, every, change):
    path = table(tmp_path / "some.csv", separator, every)
    path.write_bytes(change(path.read_bytes()))
    sentences = read_table(path, **KAGGLE)
    assert (sentences.words, sentences.tags, sentences.pos) == (WORDS, TAGS, ["NN"] * 7)
    assert sentences.offsets.dtype == sentences.lines.dtype == np.int64
    assert sentences.offsets.tolist() == [0, 4, 7]
    assert sentences.lines.tolist() == list(range(2, 9))
    assert sentences.separator == {",": "commas", "\t": "tabs", ";": "semicolons"}[separator]
    assert sentences.where(4) == f"{path}, line 6"


def test_quotes_between_tabs_and_empty_rows(tmp_path):
    path = tmp_path / "some.tsv"
    path.write_text('tag\tsentence\tword\nO\t1\t"\nO\t1\t"\n\t\t\nI-X\t1\t"quoted"\n\nE-X\t\tthe end\n')
    sentences = read_table(path)
    assert sentences.words == ['"', '"', "quoted", "the end"]
    assert sentences.offsets.tolist() == [0, 2, 3, 4]
    assert (sentences.tags, sentences.pos) == (["O", "O", "B-X", "B-X"], ["_"] * 4)  # I-X and E-X become BIO
    assert read_table(path, scheme=None).tags == ["O", "O", "I-X", "E-X"]
    assert read_table(path, tag=None).tags is None
    assert read_table(path, pos="tag", scheme=None).pos == ["O", "O", "I-X", "E-X"]


def test_datasets_take_a_table(tmp_path):
    sentences = read_table(table(tmp_path / "some.csv"), **KAGGLE)
    assert len(NamedEntities(sentences)) == len(ChunkingDataset(sentences, Vocabulary.of(sentences))) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "some.csv, line 1: no column has the name 'sentence'"),
        ("Sentence,word,tag\n1,a,O\n", "some.csv, line 1: no column has the name 'sentence'; the header names ['Sent"),
        ("sentence,word,tag\n", "some.csv holds no sentence"),
        ("sentence,word,tag\n1,a,O\n\n2,b\n", "some.csv, line 4: 2 cells, and the header has 3"),
        ("sentence,word,tag\n1,a,O\n1, ,O\n", "some.csv, line 3: the cell of 'word' is empty"),
        ("sentence,word,tag\n1,a,\n", "some.csv, line 2: the cell of 'tag' is empty"),
        ("sentence,word,tag\n1,a,O\n1,b,X?\n", "some.csv, line 3: tag 'X?' must be of BIO"),
        ('sentence,word,tag\n1,a,O\n1,",O\n', "some.csv, line 3: a quote is not as csv writes it"),
        (b"sentence,word,tag\n1,\xe9,O\n", "some.csv, line 2: byte 0xe9 is not UTF-8"),
    ],
)
def test_errors_name_file_and_line(tmp_path, text, message):
    path = tmp_path / "some.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=re.escape(message)):
        read_table(path)


def test_another_scheme(tmp_path):
    with pytest.raises(ValueError, match="scheme='BIO'"):
        read_table(table(tmp_path / "some.csv"), **KAGGLE, scheme="BIO")


@pytest.mark.parametrize("columns", [None, Columns(), Columns(word="Word", tag="Tag")])
@pytest.mark.parametrize(
    "text",
    [
        "Sentence #,Word,POS,Tag\nSentence: 1,He,PRP,O\n,left,VBD,O\n",
        "1,He,O\n1,left,O\n",
        "sentence\tword\ttag\n1\tHe\tO\n",
    ],
)
def test_read_columns_names_the_reader_of_tables(tmp_path, text, columns):
    path = tmp_path / "some.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"some\.csv.*; read_table reads tables with a header$"):
        read_columns(path, columns)


def test_a_column_file_is_no_table(tmp_path):
    path = tmp_path / "some.txt"
    path.write_text("word NN X?\n, , O\n")
    with pytest.raises(ValueError, match=r"takes tags as they are$"):
        read_columns(path)


def test_empty_rows_alone_end_sentences_where_no_column_numbers_them(tmp_path):
    (tmp_path / "some.csv").write_text("word,tag\na,O\nb,O\n,\nc,O\n")
    assert read_table(tmp_path / "some.csv", sentence=None).offsets.tolist() == [0, 2, 3]
    (tmp_path / "some.csv").write_text("word,word,tag\na,b,O\n")
    with pytest.raises(ValueError, match="2 columns have the name 'word'"):
        read_table(tmp_path / "some.csv", sentence=None)
