"""Column files, good and bad."""

import codecs
import gzip
import re
import string
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases.chunking_problems import TWO_SENTENCES, write
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.datasets import ChunkingDataset, Columns, NamedEntities, Vocabulary, read_columns


def test_two_sentences(tmp_path):
    sentences = read_columns(write(tmp_path))
    assert len(sentences) == 2
    assert sentences.words == ["He", "reckons", "the", "deficit", ".", "Why", "?"]
    assert sentences.pos == ["PRP", "VBZ", "DT", "NN", ".", "WRB", "."]
    assert sentences.tags == ["B-NP", "B-VP", "B-NP", "I-NP", "O", "B-ADVP", "O"]
    assert sentences.offsets.dtype == np.int64
    assert sentences.offsets.tolist() == [0, 5, 7]
    assert sentences.lines.tolist() == [1, 2, 3, 4, 5, 7, 8]
    assert sentences.where(5) == f"{tmp_path / 'some.txt'}, line 7"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(" ", "\t"),
        lambda text: text.replace(" ", "  \t "),
        lambda text: text.rstrip("\n"),
        lambda text: "\n\n" + text + "\n \n\t\n",
        lambda text: text.replace("\n\n", "\n  \n\n"),
        lambda text: codecs.BOM_UTF8.decode() + text,
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace("\n", "\r\r\n"),
        lambda text: text.replace("\n", "\r", 3).replace("\n", "\r\n", 1),
        lambda text: text.replace("\n", " \n").replace(" ", "\t"),
        lambda text: text.replace(" ", "\t").replace("\n", "\t\n", 2).replace("\nW", "\n\ufeffW"),
    ],
    ids=[
        *("CRLF", "tabs", "many blanks", "no last newline", "empty lines around", "empty lines between", "BOM"),
        *("CR", "CRCRLF", "mixed ends", "tabs at ends", "some tabs at ends, and a BOM inside"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_blanks_newlines_and_compression_do_not_matter(change, packed, tmp_path):
    plain, other = read_columns(write(tmp_path)), write(tmp_path, change(TWO_SENTENCES), name="other", packed=packed)
    sentences = read_columns(other)
    for name in ("words", "pos", "tags"):
        assert getattr(sentences, name) == getattr(plain, name)
    assert sentences.offsets.tolist() == plain.offsets.tolist()


token = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=5)
tag = st.one_of(
    st.just("O"), st.builds(lambda a, b: f"{a}-{b}", st.sampled_from("BI"), st.text(string.ascii_uppercase, min_size=1))
)


pos = token.filter(lambda text: text != "O" and text[:2] not in ("B-", "I-"))  # a column of chunk tags is refused


@examples(40)
@given(st.lists(st.lists(st.tuples(token, pos, tag), min_size=1, max_size=4), min_size=1, max_size=5))
def test_what_was_written_is_read(tmp_path_factory, sentences):
    path = tmp_path_factory.mktemp("columns") / "file"
    text = "\n".join("".join(" ".join(row) + "\n" for row in sentence) for sentence in sentences)
    path.write_bytes(text.encode())
    result = read_columns(path)
    rows = list(zip(result.words, result.pos, result.tags, strict=True))
    assert [rows[a:b] for a, b in zip(result.offsets[:-1], result.offsets[1:], strict=True)] == sentences
    last = result.part(len(sentences) - 1, len(sentences))
    assert list(zip(last.words, last.pos, last.tags, strict=True)) == sentences[-1]
    assert last.offsets.tolist() == [0, len(sentences[-1])]
    assert last.lines.tolist() == result.lines[len(rows) - len(sentences[-1]) :].tolist()


def test_tags_may_be_missing_where_asked(tmp_path):
    path = write(tmp_path, "He PRP\nwon VBD\n")
    sentences = read_columns(path, tags_optional=True)
    assert sentences.tags is None
    assert sentences.words == ["He", "won"]
    assert sentences.part(0, 1).tags is None
    assert read_columns(write(tmp_path), tags_optional=True).tags is not None
    with pytest.raises(ValueError, match=r"some.txt, line 1"):
        read_columns(write(tmp_path, "He PRP\nwon VBD\n"))


@pytest.mark.parametrize(
    ("text", "optional", "line"),
    [
        ("a A O\n\nb B\n", False, 3),
        ("a A O x\n", False, 1),
        ("a\n", True, 1),
        ("a A\nb B O\n", True, 2),
        ("a A O\n\nb B NP\n", False, 3),
        ("a A O\nb B E-NP\n", False, 2),
        ("a A B-\n", False, 1),
        ("a A o\n", True, 1),
        ("a A O\n\ncaf\udce9 NN O\n", False, 3),
    ],
)
def test_errors_name_file_and_line(text, optional, line, tmp_path):
    path = tmp_path / "some.txt"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=re.escape(f"{path}, line {line}")):
        read_columns(path, tags_optional=optional)


@pytest.mark.parametrize(
    ("lines", "words", "tags"),
    [
        (["New York\tB-LOC", "is\tO"], ["New York", "is"], ["B-LOC", "O"]),
        (["a\t\tO", "longer\tO", "b\t\tO", "c\tO"], ["a", "longer", "b", "c"], ["O"] * 4),  # aligned
        (["a \t O ", "b\tO"], ["a", "b"], ["O", "O"]),
        (["a O", "b\tO", "c  O"], ["a", "b", "c"], ["O"] * 3),
        (["a\tx\tO\t", "b\t\tO"], ["a", "b"], ["O", "O"]),  # an empty column
    ],
)
def test_the_separator_is_that_of_the_file(lines, words, tags, tmp_path):
    sentences = read_columns(write(tmp_path, "\n".join(lines)), Columns(word=0, tag=-1))
    assert (sentences.words, sentences.tags) == (words, tags)
    assert sentences.separator == ("tabs" if "\t" in lines[0] and "longer\tO" not in lines else "blanks")


@pytest.mark.parametrize("line", ["a\t\tNN\tO", "a NN\tO", "a\tNN O", "\ta\tNN\tO", "\ta NN\tO", "a\tNN\tO"])
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_without_columns_the_separator_is_that_which_gives_three(line, optional, count, tmp_path):
    sentences = read_columns(write(tmp_path, f"{line}\n" * count), tags_optional=optional)
    assert (sentences.words, sentences.pos, sentences.tags) == (["a"] * count, ["NN"] * count, ["O"] * count)
    assert sentences.separator == ("tabs" if line == "a\tNN\tO" else "blanks")
    with pytest.raises(ValueError, match="line 2"):
        read_columns(write(tmp_path, f"{line}\nb\n{line}\n"), tags_optional=optional)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_within_a_sentence_is_a_character_of_a_word(mark, tmp_path):
    words = ["a", "\ufeff", "\ufeffhttp", "\ufeff", "b"]
    text = f"{mark}a\tO\n\ufeff\tO\n\ufeffhttp\tO\n\n\ufeff\tO\nb\tO\n"
    assert read_columns(write(tmp_path, text), Columns(word=0, tag=1)).words == words


@pytest.mark.parametrize("values", ["BIO", ["PERSON", "O"], ["NOUN", "VERB", "PRON"], ["PER", "0"], "BMES"])
def test_tags_are_taken_as_they_are_where_asked(values, tmp_path):
    path = write(tmp_path, "".join(f"w{i} X {tag}\n" for i, tag in enumerate(values)))
    for columns in (None, Columns(word=0, tag=-1), Columns(word=0, pos=1, tag=2)):
        with pytest.raises(ValueError, match=r"line \d"):
            read_columns(path, columns)
        sentences = read_columns(path, columns, scheme=None)
        assert (sentences.tags, sentences.scheme) == (list(values), None)
        assert sentences.part(0, 1).scheme is None
    entities = NamedEntities.from_file(path, columns=Columns(word=0, tag=-1), scheme=None)
    assert entities.tags(0) == list(values)
    assert sorted(entities.vocabulary.tags) == sorted(values)
    again = NamedEntities.from_file(path, entities.vocabulary, columns=Columns(word=0, tag=-1), scheme=None)
    assert torch.equal(again[0].y, entities[0].y)
    chunks = ChunkingDataset.from_file(path, Vocabulary.of(sentences), scheme=None)
    assert chunks.tags(0) == list(values)
    two = replace(sentences, offsets=np.array([0, 1, len(values)]))
    first, rest = ChunkingDataset(two, Vocabulary.of(sentences)).hold_out(0.5)
    assert [*first.tags(0), *rest.tags(0)] == list(values)


@pytest.mark.parametrize("damage", [lambda b: b[:-12], lambda b: b[:20] + b"\0\0\0\0" + b[24:], lambda b: b[:6]])
def test_a_damaged_gzip_file(damage, tmp_path):
    path = tmp_path / "broken.txt.gz"
    path.write_bytes(damage(gzip.compress(TWO_SENTENCES.encode())))
    with pytest.raises(ValueError, match=r"broken.txt.gz"):
        read_columns(path)


def test_a_comment_inside_a_sentence_is_taken_as_a_token_with_a_warning(tmp_path):
    path = tmp_path / "tags.txt"
    path.write_text("# a corpus of one sentence\nThe DET NP\n# a note\ndog NOUN NP\n")
    layout = Columns(word=0, pos=1, tag=2, comment="#")
    with pytest.warns(UserWarning, match="tags.txt, line 3"):
        assert read_columns(path, layout, scheme=None).words == ["The", "#", "dog"]
    with pytest.raises(ValueError, match="line 1"):
        read_columns(path)
