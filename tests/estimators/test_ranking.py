"""The estimator of rankings: queries in three forms, weights, scores, scikit-learn's searches, files, wrong input."""

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.utils.validation import validate_data

from torchssvm import LinearRanking, Ranking, solve
from torchssvm.datasets import RankedLists, ranking_scores
from torchssvm.deployment import load_head
from torchssvm.estimators import RankingSVC, ranking
from torchssvm.structures.ranking import NDCG, PairSwaps, PrecisionAt

RANDOM = np.random.default_rng(0)
SIZES = RANDOM.integers(2, 7, 24)
QID = np.arange(24).repeat(SIZES)
X = RANDOM.normal(size=(len(QID), 3))
Y = (2.0 * X[:, 0] - X[:, 1] + RANDOM.normal(size=len(QID)) > 0.5).astype(int) * RANDOM.integers(1, 3, len(QID))
RELEVANT = np.array([Y[query == QID].max() > 0 for query in range(24)])


def model(**parameters):
    return RankingSVC(tol=1e-3, lam=0.1, random_state=0, **parameters)


@pytest.mark.parametrize("measure", [None, NDCG(3), PairSwaps()])
def test_it_trains_what_solve_trains(measure):
    fitted = model(measure=measure).fit(X, Y, qid=QID)
    lists = RankedLists(torch.from_numpy(X), torch.from_numpy(Y), torch.from_numpy(SIZES))
    head = LinearRanking(3, structure=Ranking(measure or NDCG())).double()
    result = solve(head, lists, 0.1, tolerance=1e-4, progress=False)
    assert fitted.n_left_out_ == lists.num_left_out == (~RELEVANT).sum() > 0
    assert fitted.certificate_.dual <= result.primal + 1e-12
    assert result.dual <= fitted.certificate_.primal + 1e-12


def test_queries_are_named_by_qid_in_any_order_by_sizes_or_by_a_column():
    by_sizes = model().fit(X, Y, group=SIZES)
    mixed = np.argsort(np.concatenate([np.arange(size) for size in SIZES]), kind="stable")  # first documents first
    texts = np.array([f"q{query}" for query in QID])
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(qid=texts)
    for fitted in (
        model().fit(X, Y, qid=QID),
        model().fit(X[mixed], Y[mixed], qid=texts[mixed]),
        model().fit(frame, Y),
    ):
        np.testing.assert_array_equal(fitted.coef_, by_sizes.coef_)
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(fitted.predict(frame), by_sizes.predict(X))
    assert fitted.score(frame, Y) == by_sizes.score(X, Y, group=SIZES)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[["b", "a", "c"]])


def test_a_weight_counts_a_query_as_often():
    weight = RANDOM.integers(0, 3, 24)
    weighted = model().fit(X, Y, qid=QID, sample_weight=weight)
    rows = np.concatenate([np.flatnonzero(q == QID) for q in range(24) for _ in range(weight[q])])
    copies = [size for q, size in enumerate(SIZES) for _ in range(weight[q])]
    repeated = model().fit(X[rows], Y[rows], group=copies)
    assert weighted.certificate_.dual <= repeated.certificate_.primal + 1e-12
    assert repeated.certificate_.dual <= weighted.certificate_.primal + 1e-12


@pytest.mark.parametrize("k", [None, 2])
def test_the_score_is_ndcg(k):
    fitted = model(k=k).fit(X, Y, qid=QID)
    np.testing.assert_allclose(fitted.predict(X), X @ fitted.coef_)
    lists = RankedLists(torch.from_numpy(X), torch.from_numpy(Y), torch.from_numpy(SIZES))
    places = fitted.structure_.decode(fitted.head_(lists.x, lists.lengths))
    k = k or int(SIZES.max())
    assert fitted.score(X, Y, qid=QID) == pytest.approx(ranking_scores(lists.y, places, ks=(k,)).ndcg[k])


def test_sparse_documents_are_ranked_as_dense_ones():
    rows = X * (RANDOM.random(X.shape) < 0.5)
    dense, lists = model().fit(rows, Y, qid=QID), model().fit(sparse.csr_matrix(rows), Y, qid=QID)
    np.testing.assert_array_equal(dense.coef_, lists.coef_)
    np.testing.assert_allclose(dense.predict(rows), lists.predict(sparse.csr_matrix(rows)))


def test_a_grid_is_searched_by_groups():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(qid=QID)
    grid = {"lam": [10.0, 0.1]}
    by_column = GridSearchCV(model(), grid, cv=GroupKFold(3)).fit(frame, Y, groups=QID)
    with sklearn.config_context(enable_metadata_routing=True):
        asked = model().set_fit_request(qid=True).set_score_request(qid=True)
        by_qid = GridSearchCV(asked, grid, cv=GroupKFold(3)).fit(X, Y, groups=QID, qid=QID)
    np.testing.assert_array_equal(by_column.cv_results_["mean_test_score"], by_qid.cv_results_["mean_test_score"])
    assert by_column.best_score_ > 0.5


def test_lambda_is_guessed_unless_it_or_C_is_given():
    guessed = RankingSVC(random_state=0).fit(X, Y, qid=QID)
    assert guessed.lam_ == guessed.certificate_.lam > 0.0
    assert RankingSVC(C=2.0, random_state=0).fit(X, Y, qid=QID).lam_ == pytest.approx(1 / (2 * RELEVANT.sum()))


def test_a_warm_start_goes_on():
    fitted = model(warm_start=True).fit(X, Y, qid=QID)
    first = fitted.n_passes_
    assert fitted.fit(X, Y, qid=QID).n_passes_ <= first + 1.0


def test_a_saved_model_scores_as_before(tmp_path):
    fitted = model().fit(pd.DataFrame(X, columns=["a", "b", "c"]), Y, qid=QID)
    fitted.save(tmp_path / "ranker.safetensors")
    saved = load_head(tmp_path / "ranker.safetensors")
    assert saved.labels is None
    assert saved.feature_names == ["a", "b", "c"]
    np.testing.assert_array_equal(saved.head.weight.detach().numpy(), fitted.coef_)
    assert repr(saved.structure.measure) == "NDCG(k=None)"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "give one of them"),
        ({"qid": QID, "group": SIZES}, "give one of them"),
        ({"qid": QID[:-1]}, r"qid has shape \[\d+\]: give the query of each"),
        ({"group": SIZES + 1}, "group must be whole numbers"),
        ({"group": SIZES.astype(float)}, "group must be whole numbers"),
        ({"qid": QID, "y": Y - 1}, r"y\[\d+\]=-1: grades are whole numbers"),
        ({"qid": QID, "y": 0.5 * Y}, r"y\[\d+\]=0.5: grades are whole numbers"),
        ({"qid": np.where(QID < 2, np.nan, QID)}, r"qid\[0\]=nan: give a query"),
        ({"qid": QID, "y": 0 * Y}, "no query with a relevant document"),
        ({"qid": QID, "sample_weight": np.ones(len(QID))}, "must hold 24 finite numbers"),
        ({"qid": np.arange(len(QID)), "y": 1 + Y}, r"qid has one document in each of \d+ queries"),
        ({"group": np.ones(len(QID), int), "y": 1 + Y}, r"group has one document in each of \d+ queries"),
        ({"qid": QID, "y": QID + 1}, r"y has no query in which one order is better than another by NDCG"),
    ],
)
def test_what_does_not_fit_is_refused(given, error):
    with pytest.raises(ValueError, match=error):
        model().fit(X, given.pop("y", Y), **given)


def test_a_measure_that_no_order_changes_is_named():
    deep = PrecisionAt(max(SIZES))
    for guesses in (model(measure=deep), RankingSVC(measure=deep)):
        with pytest.raises(ValueError, match=r"one order is better than another by PrecisionAt\(k="):
            guesses.fit(X, Y, qid=QID)
    once = np.flatnonzero(np.append(True, QID[1:] != QID[:-1]))
    mixed = np.where(np.isin(np.arange(len(QID)), once), 1 + Y, Y)
    assert model(measure=PairSwaps()).fit(X, mixed, qid=QID).certificate_.primal > 0.0


def test_score_checks_its_input_once(monkeypatch):
    fitted, counts = model().fit(X, Y, qid=QID), []
    monkeypatch.setattr(
        ranking, "validate_data", lambda *given, **kept: counts.append(1) or validate_data(*given, **kept)
    )
    scores = fitted.score(X, Y, qid=QID)
    assert len(counts) == 1
    assert 0.0 < scores < 1.0
    with pytest.raises(ValueError, match="X has 2 features"):
        fitted.score(X[:, :2], Y, qid=QID)
    with pytest.raises(NotFittedError):
        RankingSVC().score(X, Y, qid=QID)


def test_parameters_are_checked():
    with pytest.raises(TypeError, match="measure"):
        RankingSVC(measure="ndcg").fit(X, Y, qid=QID)
    for wrong in ({"k": 0}, {"C": -1.0}, {"lam": 0.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            RankingSVC(**wrong).fit(X, Y, qid=QID)
