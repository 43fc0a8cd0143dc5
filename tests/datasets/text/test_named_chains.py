"""Features by name become columns, and labels become states; the test set takes those of the training set."""

import pytest
import torch
from torch.utils.data import DataLoader

from torchssvm import SparseLinearChain, choose_lam, evaluate, in_order, solve
from torchssvm.datasets import NamedChains, PaddedDataset, hold_out
from torchssvm.deployment import batch_of_names

X = [[{"word": "the", "length": 3}, {"word": "cat"}], [["word=the"]]]
Y = [["DET", "NOUN"], ["DET"]]


def test_a_dataset_of_names_has_the_batches_of_batch_of_names():
    train = NamedChains(X, Y)
    assert train.vocabulary == {"length": 0, "word=cat": 1, "word=the": 2}
    assert (train.in_features, train.labels, train.num_states) == (3, ["DET", "NOUN"], 2)
    batch = train.__getitems__([0, 1])
    (columns, values), lengths = batch_of_names(X, train.vocabulary)
    assert torch.equal(batch.x.columns, columns)
    assert torch.equal(batch.x.values, values)
    assert torch.equal(batch.lengths, lengths)
    assert batch.y.tolist() == [[0, 1], [0, -1]]
    assert NamedChains(X, Y, min_count=2).vocabulary == {"word=the": 0}
    test = NamedChains([[["word=cat", "new"]]], [["NOUN"]], vocabulary=train.vocabulary, labels=train.labels)
    assert (test[0].x.columns.tolist(), test[0].y.tolist(), test.in_features) == ([[1]], [1], 3)


def test_dictionaries_lists_and_sets_of_names_are_read_as_crfsuite_reads_them():
    token = {"grams": ["ca", "at"], "tags": {"q", "p"}, "shape": {"long": False, "kind": "x", "case": ["Up"]}}
    names = ["grams:at", "grams:ca", "shape:case:Up", "shape:kind=x", "tags:p", "tags:q"]
    train = NamedChains([[token], [{"w": "a"}]], [["N"], ["V"]])
    assert list(train.vocabulary) == [*names, "w=a"]
    assert train[0].x.columns.tolist() == [[1, 0, 4, 5, 3, 2]]  # sets by their alphabet
    assert train[0].x.values is None or train[0].x.values.eq(1.0).all()
    with pytest.raises(ValueError, match="token 0 of sequence 0 has the feature 'grams'"):
        NamedChains([[{"grams": [1]}]], [["N"]])


@pytest.mark.parametrize(
    ("x", "y", "options", "argument"),
    [
        (X, Y[:1], {}, "x"),
        (X, [["DET"], ["DET"]], {}, r"x\[0\]"),
        ([[]], [[]], {}, r"x\[0\]"),
        (X, ["DN", "D"], {}, r"y\[0\]"),
        (X, [[0, 1], [0]], {}, "label"),
        (X, Y, {"labels": ["DET"]}, "y"),
        (X, Y, {"labels": ["DET", "NOUN", "DET"]}, "labels"),
        (X, Y, {"vocabulary": {"first": -1}}, "vocabulary"),
        (X, Y, {"min_count": 3}, "min_count"),
        ([[1.5, 2.5]], [["A", "B"]], {}, "token 0 of sequence 0"),
    ],
)
def test_what_does_not_fit_is_refused(x, y, options, argument):
    with pytest.raises((TypeError, ValueError), match=argument):
        NamedChains(x, y, **options)


@pytest.mark.parametrize(("labels", "name"), [(None, "in_features"), (["NOUN"], "num_states")])
def test_a_test_set_of_other_names_is_refused_wherever_it_enters(labels, name):
    train = NamedChains(X, Y)
    vocabulary = None if labels is None else train.vocabulary
    test = NamedChains([[["word=cat", "new"]]], [["NOUN"]], vocabulary=vocabulary, labels=labels)
    head = SparseLinearChain(train.in_features, train.num_states)
    calls = [
        lambda: solve(head, test, 0.1, progress=False),
        lambda: choose_lam(head, train, test, [0.1], progress=False),
        lambda: evaluate(head, head.structure, in_order(test)),
        lambda: evaluate(head, head.structure, DataLoader(test, collate_fn=test.collate)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"{name}="):
            call()
    turned = NamedChains(X, Y, vocabulary={"length": 2, "word=cat": 1, "word=the": 0}, labels=train.labels)
    with pytest.raises(ValueError, match="held_out"):
        choose_lam(head, train, turned, [0.1], progress=False)
    solve(head, train, 0.1, progress=False)
    assert evaluate(head, head.structure, train).num_tokens == 3


def test_a_part_has_the_names_of_its_dataset():
    data = NamedChains(X, Y)
    for part in hold_out(data, 0.5):
        assert (part.in_features, part.num_states) == (3, 2)
        assert (part.vocabulary, part.labels) == (data.vocabulary, data.labels)
    plain = PaddedDataset(torch.zeros(2, 2, 1), torch.zeros(2, 2, dtype=torch.int64))
    plain.labels, plain.in_features = [0, 1], 1
    assert not hasattr(hold_out(plain, 0.5)[0], "labels")
    assert hold_out(plain, 0.5)[0].in_features == 1
    assert not hasattr(hold_out(plain, 0.5, collate_fn=plain.collate)[0], "in_features")
