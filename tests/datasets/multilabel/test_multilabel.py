"""Multilabel datasets: items, batches, the arrays of compiled loops, and Mulan's data where they are there."""

import pickle

import numpy as np
import pytest
import torch
from cases.multilabel_files import DENSE, SPARSE, XML, multilabel_or_skip, write
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

from torchssvm import SparseFeatures
from torchssvm.datasets import Multilabel, SparseRows, UnitRows, Unscaled


def random_rows(seed: int, n: int = 5, columns: int = 4) -> tuple[SparseRows, np.ndarray]:
    """Rows, some of them empty, and the same as a dense matrix."""
    rng = np.random.default_rng(seed)
    dense = (rng.integers(-2, 3, size=(n, columns)) * (rng.random((n, columns)) < rng.random())).astype(np.float32)
    row, column = np.nonzero(dense)
    order = rng.permutation(len(row))
    order = order[np.argsort(row[order], kind="stable")]  # the columns of a row in any order
    rows = SparseRows.of(np.bincount(row, minlength=n), column[order], dense[row[order], column[order]], columns)
    return rows, dense


@examples(50)
@given(st.integers(0, 10_000), st.permutations(range(4)), st.integers(0, 4))
def test_rows_are_the_matrix(seed, order, number):
    rows, dense = random_rows(seed)
    assert np.array_equal(rows.dense().numpy(), dense)
    assert np.array_equal(rows.dense(torch.tensor([3, 0, 3])).numpy(), dense[[3, 0, 3]])
    assert (rows.indptr.dtype, rows.indices.dtype, rows.values.dtype) == (torch.int64, torch.int32, torch.float32)
    for a, b in zip(rows.indptr.tolist(), rows.indptr.tolist()[1:], strict=False):
        assert rows.indices[a:b].tolist() == sorted(set(rows.indices[a:b].tolist()))
    assert rows.counts().tolist() == (dense != 0).sum(0).tolist()
    assert rows.row.tolist() == np.nonzero(dense)[0].tolist()

    chosen = rows.columns(order[:number])
    assert np.array_equal(chosen.dense().numpy(), dense[:, order[:number]])
    assert len(chosen) == len(rows)

    ones = rows.with_ones()
    assert np.array_equal(ones.dense().numpy(), np.hstack([dense, np.ones((5, 1), np.float32)]))
    assert ones.indices[ones.indptr[1:] - 1].tolist() == [4] * 5  # rising within a row

    norms = np.linalg.norm(dense.astype(float), axis=1, keepdims=True)
    wanted = dense / np.where(norms > 0, norms, 1.0)
    assert np.allclose(rows.unit_rows().dense().numpy(), wanted, atol=1e-7)


def test_numbers_too_small_for_float32_are_zero():
    rows = SparseRows.of([2, 1], [0, 1, 0], [1e-60, 2.0, -1e-60], 2)
    assert rows.dense().tolist() == [[0, 2], [0, 0]]
    assert rows.indices.tolist() == [1]
    assert rows.unit_rows().dense().tolist() == [[0, 1], [0, 0]]


def songs(folder, text=SPARSE, **arguments) -> Multilabel:
    return Multilabel.from_mulan(write(folder / "songs.arff", text), write(folder / "songs.xml", XML), **arguments)


def test_items_and_batches(tmp_path):
    dataset = songs(tmp_path)
    assert (len(dataset), dataset.in_features, dataset.num_labels) == (3, 3, 3)
    assert dataset.label_counts.tolist() == [1, 1, 1]
    assert dataset.labels_per_example.tolist() == [1, 0, 2]
    assert [dataset.names(i) for i in range(3)] == [["sad"], [], ["loud", "very loud"]]
    x, y, index = dataset[-1]
    assert (x.columns.tolist(), x.values.tolist(), y.tolist(), index) == ([1, 2], [-20, 1], [0, 1, 1], 2)
    assert (x.columns.dtype, x.values.dtype, y.dtype) == (torch.int64, torch.float32, torch.int64)
    batch = dataset.__getitems__([2, 1])
    assert batch.x.columns.tolist() == [[1, 2], [-1, -1]]
    assert batch.x.values.tolist() == [[-20, 1], [0, 0]]
    assert batch.y.tolist() == [[0, 1, 1], [0, 0, 0]]
    assert batch.index.tolist() == [2, 1]
    assert batch.lengths is None
    assert batch.x.dense(3).tolist() == dataset.features.dense()[[2, 1]].tolist()


@pytest.mark.parametrize("dense", [False, True])
def test_loaders(dense, tmp_path):
    dataset = songs(tmp_path, dense=dense)
    features = dataset.features.dense()
    for loaded in (dataset, Subset(dataset, [0, 1, 2])):  # of __getitems__, and of items
        (batch,) = DataLoader(loaded, batch_size=3, collate_fn=dataset.collate)
        x = batch.x if dense else batch.x.dense(3)
        assert isinstance(batch.x, torch.Tensor if dense else SparseFeatures)
        assert torch.equal(x, features)
        assert torch.equal(batch.y, dataset.labels.dense().long())
        assert batch.index.tolist() == [0, 1, 2]
    assert torch.equal(dataset[0].x if dense else dataset[0].x.dense(3), features[0])
    assert dataset.collate(batch) is batch
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy.features.dense(), features)


def test_unit_rows_and_bias(tmp_path):
    dataset = songs(tmp_path, DENSE, scaling=UnitRows(), bias=True)
    assert dataset.feature_names[-1] == "bias"
    assert dataset.in_features == 4
    norm = 401**0.5
    wanted = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 1], [0, -20 / norm, 1 / norm, 1]])
    assert torch.allclose(dataset.features.dense(), wanted)
    assert dataset.indptr.tolist() == [0, 2, 3, 6]
    assert dataset.indices.tolist() == [0, 3, 3, 1, 2, 3]
    assert torch.allclose(dataset.values, torch.tensor([1, 1, 1, -20 / norm, 1 / norm, 1]))


def test_libsvm_files(tmp_path):
    path = write(tmp_path / "a.txt", "1,0 1:3 2:4\n 2:1\n")
    dataset = Multilabel.from_libsvm(path, 2, 3, scaling=UnitRows())
    assert torch.allclose(dataset.features.dense(), torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    assert dataset.labels.dense().tolist() == [[1, 1, 0], [0, 0, 0]]
    assert dataset.names(0) == ["0", "1"]
    other = Multilabel.from_libsvm(path, 3, 3, first_feature=0, first_label=0)
    assert other.features.dense().tolist() == [[0, 3, 4], [0, 0, 1]]


@pytest.mark.parametrize(
    "name,train,test,features,labels,cardinality",
    [  # as https://mulan.sourceforge.net/datasets-mlc.html has them
        ("bibtex", 4880, 2515, 1836, 159, 2.402),
        ("medical", 333, 645, 1449, 45, 1.245),
        ("scene", 1211, 1196, 294, 6, 1.074),
    ],
)
def test_sizes_are_the_published_ones(name, train, test, features, labels, cardinality):
    multilabel_or_skip(name)
    a, b = Multilabel(name, "train"), Multilabel(name, "test")
    assert (len(a), len(b)) == (train, test)
    for dataset in (a, b):
        assert (dataset.in_features, dataset.num_labels) == (features, labels)
        assert set(dataset.labels.values.tolist()) == {1.0}
    assert a.label_names == b.label_names
    assert a.feature_names == b.feature_names
    total = int(a.labels_per_example.sum() + b.labels_per_example.sum())
    assert round(total / (train + test), 3) == cardinality
    assert torch.equal(a.label_counts, a.labels.dense().sum(0).long())


def test_the_first_examples_of_bibtex():
    multilabel_or_skip("bibtex")
    dataset = Multilabel("bibtex", scaling=UnitRows(), bias=True)
    assert dataset.indices[:5].tolist() == [0, 5, 6, 20, 33]
    assert dataset.in_features == 1837
    assert torch.allclose(dataset.features.dense().square().sum(1), torch.full((4880,), 2.0))
    assert dataset.label_names[:2] == ("TAG_2005", "TAG_2006")
    assert "TAG_immunoassay" in dataset.names(0)


def test_the_data_module(tmp_path):
    pytest.importorskip("lightning")
    from torchssvm import DualState, LinearMulticlass
    from torchssvm.datasets import MultilabelData

    folder = tmp_path / "multilabel" / "scene"
    folder.mkdir(parents=True)
    data = MultilabelData("scene", batch_size=2, root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"scene-train.arff"):
        data.prepare_data()
    for wrong, argument in ((("yeast",), "name"), (("scene", "dev"), "split")):
        with pytest.raises(ValueError, match=argument):
            Multilabel(*wrong)
    write(folder / "scene-train.arff", SPARSE)
    write(folder / "scene-test.arff", DENSE)
    write(folder / "scene.xml", XML)
    data.prepare_data()
    data.setup("fit")
    assert data.train.feature_names[-1] == "bias"
    assert data.setup("test") is None
    loader = data.train_dataloader()
    loader.batch_sampler.bind(DualState.for_head(LinearMulticlass(2, 2), num_examples=3, lam=1.0))
    assert sorted(i for batch in loader for i in batch.index.tolist()) == [0, 1, 2]
    (batch,) = data.val_dataloader()
    assert torch.equal(batch.x.dense(4), data.test.features.dense())
    dense = MultilabelData("scene", scaling=Unscaled(), bias=False, dense=True, root=tmp_path)
    (batch,) = dense.test_dataloader()
    assert batch.x.tolist() == [[0.5, 0, 0], [0, 0, 0], [0, -20, 1]]
