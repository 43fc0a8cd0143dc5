"""Attributes against the templates applied one token at a time, and vocabularies."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from cases.chunking_problems import conll2000_or_skip, sentences_of, write
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.datasets import Vocabulary, read_columns
from torchssvm.datasets.text.chunking_features import attributes, sorted_tags
from torchssvm.datasets.text.conll2000 import locate


def one_by_one(sentence):
    """The attributes of the tokens of one sentence, straight from the list of the tutorial."""
    names = "w[-2] w[-1] w[0] w[1] w[2] w[-1]|w[0] w[0]|w[1] pos[-2] pos[-1] pos[0] pos[1] pos[2] pos[-2]|pos[-1]"
    names += (
        " pos[-1]|pos[0] pos[0]|pos[1] pos[1]|pos[2] pos[-2]|pos[-1]|pos[0] pos[-1]|pos[0]|pos[1] pos[0]|pos[1]|pos[2]"
    )
    result = []
    for t in range(len(sentence)):
        results = []
        for name in names.split():
            values = []
            for piece in name.split("|"):
                field, place = piece.rstrip("]").split("[")
                at = t + int(place)
                if 0 <= at < len(sentence):
                    values.append(sentence[at][field == "pos"])
            if len(values) == len(name.split("|")):
                results.append(f"{name}={'|'.join(values)}")
        result.append(results + ["__BOS__"] * (t == 0) + ["__EOS__"] * (t == len(sentence) - 1))
    return result


# Few letters, so that attributes meet again; with the signs that attributes are made of.
token = st.tuples(st.text("ab|=:", min_size=1, max_size=3), st.sampled_from(["NN", "N|N", "=", "é"]))
corpora = st.lists(st.lists(token, min_size=1, max_size=6), min_size=1, max_size=5)


@examples(40)
@given(corpora)
def test_all_at_once_is_one_by_one(rows):
    described = attributes(sentences_of(rows))
    expected = [names for sentence in rows for names in one_by_one(sentence)]
    assert [described.of(t) for t in range(len(expected))] == expected
    assert len(set(described.names)) == len(described.names)
    counts = Counter(name for names in expected for name in names)
    assert dict(zip(described.names, described.counts().tolist(), strict=True)) == counts
    assert (described.rows.dtype, described.codes.dtype) == (np.int64, np.int32)


@examples(40)
@given(corpora, corpora, st.integers(1, 3))
def test_a_vocabulary_keeps_what_is_frequent_and_drops_what_is_unknown(rows, others, least):
    sentences = sentences_of(rows)
    counts = Counter(name for sentence in rows for names in one_by_one(sentence) for name in names)
    wanted = {name for name, count in counts.items() if count >= least}
    if not wanted:
        with pytest.raises(ValueError, match=f"min_count={least}"):
            Vocabulary.of(sentences, least)
        return
    vocabulary = Vocabulary.of(sentences, least)
    assert set(vocabulary.attributes) == wanted
    assert len(vocabulary) == len(wanted)
    rows_of, columns = vocabulary.columns(attributes(sentences_of(others, tags=False)))
    result = [[vocabulary.attributes[c] for c in columns[a:b]] for a, b in itertools.pairwise(rows_of)]
    assert result == [[n for n in names if n in wanted] for sentence in others for names in one_by_one(sentence)]
    assert (rows_of.dtype, columns.dtype) == (np.int64, np.int32)


def test_tags_of_a_vocabulary(tmp_path):
    sentences = read_columns(write(tmp_path))
    assert Vocabulary.of(sentences).tags == ("O", "B-ADVP", "B-NP", "I-NP", "B-VP")
    assert Vocabulary.of(sentences, tags=["I-NP", "O"]).tags == ("I-NP", "O")
    assert sorted_tags(["I-A", "B-A", "B-A-B", "O"]) == ("O", "B-A", "I-A", "B-A-B")
    vocabulary = Vocabulary.of(sentences)
    assert (vocabulary.state("B-NP"), vocabulary.state("B-PP"), vocabulary.num_states) == (2, None, 5)
    untagged = read_columns(write(tmp_path, "a A\n"), tags_optional=True)
    with pytest.raises(ValueError, match=r"some.txt has no tag column"):
        Vocabulary.of(untagged)


def test_saved_and_loaded(tmp_path):
    vocabulary = Vocabulary.of(sentences_of([[('a"\\', "é"), ("\u2028", "B")]]), 1)
    path = tmp_path / "vocabulary.json"
    vocabulary.save(path)
    again = Vocabulary.load(path)
    assert again == vocabulary
    assert (again.attributes, again.tags, again.min_count) == (vocabulary.attributes, vocabulary.tags, 1)
    assert again != Vocabulary(vocabulary.attributes, vocabulary.tags, 2)
    assert json.loads(path.read_text(encoding="utf-8"))["attributes"] == list(vocabulary.attributes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: "not JSON",
        lambda content: "[]",
        lambda content: json.dumps({**content, "format": "another"}),
        lambda content: json.dumps({**content, "attributes": ["a", "a"]}),
        lambda content: "\udcff",
    ],
)
def test_damaged_vocabularies_are_refused(damage, tmp_path):
    path = tmp_path / "vocabulary.json"
    Vocabulary(["a", "b"], ["O"]).save(path)
    content = damage(json.loads(path.read_text(encoding="utf-8")))
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"vocabulary.json"):
        Vocabulary.load(path)


def test_the_training_set():
    conll2000_or_skip()
    sentences = read_columns(locate("train"))
    result = attributes(sentences)
    assert len(result.names) == 335_674
    assert int((result.counts() >= 3).sum()) == 75_289
    for i in (0, 1, 4000, 8935):
        a, b = sentences.offsets[i : i + 2]
        rows = list(zip(sentences.words[a:b], sentences.pos[a:b], strict=True))
        assert [result.of(t) for t in range(a, b)] == one_by_one(rows)
