"""Scores of label sets: known values, plain counting, and scikit-learn's."""

import numpy as np
import pytest
import torch
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.datasets import MultilabelScores, multilabel_scores

LABELS = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10_000))


def draw(sizes) -> tuple[np.ndarray, np.ndarray]:
    n, k, seed = sizes
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, (n, k)), rng.integers(0, 2, (n, k)) * (rng.random(k) < 0.7)


def test_known_values():
    true = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 1]])
    result = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1]])
    scores = multilabel_scores(true, result)
    assert scores.correct.tolist() == [2, 0, 1]
    assert scores.hamming_loss == 2 / 12
    assert scores.accuracy == 1 - 2 / 12
    assert scores.label_accuracy.tolist() == [1.0, 0.75, 0.75]
    assert scores.exact_match == 0.5
    assert (scores.precision, scores.recall) == (1.0, 3 / 5)
    assert scores.micro_f1 == 2 * 3 / (3 + 5)
    assert scores.label_f1.tolist() == [1.0, 0.0, 2 / 3]
    assert scores.macro_f1 == pytest.approx(5 / 9)


@examples(30)
@given(LABELS)
def test_scikit_learn_agrees(sizes):
    metrics = pytest.importorskip("sklearn.metrics")
    true, result = draw((sizes[0], sizes[1] + 1, sizes[2]))  # a single column is no set of labels to scikit-learn
    scores = multilabel_scores(torch.tensor(true), torch.tensor(result).bool())
    micro, macro = ({"average": average, "zero_division": 0} for average in ("micro", "macro"))
    assert scores.hamming_loss == pytest.approx(metrics.hamming_loss(true, result))
    assert scores.exact_match == pytest.approx(metrics.accuracy_score(true, result))
    assert scores.micro_f1 == pytest.approx(metrics.f1_score(true, result, **micro))
    assert scores.macro_f1 == pytest.approx(metrics.f1_score(true, result, **macro))
    assert scores.precision == pytest.approx(metrics.precision_score(true, result, **micro))
    assert scores.recall == pytest.approx(metrics.recall_score(true, result, **micro))


@examples(30)
@given(LABELS)
def test_batches_add_up(sizes):
    true, result = (torch.tensor(labels) for labels in draw((sizes[0] + 1, *sizes[1:])))
    parts = multilabel_scores(true[:1], result[:1]) + multilabel_scores(true[1:], result[1:])
    assert isinstance(parts, MultilabelScores)
    assert str(parts) == str(multilabel_scores(true, result))
    assert parts.examples == len(true)


Y = torch.zeros(2, 3)


@pytest.mark.parametrize("pair", [(Y, Y[:, :2]), (Y[:0], Y[:0]), (Y[0], Y[0]), (Y, Y + 0.5), ([[1, 0]], [[1, 0]])])
def test_arguments_are_checked(pair):
    with pytest.raises((TypeError, ValueError), match=r"true|predicted"):
        multilabel_scores(*pair)
