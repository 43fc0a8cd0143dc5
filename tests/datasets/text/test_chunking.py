"""Sentences as sparse chains: any column file, and CoNLL-2000 where its files are there."""

import re

import numpy as np
import pytest
import torch
from cases.chunking_problems import conll2000_or_skip, write
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import Batch, DualState, LinearChain
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.datasets import ChunkingDataset, CoNLL2000, Vocabulary, chunk_scores, read_columns
from torchssvm.datasets.text.chunking_features import attributes
from torchssvm.datasets.text.columns import TaggedSentences

TAGS = ["O", "B-NP", "I-NP", "B-VP"]


@pytest.fixture
def small(tmp_path) -> ChunkingDataset:
    sentences = read_columns(write(tmp_path))
    return ChunkingDataset(sentences, Vocabulary.of(sentences))


def random_dataset(seed: int, known: int = 1) -> ChunkingDataset:
    """Sentences of 1 to 7 tokens over few words; the vocabulary is that of the first ``known`` of them."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 8, size=6)
    tokens = int(lengths.sum())
    sentences = TaggedSentences(
        words=generator.choice(["a", "b", "c"], tokens).tolist(),
        pos=generator.choice(["X", "Y"], tokens).tolist(),
        tags=generator.choice(TAGS, tokens).tolist(),
        offsets=np.concatenate([[0], lengths.cumsum()]),
        lines=np.arange(1, tokens + 1),
        source="a test",
    )
    return ChunkingDataset(sentences, Vocabulary.of(sentences.part(0, known), tags=TAGS))


def assert_same(a: Batch, b: Batch) -> None:
    for left, right in zip((a.x.columns, *list(a)[1:]), (b.x.columns, *list(b)[1:]), strict=True):
        assert left.dtype == right.dtype == torch.int64
        assert torch.equal(left, right)
    assert a.x.values is b.x.values is None


@examples(30)
@given(st.integers(0, 1000), st.lists(st.integers(-6, 5), min_size=1, max_size=5))
def test_a_batch_holds_the_features_of_its_tokens(seed, indices):
    dataset = random_dataset(seed)
    batch = dataset.__getitems__(indices)
    assert isinstance(batch.x, SparseFeatures)
    assert batch.index.tolist() == [i % 6 for i in indices]
    assert batch.lengths.tolist() == [len(dataset.words(i)) for i in indices]
    assert batch.y.shape == batch.x.columns.shape[:2] == (len(indices), max(batch.lengths))
    names, tags = dataset.vocabulary.attributes, dataset.vocabulary.tags
    described = attributes(dataset.sentences)
    for row, i in enumerate(indices):
        start, length = int(dataset.sentences.offsets[i % 6]), int(batch.lengths[row])
        assert [tags[k] for k in batch.y[row, :length]] == dataset.tags(i)
        assert (batch.y[row, length:] == -1).all()
        assert (batch.x.columns[row, length:] == -1).all()
        for t in range(length):
            columns = batch.x.columns[row, t].tolist()
            wanted = [name for name in described.of(start + t) if name in names]
            assert [names[c] for c in columns if c >= 0] == wanted == dataset.features(i)[t]
            assert columns[len(wanted) :] == [-1] * (len(columns) - len(wanted))
    widest = max(len(f) for i in indices for f in dataset.features(i))
    assert batch.x.columns.shape[2] == max(widest, 1)


@examples(20)
@given(st.integers(0, 1000), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_collated_examples_are_the_batch(seed, indices):
    dataset = random_dataset(seed, known=6)
    batch = dataset.__getitems__(indices)
    assert_same(dataset.collate([dataset[i] for i in indices]), batch)
    assert dataset.collate(batch) is batch
    x, y, index = dataset[indices[0]]
    assert index == indices[0]
    assert len(y) == len(x.columns) == len(dataset.words(index))


def test_words_and_tags(small):
    assert len(small) == 2
    assert small.words(1) == ["Why", "?"]
    assert small.tags(-1) == ["B-ADVP", "O"]
    batch = small.__getitems__([1, 0])
    assert small.tags_of(batch.y, batch.lengths) == [small.tags(1), small.tags(0)]


def test_untagged_text_has_no_targets(small, tmp_path):
    other = ChunkingDataset.from_file(write(tmp_path, "The DT\ndeficit NN\n", name="raw.txt"), small.vocabulary)
    assert other.__getitems__([0]).y.tolist() == [[-1, -1]]
    with pytest.raises(ValueError, match=r"raw.txt has no tags"):
        other.tags(0)


def test_an_unseen_tag_is_an_error_with_file_and_line(small, tmp_path):
    path = write(tmp_path, "The DT B-NP\n\n1 CD I-LST\n", name="other.txt")
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 3")):
        ChunkingDataset.from_file(path, small.vocabulary)
    other = ChunkingDataset.from_file(path, small.vocabulary, stand_in="O")
    assert other[1].y.tolist() == [small.vocabulary.state("O")]
    assert other.tags(1) == ["I-LST"]  # as it stands in the file
    with pytest.raises(ValueError, match="stand_in='B-X'"):
        ChunkingDataset.from_file(path, small.vocabulary, stand_in="B-X")


def test_holding_out():
    dataset = random_dataset(3, known=6)
    train, rest = dataset.hold_out(1 / 3)
    assert (len(train), len(rest)) == (4, 2)
    assert [train.words(i) for i in range(4)] + [rest.words(i) for i in range(2)] == [
        dataset.words(i) for i in range(6)
    ]
    assert train.__getitems__(range(4)).index.tolist() == [0, 1, 2, 3]
    assert rest.__getitems__(range(2)).index.tolist() == [0, 1]
    assert train.vocabulary is rest.vocabulary
    assert train.vocabulary == Vocabulary.of(dataset.sentences.part(0, 4), tags=TAGS)
    for share in (0, 1, 0.01):
        with pytest.raises(ValueError, match=f"share={share}"):
            dataset.hold_out(share)


@pytest.fixture(scope="module")
def train() -> CoNLL2000:
    conll2000_or_skip()
    return CoNLL2000("train")


@pytest.fixture(scope="module")
def tests(train) -> CoNLL2000:
    return CoNLL2000("test", vocabulary=train.vocabulary)


def test_sizes_are_the_published_ones(train, tests):
    assert (len(train), len(train.sentences.words)) == (8936, 211_727)
    assert (len(tests), len(tests.sentences.words)) == (2012, 47_377)
    assert train.in_features == tests.in_features == 75_289
    assert train.num_states == 22
    assert train.vocabulary.tags == CoNLL2000.chunk_tags == Vocabulary.of(train.sentences.part(0, 8936)).tags
    assert train.words(0)[:4] == ["Confidence", "in", "the", "pound"]


def test_tags_of_the_test_set_are_those_of_the_file(train, tests):
    true = [tests.tags(i) for i in range(len(tests))]
    assert sum(tags.count("I-LST") for tags in true) == 2
    batch = tests.__getitems__(range(len(tests)))
    scores = chunk_scores(true, tests.tags_of(batch.y, batch.lengths))
    assert scores.overall.true == 23_852  # as conlleval counts
    assert scores.wrong_tokens == 2  # where O stands for I-LST
    assert scores.by_type["LST"].correct == 3
    assert int((train.states == -1).sum()) == 0


def test_the_data_module_with_held_out_sentences(train):
    pytest.importorskip("lightning")
    from torchssvm.datasets import CoNLL2000Data

    data = CoNLL2000Data(batch_size=64, hold_out=0.1, seed=1)
    loader = data.train_dataloader()
    sampler = loader.batch_sampler
    sampler.bind(DualState.for_head(LinearChain(2, 22), num_examples=8042, lam=1e-3))
    assert sorted(i for indices in sampler for i in indices) == list(range(8042))  # the first pass
    batch = loader.collate_fn(loader.dataset.__getitems__([8041]))
    assert batch.index.tolist() == [8041]
    assert sum(len(batch.y) for batch in data.val_dataloader()) == 894
    assert sum(len(batch.y) for batch in data.test_dataloader()) == 2012
    assert data.test.vocabulary is data.train.vocabulary
    for make in (lambda: CoNLL2000Data(hold_out=1.0), lambda: CoNLL2000("dev"), lambda: CoNLL2000(min_count=0)):
        with pytest.raises(ValueError):
            make()
