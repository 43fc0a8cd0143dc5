"""Named entities: attributes of spelling against the templates one token at a time, vocabularies, and the model."""

import itertools

import pytest
import torch
from cases.chunking_problems import sentences_of, write
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import CompiledBCFW, DualState, in_order
from torchssvm.datasets import ChunkingDataset, Columns, NamedEntities, Vocabulary, read_columns
from torchssvm.datasets.text.entity_features import TEMPLATES, entity_attributes, shape, short
from torchssvm.models import entity_chain

TEXT = """\
Anna B-PER
Berg I-PER
saw O
New B-LOC
York I-LOC

Anna B-PER
left O
"""


def read(tmp_path, text=TEXT, name="some.txt"):
    return read_columns(write(tmp_path, text, name=name), Columns())


def value(word, pos, field):
    """A field of a token, straight from its definition."""
    if field.startswith(("begin", "end")):
        size = int(field[-1])
        part = word.lower()[:size] if field.startswith("begin") else word.lower()[-size:]
        return part if len(part) == size else ""
    forms = {"w": word, "lower": word.lower(), "shape": shape(word)[:10], "short": short(shape(word))}
    return forms.get(field, "" if pos == "_" else pos)


token = st.tuples(st.text("aB1-|é", min_size=1, max_size=7), st.sampled_from(["NN", "_"]))


@examples(30)
@given(st.lists(st.lists(token, min_size=1, max_size=5), min_size=1, max_size=3))
def test_attributes_are_the_templates_one_by_one(rows):
    sentences, place = entity_attributes(sentences_of(rows)), 0
    for sentence in rows:
        for t in range(len(sentence)):
            expected = []
            for template in TEMPLATES:
                inside = all(0 <= t + d < len(sentence) for _, d in template)
                values = [value(*sentence[t + d], field) for field, d in template] if inside else [""]
                if all(values):
                    expected.append("|".join(f"{f}[{d}]" for f, d in template) + "=" + "|".join(values))
            expected += ["__BOS__"] * (t == 0) + ["__EOS__"] * (t == len(sentence) - 1)
            assert sentences.of(place) == expected
            place += 1


def test_shapes():
    assert (shape("McDonald's"), short(shape("McDonald's"))) == ("XxXxxxxx'x", "XxXx'x")
    assert short(shape("F-16")) == "X-d"


def test_a_training_set_and_another_file(tmp_path):
    train = NamedEntities.from_file(write(tmp_path, TEXT))
    assert train.vocabulary.tags == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert train.tags(0) == ["B-PER", "I-PER", "O", "B-LOC", "I-LOC"]
    other = write(tmp_path, "Kim I-PER\nleft O\n", name="other.txt")
    test = NamedEntities.from_file(other, train.vocabulary)
    assert test.tags(0) == ["B-PER", "O"]  # IOB1
    assert test.in_features == train.in_features
    assert not any("kim" in name for names in test.features(0) for name in names)  # unknown ones are left out
    assert "lower[0]=left" in test.features(0)[1]
    raw = NamedEntities.from_file(write(tmp_path, "Kim\n", name="raw"), train.vocabulary, columns=Columns(tag=None))
    assert raw[0].y.tolist() == [-1]
    with pytest.raises(ValueError, match="raw"):
        NamedEntities(raw.sentences)
    new = write(tmp_path, "Oslo B-CITY\n", name="new.txt")
    with pytest.raises(ValueError, match=r"new.txt, line 1"):
        NamedEntities.from_file(new, train.vocabulary)
    assert NamedEntities.from_file(new, train.vocabulary, stand_in="O")[0].y.tolist() == [0]
    first, last = train.hold_out(0.5)
    assert (type(first), len(first), len(last), first.vocabulary.templates) == (NamedEntities, 1, 1, "entities")


def test_vocabularies_of_other_templates_are_refused(tmp_path):
    sentences = read(tmp_path)
    chunking, entities = Vocabulary.of(sentences), NamedEntities(sentences).vocabulary
    for make, vocabulary in ((NamedEntities, chunking), (ChunkingDataset, entities)):
        with pytest.raises(ValueError, match="attributes"):
            make(sentences, vocabulary)
    entities.save(tmp_path / "words.json")
    assert Vocabulary.load(tmp_path / "words.json") == entities
    foreign = Vocabulary(["lower[0]=anna"], entities.tags)  # of nobody's templates
    assert NamedEntities(sentences, foreign).in_features == 1


def test_the_model(tmp_path):
    train = NamedEntities(read(tmp_path))
    head = entity_chain(train.vocabulary, 1.5)
    assert head.structure.class_weight.tolist() == [1.0, 1.5, 1.5, 1.5, 1.5]
    assert not head.structure.normalize
    assert torch.equal(head.structure.transitions.pairs, train.transitions.pairs)
    assert entity_chain(train.vocabulary).structure.class_weight is None
    with pytest.raises(ValueError, match="entity_weight="):
        entity_chain(train.vocabulary, -1.0)
    dual = DualState.for_head(head, len(train), lam=0.01)
    loop = CompiledBCFW(head, dual, in_order(train))
    assert loop.solve(tolerance=0.01).gap <= 0.01
    batch = train.__getitems__([0, 1])
    labels = train.tags_of(head.structure.decode(head(batch.x, batch.lengths)), batch.lengths)
    assert labels == [train.tags(0), train.tags(1)]
    for a, b in itertools.pairwise(labels[0]):
        assert b[0] != "I" or a[2:] == b[2:]
