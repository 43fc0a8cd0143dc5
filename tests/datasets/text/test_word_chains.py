"""Sentences to be read from corrupted spellings: the channel, the attributes, and CoNLL-2000 where it is there."""

import itertools

import numpy as np
import pytest
import torch
from cases.chunking_problems import conll2000_or_skip
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.datasets import WordChains
from torchssvm.datasets.text.spelling import Spellings
from torchssvm.datasets.text.word_chains import OTHER

WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), min_size=1, max_size=6)
TEXT = ["the cat saw the dog", "A dog saw the bird", "the bird", "the cat saw a bird ."]
SENTENCES = [sentence.split() for sentence in TEXT]


@examples(40)
@given(WORDS, st.integers(0, 1000), st.floats(0, 0.99), st.integers(0, 6))
def test_the_channel(words, seed, noise, first):
    spellings = Spellings.of(words)
    assert spellings.words() == words
    assert spellings.corrupted(0.0, np.random.default_rng(seed)).words() == words
    seen = spellings.corrupted(noise, np.random.default_rng(seed)).words()
    assert spellings.words() == words  # untouched
    assert all(1 <= len(a) <= len(b) for a, b in zip(seen, words, strict=True))
    for a, b in zip(seen, words, strict=True):
        assert set(a) <= set(b) | set("abcdefghijklmnopqrstuvwxyz")
    part = Spellings.of(words[:first]).corrupted(noise, np.random.default_rng(seed)).words()
    assert part == seen[:first]


def seen_of(word: str) -> set[str]:
    ends = ["^", *word, "$"]
    pairs = {f"pair={a}{b}" for a, b in itertools.pairwise(ends)}
    return pairs | {f"begin={word[:3]}", f"end={word[-3:]}", f"length={min(len(word), 12)}"}


@examples(60)
@given(WORDS)
def test_attributes_are_those_of_the_spelling(words):
    words = [*words, "$^$", "a" * 20]
    names = Spellings.of(words).attributes()
    assert len(set(names.names)) == len(names.names)
    for i, word in enumerate(words):
        mine = names.of(i)
        assert len(mine) == len(set(mine))
        assert set(mine) == seen_of(word)


def test_sentences_of_ones_own():
    chains = WordChains.from_sentences(SENTENCES, num_states=4, min_count=1, noise=0.0)
    assert chains.vocabulary.tags == (OTHER, "the", "bird", "saw")
    assert chains.words(1) == chains.observed(1) == ["a", "dog", "saw", "the", "bird"]
    assert chains.words_of(chains[1].y) == [OTHER, OTHER, "saw", "the", "bird"]
    assert set(chains.features(2)[1]) == seen_of("bird")
    batch = chains.__getitems__([2, 0])
    assert batch.y.tolist() == [[1, 2, -1, -1, -1], [1, 0, 3, 1, 0]]
    assert batch.x.values is None
    names = chains.vocabulary.attributes
    assert {names[c] for c in batch.x.columns[0, 1].tolist() if c >= 0} == seen_of("bird")
    assert chains.words_of(batch.y[0]) == ["the", "bird"]
    with pytest.raises(ValueError, match="states"):
        chains.words_of([4])


def test_noise_is_repeated_by_its_seed():
    sentences = SENTENCES * 5
    a, b, c = (WordChains.from_sentences(sentences, num_states=3, noise=0.5, seed=s) for s in (1, 1, 2))
    assert a.spellings == b.spellings
    assert a.spellings != c.spellings
    assert torch.equal(a.columns, b.columns)
    test = WordChains.from_sentences(SENTENCES, vocabulary=a.vocabulary, noise=0.5, seed=3)
    assert (test.num_states, test.in_features, test.vocabulary) == (3, a.in_features, a.vocabulary)
    attributes = set(a.vocabulary.attributes)
    for spelt, mine in zip(test.observed(0), test.features(0), strict=True):
        assert set(mine) == seen_of(spelt) & attributes


@pytest.mark.parametrize(
    "wrong",
    [
        *({"noise": 1.0}, {"seed": -1}, {"num_states": 1}, {"num_states": 9}, {"min_count": 0}, {"min_count": 99}),
        *({"sentences": sentences} for sentences in ([], [["a"], []], [["a", ""]])),
    ],
)
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WordChains.from_sentences(**{"sentences": SENTENCES, "num_states": 3, **wrong})


@pytest.mark.slow
def test_the_words_of_conll2000():
    conll2000_or_skip()
    train = WordChains(num_states=200, seed=1)
    assert (len(train), len(train.states)) == (8936, 211_727)
    assert train.vocabulary.tags[:5] == (OTHER, ",", "the", ".", "of")
    assert train.words(0)[:4] == ["confidence", "in", "the", "pound"]
    assert int((train.states == 2).sum()) == train._words.count("the")
    few = WordChains(num_states=200, seed=1, num_chains=3, vocabulary=train.vocabulary)
    assert len(few) == 3
    assert few.observed(2) == train.observed(2)
    test = WordChains("test", vocabulary=train.vocabulary, seed=1, num_chains=5)
    assert test.in_features == train.in_features
    assert test.num_states == 200
    assert WordChains("test", num_states=200, seed=1, num_chains=5).vocabulary == train.vocabulary
