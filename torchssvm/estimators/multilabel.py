"""Multilabel classification: a set of labels for every row of a matrix."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils.extmath import row_norms
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.sparsefuncs_fast import inplace_csr_row_normalize_l2
from sklearn.utils.validation import check_is_fitted, validate_data

from torchssvm.core.packages import warn
from torchssvm.core.potentials import Potentials, as_potentials
from torchssvm.deployment import SavedModel, UnitRows
from torchssvm.estimators.base import MATRIX, CalibratedEstimator, MatrixClassifier, once_calibrated
from torchssvm.estimators.choose_c import PARTS, choose_from_guess
from torchssvm.estimators.choose_pairs import all_pairs, choose_pairs
from torchssvm.estimators.choose_threshold import BY_LABEL, F1, choose_thresholds, held_out_margins, margins_of
from torchssvm.estimators.examples import (
    check_classes,
    check_matrix,
    check_missing,
    columns_of,
    counted,
    of_matrix,
    weights_of,
)
from torchssvm.path.choose_lam import LamChoice
from torchssvm.structures.multiclass.head import LinearMulticlass
from torchssvm.structures.multiclass.structure import Multiclass
from torchssvm.structures.multilabel.head import LinearMultilabel, SparseLinearMultilabel
from torchssvm.structures.multilabel.structure import Multilabel

GUESS, CHOOSE = "guess", "choose"

_SHARE = 1 / 9
"""Share of the lambda at which a label is fitted to one example alone; docs/guides/label-sets.md gives figures."""

_DENSE = 0.5
"""Columns are standardised where more than this share of an array is not zero."""

_LEAST = 1e-300
"""Columns of smaller deviations have no weights, which would overflow."""

_MANY = 30
"""With all pairs of more labels, branch and bound leaves many sets open, unless the weights of pairs are small."""

_MOST = 60
"""With more labels, pairs are left out unless they are asked for: with 70 to 160 labels chosen ones gained nothing."""


@dataclass(eq=False, repr=False, kw_only=True)
class MultilabelSVC(MatrixClassifier, CalibratedEstimator):
    """Sets of labels with a score for each label and for each pair, trained by max margin to a certified gap.

    A set scores the sum of its labels' ``coef_ @ x + intercept_`` and of the ``interactions_`` of its pairs, the model
    of [Yen et al. 2016, section 5]; the loss is the number of wrong labels. Sets are decoded by branch and bound. Where
    that leaves an example open, its upper bound counts: ``certificate_`` holds, and says ``exact=False``. With all
    pairs of more than 30 labels that is usual: a warning names :class:`torchssvm.GDMM`, which trains without decoding.

    By default the pairs are scored whose counts differ from independent labels by more than chance, at most
    five of each label. Labels that exclude each other, so that rows have about equally many, are also paired with the
    five most frequent ones. Labels that are never or always on have no pairs; more than 60 labels have none.

    Features are scaled, so that rows are about 1 long: the columns of an array that is mostly not zero get mean 0 and
    equal variances, and other rows, also of sparse matrices, are divided by their length. Before that, columns
    that most of these rows have lose their median, and become as large as the others: a column that is on in most rows
    then marks those in which it is off. Sparse matrices stay sparse. A column whose numbers differ by rounding alone
    has no weight, and a warning names it.

    ``y`` is an indicator matrix ``[n, K]``. A vector of classes stands for sets of one label, and ``predict`` then
    gives the label with the highest score.

    Args:
        C: A number as in :class:`MultinomialSVC`; "guess", as None is, ``9 / m``, where m is the mean square of the
            length of a scaled row and its intercept, so 4.5 or 9; or "choose", which trains at 3, 1, 0.3 and 0.1 times
            the guess's lambda on two thirds of the examples, three times with fewer than 1000, keeps the guess unless
            the micro F1 of held-out sets is higher elsewhere by three standard errors, and trains on all.
        lam, tol, max_passes, random_state, verbose: As in :class:`MultinomialSVC`.
        warm_start: As in :class:`MultinomialSVC`. With ``interactions=None`` the pairs stay those that the first fit
            chose, whatever the examples are now: ``certificate_`` is of the problem with these pairs. A new estimator
            would choose by the new examples, and may reach another objective.
        interactions: True scores all pairs of labels that are on in some examples and off in others, False none; None
            chooses as above, and of more than 60 labels a warning says that pairs are left out.
        class_weight: None, "balanced", or a dictionary by label (0 to K - 1): the cost of deciding a label wrongly, on
            or off alike, "balanced" by how seldom it is on. For more predictions of rare labels, see ``threshold``.
            Without pairs a label of cost c has the hinge ``max(0, c - margin)``, where scikit-learn has ``c max(0, 1 -
            margin)``: a larger margin at the same C, so that at a small C the label is predicted less often; choose C
            with it. Where ``y`` is a vector, the weight of an example's loss, by its class.
        fit_intercept: Whether every label has an intercept; it is regularised like the other weights. Without, columns
            keep their means.
        threshold: A label is predicted where its margin is above 0, or with "f1" above the number that gives the best
            micro F1 of held-out margins, for all labels; "f1-by-label" chooses a number for each label, which raises
            macro F1 and often lowers micro F1. Three fits on two thirds of the examples give the margins; the numbers
            are subtracted from the intercepts. ``certificate_`` is of the weights before.

    Attributes:
        classes_: ``[K]``, the labels: 0 to K - 1 for an indicator matrix.
        coef_: ``[K, F]``, for two classes in a vector ``[1, F]``; of rows as they are given, or scaled to unit length.
        intercept_: ``[K]`` or ``[1]``, zero without intercepts.
        interactions_: ``[K, K]``, symmetric, 0 for pairs that are not scored; None where none is.
        unit_rows_: Whether rows are divided by their length.
        shift_, scale_: ``[F]``, what is subtracted from columns before, and what they are then multiplied by; None
            where columns stay as they are.
        thresholds_: ``[K]``, what was subtracted from the intercepts; None without ``threshold``.
        temperature_: Margins are divided by it for probabilities; :meth:`calibrate` sets it.
        lam_, choice_: Lambda, and the :class:`torchssvm.path.LamChoice`; None where nothing was chosen.
        n_features_in_, feature_names_in_: F; and the names of columns, where X had them.
        certificate_, n_passes_, history_, head_, structure_: As in :class:`MultinomialSVC`.

    Example:
        >>> sets = (points[:, :3] > 0.0).long().numpy()
        >>> MultilabelSVC(tol=0.1).fit(points.numpy(), sets).predict(points[:5].numpy()).shape
        (5, 3)
    """

    _C = GUESS

    interactions: bool | None = None
    fit_intercept: bool = True
    class_weight: Any = None
    threshold: str | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MultilabelSVC:
        """Train on ``X`` ``[n, F]``, dense or a scipy sparse matrix, and the label sets ``y``.

        Args:
            sample_weight: ``[n]``, how often each example counts, as in :class:`MultinomialSVC`.

        Raises:
            ValueError: A parameter is out of range, there is one class only, or X and y do not fit.
        """
        self._check_parameters()
        check_matrix(X)
        check_matrix(y, "y", labels=True)
        known = None if self._begins else self._names
        self._names: list[Any] = columns_of([y], known, "y") or []
        X, y = validate_data(self, X, y, reset=self._begins, multi_output=True, **MATRIX)
        if y.ndim == 2 and y.shape[1] == 1:
            warn("y has one column and is taken as a vector of classes: predict gives a vector [n], no matrix [n, 1]")
        y = _dense(y)
        check_classification_targets(y)
        X, y, times, total = counted(X, y, sample_weight)
        total = total or X.shape[0]
        self._sets = y.ndim == 2
        if self._sets and type_of_target(y) != "multilabel-indicator":
            raise ValueError("y holds other values than 0 and 1: give classes [n], or label sets of 0 and 1 [n, K]")
        classes = np.arange(y.shape[1]) if self._sets else np.unique(y)
        if self.threshold is not None and not (self._sets and len(y) >= PARTS):
            what = f"has {len(y)} examples" if self._sets else "is a vector"
            raise ValueError(f"threshold={self.threshold!r}, and y {what}: give label sets [n, K] of {PARTS} or more")
        if not self._sets:
            check_missing(y)
            check_classes(classes)
        indicator = y if self._sets else (y[:, None] == (classes[1:] if len(classes) == 2 else classes))
        target = torch.from_numpy(indicator.astype(np.int64))
        labels = target.shape[1]
        make = SparseLinearMultilabel if sparse.issparse(X) else LinearMultilabel
        pairs = self._pairs(indicator, None if times is None else times * (total / len(times)))
        costs = None
        if self._sets and self.class_weight is not None:
            each = None if times is None else times[target.nonzero()[:, 0]]
            costs = torch.from_numpy(weights_of(self.class_weight, classes, target.nonzero()[:, 1].numpy(), each))
        elif self.class_weight is not None:
            codes = classes.searchsorted(y)
            by_class = weights_of(self.class_weight, classes, codes, times)[codes]
            times = by_class if times is None else times * by_class
            if not times.all():
                raise ValueError(f"class_weight={self.class_weight!r} has a class of weight 0: leave its rows out")
        some = None if pairs is None or len(pairs) == labels * (labels - 1) // 2 else pairs  # None lists all
        structure = Multilabel(labels, pairwise=pairs is not None, normalize=False, weights=costs, pairs=some)
        head = make(X.shape[1], labels, bias=self.fit_intercept, pairwise=pairs is not None, structure=structure)
        head = head.double() if X.dtype == np.float64 else head
        self.unit_rows_ = sparse.issparse(X) or np.count_nonzero(X) <= _DENSE * X.size
        mean, factor = (0.0, 1.0) if self.unit_rows_ else _standardised(X, self.fit_intercept, times)
        if not self.unit_rows_ and (lost := ((X[0] != X).any(0) & (factor == 0.0)).nonzero()[0].tolist()):
            lost = [self.feature_names_in_[place] if hasattr(self, "feature_names_in_") else place for place in lost]
            warn(f"columns {lost[:8]} of X differ by rounding alone and get no weight: subtract their mean, in float64")
        self.shift_, self.scale_ = _centred(X, times) if self.unit_rows_ and self.fit_intercept else (None, None)
        given, X = X, self._unit_rows(X) if self.unit_rows_ else ((X - mean) * factor).astype(X.dtype)
        if self.interactions is None and labels > _MOST:
            warn(
                f"interactions=None leaves out the {labels * (labels - 1) // 2} pairs of {labels} labels, as decoding "
                f"takes long with more than {_MOST}. interactions=False says so without this warning; "
                "torchssvm.GDMM(LinearMultilabel(...), ...) trains pairs of many labels without decoding"
            )
        elif pairs is not None and self.interactions and labels > _MANY:
            warn(
                f"interactions=True scores {len(pairs)} pairs of {labels} labels, which is slow and may not reach "
                f"tol={self.tol:g}: interactions=None chooses few, torchssvm.GDMM trains all without decoding"
            )
        examples = of_matrix(X, target)
        self.choice_: LamChoice | None = None
        if isinstance(C := self._own_C, str):
            squares = np.asarray((X.multiply(X) if sparse.issparse(X) else X * X).sum(1), np.float64).ravel()
            square = float(np.average(squares, weights=times)) + self.fit_intercept
            lam = _SHARE * max(square, 1e-6) / total
            if C == CHOOSE and (times is not None or total < PARTS):
                raise ValueError(f"C={CHOOSE!r} needs three examples or more, all of weight 1: give C or lam")
            if C == CHOOSE:
                self.choice_ = choose_from_guess(head, examples, lam, **self._trials())
                lam = self.choice_.best.lam
        else:
            lam = self._lam(total)
        self.lam_ = lam
        self.thresholds_: np.ndarray | None = None
        if self.threshold is not None:
            margins = held_out_margins(head, examples, lam, times, **self._trials())
            self.thresholds_ = choose_thresholds(margins, indicator, times, self.threshold == BY_LABEL)
        trained = self._train(head, examples, lam, weight=times)
        head = copy.deepcopy(trained).double()
        with torch.no_grad():  # the head that is kept takes rows as they are given
            weight = head.by_feature(trained.unary).numpy().T * np.asarray(factor, np.float64)
            head.load_state_dict(trained.state_dict())
            head.unary.copy_(head.by_feature(torch.from_numpy(weight.T)))
            if head.bias is not None:
                head.bias.sub_(torch.from_numpy(weight @ np.broadcast_to(mean, weight.shape[1])))
                if self.thresholds_ is not None:
                    head.bias.sub_(torch.from_numpy(self.thresholds_))
        self.head_, self.classes_, self.coef_ = head, classes, weight
        self.intercept_ = np.zeros(labels) if head.bias is None else head.bias.detach().numpy().copy()
        self.interactions_ = None if pairs is None else head.interactions().detach().numpy()
        if self._sets and bool(target.any()) and not self._decides(X if self.unit_rows_ else given):
            warn(
                "fit predicts no label for any example that it was trained on: large columns may hide the others, as "
                "rows that are sparse or mostly zero are only divided by their length. Scale the columns first "
                "(sklearn.preprocessing.MaxAbsScaler keeps zeros), or give a larger C"
            )
        return self

    def _pairs(self, y: np.ndarray, times: np.ndarray | None) -> torch.Tensor | None:
        """The pairs of labels that are scored, ``[P, 2]``, or None."""
        labels = y.shape[1]
        if self.interactions is False or (self.interactions is None and labels > _MOST):
            return None
        if self._goes_on and self._run is not None and not self.interactions:  # a fit that goes on keeps its outputs
            structure = getattr(self._run[1], "head", self._run[1]).structure
            if structure.num_labels == labels:
                return structure.listed_pairs().T.contiguous() if structure.pairwise else None
        pairs = all_pairs(y) if self.interactions else choose_pairs(y, times)
        return torch.from_numpy(pairs) if len(pairs) else None

    def _trials(self) -> dict[str, Any]:
        """How a choice on held-out examples trains."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        limits = {"tol": float(self.tol), "max_passes": float(self.max_passes)}
        return {**limits, "seed": seed, "progress": bool(self.verbose)}

    def _decides(self, X: Any) -> bool:
        parts = (X[start : start + 64] for start in range(0, X.shape[0], 64))
        return any(bool(self.structure_.decode(self._potentials(self._sums(part))).any()) for part in parts)

    def _check_parameters(self) -> None:
        if self.threshold not in (None, F1, BY_LABEL):
            raise ValueError(f"threshold={self.threshold!r} must be None, {F1!r} or {BY_LABEL!r}")
        if self.threshold is not None and not self.fit_intercept:
            raise ValueError(f"threshold={self.threshold!r} moves intercepts, and fit_intercept=False: leave one out")
        if self.lam is None and isinstance(C := self._own_C, str):
            if C not in (GUESS, CHOOSE):
                raise ValueError(f"C={C!r} must be {GUESS!r}, {CHOOSE!r} or a positive number")
            self._check_run()
        else:
            super()._check_parameters()

    def decision_function(self, X: Any) -> np.ndarray:
        """For each label, the best score of a set with it less the best of one without it, ``[n, K]``.

        Without interactions, and where ``y`` was a vector, it is the score of the label alone; ``[n]`` for two classes
        in a vector.
        """
        check_is_fitted(self)
        scores = self._scores(X)
        if not self._sets or self.head_.pairwise is None:
            return scores[:, 0].numpy() if not self._sets and scores.shape[1] == 1 else scores.numpy()
        return margins_of(self.structure_, self._potentials(scores)).numpy()

    def calibrate(self, X: Any, y: Any) -> MultilabelSVC:
        """Fit one temperature to examples that ``fit`` has not seen, for :meth:`predict_proba`.

        It is the T that makes their labels most probable, ``P(k) = 1 / (1 + exp(-margin_k / T))`` for each label by
        itself, with the margins of :meth:`decision_function`; of more than two classes, as in :class:`MultinomialSVC`.
        What is predicted stays as it is; another ``fit`` forgets it.

        Args:
            X: ``[m, F]``, as in :meth:`fit`.
            y: Label sets, as in :meth:`fit`.

        Raises:
            ValueError: X and y do not fit, or a class is not in ``classes_``.
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        check_matrix(X)
        check_matrix(y, "y", labels=True)
        columns_of([y], self._names, "y")
        _, y = validate_data(self, X, y, reset=False, multi_output=True, **MATRIX)  # X keeps the names of its columns
        y, scores = _dense(y), self._two_or_more(X)
        if not self._sets:
            self._check_known(y)
            y = self.classes_.searchsorted(y)
        elif y.shape != scores.shape[:2] or not np.isin(y, (0, 1)).all():
            raise ValueError(f"y must be 0 and 1 of shape [n, {scores.shape[1]}], as in fit, not {list(y.shape)}")
        states = torch.from_numpy(y.astype(np.int64)).flatten()
        potentials = as_potentials(scores.flatten(0, -2))
        return self._fit_temperature(Multiclass(scores.shape[-1]), [(potentials, states)])

    @once_calibrated
    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each label for every row, ``[n, K]`` float64, by :meth:`calibrate`.

        Where ``y`` was a vector, the probability of each class.
        """
        probabilities = (self._two_or_more(X) / self.temperature_).softmax(-1).numpy()
        return probabilities[..., 1] if self._sets else probabilities

    def _two_or_more(self, X: Any) -> torch.Tensor:
        """Scores of classes ``[n, K]``; of sets ``[n, K, 2]``: 0 without a label, and its margin with it."""
        margins = torch.from_numpy(self.decision_function(X))
        if self._sets or margins.ndim == 1:
            return torch.stack([torch.zeros_like(margins), margins], -1)
        return margins

    def predict(self, X: Any) -> np.ndarray:
        """The best set for every row, int64 ``[n, K]``; or the best class ``[n]`` where ``y`` was a vector."""
        check_is_fitted(self)
        scores = self._scores(X)
        if not self._sets:
            best = scores.argmax(1) if scores.shape[1] > 1 else (scores[:, 0] > 0).long()
            return self.classes_[best.numpy()]
        return self.structure_.decode(self._potentials(scores)).numpy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trained model and its labels, the columns of a table ``y``, to one file.

        Where ``y`` was a vector, the file has classes, with the head :class:`torchssvm.LinearMulticlass` on dense rows,
        and is read by :func:`torchssvm.deployment.load_model`. See :meth:`StructuredEstimator.save`.
        """
        super().save(path)

    def _model(self) -> SavedModel:
        check_is_fitted(self)
        if self._sets:
            return super()._model()
        weight, bias = torch.from_numpy(self.coef_), torch.from_numpy(self.intercept_)
        if len(self.classes_) == 2:  # the first class scores 0
            weight, bias = torch.cat([torch.zeros_like(weight), weight]), torch.cat([torch.zeros_like(bias), bias])
        head = LinearMulticlass(weight.shape[1], len(weight)).to(weight.dtype)
        head.load_state_dict({"weight": weight, "bias": bias})
        return SavedModel(head, head.structure, list(map(str, self.classes_)), None, **self._saved())

    def _potentials(self, scores: torch.Tensor) -> Potentials:
        pairs = self.head_.pairwise
        shared = {} if pairs is None else {"pairwise": pairs.detach().to(scores.dtype).expand(len(scores), -1)}
        return Potentials({"unary": scores, **shared})

    def _saved(self) -> dict[str, Any]:
        known = (None if each is None else torch.from_numpy(each) for each in (self.shift_, self.scale_))
        return {**super()._saved(), "features": UnitRows(*known) if self.unit_rows_ else None}

    def _scores(self, X: Any) -> torch.Tensor:
        X = self._matrix(X)
        return self._sums(self._unit_rows(X) if self.unit_rows_ else X)

    def _unit_rows(self, X: Any) -> Any:
        """Rows divided by their length; duplicate entries of a sparse matrix are summed first."""
        if sparse.issparse(X):
            X = X.copy()
            X.sum_duplicates()
        if self.shift_ is not None and self.scale_ is not None:
            shift, scale = self.shift_.astype(X.dtype), self.scale_.astype(X.dtype)
            if sparse.issparse(X):
                row = sparse.csr_matrix(shift)
                X = X - sparse.vstack([row] * X.shape[0], format="csr")  # as long as X, at most twice
                X.data *= scale[X.indices]
            else:
                X = (X - shift) * scale
        # Powers of two round nothing; without them squares vanish, or overflow.
        if sparse.issparse(X):
            counts = np.diff(X.indptr)
            largest = np.maximum.reduceat(abs(X.data), X.indptr[:-1][counts > 0]) if len(X.data) else X.data
            X.data = np.ldexp(X.data, -np.repeat(np.frexp(largest)[1], counts[counts > 0]))
            inplace_csr_row_normalize_l2(X)
            return X
        X = np.ldexp(X, -np.frexp(abs(X).max(1, keepdims=True))[1])
        length = row_norms(X)[:, None]
        return X / np.where(length == 0.0, 1.0, length).astype(X.dtype)

    def _sums(self, X: Any) -> torch.Tensor:
        """Scores of labels alone; rows are of unit length where they are scaled so."""
        return torch.from_numpy(np.asarray(X @ self.coef_.T + self.intercept_, np.float64))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags


def _dense(y: Any) -> np.ndarray:
    """Label sets as an array; one column is a vector."""
    y = y.toarray() if sparse.issparse(y) else np.asarray(y)
    return y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y


def _centred(X: Any, times: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The shift and the factor of each column, ``[F]``; None and None where no column is mostly not zero.

    Columns that are mostly not zero lose their median: where one value is common, they become sparse. Then they are
    scaled so that their entries are as large as the entries of the other columns.
    """
    times = np.ones(X.shape[0]) if times is None else times
    columns = X.tocsc() if sparse.issparse(X) else X
    half, rounding = 0.5 * times.sum(), 1e-12 * times.sum()
    mostly = np.asarray((columns != 0).T @ times) > half + rounding
    if not mostly.any():
        return None, None
    others = columns[:, ~mostly].tocoo() if sparse.issparse(X) else sparse.coo_matrix(X[:, ~mostly])
    size = _size(others.data, times[others.row])
    shift, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
    for j in mostly.nonzero()[0]:
        column = (columns[:, [j]].toarray().ravel() if sparse.issparse(X) else X[:, j]).astype(np.float64)
        order = column.argsort(kind="stable")
        shift[j] = column[order[np.searchsorted(times[order].cumsum(), half - rounding)]]
        # The factor of a column beside much larger ones must not overflow.
        scale[j] = min(size / _size(column - shift[j], times), float(np.finfo(X.dtype).max))
    return shift, scale


def _size(values: np.ndarray, times: np.ndarray) -> float:
    """The root mean square of the numbers that are not 0; 1 where all are 0."""
    largest = float(abs(values).max(initial=0.0))
    if not largest:
        return 1.0
    return largest * float(np.average(np.square(values / largest), weights=times * (values != 0.0))) ** 0.5


def _standardised(X: np.ndarray, centre: bool, times: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The shift and the factor of each column, ``[F]``, that make the mean squared length of rows 1."""
    mean, deviation = _deviations(X, centre, times)
    varies = deviation > 0.0
    size = max(int(varies.sum()), 1) ** 0.5
    return mean, np.divide(1.0, size * deviation, out=np.zeros_like(mean), where=varies)


def _deviations(X: np.ndarray, centre: bool, times: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each column, or 0 without ``centre``, and the deviation from it, ``[F]`` float64.

    Equal numbers have the deviation 0, as have those that differ by rounding alone, and those whose weights overflow.
    """
    unit = np.ldexp(1.0, np.frexp(abs(X).max(0).astype(np.float64))[1] - 1)  # powers of two round nothing
    first = X[0] / unit if centre else 0.0
    rest = X / unit - first
    middle = np.average(rest, 0, times) if centre else 0.0
    mean = np.broadcast_to(unit * (first + middle), unit.shape)
    deviation = unit * np.sqrt(np.average(np.square(rest - middle), 0, times))
    return mean, np.where(deviation > np.maximum(np.finfo(X.dtype).eps * abs(mean), _LEAST), deviation, 0.0)
