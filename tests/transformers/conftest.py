"""What the tests of taggers share; imported where a test asks for it, as transformers may be missing."""

import copy

import pytest


@pytest.fixture(scope="module")
def tokenizer():
    from cases.taggers import make_tokenizer

    return make_tokenizer()


@pytest.fixture(scope="module")
def classifier():
    from cases.taggers import make_classifier

    return make_classifier()


@pytest.fixture
def tagger(classifier):
    from torchssvm.transformers import StructuredTagger

    return StructuredTagger.from_classifier(copy.deepcopy(classifier))


@pytest.fixture(scope="module")
def items(tokenizer):
    from cases.taggers import make_items

    return make_items(tokenizer)
