"""Ranking the documents of queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from torchssvm.core.arguments import check_readable, check_whole
from torchssvm.estimators.base import MATRIX, StructuredEstimator
from torchssvm.estimators.examples import check_matrix, counted, labelled, padded, times_of
from torchssvm.solvers.guess_lam import guess_lam
from torchssvm.structures.ranking.head import LinearRanking
from torchssvm.structures.ranking.measure import NDCG, RankingMeasure, place_of
from torchssvm.structures.ranking.structure import Ranking

QID = "qid"
"""The column of a data frame that has the number of each document's query, as in XGBoost."""


@dataclass(eq=False, repr=False, kw_only=True)
class RankingSVC(StructuredEstimator):
    """Ranks the documents of each query by one linear score, trained for a measure to a certified gap.

    It is used like ``XGBRanker`` and ``LGBMRanker``: a row of ``X`` is a document, ``y`` has its grade, and ``qid``
    or ``group`` says which documents belong to a query. ``predict`` gives scores. ``X`` may also be a data frame with a
    column ``qid``, which is then no feature.

    Args:
        measure: What a wrong order costs: ``NDCG()`` (None), ``NDCG(k)``, ``PrecisionAt(k)`` or ``PairSwaps()``, all in
            ``torchssvm.structures.ranking``.
        k: :meth:`score` is NDCG@k; None counts all places.
        C, lam: As in :class:`MultinomialSVC`, where n is the number of queries. If both are None, lambda is
            :func:`torchssvm.guess_lam` of the training set.
        tol, max_passes, random_state, verbose, warm_start: As in :class:`MultinomialSVC`.

    Attributes:
        coef_: ``[F]``.
        lam_: Lambda.
        n_left_out_: The number of queries without a relevant document, one of grade 1 or more. They are not trained on.
        n_features_in_, feature_names_in_: F; and the names of columns, where X had them.
        certificate_, n_passes_, history_, head_, structure_: As in :class:`MultinomialSVC`.

    Example:
        >>> model = RankingSVC().fit([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [2, 0, 1], qid=[7, 7, 7])
        >>> int(model.predict([[1.0, 0.0], [0.0, 1.0]]).argmax())
        0
    """

    measure: RankingMeasure | None = None
    k: int | None = 10
    _C: ClassVar[Any] = None  # lambda is guessed

    def fit(self, X: Any, y: Any, qid: Any = None, group: Any = None, sample_weight: Any = None) -> RankingSVC:
        """Train on documents ``X`` ``[D, F]``, dense or a scipy sparse matrix, and their grades ``y`` ``[D]``.

        Args:
            y: Whole numbers, 0 for not relevant and more for better.
            qid: ``[D]``, numbers or texts: documents with the same one belong to a query, in any order.
            group: ``[Q]``, in its place: the number of documents of each query, query by query.
            sample_weight: ``[Q]``, how often each query counts, as in :class:`MultinomialSVC`; queries are in the order
                of their first documents.

        Raises:
            ValueError: A parameter is out of range, no query has a relevant document, every order of every query costs
                the same, or X, y, ``qid``, ``group`` and the weights do not fit.
            TypeError: ``measure`` is no measure.
        """
        self._check_parameters()
        structure = Ranking(NDCG() if self.measure is None else self.measure)
        X, y, rows = self._queries(X, y, qid, group, reset=self._begins)
        times = None if sample_weight is None else times_of(sample_weight, len(rows))
        kept = _relevant(y, rows, structure.measure)
        self.n_left_out_ = int((~kept).sum())
        rows = [row for row, stays in zip(rows, kept, strict=True) if stays]
        rows, _, times, total = counted(rows, rows, None if times is None else times[kept])
        _check_orders(y, rows, structure.measure, "qid" if group is None else "group")
        head: Any = LinearRanking(X.shape[1], structure=structure)
        head = head.double() if X.dtype == np.float64 else head

        def features(queries: np.ndarray) -> torch.Tensor:
            documents = [X[rows[query]] for query in queries]
            return padded([one.toarray() if sparse.issparse(one) else one for one in documents], 0.0)

        examples = labelled([len(row) for row in rows], [y[row] for row in rows], features)
        guessed = self.C is None and self.lam is None
        self.lam_ = guess_lam(head, examples) if guessed else self._lam(total or len(rows))
        head = self._train(head, examples, self.lam_, weight=times)
        self.coef_ = head.weight.detach().numpy().copy()
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The score of each document of ``X`` ``[D, F]``, ``[D]``: the larger, the nearer to the top."""
        check_is_fitted(self)
        X = _apart(X)[0]
        check_matrix(X)
        return safe_sparse_dot(validate_data(self, X, reset=False, **MATRIX), self.coef_, dense_output=True)

    def score(self, X: Any, y: Any, qid: Any = None, group: Any = None) -> float:
        """The mean NDCG@k of the queries that have a document of grade 1 or more; arguments as in :meth:`fit`."""
        check_is_fitted(self)
        X, y, rows = self._queries(X, y, qid, group)
        scores = safe_sparse_dot(X, self.coef_, dense_output=True)
        rows = [row for row, kept in zip(rows, _relevant(y, rows, NDCG()), strict=True) if kept]
        grades = padded([y[row] for row in rows], -1)
        places = place_of(padded([scores[row] for row in rows], 0.0), grades >= 0)
        return 1.0 - float(NDCG(self.k).loss(places, grades).mean())

    def _check_parameters(self) -> None:
        if self.k is not None:
            check_whole(self.k, "k")
        if self.C is None and self.lam is None:
            self._check_run()
        else:
            super()._check_parameters()

    def _queries(self, X: Any, y: Any, qid: Any, group: Any, reset: bool = False) -> tuple[Any, Any, list[np.ndarray]]:
        """Checked documents and grades, and the rows of each query, in the order of their first documents."""
        X, column = _apart(X)
        given = [which for which in (qid, group, column) if which is not None]
        if len(given) != 1:
            raise ValueError("give one of them, qid, group or a column qid of X: it says the query of each document")
        check_matrix(X)
        check_readable(y, "y")
        check_readable(given[0], "group" if group is not None else "qid")
        X, y = validate_data(self, X, y, reset=reset, y_numeric=True, **MATRIX)
        if (wrong := ~((y >= 0) & (y == np.round(y)) & (y < 2**31))).any():
            row = int(wrong.argmax())
            raise ValueError(f"y[{row}]={y[row]}: grades are whole numbers, 0 or more")
        if group is None:
            which = np.asarray(given[0])
            if which.shape != y.shape:
                raise ValueError(f"qid has shape {list(which.shape)}: give the query of each of the {len(y)} documents")
            if missing := [row for row, one in enumerate(which.tolist()) if one is None or one != one]:
                raise ValueError(f"qid[{missing[0]}]={which[missing[0]]}: give a query for each document")
            _, first, code = np.unique(which, return_index=True, return_inverse=True)
            code = first.argsort().argsort()[code]
        else:
            sizes = np.asarray(group)
            if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 1).any() or sizes.sum() != len(y):
                raise ValueError(f"group must be whole numbers, 1 or more, that sum to the {len(y)} documents")
            code = np.arange(len(sizes)).repeat(sizes)
        order = code.argsort(kind="stable")
        return X, y.astype(np.int64), np.split(order, np.bincount(code).cumsum()[:-1])


def _apart(X: Any) -> tuple[Any, Any]:
    """The features, and the column ``qid`` of a data frame, None without one."""
    if QID not in getattr(X, "columns", ()):
        return X, None
    return X[[name for name in X.columns if name != QID]], X[QID]


def _relevant(y: np.ndarray, rows: list[np.ndarray], measure: RankingMeasure) -> np.ndarray:
    """Which queries have a document that the measure calls relevant, ``[Q]``; ValueError if none has."""
    relevant = np.array([int(measure.levels(torch.from_numpy(y[row])[None]).max()) > 0 for row in rows])
    if not relevant.any():
        raise ValueError("y has no query with a relevant document: no order is better than another")
    return relevant


def _check_orders(y: np.ndarray, rows: list[np.ndarray], measure: RankingMeasure, name: str) -> None:
    """Raise ValueError if no order of a query costs more than another."""
    if max(map(len, rows)) < 2:
        raise ValueError(f"{name} has one document in each of {len(rows)} queries: give all documents of a query")
    for row in rows:
        grades = torch.from_numpy(y[row])[None]
        worst = measure.worst(torch.zeros(grades.shape, dtype=torch.float64), grades)
        if float(measure.loss(worst, grades)) != 0.0:
            return
    raise ValueError(f"y has no query in which one order is better than another by {measure!r}: give other grades")
