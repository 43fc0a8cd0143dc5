import numpy as np
import pytest
import torch

from torchssvm.datasets import RankedLists, ranking_scores


@pytest.fixture
def folder(tmp_path):
    """A file of the same form: three queries, one of which has no relevant document, for either split."""
    random = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = random.random((9, 4), dtype=np.float32)
        arrays[f"y_{split}"] = np.array([0, 2, 1, 0, 0, 1, 0, 0, 3], np.int8)
        arrays[f"queries_{split}"] = np.array([3, 2, 4], np.int16)
    np.savez(tmp_path / "ranking.npz", **arrays)
    return tmp_path


def test_lists_are_read(folder):
    lists = RankedLists.lightgbm("test", folder)
    assert (len(lists), lists.in_features) == (2, 4)
    assert lists.y.tolist() == [[0, 2, 1, -1], [1, 0, 0, 3]]
    with np.load(folder / "ranking.npz") as arrays:
        assert torch.equal(lists[1].x, torch.from_numpy(arrays["x_test"][5:]))
    batch = lists.__getitems__([0])
    assert batch.x.shape == (1, 3, 4)
    assert batch.lengths.tolist() == [3]
    with pytest.raises(ValueError, match="split"):
        RankedLists.lightgbm("dev", folder)
    with pytest.raises(FileNotFoundError, match=r"ranking.npz"):
        RankedLists.lightgbm(root=folder / "none")
    assert len(RankedLists(torch.rand(5, 3), torch.tensor([0, 2, 1, 1, 0]), [3, 2])) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"y": torch.tensor([1, -1, 0])},
        {"y": torch.tensor([1.0, 0.0, 0.5])},
        {"y": torch.tensor([1, 1])},
        {"sizes": torch.tensor([2, 2])},
        {"sizes": torch.tensor([3, 0])},
        {"sizes": "12"},
        {"x": torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [0.0, 0.0]])},
        {"relevant": 4},
        {"relevant": -1},
    ],
)
def test_lists_that_make_no_sense_are_refused(changes):
    arguments = {"x": torch.zeros(3, 2), "y": torch.tensor([1, 0, 2]), "sizes": torch.tensor([1, 2])}
    with pytest.raises(ValueError):
        RankedLists(**{**arguments, **changes})


def test_scores_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    random = torch.Generator().manual_seed(0)
    grades = torch.randint(0, 4, (5, 7), generator=random)
    scores = torch.randn(5, 7, generator=random, dtype=torch.float64)
    places = scores.argsort(descending=True).argsort()
    result = ranking_scores(grades, places, ks=(3, 7), relevant=2)
    for k in (3, 7):
        expected = metrics.ndcg_score(2.0**grades - 1, scores, k=k)
        assert result.ndcg[k] == pytest.approx(expected)
    pairs = zip(grades >= 2, scores, strict=True)
    expected = np.mean([metrics.average_precision_score(relevant, s) for relevant, s in pairs])
    assert result.mean_average_precision == pytest.approx(expected)


def test_scores_do_not_count_the_padding():
    grades, places = torch.tensor([[0, 1, 2]]), torch.tensor([[2, 0, 1]])
    padded = torch.tensor([[0, 1, 2, -1]]), torch.tensor([[2, 0, 1, -1]])
    assert ranking_scores(*padded) == ranking_scores(grades, places)
    for wrong, argument in (
        ((padded[0], torch.tensor([[2, 0, 1, 3]])), "padded"),
        ((grades, torch.tensor([[0, 0, 1]])), "places"),
        ((grades, places[:, :2]), "places"),
        ((grades.tolist(), places), "grades"),
    ):
        with pytest.raises((TypeError, ValueError), match=argument):
            ranking_scores(*wrong)
    with pytest.raises(ValueError, match="grade 3"):
        ranking_scores(grades, places, relevant=3)


def test_queries_in_any_order_make_the_same_lists():
    x, y, qid = torch.rand(6, 2), torch.tensor([1, 0, 2, 1, 0, 1]), torch.tensor([4, 2, 4, 9, 2, 2])
    lists = RankedLists.of_queries(x, y, qid)
    order = torch.tensor([1, 4, 5, 0, 2, 3])
    given = RankedLists(x[order], y[order], torch.tensor([3, 2, 1]))
    assert [item.y.tolist() for item in lists] == [[0, 0, 1], [1, 2], [1]]
    assert all(torch.equal(a.x, b.x) for a, b in zip(lists, given, strict=True))
    for wrong in ((x, y, qid[:5]), (x, y, qid.double()), (x, y[:5], qid[:5]), (x[:0], y[:0], qid[:0])):
        with pytest.raises(ValueError):
            RankedLists.of_queries(*wrong)


def test_a_file_of_svmlight_is_read(tmp_path):
    pytest.importorskip("sklearn")
    path = tmp_path / "rank.txt"
    path.write_text("2 qid:7 1:0.5 3:1\n0 qid:3 2:1 # a remark\n0 qid:7 1:2\n1 qid:3 1:0.25\n")
    lists = RankedLists.svmlight(path, in_features=4)
    assert [item.y.tolist() for item in lists] == [[0, 1], [2, 0]]
    assert lists[1].x.tolist() == [[0.5, 0.0, 1.0, 0.0], [2.0, 0.0, 0.0, 0.0]]
    path.write_text("\ufeff2 qid:7 0:0.5 2:1\r\n0 qid:7 0:2\r\n", encoding="utf-16-le")
    assert RankedLists.svmlight(path, first_feature=0)[0].x.tolist() == [[0.5, 0.0, 1.0], [2.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1 qid:3 2:1\n\n2 1:0.5\n", 3),
        ("# nothing\n1 qid:1 0:0.5\n", 2),
        ("1 qid:1 1:0.5\n0 qid:1 4:1\n", 2),
        ("1 qid:1 1:0.5\n0 qid:1 3:1 2:1\n", 2),
        ("1 qid:1 1:0.5\n0 qid:1 1:nan\n", 2),
        ("1 qid:1 1:0.5\n-1 qid:1 1:1\n", 2),
        ("1 qid:99999999999999999999 1:0.5\n", 1),
    ],
)
def test_files_of_another_form_are_refused(tmp_path, text, line):
    pytest.importorskip("sklearn")
    path = tmp_path / "rank.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"rank.txt, line {line}"):
        RankedLists.svmlight(path, in_features=3)


def test_lists_without_relevant_documents_are_counted():
    x, y, sizes = torch.rand(7, 3), torch.tensor([0, 2, 1, 0, 0, 1, 0]), [3, 2, 2]
    few, every = RankedLists(x, y, sizes), RankedLists(x, y, sizes, relevant=0)
    assert (few.num_left_out, every.num_left_out) == (1, 0)
    places = torch.tensor([[2, 0, 1], [0, 1, -1], [1, 0, -1]])
    kept = ranking_scores(few.y, places[[0, 2]], ks=(1, 3))
    for count in (0.0, 1.0):
        scores = ranking_scores(every.y, places, ks=(1, 3), without_relevant=count)
        assert scores.num_lists == 3
        assert scores.ndcg[3] == pytest.approx((2 * kept.ndcg[3] + count) / 3)
        assert scores.mean_average_precision == pytest.approx((2 * kept.mean_average_precision + count) / 3)
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        ranking_scores(every.y, places, ks=(1,))
