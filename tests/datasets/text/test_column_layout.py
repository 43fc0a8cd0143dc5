"""Column files as they are: columns by position and name, comments, documents, and schemes of tags."""

import re

import pytest
import torch
from cases.chunking_problems import write
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.datasets import Columns, chunks, read_columns, to_bio
from torchssvm.datasets.text.tag_schemes import bio_transitions

UNER = """\
# sent_id = 1
# text = SID i Danmark
1\tSID\tB-ORG\tB-ORG#O\ts
2\ti\tO\tO#O\ts
3\t1 000\tO\tO#O\ts

# sent_id = 2
# text = #
1\t#\tO\tO#O\ts
2\tDanmark\tB-LOC\tB-LOC#O\ts
"""
CONLL2003 = """\
-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
Bonn NNP I-NP I-LOC
Paris NNP B-NP B-LOC

-DOCSTART- -X- O O

"""


def test_positions_comments_and_tabs(tmp_path):
    sentences = read_columns(write(tmp_path, UNER), Columns(word=1, tag=2, comment="#"))
    assert sentences.words == ["SID", "i", "1 000", "#", "Danmark"]
    assert sentences.tags == ["B-ORG", "O", "O", "O", "B-LOC"]
    assert sentences.pos == ["_"] * 5
    assert sentences.offsets.tolist() == [0, 3, 5]
    assert sentences.lines.tolist() == [3, 4, 5, 9, 10]
    same = read_columns(write(tmp_path, UNER.replace("\n", "\r\n")), Columns(word=-4, tag=-3, comment="# "))
    assert (same.words, same.tags) == (sentences.words, sentences.tags)


def test_documents_and_iob1(tmp_path):
    sentences = read_columns(write(tmp_path, CONLL2003), Columns(pos=1))
    assert sentences.words == ["EU", "rejects", "German", "Bonn", "Paris"]
    assert sentences.tags == ["B-ORG", "O", "B-MISC", "B-LOC", "B-LOC"]
    assert sentences.pos == ["NNP", "VBZ", "JJ", "NNP", "NNP"]
    assert sentences.offsets.tolist() == [0, 5]
    chunked = read_columns(write(tmp_path, CONLL2003), Columns(tag=2))
    assert chunked.tags == ["B-NP", "B-VP", "B-NP", "I-NP", "B-NP"]


def test_one_column_of_tags_and_none(tmp_path):
    path = write(tmp_path, "Bonn S-LOC\nand O\nNew B-LOC\nYork E-LOC\n")
    assert read_columns(path, Columns()).tags == ["B-LOC", "O", "B-LOC", "I-LOC"]
    assert read_columns(path, Columns(tag=None)).tags is None
    words = write(tmp_path, "Bonn\nand\n", name="raw")
    assert read_columns(words, Columns(tag=1), tags_optional=True).words == ["Bonn", "and"]
    with pytest.raises(ValueError, match="raw, line 1"):
        read_columns(words, Columns(tag=1))


@pytest.mark.parametrize("first", ["# global.columns = ID FORM NER", "ID FORM NER", "ID\tFORM\tNER"])
def test_names(first, tmp_path):
    path = write(tmp_path, f"{first}\n\n1 Bonn B-LOC\n\n1 and O\n")
    columns = Columns(word="FORM", tag="NER")
    assert read_columns(path, columns).words == ["Bonn", "and"]
    with pytest.raises(ValueError, match=r"line [13]"):
        read_columns(path, columns._replace(tag="TAG"))


@pytest.mark.parametrize(
    ("text", "columns", "line"),
    [
        ("a O\nb\n", Columns(), 2),
        ("# x\na b O\n", Columns(), 2),
        ("a O\n", Columns(word=2), 1),
        ("a O\n\nb ORG\n", Columns(), 3),
        ("1\t\tO\n", Columns(word=1), 1),
    ],
)
def test_errors_name_file_and_line(text, columns, line, tmp_path):
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(f"{path}, line {line}")):
        read_columns(path, columns)


spans = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["", "A", "B-C"])), min_size=1, max_size=6)


def iob1(pieces):
    """B only where a chunk follows another of its type."""
    before, tags = "", []
    for length, kind in pieces:
        tags += [f"{'B' if kind == before else 'I'}-{kind}", *[f"I-{kind}"] * (length - 1)] if kind else ["O"] * length
        before = kind
    return tags


def letters(pieces, begin, inside, end, single):
    tags = []
    for length, kind in pieces:
        marks = [single] if length == 1 else [begin, *[inside] * (length - 2), end]
        tags += [f"{letter}-{kind}" for letter in marks] if kind else ["O"] * length
    return tags


@examples(40)
@given(st.lists(spans, min_size=1, max_size=3))
def test_every_scheme_becomes_bio(sentences):
    offsets, start = [0], 0
    for pieces in sentences:
        start += sum(length for length, _ in pieces)
        offsets.append(start)
    bio = [tag for pieces in sentences for tag in letters(pieces, "B", "I", "I", "B")]
    for scheme in ("BIIB", "BIES", "BILU", "BMES"):
        assert to_bio([tag for pieces in sentences for tag in letters(pieces, *scheme)], offsets) == bio
    assert to_bio([tag for pieces in sentences for tag in iob1(pieces)], offsets) == bio


@examples(40)
@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), min_size=1, max_size=7))
def test_chunks_stay_and_are_allowed(tags):
    result = to_bio(tags, [0, len(tags)])
    assert chunks(result) == chunks(tags)
    names = ("O", "B-A", "I-A", "B-B", "I-B")
    states = torch.tensor([[names.index(tag) for tag in result]])
    assert bio_transitions(names).allows(states).tolist() == [True]
    assert to_bio(result, [0, len(result)]) == result
    given_states = torch.tensor([[names.index(tag) for tag in tags]])
    assert bio_transitions(names).allows(given_states).tolist() == [result == tags]


def test_a_word_between_tabs_may_be_a_blank(tmp_path):
    path = tmp_path / "characters.txt"
    path.write_text("".join(f"{word}\tO\n" for word in ("a", " ", "\u00a0", "b")))
    assert read_columns(path, Columns(word=0, tag=1)).words == ["a", " ", "\u00a0", "b"]
    path.write_text("a\tO\n\tO\n")
    with pytest.raises(ValueError, match=r"characters.txt, line 2"):
        read_columns(path, Columns(word=0, tag=1))
