"""Multinomial classification: one class for every row of a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils import check_X_y
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from torchssvm.core.arguments import check_readable
from torchssvm.core.potentials import as_potentials
from torchssvm.estimators.base import MATRIX, CalibratedEstimator, MatrixClassifier, once_calibrated
from torchssvm.estimators.examples import (
    check_classes,
    check_kind,
    check_matrix,
    check_missing,
    check_rows,
    counted,
    of_matrix,
    weights_of,
)
from torchssvm.structures.multiclass.head import LinearMulticlass
from torchssvm.structures.multiclass.structure import Multiclass


@dataclass(eq=False, repr=False, kw_only=True)
class MultinomialSVC(MatrixClassifier, CalibratedEstimator):
    """The multinomial support vector machine of Crammer and Singer (2001), trained to a certified gap.

    Minimises ``1/2 |w|^2 + C sum_i max_y [cost(y_i, y) + score(x_i, y) - score(x_i, y_i)]``; the cost of a wrong class
    is 1. ``LinearSVC(multi_class="crammer_singer")`` has the same objective,
    without a certificate.

    Args:
        C: Weight of the loss, positive; None is 1, unless ``lam`` is given.
        lam: ``1 / (C n)`` in its place, the regularisation as the papers write it; ``C`` is then left out.
        fit_intercept: Whether every class has an intercept; it is regularised like the other weights.
        class_weight: None, "balanced", or a dictionary by class: the weight of an example's loss, by its class.
        tol: Training ends when the objective is proved to be within this share of its optimum.
        max_passes: Or after so many passes over the data, with a ``ConvergenceWarning``.
        random_state: Seed of the order in which examples are visited.
        verbose: Whether a line of progress is shown on stderr, with the gap.
        warm_start: Whether ``fit`` goes on from the last fit, with another ``C`` or ``tol``, or with more examples,
            fewer or others: examples of the last fit, in any order, keep their part of the dual.

    Attributes:
        classes_: ``[K]``, the classes in ascending order.
        coef_: ``[K, F]``; for two classes ``[1, F]``, the weights of the second minus the first.
        intercept_: ``[K]`` or ``[1]``, zero without intercepts.
        temperature_: Scores are divided by it for probabilities; :meth:`calibrate` sets it.
        n_features_in_, feature_names_in_: F; and the names of columns, where X had them.
        certificate_: Primal, dual and gap of these weights; primal and gap are upper bounds if ``exact`` is False.
        n_passes_: Passes over the data, exact ones included.
        history_: Passes, primal, dual, gap, exact (1 or 0) and seconds of every exact pass, one dictionary each.
        head_, structure_: The trained torch module and what decodes its scores.

    Example:
        >>> model = MultinomialSVC(C=1.0).fit(points.numpy(), classes.numpy())
        >>> model.coef_.shape, model.certificate_.relative_gap <= 0.01
        ((3, 4), True)
    """

    fit_intercept: bool = True
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MultinomialSVC:
        """Train on ``X`` ``[n, F]``, dense or a scipy sparse matrix, and the classes ``y`` ``[n]``.

        Args:
            sample_weight: ``[n]``, how often each example counts: 2 is the example twice, 0 is without it, and n in
                ``lam = 1 / (C n)`` is the sum; None is once each.

        Raises:
            ValueError: A parameter is out of range, ``y`` has one class only, or X, y and the weights do not fit.
            TypeError: A flag is neither True nor False.
        """
        self._adds = False
        self._check_names([X], reset=self._begins)
        self._fit(X, y, sample_weight)
        self._data = (X, y) if sample_weight is None else None
        self._named = None
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> MultinomialSVC:
        """Add the rows ``X`` to the training set of earlier calls, and go on to the optimum for all.

        Args:
            classes: ``[K]``, all classes, where the ``y`` of the first call lacks some of them; None takes them from
                ``y``. Later calls may repeat them.

        Raises:
            ValueError: As :meth:`fit`, of all rows; or ``y`` or ``classes`` has a class that is new;
                or the estimator is a copy of a trained one, or was trained with ``sample_weight``.
        """
        check_readable(y, "y")
        if not hasattr(self, "n_features_in_"):
            self._check_names([X], reset=True)
        else:
            self._matrix(X)  # as many features as before, of the same names
            check_kind([np.ravel(y)], self.classes_)
        if not self._adds and (classes is not None or self._data is None):
            self._named = None if classes is None else np.unique(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={classes!r} must be the classes of the first call: {self.classes_.tolist()}")
        return self._add(X, y, lambda rows, labels, stay: self._fit(rows, labels, named=self._named, stay=stay))

    def _fit(self, X: Any, y: Any, sample_weight: Any = None, named: Any = None, stay: int = 0) -> MultinomialSVC:
        """Train on all rows, from the last fit where the estimator goes on; it has read the first ``stay``."""
        self._check_parameters()
        check_matrix(X)
        check_readable(y, "y")
        check_rows(y, "y")
        X, y = check_X_y(X, y, estimator=self, **MATRIX)
        self.n_features_in_ = X.shape[1]
        check_classification_targets(y)
        X, y, times, total = counted(X, y, sample_weight)
        classes, codes = np.unique(y, return_inverse=True)
        if named is not None:
            check_kind([classes], named)
            classes, present = np.union1d(named, classes), classes
            codes = classes.searchsorted(present)[codes]
        check_missing(y)
        check_classes(classes)
        weight = weights_of(self.class_weight, classes, codes, times)[codes]
        weight = weight if times is None else weight * times
        stay = 0 if self.class_weight == "balanced" else stay  # those that stay have another weight now
        if sparse.issparse(X) and not X.has_sorted_indices:
            X = X.sorted_indices()  # at once, and not batch by batch
        head: Any = LinearMulticlass(X.shape[1], len(classes), bias=bool(self.fit_intercept))
        head = head.double() if X.dtype == np.float64 else head
        examples, lam = of_matrix(X, torch.from_numpy(codes)), self._lam(total or len(y))
        self.head_ = head = self._train(head, examples, lam, weight=weight, stay=stay)
        self.classes_ = classes
        self.structure_ = head.structure
        weight = head.weight.detach().numpy().copy()
        bias = np.zeros(len(weight), weight.dtype) if head.bias is None else head.bias.detach().numpy().copy()
        two = len(weight) == 2
        self.coef_ = weight[1:] - weight[:1] if two else weight
        self.intercept_ = bias[1:] - bias[:1] if two else bias
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores ``[n, K]``, or ``[n]`` for two classes: positive for the second."""
        check_is_fitted(self)
        X = self._matrix(X)
        scores = safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class with the highest score for every row of ``X``, ``[n]``."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    def calibrate(self, X: Any, y: Any) -> MultinomialSVC:
        """Fit one temperature to examples that ``fit`` has not seen, for :meth:`predict_proba`.

        It is the T that makes their classes most probable, ``P(k) = exp(score_k / T) / Z``: without it, scores of max
        margin are no log probabilities. Predictions stay as they are; another ``fit`` forgets it.

        Args:
            X: ``[m, F]``, as in :meth:`fit`.
            y: ``[m]``, classes of ``classes_``.

        Raises:
            ValueError: X and y do not fit, or a class is not in ``classes_``.
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        check_matrix(X)
        check_readable(y, "y")
        _, y = validate_data(self, X, y, reset=False, **MATRIX)  # X stays what it is, with the names of its columns
        self._check_known(y)
        states = torch.from_numpy(self.classes_.searchsorted(y))
        return self._fit_temperature(Multiclass(len(self.classes_)), [(as_potentials(self._scores(X)), states)])

    @once_calibrated
    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class for every row of ``X``, ``[n, K]`` float64, by :meth:`calibrate`."""
        return (self._scores(X) / self.temperature_).softmax(1).numpy()

    def _scores(self, X: Any) -> torch.Tensor:
        """``[n, K]`` float64; for two classes the first scores 0."""
        scores = torch.from_numpy(self.decision_function(X)).double()
        return scores if scores.ndim == 2 else torch.stack([torch.zeros_like(scores), scores], 1)
