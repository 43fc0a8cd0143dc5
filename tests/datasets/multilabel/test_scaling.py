"""Scaling of features: what is chosen, what is fitted to the training rows alone, and what is refused."""

import numpy as np
import pytest
import torch
from cases.multilabel_files import DENSE, SPARSE, XML, write
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm.datasets import ByDensity, Multilabel, SparseRows, Standardised, UnitRows, Unscaled


def rows_of(matrix: np.ndarray) -> SparseRows:
    return SparseRows.of_dense(torch.tensor(matrix, dtype=torch.float32))


@examples(30)
@given(st.integers(0, 10_000))
def test_standardised_features_have_mean_0_and_rows_of_mean_square_1(seed):
    rng = np.random.default_rng(seed)
    train, test = (rng.normal(size=(9, 4)) * [1, 10, 0, 0.1] + [5, -2, 3.3, 0] for _ in range(2))
    scaling = Standardised().fit(rows_of(train))
    result = scaling.apply(rows_of(train)).dense().double().numpy()
    assert np.allclose(result.mean(0), 0, atol=1e-6)
    assert np.allclose(result.var(0), [1 / 3, 1 / 3, 0, 1 / 3], atol=1e-5)  # the third does not vary
    assert np.square(result).sum(1).mean() == pytest.approx(1, abs=1e-5)

    deviation = train.astype(np.float32).astype(float).std(0)
    wanted = (test - train.mean(0)) / np.where(deviation > 1e-6, deviation * 3**0.5, np.inf)
    assert np.allclose(scaling.apply(rows_of(test)).dense().numpy(), wanted, atol=1e-4)
    assert scaling.fit(rows_of(test)) is scaling  # fitted once


@pytest.mark.parametrize(("share", "kind"), [(0.9, Standardised), (0.1, UnitRows)])
def test_the_data_choose(share, kind):
    matrix = np.zeros((10, 10))
    matrix.flat[: round(share * 100)] = np.arange(1, round(share * 100) + 1)
    chosen = ByDensity().fit(rows_of(matrix))
    assert type(chosen) is kind
    assert chosen.fitted
    assert type(ByDensity(dense_above=0.95).fit(rows_of(matrix))) is UnitRows


def test_rows_are_taken_and_read_from_a_matrix():
    matrix = np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3.0]])
    rows = rows_of(matrix)
    assert (rows.indptr.tolist(), rows.indices.tolist(), rows.values.tolist()) == ([0, 1, 1, 3], [1, 0, 2], [2, 1, 3])
    assert np.array_equal(rows.take(torch.tensor([2, 1, 2, 0])).dense().numpy(), matrix[[2, 1, 2, 0]])


def test_the_test_set_has_the_scaling_of_the_training_set(tmp_path):
    xml = write(tmp_path / "a.xml", XML)
    raw, other = (
        Multilabel.from_mulan(write(tmp_path / f"{i}.arff", text), xml) for i, text in enumerate((DENSE, SPARSE))
    )
    train = raw.scaled(Standardised())
    again = Multilabel.from_mulan(tmp_path / "0.arff", xml, scaling=Standardised(), bias=True)
    assert torch.equal(again.features.dense()[:, :-1], train.features.dense())
    test = other.scaled(train.scaling)
    assert test.scaling is train.scaling
    assert torch.equal(test.features.dense(), train.scaling.apply(other.features).dense())
    assert torch.equal(raw.features.dense(), Multilabel.from_mulan(tmp_path / "0.arff", xml).features.dense())
    for bad in (train, again):
        with pytest.raises(ValueError, match="scaled or have a bias already"):
            bad.scaled(UnitRows())


def test_the_two_parts_of_a_split_are_all_examples(tmp_path):
    whole = Multilabel.from_mulan(write(tmp_path / "a.arff", DENSE), write(tmp_path / "a.xml", XML))
    first, second = whole.split(1 / 3, seed=1)
    assert (len(first), len(second)) == (2, 1)
    rows = torch.cat([first.features.dense(), second.features.dense()])
    assert sorted(rows.tolist()) == sorted(whole.features.dense().tolist())
    assert torch.equal(whole.split(1 / 3, seed=1)[1].features.dense(), second.features.dense())
    assert sum(int(part.labels.values.sum()) for part in (first, second)) == 3
    for share in (0.1, 0.99):
        with pytest.raises(ValueError, match=f"share={share}"):
            whole.split(share, seed=0)


def test_refusals(tmp_path):
    files, rows = (write(tmp_path / "a.arff", DENSE), write(tmp_path / "a.xml", XML)), rows_of(np.eye(3))
    (tmp_path / "multilabel" / "scene").mkdir(parents=True)
    for name, text in (("scene-test.arff", DENSE), ("scene.xml", XML)):
        write(tmp_path / "multilabel" / "scene" / name, text)
    for call, error, argument in (
        (lambda: Multilabel.from_mulan(*files, scaling="unit"), TypeError, "scaling"),
        (lambda: ByDensity(dense_above=1.5), ValueError, "dense_above"),
        (lambda: Standardised().apply(rows), ValueError, "scaling"),
        (lambda: Standardised().fit(rows).apply(rows_of(np.eye(2))), ValueError, "features"),
        (lambda: Multilabel("scene", "test", scaling=ByDensity(), root=tmp_path), ValueError, "test"),
    ):
        with pytest.raises(error, match=argument):
            call()
    assert Unscaled().fit(rows).apply(rows) is rows
